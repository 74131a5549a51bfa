//! Other ways to share partitions, to compare with: not a part of what is promised.
//!
//! [`Foreign`](super::Foreign) has those of the official SDKs.

mod lease_grab;

pub use self::lease_grab::LeaseGrab;
