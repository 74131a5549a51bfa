//! Where a partition starts, and which partitions there are.

pub(in crate::processor) mod discovery;
pub(in crate::processor) mod hub_creation;
pub(in crate::processor) mod invalid;
pub(in crate::processor) mod new_partitions;
pub(in crate::processor) mod partition_start;

pub use invalid::{InvalidCheckpoint, InvalidReason, OnInvalidCheckpoint};
pub use partition_start::PartitionStart;
