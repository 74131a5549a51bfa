//! Which instance should own which partition: pure decisions over plain values, without a clock and without I/O.
//!
//! [`observe`] turns a listing into a [`View`] of the group at one moment. [`plan()`] decides what one instance should
//! do about it. Every instance decides for itself. If several want the same partition, the ETags of the store decide
//! which one wins.
//!
//! With P partitions and N live owners, the share of each owner is `floor(P/N)`, and `P mod N` owners own one more. An
//! owner below its target claims unowned partitions first, then expired ones, and then steals from the owner with the
//! most. No owner is ever left with less than its share, so a balanced group never moves a partition. For other ways to
//! share, and for how many rounds each one takes, see [`LoadBalancingStrategy`].
//!
//! An owner without partitions appears in no ownership record. If it sends a heartbeat, other instances still count it
//! ([`Observer::heartbeats`]). Otherwise the first round, in which it claims its first partition, may use a number of
//! owners that is too small.
//!
//! An owner that is below its share and claims nothing, for any reason, does not count while partitions are unowned
//! ([`Policy::idle`]): the others claim all of them.
//!
//! If a live owner has too many partitions, they are stolen from it, or, with [`Policy::handoff`], requested. A
//! requested partition counts for the requesting instance from then on ([`PartitionView::handoff_to`]), and arrives
//! when its owner has finished the events in flight.

mod candidates;
pub(crate) mod fairness;
mod idle;
mod observation;
mod plan;
mod planning;
mod policy;
pub(crate) mod postconditions;
mod shares;
#[cfg(test)]
mod tests;
mod view;
mod weighted;

#[cfg(feature = "testing")]
pub use crate::model::{ETag, Heartbeat, Moment, Ownership};
pub use idle::Idleness;
pub use observation::{Observer, observe};
pub use plan::{ClaimReason, Plan, PlannedClaim, PlannedHandoff, PlannedRelease, ReleaseReason};
pub use planning::plan;
pub use policy::{Assignment, ClaimPace, LoadBalancingStrategy, Policy};
pub use view::{LiveOwnership, PartitionOwner, PartitionView, View};
#[cfg(feature = "testing")]
pub use weighted::weights;
