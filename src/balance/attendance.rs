//! Who is there, whether it owns anything or not.

use std::collections::HashMap;
use std::time::Duration;

use super::view::{Moment, Observer};
use crate::model::{Incarnation, LeaseTerms, OwnerId, PresenceRecord};

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
    fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }

    fn is_live(&self, observer: &Observer<'_>, now: Moment) -> bool {
        let lifetime = observer.terms.expiry + LeaseTerms::GRACE;
        self.record.broken_by.is_none() && observer.forgiven(self.age_at(now), now) < lifetime
    }
}

/// The presence of each owner: of several, that of its latest life.
pub(super) struct Attendances<'a>(HashMap<&'a OwnerId, &'a Attendance>);

impl<'a> Attendances<'a> {
    pub(super) fn of(listing: &'a [Attendance]) -> Self {
        let mut latest: HashMap<&OwnerId, &Attendance> = HashMap::with_capacity(listing.len());
        for seen in listing {
            let known = latest.entry(&seen.record.owner).or_insert(seen);
            if seen.record.incarnation > known.record.incarnation {
                *known = seen;
            }
        }
        Self(latest)
    }

    /// Those that count at `now`, in no order.
    pub(super) fn live(&self, observer: &Observer<'_>, now: Moment) -> Vec<&'a PresenceRecord> {
        self.0.values().filter(|seen| seen.is_live(observer, now)).map(|seen| &seen.record).collect()
    }

    /// How long ago this life of an owner last wrote its presence, if nobody has declared it dead since.
    pub(super) fn age_of(&self, owner: &OwnerId, life: Option<&Incarnation>, now: Moment) -> Option<Duration> {
        let seen = self.0.get(owner)?;
        let same = seen.record.incarnation.as_ref() == life && seen.record.broken_by.is_none();
        same.then(|| seen.age_at(now))
    }
}
