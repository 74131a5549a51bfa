//! Who is there, whether it owns anything or not.

use std::collections::HashMap;
use std::time::Duration;

use super::observer::{Attendance, Moment, Observer};
use crate::model::{Incarnation, OwnerId, PresenceRecord};

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
