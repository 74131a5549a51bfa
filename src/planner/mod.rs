//! Who should own what: pure decisions over plain values. No clock, no I/O.
//!
//! [`observe`] turns a listing into a [`View`] of the group at one moment; [`plan`] says what one instance should do
//! about it. Every instance decides for itself; the ETags of the store settle who wins where two want the same.
//!
//! With P partitions and N live owners, everybody's share is `floor(P/N)`, and `P mod N` owners hold one more. An owner
//! below its target claims: free partitions first, then expired ones, then from the owner that holds the most. Nobody
//! is ever brought below its share, so a balanced group never moves a partition again. Other ways to share, and how
//! many rounds each takes: [`LoadBalancingStrategy`].
//!
//! An owner that holds nothing is in no ownership record. If it writes its presence, others count it all the same
//! ([`Observer::heartbeats`]); if not, the first round, in which it takes its first partition, may share by a number that is too
//! small.
//!
//! An owner that is below its share and takes nothing, for any reason, does not count where something is unowned
//! ([`Policy::idle`]): the others take all of that.
//!
//! What a live owner has too much is stolen from it, or, with [`Policy::handoff`], asked for: it counts for the one who
//! asks from then on ([`PartitionView::handoff_to`]), and comes when its owner has finished what it had begun.

mod attendance;
mod candidates;
mod census;
mod idle;
mod observer;
mod plan;
mod policy;
mod shares;
mod view;
mod weighted;

#[cfg(feature = "testing")]
pub use crate::model::{ETag, Heartbeat, Moment, Ownership};
pub use idle::Idleness;
pub use observer::Observer;
pub use plan::{ClaimReason, Plan, PlannedClaim, PlannedHandoff, PlannedRelease, ReleaseReason, plan};
pub use policy::{Assignment, LoadBalancingStrategy, Policy};
pub use view::{PartitionOwner, PartitionView, View, observe};
#[cfg(feature = "testing")]
pub use weighted::weights;
