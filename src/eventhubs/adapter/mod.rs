//! The checkpoint store of the official `EventProcessor`, on the store of this crate.

mod checkpoint_store;
mod groups;
mod memory;
mod owned_partitions;

pub use checkpoint_store::{BlobCheckpointStore, BlobCheckpointStoreBuilder};
