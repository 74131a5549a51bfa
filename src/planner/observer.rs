//! What an instance knows when it looks at its group: what answers showed, and what it is itself.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{Heartbeat, Identity, LeaseDurations, Moment, Ownership, PartitionId};

/// Who looks at a listing, and what it knows beside it.
#[derive(Clone, Copy, Debug)]
pub struct Observer<'a> {
    /// Who is looking.
    pub this: &'a Identity,
    /// How long an ownership lives without renewal.
    pub lease_durations: LeaseDurations,
    /// The partitions that I run.
    pub running: &'a BTreeSet<PartitionId>,
    /// The ownerships in the other tree of names, which some SDKs use. May be left empty: then their owners are not
    /// known.
    pub other_name_case: &'a [Ownership],
    /// The presences. May be left empty: then an owner that owns nothing is not known.
    pub heartbeats: &'a [Heartbeat],
    /// The time between the cycles of the one to whom a partition is handed over. A released partition is reserved for
    /// it for so long and the [grace](LeaseDurations::GRACE).
    pub interval: Duration,
    /// When an outage of mine ended, if there was one: for a while no request of mine had succeeded. What stopped me
    /// may have stopped the others, so a record last written before that end counts as live for one expiry from there
    /// on. One written later counts by its own age. The last outage is enough, and it may be kept for ever.
    pub outage_ended: Option<Moment>,
}

impl Observer<'_> {
    /// An age that begins anew with the end of an outage of mine.
    pub(super) fn forgiven(&self, age: Duration, now: Moment) -> Duration {
        self.outage_ended.map_or(age, |ended| age.min(now.saturating_sub(ended)))
    }
}
