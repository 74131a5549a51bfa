//! The leases that this instance holds, when each is due for renewal, and when it can have expired elsewhere.
//!
//! All moments are those of the store's lease clock; instants are tokio's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::retries::Turns;
use crate::balance::Moment;
use crate::model::{LeaseScope, OwnerId, PartitionId};
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
    /// As long as no renewal succeeds, not before its turn either.
    turn: Turn,
    /// How many renewals have failed in a row.
    failures: u32,
    /// A renewal is under way. Operations on one partition come one after another.
    renewing: bool,
    /// To be released when the renewal that is under way has ended.
    release_next: bool,
    /// To be released when its handler has stopped, or at this moment.
    surrendered: Option<Instant>,
    draining: Draining,
    /// What its record says keeps it alive.
    recorded: LeaseScope,
    rewrite: Rewrite,
    /// Its record may have been taken over while this instance was not present, so that it lives by its own age until
    /// it is written anew.
    doubted: bool,
    /// Asked for it and has died: the mark is to be taken away, at once.
    unheeded: Option<OwnerId>,
}

/// Whether a renewal waits for its turn among those that have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    NotNeeded,
    Awaited,
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

/// Whether the record of a lease has to be written, whatever it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rewrite {
    #[default]
    No,
    Owed,
    UnderWay,
}

impl Held {
    /// The moment from which the expiry counts.
    fn valid_from(&self, presence: Option<Presence>) -> Moment {
        let presence = presence.filter(|_| self.is_by_presence() && !self.doubted);
        presence.map_or(self.lease.valid_from(), |presence| presence.last.max(self.lease.valid_from()))
    }

    fn is_by_presence(&self) -> bool {
        self.recorded == LeaseScope::Instance
    }

    fn owe_rewriting(&mut self, scope: LeaseScope) {
        self.lease = self.lease.clone().rewritten(scope);
        self.rewrite = Rewrite::Owed;
        self.is_due_at_once();
    }

    fn is_due_at_once(&mut self) {
        (self.not_before, self.turn) = (None, Turn::NotNeeded);
    }

    /// Whether it is about to be given back.
    fn is_given_back(&self) -> bool {
        self.release_next || self.surrendered.is_some()
    }

    /// Whoever asked for it waits for the answer; and what others may be about to take over is to be written at once.
    fn is_urgent(&self) -> bool {
        self.draining == Draining::Owed || self.rewrite == Rewrite::Owed || self.unheeded.is_some()
    }

    /// What lives by the presence of this instance is not renewed by itself.
    fn due(&self, age: Duration) -> Option<Moment> {
        let by_age = || (!self.is_by_presence()).then(|| self.lease.valid_from() + age.mul_f64(self.spread));
        let due = if self.is_urgent() { Some(Moment::ZERO) } else { by_age() };
        let due = due.filter(|_| !self.renewing)?;
        self.not_before.into_iter().chain([due]).max()
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

#[derive(Debug)]
pub(super) struct Leases {
    held: BTreeMap<PartitionId, Held>,
    /// What the records are to say keeps them alive.
    scope: LeaseScope,
    /// The last and the first announcement since this instance began, or was declared dead.
    presence: Option<Presence>,
    turns: Turns,
}

/// The moments at which announcements were sent that succeeded.
#[derive(Clone, Copy, Debug)]
struct Presence {
    first: Moment,
    last: Moment,
}

impl Leases {
    pub(super) fn new(scope: LeaseScope) -> Self {
        Self { held: BTreeMap::new(), scope, presence: None, turns: Turns::default() }
    }

    pub(super) fn scope(&self) -> LeaseScope {
        self.scope
    }

    /// From here on the records are to say so: those that do not are due.
    pub(super) fn set_scope(&mut self, scope: LeaseScope) {
        self.scope = scope;
        let others = self.held.values_mut().filter(|held| held.lease.record().scope != scope);
        others.for_each(|held| held.owe_rewriting(scope));
    }

    /// Whether the record of any says that it lives by the presence of this instance.
    pub(super) fn any_by_presence(&self) -> bool {
        self.held.values().any(Held::is_by_presence)
    }

    /// The presence was written, by a request that was sent at this moment. Only now it is worth while to write the
    /// records of those in doubt: before, they could have been taken over again.
    pub(super) fn present_since(&mut self, sent: Moment) {
        let first = self.presence.map_or(sent, |presence| presence.first);
        self.presence = Some(Presence { first, last: sent });
        for held in self.held.values_mut().filter(|held| held.doubted) {
            held.owe_rewriting(self.scope);
        }
    }

    /// The presence counts for nothing any more: those that live by it may have been taken over, or be about to be.
    pub(super) fn declared_dead(&mut self) {
        self.presence = None;
        self.held.values_mut().for_each(|held| held.doubted |= held.is_by_presence());
    }

    /// Whether this instance said so less than this time ago.
    pub(super) fn is_present(&self, lifetime: Duration, now: Moment) -> bool {
        self.presence.is_some_and(|presence| now < presence.last + lifetime)
    }

    /// Takes a lease that was won or renewed. `pause` keeps a lease whose renewal stands as it was from being renewed
    /// again and again.
    pub(super) fn hold(&mut self, lease: Lease, spread: f64, now: Moment, pause: Duration) {
        let before = self.held.get(lease.partition()).filter(|held| held.lease.epoch() == lease.epoch());
        let recorded = lease.record().scope;
        let is_covered = self.presence.is_some_and(|presence| presence.first <= lease.valid_from());
        let rewrite = before.map(|held| held.rewrite).unwrap_or_default();
        // What was written before, and found to stand, is no better than it was.
        let doubted = match before {
            Some(held) if rewrite != Rewrite::UnderWay => held.doubted,
            _ => !is_covered,
        };
        let draining = match before.map(|held| held.draining) {
            None | Some(Draining::No) => Draining::No,
            Some(_) if lease.record().draining => Draining::Said,
            Some(_) => Draining::Owed,
        };
        let unheeded = before.and_then(|held| held.unheeded.clone()).filter(|dead| lease.asked_for_by() == Some(dead));
        let lease = if unheeded.is_some() { lease.without_mark() } else { lease };
        let mut held = Held {
            surrendered: before.and_then(|held| held.surrendered),
            known_since: now,
            spread,
            not_before: Some(
                now + if draining == Draining::Owed || unheeded.is_some() { Duration::ZERO } else { pause },
            ),
            turn: Turn::NotNeeded,
            failures: 0,
            renewing: false,
            release_next: false,
            draining,
            recorded,
            rewrite: Rewrite::No,
            doubted: doubted && recorded == LeaseScope::Instance,
            unheeded,
            lease: if draining == Draining::No { lease } else { lease.with_draining() },
        };
        let in_vain = held.doubted && self.presence.is_some();
        if rewrite == Rewrite::Owed || in_vain || held.lease.record().scope != self.scope {
            held.owe_rewriting(self.scope);
        }
        self.held.insert(held.lease.partition().clone(), held);
        self.storage_answers();
    }

    /// A claim or a renewal was answered: others that have failed need not wait for their turns.
    pub(super) fn storage_answers(&mut self) {
        if self.turns.clear() {
            self.held.values_mut().for_each(|held| held.turn = Turn::NotNeeded);
        }
    }

    /// When the next renewal is due, if each is due at this age.
    pub(super) fn next_due(&self, age: Duration) -> Option<Moment> {
        let turn = |held: &Held| if held.turn == Turn::Awaited { self.turns.next() } else { Moment::ZERO };
        self.held.values().filter_map(|held| Some(held.due(age)?.max(turn(held)))).min()
    }

    /// How long ago the one that was renewed longest ago was. Nothing is as old as none.
    pub(super) fn greatest_age(&self, now: Moment) -> Duration {
        let ages = self.held.values().map(|held| now.saturating_sub(held.valid_from(self.presence)));
        ages.max().unwrap_or_default()
    }

    /// The leases that are due now, of those that wait for a turn only the one that has it; they count as being renewed
    /// from here on.
    pub(super) fn start_renewals(&mut self, age: Duration, now: Moment, expiry: Duration) -> Vec<Lease> {
        self.give_turn(age, now, expiry);
        let due = self.held.values_mut().filter(|held| held.turn == Turn::NotNeeded);
        let due = due.filter(|held| held.due(age).is_some_and(|due| due <= now));
        due.map(|held| {
            held.renewing = true;
            if held.rewrite == Rewrite::Owed {
                held.rewrite = Rewrite::UnderWay;
            }
            held.lease.clone()
        })
        .collect()
    }

    /// To the one that has failed the least often; of several, to the one that expires first.
    fn give_turn(&mut self, age: Duration, now: Moment, expiry: Duration) {
        if now < self.turns.next() {
            return;
        }
        let (leases, presence) = (self.held.len(), self.presence);
        let waiting = self.held.values_mut().filter(|held| held.turn == Turn::Awaited);
        let due = waiting.filter(|held| held.due(age).is_some_and(|due| due <= now));
        if let Some(held) = due.min_by_key(|held| (held.failures, held.valid_from(presence))) {
            held.turn = Turn::NotNeeded;
            self.turns.take(now, leases, expiry);
        }
    }

    /// A renewal has ended, whatever its outcome.
    pub(super) fn end_renewal(&mut self, partition: &PartitionId, epoch: i64) -> AfterRenewal {
        match self.held.get_mut(partition) {
            Some(held) if held.lease.epoch() == epoch => {
                held.renewing = false;
                if held.release_next { AfterRenewal::ToRelease } else { AfterRenewal::Held }
            }
            _ => AfterRenewal::Gone,
        }
    }

    /// Somebody asked for it: its record is to say at once that it drains. Answers whether that is news.
    pub(super) fn drain(&mut self, partition: &PartitionId, epoch: i64) -> bool {
        let held =
            self.held.get_mut(partition).filter(|held| held.lease.epoch() == epoch && held.draining == Draining::No);
        let Some(held) = held else { return false };
        held.draining = Draining::Owed;
        held.is_due_at_once();
        held.lease = held.lease.clone().with_draining();
        true
    }

    /// Who asked for it has died: renewals take that mark away, the first of them at once. One that does not know the
    /// mark yet meets it, and the next one writes without it.
    pub(super) fn drop_mark(&mut self, partition: &PartitionId, dead: &OwnerId) {
        if let Some(held) = self.held.get_mut(partition).filter(|held| held.draining == Draining::No) {
            held.lease = held.lease.clone().without_mark();
            held.unheeded = Some(dead.clone());
            held.is_due_at_once();
        }
    }

    /// Who asked for it, as far as its last renewal knows.
    pub(super) fn asked_for_by(&self, partition: &PartitionId, epoch: i64) -> Option<&OwnerId> {
        self.held.get(partition).filter(|held| held.lease.epoch() == epoch)?.lease.asked_for_by()
    }

    /// Those whose handlers stop because somebody asked for them.
    pub(super) fn is_draining(&self, partition: &PartitionId) -> bool {
        self.held.get(partition).is_some_and(|held| held.draining != Draining::No)
    }

    /// How many of its renewals have failed in a row, and from when on its expiry counts.
    pub(super) fn failing_since(&self, partition: &PartitionId) -> Option<(u32, Moment)> {
        self.held.get(partition).map(|held| (held.failures, held.valid_from(self.presence)))
    }

    /// When the last announcement that succeeded was sent.
    pub(super) fn last_present(&self) -> Option<Moment> {
        self.presence.map(|presence| presence.last)
    }

    /// Its renewal has failed.
    pub(super) fn postpone(&mut self, partition: &PartitionId, not_before: Moment) {
        if let Some(held) = self.held.get_mut(partition) {
            (held.not_before, held.failures) = (Some(not_before), held.failures.saturating_add(1));
            held.turn = Turn::Awaited;
            self.turns.wait();
            if held.rewrite == Rewrite::UnderWay {
                held.rewrite = Rewrite::Owed;
            }
        }
    }

    /// Whether there is nothing more to be done for its release: it is due already, or no longer held in this tenure.
    pub(super) fn is_to_be_released(&self, partition: &PartitionId, epoch: i64) -> bool {
        self.held.get(partition).is_none_or(|held| held.lease.epoch() != epoch || held.release_next)
    }

    /// Marks a lease as to be released when its handler has stopped, or at this moment. Answers whether that is news.
    pub(super) fn surrender(&mut self, partition: &PartitionId, epoch: i64, until: Instant) -> bool {
        let held = self.held.get_mut(partition).filter(|held| held.lease.epoch() == epoch && !held.is_given_back());
        held.map(|held| held.surrendered = Some(until)).is_some()
    }

    pub(super) fn is_surrendered(&self, partition: &PartitionId, epoch: i64) -> bool {
        let held = self.held.get(partition).filter(|held| held.lease.epoch() == epoch);
        held.is_some_and(|held| held.surrendered.is_some())
    }

    /// Until when its handler may take to stop, if another instance asked for it.
    pub(super) fn handed_over_by(&self, partition: &PartitionId) -> Option<Instant> {
        self.held.get(partition).filter(|held| held.draining != Draining::No)?.surrendered
    }

    /// Those surrendered until this moment or before, and not on their way yet.
    pub(super) fn overdue(&self, now: Instant) -> Vec<(PartitionId, i64)> {
        let overdue = self.surrendered().filter(|(_, _, until)| *until <= now);
        overdue.map(|(partition, epoch, _)| (partition.clone(), epoch)).collect()
    }

    /// When the first of them is overdue.
    pub(super) fn next_overdue(&self) -> Option<Instant> {
        self.surrendered().map(|(_, _, until)| until).min()
    }

    fn surrendered(&self) -> impl Iterator<Item = (&PartitionId, i64, Instant)> {
        let waiting = self.held.iter().filter(|(_, held)| !held.release_next);
        waiting.filter_map(|(partition, held)| Some((partition, held.lease.epoch(), held.surrendered?)))
    }

    /// Takes a lease out in order to release it; nothing while its renewal is under way, after which it is due for
    /// release.
    pub(super) fn take_for_release(&mut self, partition: &PartitionId, epoch: i64) -> Option<Lease> {
        let held = self.held.get_mut(partition).filter(|held| held.lease.epoch() == epoch)?;
        if held.renewing {
            held.release_next = true;
            return None;
        }
        self.remove(partition)
    }

    /// Takes a lease out, if it is still of this tenure.
    pub(super) fn forget(&mut self, partition: &PartitionId, epoch: i64) -> Option<Lease> {
        self.held.get(partition).filter(|held| held.lease.epoch() == epoch)?;
        self.remove(partition)
    }

    /// Those that others may have taken for abandoned at `now`, if this is the time for which they count.
    pub(super) fn outlived(&self, lifetime: Duration, now: Moment) -> Vec<PartitionId> {
        let valid_from = |held: &Held| held.valid_from(self.presence);
        let outlived = self.held.iter().filter(|(_, held)| valid_from(held) + lifetime <= now);
        outlived.map(|(partition, _)| partition.clone()).collect()
    }

    /// When the first one is outlived.
    pub(super) fn next_outlived(&self, lifetime: Duration) -> Option<Moment> {
        self.held.values().map(|held| held.valid_from(self.presence) + lifetime).min()
    }

    pub(super) fn remove(&mut self, partition: &PartitionId) -> Option<Lease> {
        self.held.remove(partition).map(|held| held.lease)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn partitions(&self) -> BTreeSet<PartitionId> {
        self.held.keys().cloned().collect()
    }

    /// Those of which a listing that was asked for at `asked` may know less: they are being renewed, or their last
    /// answer came since. The write behind it was applied before it came, but perhaps after the listing was made.
    pub(super) fn newer_than(&self, asked: Moment) -> BTreeSet<PartitionId> {
        let newer = self.held.iter().filter(|(_, held)| held.renewing || held.known_since >= asked);
        newer.map(|(partition, _)| partition.clone()).collect()
    }

    /// Those that are to be processed: all but the ones about to be given back.
    pub(super) fn kept(&self) -> BTreeMap<PartitionId, i64> {
        let kept = self.held.iter().filter(|(_, held)| !held.is_given_back());
        kept.map(|(partition, held)| (partition.clone(), held.lease.epoch())).collect()
    }

    /// Those that are about to be given back.
    pub(super) fn given_back(&self) -> impl Iterator<Item = &PartitionId> {
        self.held.iter().filter(|(_, held)| held.is_given_back()).map(|(partition, _)| partition)
    }

    pub(super) fn epochs(&self) -> BTreeMap<PartitionId, i64> {
        self.held.iter().map(|(partition, held)| (partition.clone(), held.lease.epoch())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::{ConsumerGroup, OwnerId};
    use crate::store::{Claim, ClaimOutcome, GroupStore, MarkOutcome};
    use std::sync::Arc;

    const EXPIRY: Duration = Duration::from_secs(60);

    async fn store() -> GroupStore {
        store_of("a", &Arc::new(MemoryContainer::new())).await
    }

    async fn store_of(owner: &str, container: &Arc<MemoryContainer>) -> GroupStore {
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let owner = OwnerId::new(owner).unwrap();
        GroupStore::builder(container.clone(), group, owner).connect().await.unwrap()
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
        let (store, partition, mut leases) = (store().await, PartitionId::from(0), Leases::new(LeaseScope::Partition));
        let first = won(store.claim_one(&Claim::unowned(partition.clone())).await);
        hold(&mut leases, &first);
        let until = Instant::now();
        assert!(leases.surrender(&partition, first.epoch(), until));
        assert!(!leases.surrender(&partition, first.epoch(), until), "it is no news");

        hold(&mut leases, &won(store.renew_one(&first).await));
        assert!(leases.kept().is_empty() && leases.epochs().len() == 1);
        assert_eq!(leases.given_back().collect::<Vec<_>>(), [&partition]);
        assert_eq!((leases.next_overdue(), leases.overdue(until).len()), (Some(until), 1));

        // Lost, and won again.
        let listed = store.list_ownerships().await.unwrap().records.remove(0);
        let second = won(store.claim_one(&Claim::over(&listed)).await);
        hold(&mut leases, &second);
        assert_eq!(leases.kept(), [(partition.clone(), second.epoch())].into());
        assert!(!leases.is_surrendered(&partition, second.epoch()) && leases.next_overdue().is_none());
    }

    #[tokio::test]
    async fn who_is_asked_for_a_lease_owes_an_answer_until_the_record_gives_it() {
        let (store, partition, mut leases) = (store().await, PartitionId::from(0), Leases::new(LeaseScope::Partition));
        let lease = won(store.claim_one(&Claim::unowned(partition.clone())).await);
        hold(&mut leases, &lease);
        let far = Duration::from_secs(60);
        assert!(leases.start_renewals(far, lease.valid_from(), EXPIRY).is_empty());
        assert!(leases.drain(&partition, lease.epoch()));
        assert!(!leases.drain(&partition, lease.epoch()), "it is no news");
        assert!(leases.is_draining(&partition));
        // An answer of before counts for nothing.
        hold(&mut leases, &won(store.renew_one(&lease).await));
        let due = leases.start_renewals(far, lease.valid_from(), EXPIRY);
        assert!(matches!(&due[..], [lease] if lease.record().draining));
        hold(&mut leases, &won(store.renew_one(&due[0]).await));
        assert!(leases.start_renewals(far, lease.valid_from(), EXPIRY).is_empty());
        assert!(leases.is_draining(&partition));
    }

    #[tokio::test]
    async fn the_mark_of_a_dead_one_is_met_without_an_answer_and_then_taken_away() {
        let (container, partition, mut leases) =
            (Arc::default(), PartitionId::from(0), Leases::new(LeaseScope::Partition));
        let store = store_of("a", &container).await.cooperative(true);
        let lease = won(store.claim_one(&Claim::unowned(partition.clone())).await);
        hold(&mut leases, &lease);
        let listed = store.list_ownerships().await.unwrap().records.remove(0);
        let dead = store_of("dead", &container).await;
        assert!(matches!(dead.mark(&listed).await, Ok(MarkOutcome::Standing(_))));

        leases.drop_mark(&partition, &dead.identity().owner);
        for writes in 0..3 {
            let due = leases.start_renewals(EXPIRY, lease.valid_from(), EXPIRY);
            assert_eq!(due.len(), usize::from(writes < 2), "the first one meets it, the second takes it away");
            for lease in due {
                hold(&mut leases, &won(store.renew_one(&lease).await));
                assert_eq!(leases.asked_for_by(&partition, lease.epoch()), None);
            }
        }
        let listed = store.list_ownerships().await.unwrap().records.remove(0);
        assert_eq!((listed.record.handoff_to, leases.is_draining(&partition)), (None, false));
    }

    #[tokio::test]
    async fn what_waits_for_its_renewal_to_end_before_it_is_released_is_not_kept_either() {
        let (store, partition, mut leases) = (store().await, PartitionId::from(0), Leases::new(LeaseScope::Partition));
        let lease = won(store.claim_one(&Claim::unowned(partition.clone())).await);
        hold(&mut leases, &lease);
        assert_eq!(leases.start_renewals(Duration::ZERO, Moment::MAX / 2, EXPIRY).len(), 1);
        assert_eq!(leases.take_for_release(&partition, lease.epoch()), None);
        assert!(leases.kept().is_empty() && leases.is_to_be_released(&partition, lease.epoch()));
        assert_eq!(leases.end_renewal(&partition, lease.epoch()), AfterRenewal::ToRelease);
    }

    /// One that lives by the presence of its owner, which has been there since the beginning.
    async fn by_presence() -> (GroupStore, Lease, Leases) {
        let store = store().await.lease_scope(LeaseScope::Instance);
        let lease = won(store.claim_one(&Claim::unowned(PartitionId::from(0))).await);
        let mut leases = Leases::new(LeaseScope::Instance);
        leases.present_since(Moment::ZERO);
        hold(&mut leases, &lease);
        (store, lease, leases)
    }

    fn due(leases: &mut Leases) -> Vec<Lease> {
        leases.start_renewals(Duration::ZERO, Moment::MAX / 2, EXPIRY)
    }

    #[tokio::test]
    async fn what_lives_by_a_presence_is_as_young_as_that_and_never_due_by_itself() {
        let (_, lease, mut leases) = by_presence().await;
        let written = lease.valid_from() + Duration::from_secs(500);
        leases.present_since(written);
        assert_eq!(leases.next_due(Duration::ZERO), None);
        assert_eq!(leases.greatest_age(written + Duration::from_secs(5)), Duration::from_secs(5));
        let lifetime = Duration::from_secs(60);
        assert_eq!(leases.next_outlived(lifetime), Some(written + lifetime));
        assert!(leases.is_present(lifetime, written + lifetime.mul_f64(0.99)));
        assert!(!leases.is_present(lifetime, written + lifetime));
    }

    #[tokio::test]
    async fn who_was_declared_dead_rewrites_once_it_is_present_again_and_counts_on_its_own_age_until_then() {
        let (store, lease, mut leases) = by_presence().await;
        leases.present_since(Moment::MAX / 2);
        leases.declared_dead();
        let lifetime = Duration::from_secs(60);
        assert_eq!(leases.next_outlived(lifetime), Some(lease.valid_from() + lifetime));
        assert_eq!(due(&mut leases), [], "it could be taken over again as long as it is not present");
        leases.present_since(store.lease_time());
        let rewriting = due(&mut leases);
        assert_eq!(rewriting.len(), 1);
        assert_eq!(due(&mut leases), [], "it is under way");
        hold(&mut leases, &won(store.renew_one(&rewriting[0]).await));
        assert_eq!(due(&mut leases), []);
        assert!(leases.any_by_presence());
    }

    #[tokio::test]
    async fn what_was_sent_before_it_was_present_again_is_written_once_more() {
        let (store, lease, mut leases) = by_presence().await;
        leases.drain(lease.partition(), lease.epoch());
        let acknowledging = due(&mut leases);
        leases.declared_dead();
        leases.present_since(store.lease_time() + Duration::from_secs(1));
        hold(&mut leases, &won(store.renew_one(&acknowledging[0]).await));
        assert_eq!(due(&mut leases).len(), 1);
        // A claim whose answer comes late is no better.
        let other = won(store.claim_one(&Claim::unowned(PartitionId::from(1))).await);
        hold(&mut leases, &other);
        assert_eq!(due(&mut leases).len(), 1);
    }

    #[tokio::test]
    async fn a_rewriting_that_failed_is_still_owed() {
        let (store, lease, mut leases) = by_presence().await;
        leases.declared_dead();
        leases.present_since(store.lease_time());
        assert_eq!(due(&mut leases).len(), 1);
        leases.end_renewal(lease.partition(), lease.epoch());
        leases.postpone(lease.partition(), Moment::ZERO);
        assert_eq!(due(&mut leases).len(), 1);
    }

    #[tokio::test]
    async fn another_scope_is_written_at_once_and_from_then_on_each_is_renewed_by_itself() {
        let (store, lease, mut leases) = by_presence().await;
        leases.set_scope(LeaseScope::Partition);
        assert!(leases.any_by_presence(), "as long as the record says so");
        let rewriting = due(&mut leases);
        assert!(matches!(&rewriting[..], [lease] if lease.record().scope == LeaseScope::Partition));
        hold(&mut leases, &won(store.renew_one(&rewriting[0]).await));
        assert!(!leases.any_by_presence());
        let age = Duration::from_secs(30);
        assert!(leases.next_due(age).is_some_and(|due| due >= lease.valid_from() + age));
    }

    mod defects {
        use super::*;

        const SECOND: Duration = Duration::from_secs(1);

        /// Of so many partitions, all renewed at this moment.
        async fn renewed_at(partitions: u32) -> (Vec<PartitionId>, Leases, Moment) {
            let (store, mut leases, mut renewed_at) = (store().await, Leases::new(LeaseScope::Partition), Moment::ZERO);
            let partitions: Vec<_> = (0..partitions).map(PartitionId::from).collect();
            for partition in &partitions {
                let lease = won(store.claim_one(&Claim::unowned(partition.clone())).await);
                renewed_at = lease.valid_from();
                hold(&mut leases, &lease);
            }
            (partitions, leases, renewed_at)
        }

        fn tried(leases: &mut Leases, at: Moment) -> Vec<PartitionId> {
            let started = leases.start_renewals(EXPIRY / 2, at, EXPIRY);
            started.iter().map(|lease| lease.partition().clone()).collect()
        }

        fn fails(leases: &mut Leases, partition: &PartitionId, not_before: Moment) {
            let epoch = leases.epochs()[partition];
            leases.end_renewal(partition, epoch);
            leases.postpone(partition, not_before);
        }

        /// The one that fails first is asked to wait for long, as the other is not.
        #[tokio::test(start_paused = true)]
        async fn a_turn_goes_to_a_lease_that_may_be_tried() {
            let (partitions, mut leases, renewed_at) = renewed_at(2).await;
            let failed_at = renewed_at + EXPIRY / 2;
            assert_eq!(tried(&mut leases, failed_at).len(), 2);
            fails(&mut leases, &partitions[0], failed_at + 20 * SECOND);
            fails(&mut leases, &partitions[1], failed_at + SECOND);
            assert_eq!(leases.next_due(EXPIRY / 2), Some(failed_at + SECOND));
            assert_eq!(tried(&mut leases, failed_at + SECOND), [partitions[1].clone()]);
        }

        /// However often the first ones fail, each has its turn within an expiry.
        #[tokio::test(start_paused = true)]
        async fn each_lease_has_its_turn() {
            let (partitions, mut leases, renewed_at) = renewed_at(64).await;
            let mut now = renewed_at + EXPIRY / 2;
            for partition in tried(&mut leases, now) {
                fails(&mut leases, &partition, now + SECOND);
            }
            let (end, mut had_turns) = (now + EXPIRY + 2 * SECOND, BTreeSet::new());
            while now < end {
                for partition in tried(&mut leases, now) {
                    fails(&mut leases, &partition, now + SECOND);
                    had_turns.insert(partition);
                }
                now = leases.next_due(EXPIRY / 2).unwrap();
            }
            assert_eq!(had_turns, partitions.into_iter().collect());
        }
    }
}
