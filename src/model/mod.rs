//! The plain values that everything speaks of: who, which partition, which position. No I/O, no clock.

mod checkpoint;
mod connection_string;
mod conversions;
mod listed;
mod names;
mod owner;
mod ownership;
mod presence;
mod version;

pub use checkpoint::{CheckpointRecord, Position};
pub use listed::{Heartbeat, Moment, Ownership};
pub use names::{ConsumerGroup, InvalidName, PartitionId};
pub use owner::{Identity, Incarnation, OwnerId};
pub use ownership::{LeaseDurations, LeaseScope, OwnershipRecord, Relation};
pub use presence::HeartbeatRecord;
pub use version::ETag;
