//! The leases that this instance holds, when each is due for renewal, and when it can have expired elsewhere.
//!
//! All moments are those of the store's lease clock; instants are tokio's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::balance::Moment;
use crate::model::{OwnerId, PartitionId};
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
    /// To be released when its handler has stopped, or at this moment.
    surrendered: Option<Instant>,
    draining: Draining,
}

/// Whether somebody asked for a lease, and what its record says to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    /// Nobody did.
    No,
    /// It is to say that it drains.
    Owed,
    /// It says so.
    Said,
}

impl Held {
    /// Whether it is about to be given back.
    fn is_given_back(&self) -> bool {
        self.release_next || self.surrendered.is_some()
    }

    /// Whoever asked for it waits for the answer.
    fn owes_answer(&self) -> bool {
        self.draining == Draining::Owed
    }

    fn due(&self, age: Duration) -> Option<Moment> {
        let due = if self.owes_answer() { Moment::ZERO } else { self.lease.valid_from() + age.mul_f64(self.spread) };
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
        let before = self.0.get(lease.partition()).filter(|held| held.lease.tenure() == lease.tenure());
        let draining = match before.map(|held| held.draining) {
            None | Some(Draining::No) => Draining::No,
            Some(_) if lease.record().draining => Draining::Said,
            Some(_) => Draining::Owed,
        };
        let held = Held {
            surrendered: before.and_then(|held| held.surrendered),
            known_since: now,
            spread,
            not_before: Some(now + if draining == Draining::Owed { Duration::ZERO } else { pause }),
            renewing: false,
            release_next: false,
            draining,
            lease: if draining == Draining::No { lease } else { lease.with_draining() },
        };
        self.0.insert(held.lease.partition().clone(), held);
    }

    /// When the next renewal is due, if each is due at this age.
    pub(super) fn next_due(&self, age: Duration) -> Option<Moment> {
        self.0.values().filter_map(|held| held.due(age)).min()
    }

    /// How long ago the one that was renewed longest ago was. Nothing is as old as none.
    pub(super) fn greatest_age(&self, now: Moment) -> Duration {
        let ages = self.0.values().map(|held| now.saturating_sub(held.lease.valid_from()));
        ages.max().unwrap_or_default()
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

    /// Somebody asked for it: its record is to say at once that it drains. Answers whether that is news.
    pub(super) fn drain(&mut self, partition: &PartitionId, tenure: u64) -> bool {
        let held =
            self.0.get_mut(partition).filter(|held| held.lease.tenure() == tenure && held.draining == Draining::No);
        let Some(held) = held else { return false };
        (held.draining, held.not_before) = (Draining::Owed, None);
        held.lease = held.lease.clone().with_draining();
        true
    }

    /// Who asked for it has died; its next renewal says so.
    pub(super) fn drop_mark(&mut self, partition: &PartitionId) {
        if let Some(held) = self.0.get_mut(partition).filter(|held| held.draining == Draining::No) {
            held.lease = held.lease.clone().without_mark();
        }
    }

    /// Its release is to say that it is not wanted back before this moment of the server's clock.
    pub(super) fn cool_down(&mut self, partition: &PartitionId, until: OffsetDateTime) {
        if let Some(held) = self.0.get_mut(partition) {
            held.lease = held.lease.clone().with_cool_down(until);
        }
    }

    /// Who asked for it, as far as its last renewal knows.
    pub(super) fn asked_for_by(&self, partition: &PartitionId, tenure: u64) -> Option<&OwnerId> {
        self.0.get(partition).filter(|held| held.lease.tenure() == tenure)?.lease.asked_for_by()
    }

    /// Those whose handlers stop because somebody asked for them.
    pub(super) fn is_draining(&self, partition: &PartitionId) -> bool {
        self.0.get(partition).is_some_and(|held| held.draining != Draining::No)
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

    /// Marks a lease as to be released when its handler has stopped, or at this moment. Answers whether that is news.
    pub(super) fn surrender(&mut self, partition: &PartitionId, tenure: u64, until: Instant) -> bool {
        let held = self.0.get_mut(partition).filter(|held| held.lease.tenure() == tenure && !held.is_given_back());
        held.map(|held| held.surrendered = Some(until)).is_some()
    }

    pub(super) fn is_surrendered(&self, partition: &PartitionId, tenure: u64) -> bool {
        let held = self.0.get(partition).filter(|held| held.lease.tenure() == tenure);
        held.is_some_and(|held| held.surrendered.is_some())
    }

    /// Those surrendered until this moment or before, and not on their way yet.
    pub(super) fn overdue(&self, now: Instant) -> Vec<(PartitionId, u64)> {
        let overdue = self.surrendered().filter(|(_, _, until)| *until <= now);
        overdue.map(|(partition, tenure, _)| (partition.clone(), tenure)).collect()
    }

    /// When the first of them is overdue.
    pub(super) fn next_overdue(&self) -> Option<Instant> {
        self.surrendered().map(|(_, _, until)| until).min()
    }

    fn surrendered(&self) -> impl Iterator<Item = (&PartitionId, u64, Instant)> {
        let waiting = self.0.iter().filter(|(_, held)| !held.release_next);
        waiting.filter_map(|(partition, held)| Some((partition, held.lease.tenure(), held.surrendered?)))
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

    /// Those that are to be processed: all but the ones about to be given back.
    pub(super) fn kept(&self) -> BTreeMap<PartitionId, u64> {
        let kept = self.0.iter().filter(|(_, held)| !held.is_given_back());
        kept.map(|(partition, held)| (partition.clone(), held.lease.tenure())).collect()
    }

    /// Those that are about to be given back.
    pub(super) fn given_back(&self) -> impl Iterator<Item = &PartitionId> {
        self.0.iter().filter(|(_, held)| held.is_given_back()).map(|(partition, _)| partition)
    }

    pub(super) fn tenures(&self) -> BTreeMap<PartitionId, u64> {
        self.0.iter().map(|(partition, held)| (partition.clone(), held.lease.tenure())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::{ConsumerGroup, OwnerId};
    use crate::store::{Claim, ClaimOutcome, GroupStore};
    use std::sync::Arc;

    async fn store() -> GroupStore {
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let owner = OwnerId::new("a").unwrap();
        GroupStore::builder(Arc::new(MemoryContainer::new()), group, owner).connect().await.unwrap()
    }

    fn won(outcome: ClaimOutcome) -> Lease {
        match outcome {
            ClaimOutcome::Won(lease) => lease,
            other => panic!("not won: {other:?}"),
        }
    }

    fn hold(leases: &mut Leases, lease: &Lease) {
        leases.hold(lease.clone(), 1.0, Moment::ZERO, Duration::ZERO);
    }

    #[tokio::test]
    async fn what_is_given_back_is_renewed_but_not_kept_and_a_new_tenure_knows_nothing_of_it() {
        let (store, partition, mut leases) = (store().await, PartitionId::from(0), Leases::default());
        let first = won(store.claim_one(&Claim::unowned(partition.clone())).await);
        hold(&mut leases, &first);
        let until = Instant::now();
        assert!(leases.surrender(&partition, first.tenure(), until));
        assert!(!leases.surrender(&partition, first.tenure(), until), "it is no news");

        hold(&mut leases, &won(store.renew_one(&first).await));
        assert!(leases.kept().is_empty() && leases.tenures().len() == 1);
        assert_eq!(leases.given_back().collect::<Vec<_>>(), [&partition]);
        assert_eq!((leases.next_overdue(), leases.overdue(until).len()), (Some(until), 1));

        // Lost, and won again.
        let listed = store.list_ownerships().await.unwrap().records.remove(0);
        let second = won(store.claim_one(&Claim::over(partition.clone(), listed.etag)).await);
        hold(&mut leases, &second);
        assert_eq!(leases.kept(), [(partition.clone(), second.tenure())].into());
        assert!(!leases.is_surrendered(&partition, second.tenure()) && leases.next_overdue().is_none());
    }

    #[tokio::test]
    async fn who_is_asked_for_a_lease_owes_an_answer_until_the_record_gives_it() {
        let (store, partition, mut leases) = (store().await, PartitionId::from(0), Leases::default());
        let lease = won(store.claim_one(&Claim::unowned(partition.clone())).await);
        hold(&mut leases, &lease);
        let far = Duration::from_secs(60);
        assert!(leases.start_renewals(far, lease.valid_from()).is_empty());
        assert!(leases.drain(&partition, lease.tenure()));
        assert!(!leases.drain(&partition, lease.tenure()), "it is no news");
        assert!(leases.is_draining(&partition));
        // An answer of before counts for nothing.
        hold(&mut leases, &won(store.renew_one(&lease).await));
        let due = leases.start_renewals(far, lease.valid_from());
        assert!(matches!(&due[..], [lease] if lease.record().draining));
        hold(&mut leases, &won(store.renew_one(&due[0]).await));
        assert!(leases.start_renewals(far, lease.valid_from()).is_empty());
        assert!(leases.is_draining(&partition));
    }

    #[tokio::test]
    async fn what_waits_for_its_renewal_to_end_before_it_is_released_is_not_kept_either() {
        let (store, partition, mut leases) = (store().await, PartitionId::from(0), Leases::default());
        let lease = won(store.claim_one(&Claim::unowned(partition.clone())).await);
        hold(&mut leases, &lease);
        assert_eq!(leases.start_renewals(Duration::ZERO, Moment::MAX).len(), 1);
        assert_eq!(leases.take_for_release(&partition, lease.tenure()), None);
        assert!(leases.kept().is_empty() && leases.is_to_be_released(&partition, lease.tenure()));
        assert_eq!(leases.end_renewal(&partition, lease.tenure()), AfterRenewal::ToRelease);
    }
}
