//! What an instance knows when it observes its group: what responses showed, and what it is itself.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{Heartbeat, Identity, LeaseDurations, Moment, PartitionId};

/// The instance that observes a listing, and what it knows in addition.
#[derive(Clone, Copy, Debug)]
pub struct Observer<'a> {
    /// The observing instance.
    pub this: &'a Identity,
    /// How long ownerships are valid without renewal that do not say so themselves.
    pub lease_durations: LeaseDurations,
    /// The partitions that this instance runs.
    pub running: &'a BTreeSet<PartitionId>,
    /// The heartbeats. May be empty: then owners without partitions are unknown.
    pub heartbeats: &'a [Heartbeat],
    /// When an outage of this instance ended, if there was one: for a while none of its requests succeeded. The same
    /// cause may have stopped the others, so a record that was last written before that moment counts as live for one
    /// lease duration from there on. A record that was written later counts by its own age. Only the last outage is
    /// needed, and it may be kept forever.
    pub outage_ended: Option<Moment>,
}

impl Observer<'_> {
    /// Returns an age, counted from the end of the last outage at the earliest.
    pub(super) fn age_since_outage(&self, age: Duration, now: Moment) -> Duration {
        self.outage_ended.map_or(age, |ended| age.min(now.saturating_sub(ended)))
    }
}
