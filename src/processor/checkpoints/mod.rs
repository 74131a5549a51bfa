//! The checkpoints of a partition: what the application requests, what they may pass, and how they are written.

pub(in crate::processor) mod pending;
pub(in crate::processor) mod requests;
pub(in crate::processor) mod tracker;
pub(in crate::processor) mod writer;
