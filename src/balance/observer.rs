//! What an instance knows when it looks at its group: what answers showed, and what it is itself.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{Identity, LeaseTerms, OwnershipRecord, PartitionId, PresenceRecord};

/// A point on an instance's own monotonic clock: the time since some fixed moment. Only differences mean anything.
pub type Moment = Duration;

/// One ownership record, as an answer showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whose record it is.
    pub partition: PartitionId,
    /// What it says.
    pub record: OwnershipRecord,
    /// Time since it was last written, by the server's clock, when the server answered.
    pub age: Duration,
    /// When the answer was here.
    pub received: Moment,
    /// It lies in the other tree of names, which some SDKs use.
    pub other_tree: bool,
}

/// One presence record, as an answer showed it.
///
/// Who is present is given a share, also while it owns nothing. So nobody may be who would not claim one, because it is
/// stalled, say, or about to end: the others would leave its share to it, and nobody would read that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attendance {
    /// What it says.
    pub record: PresenceRecord,
    /// Time since it was last written, by the server's clock, when the server answered.
    pub age: Duration,
    /// When the answer was here.
    pub received: Moment,
}

impl Attendance {
    pub(super) fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }

    pub(super) fn is_live(&self, observer: &Observer<'_>, now: Moment) -> bool {
        let lifetime = observer.terms.expiry + LeaseTerms::GRACE;
        self.record.broken_by.is_none() && observer.forgiven(self.age_at(now), now) < lifetime
    }
}

/// Who looks at a listing, and what it knows beside it.
#[derive(Clone, Copy, Debug)]
pub struct Observer<'a> {
    /// Who is looking.
    pub me: &'a Identity,
    /// How long an ownership lives without renewal.
    pub terms: LeaseTerms,
    /// The partitions that I run.
    pub running: &'a BTreeSet<PartitionId>,
    /// Who says that it is there. May be left empty: then whoever owns nothing is not known.
    pub presences: &'a [Attendance],
    /// The time between the cycles of the one to whom a partition is handed over. A released partition is reserved for
    /// it for so long and the [grace](LeaseTerms::GRACE).
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
