//! Where a partition starts, and which partitions there are.

pub(in crate::processor) mod discovery;
pub(in crate::processor) mod invalid;

pub use invalid::{InvalidCheckpoint, InvalidReason, OnInvalidCheckpoint};
