//! Partition ownership and checkpoints for Azure Event Hubs consumers, kept in Azure Blob Storage.

// The library's own rules, which tests and examples need not keep.
#![warn(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod balance;
pub mod balancer;
pub mod blob;
pub mod clock;
pub mod codec;
mod error;
#[cfg(feature = "eventhubs")]
pub mod eventhubs;
mod model;
pub mod processor;
pub mod store;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{Error, ErrorKind, Result};
pub use model::{
    CheckpointRecord, ConsumerGroup, Identity, Incarnation, InvalidName, LeaseTerms, OwnerId, OwnershipRecord,
    PartitionId, Position, Relation,
};
pub use telemetry::RequestCounts;
