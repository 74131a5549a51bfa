//! What tests need, of this crate and of its users.

pub mod memory_hub;
