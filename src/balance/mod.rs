//! Who should own what: pure decisions over plain values. No clock, no I/O.
//!
//! [`observe`] turns a listing into a [`View`] of the group at one moment; [`plan`] says what one instance should do
//! about it. Every instance decides for itself; the ETags of the store settle who wins where two want the same.
//!
//! With P partitions and N live owners, everybody's share is `floor(P/N)`, and `P mod N` owners hold one more. An owner
//! below its target claims: free partitions first, then expired ones, then from the owner that holds the most. Nobody is
//! ever brought below its share, so a balanced group never moves a partition again.

mod plan;
mod view;

pub use plan::{ClaimReason, Plan, PlannedClaim, Policy, Strategy, plan};
pub use view::{Holder, Moment, Observation, PartitionView, View, observe};
