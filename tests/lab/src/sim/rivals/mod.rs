//! Other ways to share partitions, for comparison only: no guarantees are checked for them.
//!
//! [`Foreign`](super::Foreign) implements those of the official SDKs.

mod lease_grab;

pub use self::lease_grab::LeaseGrab;
