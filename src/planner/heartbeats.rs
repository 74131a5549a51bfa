//! Heartbeats: which owners are alive, whether they own anything or not.

use std::collections::HashMap;
use std::time::Duration;

use super::observer::Observer;
use crate::model::{Heartbeat, HeartbeatRecord, Incarnation, Moment, OwnerId};

/// The heartbeat of each owner. Of several, that of its latest incarnation.
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

    /// Returns the heartbeats that count at `now`, in no particular order.
    pub(super) fn live(&self, observer: &Observer<'_>, now: Moment) -> Vec<&'a HeartbeatRecord> {
        self.0.values().filter(|seen| is_live(seen, observer, now)).map(|seen| &seen.record).collect()
    }

    /// Returns how long ago this incarnation of an owner last sent a heartbeat, unless it was declared dead since then.
    pub(super) fn age_of(&self, owner: &OwnerId, incarnation: Option<&Incarnation>, now: Moment) -> Option<Duration> {
        let seen = self.0.get(owner)?;
        let same = seen.record.incarnation.as_ref() == incarnation && seen.record.declared_dead_by.is_none();
        same.then(|| seen.age_at(now))
    }
}

fn is_live(seen: &Heartbeat, observer: &Observer<'_>, now: Moment) -> bool {
    observer.lease_durations.counts_as_present(&seen.record, observer.age_since_outage(seen.age_at(now), now))
}
