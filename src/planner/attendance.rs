//! Who is there, whether it owns anything or not.

use std::collections::HashMap;
use std::time::Duration;

use super::observer::Observer;
use crate::model::{Heartbeat, HeartbeatRecord, Incarnation, LeaseDurations, Moment, OwnerId};

/// The presence of each owner: of several, that of its latest life.
pub(super) struct Heartbeats<'a>(HashMap<&'a OwnerId, &'a Heartbeat>);

impl<'a> Heartbeats<'a> {
    pub(super) fn of(listing: &'a [Heartbeat]) -> Self {
        let mut latest: HashMap<&OwnerId, &Heartbeat> = HashMap::with_capacity(listing.len());
        for seen in listing {
            let known = latest.entry(&seen.record.owner).or_insert(seen);
            if seen.record.incarnation > known.record.incarnation {
                *known = seen;
            }
        }
        Self(latest)
    }

    /// Those that count at `now`, in no order.
    pub(super) fn live(&self, observer: &Observer<'_>, now: Moment) -> Vec<&'a HeartbeatRecord> {
        self.0.values().filter(|seen| is_live(seen, observer, now)).map(|seen| &seen.record).collect()
    }

    /// How long ago this life of an owner last wrote its presence, if nobody has declared it dead since.
    pub(super) fn age_of(&self, owner: &OwnerId, life: Option<&Incarnation>, now: Moment) -> Option<Duration> {
        let seen = self.0.get(owner)?;
        let same = seen.record.incarnation.as_ref() == life && seen.record.declared_dead_by.is_none();
        same.then(|| seen.age_at(now))
    }
}

fn is_live(seen: &Heartbeat, observer: &Observer<'_>, now: Moment) -> bool {
    let lifetime = observer.lease_durations.own + LeaseDurations::GRACE;
    seen.record.declared_dead_by.is_none() && observer.forgiven(seen.age_at(now), now) < lifetime
}
