//! The plain values that all modules use: owners, partitions, positions and records. No I/O, no clock.

mod blob;
mod leases;
mod names;
mod owner;
mod pause;
mod records;

pub use blob::{ETag, Metadata};
pub use leases::{Heartbeat, LeaseDurations, Moment, Ownership};
pub use names::{BlobNameCase, ConsumerGroup, InvalidName, NameCase, PartitionId};
pub use owner::{Identity, Incarnation, OwnerId, Relation};
pub use pause::Pause;
pub use records::{CheckpointRecord, HeartbeatRecord, LeaseScope, OwnershipRecord, Position};
