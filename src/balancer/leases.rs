//! The leases that this instance holds, when each is due for renewal, and when it can have expired elsewhere.
//!
//! All moments are those of the store's lease clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::balance::Moment;
use crate::model::PartitionId;
use crate::store::Lease;

#[derive(Debug)]
struct Held {
    lease: Lease,
    /// When it was won or last renewed, by the arrival of the answer.
    known_since: Moment,
    /// A little below 1: spreads leases that were won together.
    spread: f64,
    /// Not to be written before, after a renewal that failed.
    not_before: Option<Moment>,
    /// A renewal is under way. Operations on one partition come one after another.
    renewing: bool,
    /// To be released when the renewal that is under way has ended.
    release_next: bool,
}

impl Held {
    fn due(&self, age: Duration) -> Option<Moment> {
        let due = self.lease.valid_from() + age.mul_f64(self.spread);
        (!self.renewing).then(|| self.not_before.map_or(due, |not_before| due.max(not_before)))
    }
}

/// What became of a lease whose renewal has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterRenewal {
    /// It was given up meanwhile: the answer is of no interest.
    Gone,
    /// It is held as before.
    Held,
    /// It was to be released as soon as possible.
    ToRelease,
}

#[derive(Debug, Default)]
pub(super) struct Leases(BTreeMap<PartitionId, Held>);

impl Leases {
    /// Takes a lease that was won or renewed. `pause` keeps a lease whose renewal stands as it was from being renewed
    /// again and again.
    pub(super) fn hold(&mut self, lease: Lease, spread: f64, now: Moment, pause: Duration) {
        let held = Held {
            known_since: now,
            spread,
            not_before: Some(now + pause),
            renewing: false,
            release_next: false,
            lease,
        };
        self.0.insert(held.lease.partition().clone(), held);
    }

    /// When the next renewal is due, if each is due at this age.
    pub(super) fn next_due(&self, age: Duration) -> Option<Moment> {
        self.0.values().filter_map(|held| held.due(age)).min()
    }

    /// The leases that are due now; they count as being renewed from here on.
    pub(super) fn start_renewals(&mut self, age: Duration, now: Moment) -> Vec<Lease> {
        let due = self.0.values_mut().filter(|held| held.due(age).is_some_and(|due| due <= now));
        due.map(|held| {
            held.renewing = true;
            held.lease.clone()
        })
        .collect()
    }

    /// A renewal has ended, whatever its outcome.
    pub(super) fn end_renewal(&mut self, partition: &PartitionId, tenure: u64) -> AfterRenewal {
        match self.0.get_mut(partition) {
            Some(held) if held.lease.tenure() == tenure => {
                held.renewing = false;
                if held.release_next { AfterRenewal::ToRelease } else { AfterRenewal::Held }
            }
            _ => AfterRenewal::Gone,
        }
    }

    pub(super) fn postpone(&mut self, partition: &PartitionId, not_before: Moment) {
        if let Some(held) = self.0.get_mut(partition) {
            held.not_before = Some(not_before);
        }
    }

    /// Whether there is nothing more to be done for its release: it is due already, or no longer held in this tenure.
    pub(super) fn is_to_be_released(&self, partition: &PartitionId, tenure: u64) -> bool {
        self.0.get(partition).is_none_or(|held| held.lease.tenure() != tenure || held.release_next)
    }

    /// Takes a lease out in order to release it; nothing while its renewal is under way, after which it is due for
    /// release.
    pub(super) fn take_for_release(&mut self, partition: &PartitionId, tenure: u64) -> Option<Lease> {
        let held = self.0.get_mut(partition).filter(|held| held.lease.tenure() == tenure)?;
        if held.renewing {
            held.release_next = true;
            return None;
        }
        self.remove(partition)
    }

    /// Takes a lease out, if it is still of this tenure.
    pub(super) fn forget(&mut self, partition: &PartitionId, tenure: u64) -> Option<Lease> {
        self.0.get(partition).filter(|held| held.lease.tenure() == tenure)?;
        self.remove(partition)
    }

    /// Those that others may have taken for abandoned at `now`, if this is the time for which they count.
    pub(super) fn outlived(&self, lifetime: Duration, now: Moment) -> Vec<PartitionId> {
        let outlived = self.0.iter().filter(|(_, held)| held.lease.valid_from() + lifetime <= now);
        outlived.map(|(partition, _)| partition.clone()).collect()
    }

    /// When the first one is outlived.
    pub(super) fn next_outlived(&self, lifetime: Duration) -> Option<Moment> {
        self.0.values().map(|held| held.lease.valid_from() + lifetime).min()
    }

    pub(super) fn remove(&mut self, partition: &PartitionId) -> Option<Lease> {
        self.0.remove(partition).map(|held| held.lease)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn partitions(&self) -> BTreeSet<PartitionId> {
        self.0.keys().cloned().collect()
    }

    /// Those of which a listing that was asked for at `asked` may know less: they are being renewed, or their last answer
    /// came since. The write behind it was applied before it came, but perhaps after the listing was made.
    pub(super) fn newer_than(&self, asked: Moment) -> BTreeSet<PartitionId> {
        let newer = self.0.iter().filter(|(_, held)| held.renewing || held.known_since >= asked);
        newer.map(|(partition, _)| partition.clone()).collect()
    }

    pub(super) fn tenures(&self) -> BTreeMap<PartitionId, u64> {
        self.0.iter().map(|(partition, held)| (partition.clone(), held.lease.tenure())).collect()
    }
}
