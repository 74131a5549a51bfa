//! The adapter for the official `EventProcessor`: its checkpoint store, the groups that it serves, and the partitions
//! that it owns.

mod checkpoint_store;
mod group_memory;
mod groups;
mod owned_partitions;

pub use checkpoint_store::{BlobCheckpointStore, BlobCheckpointStoreBuilder};
