//! The plain values that all modules use: owners, partitions, positions and records. No I/O, no clock.

mod checkpoint;
mod connection_string;
mod conversions;
mod heartbeat;
mod lease_durations;
mod listed;
mod metadata;
mod name_case;
mod names;
mod owner;
mod ownership;
mod version;

pub use checkpoint::{CheckpointRecord, Position};
pub use heartbeat::HeartbeatRecord;
pub use lease_durations::LeaseDurations;
pub use listed::{Heartbeat, Moment, Ownership};
pub use metadata::Metadata;
pub use name_case::{BlobNameCase, NameCase};
pub use names::{ConsumerGroup, InvalidName, PartitionId};
pub use owner::{Identity, Incarnation, OwnerId};
pub use ownership::{LeaseScope, OwnershipRecord, Relation};
pub use version::ETag;
