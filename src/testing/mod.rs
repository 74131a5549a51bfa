//! What tests need, of this crate and of its users.
