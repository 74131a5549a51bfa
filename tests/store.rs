//! The store on a container in memory: who wins, who is fenced, and what a lost answer means.

#[path = "common/meddled.rs"]
mod meddled;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{Blob, BlobContainer, BlobList, Condition, Metadata, Written};
use eventhubs_checkpoint::clock::WallClock;
use eventhubs_checkpoint::store::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, GroupStore, Lease, ReleaseOutcome,
};
use eventhubs_checkpoint::testing::faulty::{self, Fault, FaultPlan, Faulty, Target};
use eventhubs_checkpoint::{
    ConsumerGroup, Error, ErrorKind, Operation, OwnerId, PartitionId, Position, Relation, Result,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use meddled::{Meddle, Meddled};
use tokio::time::Instant;

fn group() -> ConsumerGroup {
    ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap()
}

async fn store_on(container: Arc<dyn BlobContainer>, owner: &str) -> GroupStore {
    GroupStore::builder(container, group(), OwnerId::new(owner).unwrap()).connect().await.unwrap()
}

async fn pair() -> (GroupStore, GroupStore) {
    let container = Arc::new(MemoryContainer::new());
    (store_on(container.clone(), "a").await, store_on(container, "b").await)
}

fn zero() -> PartitionId {
    0.into()
}

fn at(sequence_number: i64) -> Position {
    Position { sequence_number, offset: (sequence_number * 10).to_string() }
}

/// A checkpoint as another SDK writes it.
fn position(sequence_number: i64) -> Metadata {
    [("sequencenumber", sequence_number.to_string()), ("offset", "x".to_owned())]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
}

async fn claim(store: &GroupStore, claim: Claim) -> ClaimOutcome {
    store.claim(vec![claim]).await.remove(0).1
}

async fn win(store: &GroupStore, wish: Claim) -> Lease {
    match claim(store, wish).await {
        ClaimOutcome::Won(lease) => lease,
        other => panic!("not won: {other:?}"),
    }
}

async fn adopt(store: &GroupStore) -> Adoption {
    match store.adopt(&zero(), Some(&at(-1))).await.unwrap() {
        AdoptOutcome::Adopted(adoption) => adoption,
        other => panic!("not adopted: {other:?}"),
    }
}

#[tokio::test]
async fn of_twenty_instances_that_claim_at_once_exactly_one_wins_and_the_others_learn_who() {
    let container = Arc::new(MemoryContainer::new());
    let mut claims = tokio::task::JoinSet::new();
    for number in 0..20 {
        let store = store_on(container.clone(), &format!("owner-{number}")).await;
        claims.spawn(async move { (number, claim(&store, Claim::unowned(zero())).await) });
    }
    let outcomes = claims.join_all().await;
    let winners: Vec<_> =
        outcomes.iter().filter(|(_, o)| matches!(o, ClaimOutcome::Won(_))).map(|(number, _)| number).collect();
    assert_eq!(winners.len(), 1);
    let winner = OwnerId::new(format!("owner-{}", winners[0])).unwrap();
    for (number, outcome) in &outcomes {
        match outcome {
            ClaimOutcome::Won(_) => {}
            ClaimOutcome::Lost { by } => assert_eq!(by.as_ref(), Some(&winner), "{number}"),
            other => panic!("{number}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stolen_partition_is_lost_at_the_next_renewal_and_the_thief_is_named() {
    let (a, b) = pair().await;
    let lease = win(&a, Claim::unowned(zero())).await;
    win(&b, Claim::over(zero(), lease.etag().clone())).await;
    let renewed = a.renew(vec![lease]).await.remove(0).1;
    assert!(matches!(renewed, ClaimOutcome::Lost { by: Some(by) } if by.as_str() == "b"));
}

#[tokio::test]
async fn a_renewal_keeps_the_tenure_and_since_and_changes_the_etag() {
    let (a, _) = pair().await;
    let lease = win(&a, Claim::unowned(zero())).await;
    let ClaimOutcome::Won(renewed) = a.renew(vec![lease.clone()]).await.remove(0).1 else { panic!("not renewed") };
    assert_eq!(renewed.tenure(), lease.tenure());
    assert_eq!(renewed.record(), lease.record());
    assert_ne!(renewed.etag(), lease.etag());
    assert!(lease.record().since.is_some());
}

#[tokio::test]
async fn a_released_partition_is_shown_as_nobodys_and_can_be_claimed_at_once() {
    let (a, b) = pair().await;
    let lease = win(&a, Claim::unowned(zero())).await;
    let released = a.release(vec![lease]).await.remove(0).1;
    assert!(matches!(released, ReleaseOutcome::Released));
    let listed = b.list_ownerships().await.unwrap().records.remove(0);
    assert_eq!(listed.record.owner, None);
    win(&b, Claim::over(zero(), listed.etag)).await;
}

#[tokio::test]
async fn a_release_of_what_was_stolen_leaves_the_thief_alone() {
    let (a, b) = pair().await;
    let lease = win(&a, Claim::unowned(zero())).await;
    win(&b, Claim::over(zero(), lease.etag().clone())).await;
    a.release(vec![lease]).await;
    assert_eq!(a.owner_of(&zero()).await.unwrap().1.unwrap().as_str(), "b");
}

#[tokio::test]
async fn one_claim_that_fails_does_not_discard_the_others() {
    let (a, b) = pair().await;
    win(&b, Claim::unowned(1.into())).await;
    let outcomes: BTreeMap<_, _> =
        a.claim((0..4u32).map(|id| Claim::unowned(id.into())).collect()).await.into_iter().collect();
    assert!(matches!(outcomes[&1.into()], ClaimOutcome::Lost { .. }));
    let won = outcomes.values().filter(|outcome| matches!(outcome, ClaimOutcome::Won(_))).count();
    assert_eq!(won, 3);
}

#[tokio::test]
async fn after_an_adoption_no_checkpoint_of_the_previous_owner_is_accepted() {
    let (a, b) = pair().await;
    let lease = win(&a, Claim::unowned(zero())).await;
    let mut of_a = adopt(&a).await;
    assert_eq!(a.checkpoint(&mut of_a, &at(5)).await.unwrap(), CheckpointOutcome::Written);
    win(&b, Claim::over(zero(), lease.etag().clone())).await;
    let mut of_b = adopt(&b).await;
    assert_eq!(of_b.record().sequence_number, Some(5));
    let fenced = a.checkpoint(&mut of_a, &at(6)).await.unwrap();
    assert_eq!(fenced, CheckpointOutcome::Fenced { by: Some(OwnerId::new("b").unwrap()) });
    assert_eq!(b.checkpoint(&mut of_b, &at(7)).await.unwrap(), CheckpointOutcome::Written);
    assert_eq!(b.list_checkpoints().await.unwrap().records[0].record.sequence_number, Some(7));
}

#[tokio::test]
async fn a_checkpoint_never_moves_backwards() {
    let (a, _) = pair().await;
    win(&a, Claim::unowned(zero())).await;
    let mut adoption = adopt(&a).await;
    a.checkpoint(&mut adoption, &at(9)).await.unwrap();
    assert_eq!(a.checkpoint(&mut adoption, &at(8)).await.unwrap(), CheckpointOutcome::Superseded);
    assert_eq!(a.checkpoint(&mut adoption, &at(9)).await.unwrap(), CheckpointOutcome::Superseded);
    assert_eq!(a.list_checkpoints().await.unwrap().records[0].record.sequence_number, Some(9));
}

#[tokio::test]
async fn a_checkpoint_that_somebody_moved_ahead_is_kept_and_one_moved_back_is_mended() {
    let container = Arc::new(MemoryContainer::new());
    let a = store_on(container.clone(), "a").await;
    win(&a, Claim::unowned(zero())).await;
    let mut adoption = adopt(&a).await;
    let name = "ns.servicebus.windows.net/hub/$default/checkpoint/0";
    container.write(name, &position(20), &Condition::Any).await.unwrap();
    assert_eq!(a.checkpoint(&mut adoption, &at(10)).await.unwrap(), CheckpointOutcome::Superseded);
    container.write(name, &position(3), &Condition::Any).await.unwrap();
    assert_eq!(a.checkpoint(&mut adoption, &at(30)).await.unwrap(), CheckpointOutcome::Written);
    container.delete(name, &Condition::Any).await.unwrap();
    assert_eq!(a.checkpoint(&mut adoption, &at(31)).await.unwrap(), CheckpointOutcome::Written);
    assert_eq!(a.list_checkpoints().await.unwrap().records[0].record.sequence_number, Some(31));
}

#[tokio::test]
async fn a_checkpoint_costs_one_request_in_the_steady_state() {
    let (a, _) = pair().await;
    win(&a, Claim::unowned(zero())).await;
    let mut adoption = adopt(&a).await;
    let before = a.requests();
    for number in 0..10 {
        a.checkpoint(&mut adoption, &at(number)).await.unwrap();
    }
    let after = a.requests();
    for operation in Operation::ALL {
        let expected = if operation == Operation::Checkpoint { 10 } else { 0 };
        assert_eq!(after.total(operation) - before.total(operation), expected, "{operation:?}");
    }
}

#[tokio::test]
async fn an_adoption_without_a_checkpoint_pins_the_start() {
    let (a, b) = pair().await;
    let lease = win(&a, Claim::unowned(zero())).await;
    let AdoptOutcome::Adopted(_) = a.adopt(&zero(), Some(&at(41))).await.unwrap() else { panic!("lost") };
    win(&b, Claim::over(zero(), lease.etag().clone())).await;
    let AdoptOutcome::Adopted(of_b) = b.adopt(&zero(), Some(&at(99))).await.unwrap() else { panic!("lost") };
    assert_eq!(of_b.record().sequence_number, Some(41));
}

/// Where the start cannot be pinned, nothing fences a displaced owner's first checkpoint but a look at the ownership.
#[tokio::test]
async fn the_first_checkpoint_without_a_pinned_start_verifies_the_ownership() {
    let (a, b) = pair().await;
    let lease = win(&a, Claim::unowned(zero())).await;
    let AdoptOutcome::Adopted(mut of_a) = a.adopt(&zero(), None).await.unwrap() else { panic!("lost") };
    win(&b, Claim::over(zero(), lease.etag().clone())).await;
    let AdoptOutcome::Adopted(mut of_b) = b.adopt(&zero(), None).await.unwrap() else { panic!("lost") };
    let fenced = a.checkpoint(&mut of_a, &at(100)).await.unwrap();
    assert_eq!(fenced, CheckpointOutcome::Fenced { by: Some(OwnerId::new("b").unwrap()) });
    assert_eq!(b.checkpoint(&mut of_b, &at(1)).await.unwrap(), CheckpointOutcome::Written);
}

/// Another SDK may leave a checkpoint without any position: it pins nothing.
#[tokio::test]
async fn a_checkpoint_without_a_position_is_pinned_too_and_keeps_its_other_keys() {
    let container = Arc::new(MemoryContainer::new());
    let a = store_on(container.clone(), "a").await;
    win(&a, Claim::unowned(zero())).await;
    let name = "ns.servicebus.windows.net/hub/$default/checkpoint/0";
    let empty =
        [("sequencenumber", ""), ("offset", ""), ("theirs", "1")].map(|(key, value)| (key.into(), value.into()));
    container.write(name, &Metadata::from(empty), &Condition::Create).await.unwrap();
    let AdoptOutcome::Adopted(adoption) = a.adopt(&zero(), Some(&at(41))).await.unwrap() else { panic!("lost") };
    assert_eq!(adoption.record().sequence_number, Some(41));
    let stored = container.get(name).await.unwrap().metadata;
    assert_eq!((stored["sequencenumber"].as_str(), stored["theirs"].as_str()), ("41", "1"));
}

#[tokio::test]
async fn a_renewal_keeps_keys_that_somebody_else_added_meanwhile() {
    let container = Arc::new(MemoryContainer::new());
    let a = store_on(container.clone(), "a").await;
    let mut lease = win(&a, Claim::unowned(zero())).await;
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    let mut marked = container.get(name).await.unwrap().metadata;
    marked.insert("handoffto".into(), "b".into());
    container.write(name, &marked, &Condition::Match(lease.etag().clone())).await.unwrap();
    for _ in 0..3 {
        lease = match a.renew(vec![lease]).await.remove(0).1 {
            ClaimOutcome::Won(lease) => lease,
            other => panic!("not renewed: {other:?}"),
        };
        assert_eq!(container.get(name).await.unwrap().metadata["handoffto"], "b");
    }
    a.release(vec![lease]).await;
    assert_eq!(container.get(name).await.unwrap().metadata["handoffto"], "b");
}

#[tokio::test]
async fn a_renewal_that_meets_a_later_incarnation_is_replaced() {
    let container = Arc::new(MemoryContainer::new());
    let first = store_on(container.clone(), "a").await;
    let lease = win(&first, Claim::unowned(zero())).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let second = loop {
        // The random part decides within one second.
        let second = store_on(container.clone(), "a").await;
        if second.identity().incarnation > first.identity().incarnation {
            break second;
        }
    };
    win(&second, Claim::over(zero(), lease.etag().clone())).await;
    let renewed = first.renew(vec![lease]).await.remove(0).1;
    assert!(matches!(renewed, ClaimOutcome::Replaced { by } if by == second.identity().incarnation));
}

#[tokio::test]
async fn an_adoption_of_a_partition_that_is_not_mine_is_lost() {
    let (a, b) = pair().await;
    win(&b, Claim::unowned(zero())).await;
    let adopted = a.adopt(&zero(), Some(&at(0))).await.unwrap();
    assert!(matches!(adopted, AdoptOutcome::Lost { by: Some(by) } if by.as_str() == "b"));
    assert!(a.list_checkpoints().await.unwrap().records.is_empty());
}

#[tokio::test]
async fn one_bad_blob_is_reported_by_name_and_hides_nothing() {
    let container = Arc::new(MemoryContainer::new());
    let a = store_on(container.clone(), "a").await;
    win(&a, Claim::unowned(zero())).await;
    let prefix = "ns.servicebus.windows.net/hub/$default/ownership/";
    for bad in ["1/too/deep", "2"] {
        container.write(&format!("{prefix}{bad}"), &Metadata::new(), &Condition::Create).await.unwrap();
    }
    let listing = a.list_ownerships().await.unwrap();
    let reported: Vec<_> = listing.malformed.iter().map(|bad| bad.blob.trim_start_matches(prefix)).collect();
    assert_eq!(reported, ["1/too/deep", "2"]);
    let readable: Vec<_> = listing.records.iter().map(|record| record.partition.as_str()).collect();
    assert_eq!(readable, ["0", "2"]);
}

fn faulty() -> Arc<Faulty> {
    Arc::new(Faulty::new(Arc::new(MemoryContainer::new()), 0))
}

#[tokio::test]
async fn a_lost_answer_costs_nothing() {
    let container = faulty();
    let a = store_on(container.clone(), "a").await;
    let lose = || container.next(Fault::AnswerLost);

    lose();
    let lease = win(&a, Claim::unowned(zero())).await;
    lose();
    let ClaimOutcome::Won(lease) = a.renew(vec![lease]).await.remove(0).1 else { panic!("not renewed") };
    lose();
    let mut adoption = adopt(&a).await;
    lose();
    assert_eq!(a.checkpoint(&mut adoption, &at(3)).await.unwrap(), CheckpointOutcome::Written);
    lose();
    assert!(matches!(a.release(vec![lease]).await.remove(0).1, ReleaseOutcome::Released));
    assert_eq!(a.owner_of(&zero()).await.unwrap().1, None);
    assert_eq!(container.waiting(), 0);
}

/// What a displaced owner still manages to write while the new one adopts is kept.
#[tokio::test]
async fn a_checkpoint_that_lands_during_the_adoption_is_adopted() {
    let container = faulty();
    let a = store_on(container.clone(), "a").await;
    let lease = win(&a, Claim::unowned(zero())).await;
    adopt(&a).await;
    let b = store_on(container.clone(), "b").await;
    win(&b, Claim::over(zero(), lease.etag().clone())).await;
    container.next(Fault::Overtaken(position(7)));
    assert_eq!(adopt(&b).await.record().sequence_number, Some(7));
}

#[tokio::test]
async fn of_twenty_thieves_that_saw_the_same_record_exactly_one_wins() {
    let container = Arc::new(MemoryContainer::new());
    let victim = store_on(container.clone(), "victim").await;
    let etag = win(&victim, Claim::unowned(zero())).await.etag().clone();
    let mut claims = tokio::task::JoinSet::new();
    for number in 0..20 {
        let thief = store_on(container.clone(), &format!("thief-{number}")).await;
        let wish = Claim::over(zero(), etag.clone());
        claims.spawn(async move { matches!(claim(&thief, wish).await, ClaimOutcome::Won(_)) });
    }
    let won = claims.join_all().await;
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
}

/// Lets something happen right after the next read, before its answer is used.
#[derive(Default)]
struct Interruption(Mutex<Option<BoxFuture<'static, ()>>>);

#[async_trait]
impl Meddle for Interruption {
    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        let blob = inner.get(name).await;
        let interruption = self.0.lock().unwrap().take();
        if let Some(interruption) = interruption {
            interruption.await;
        }
        blob
    }
}

/// Two owners, of whom the first is interrupted by the second, which takes the partition over and checkpoints.
async fn interrupted() -> (GroupStore, Arc<Meddled<Interruption>>, impl FnOnce() -> BoxFuture<'static, ()>) {
    let inner = Arc::new(MemoryContainer::new());
    let container = Arc::new(Meddled { inner: inner.clone(), meddler: Interruption::default() });
    let a = store_on(container.clone(), "a").await;
    let b = store_on(inner, "b").await;
    let lease = win(&a, Claim::unowned(zero())).await;
    let take_over = move || {
        let taking = async move {
            win(&b, Claim::over(zero(), lease.etag().clone())).await;
            let mut adoption = adopt(&b).await;
            b.checkpoint(&mut adoption, &at(50)).await.unwrap();
        };
        taking.boxed()
    };
    (a, container, take_over)
}

/// The ownership must be read after the checkpoint: the other way round, what was read of the checkpoint could be the
/// next owner's already.
#[tokio::test]
async fn an_adoption_interrupted_by_the_next_owner_is_lost() {
    let (a, container, take_over) = interrupted().await;
    *container.meddler.0.lock().unwrap() = Some(take_over());
    let adopted = a.adopt(&zero(), Some(&at(-1))).await.unwrap();
    assert!(matches!(adopted, AdoptOutcome::Lost { by: Some(by) } if by.as_str() == "b"));
}

#[tokio::test]
async fn a_checkpoint_interrupted_by_the_next_owner_is_fenced() {
    let (a, container, take_over) = interrupted().await;
    let mut adoption = adopt(&a).await;
    let name = "ns.servicebus.windows.net/hub/$default/checkpoint/0";
    container.inner.write(name, &position(3), &Condition::Any).await.unwrap();
    *container.meddler.0.lock().unwrap() = Some(take_over());
    let fenced = a.checkpoint(&mut adoption, &at(70)).await.unwrap();
    assert_eq!(fenced, CheckpointOutcome::Fenced { by: Some(OwnerId::new("b").unwrap()) });
    assert_eq!(container.inner.get(name).await.unwrap().metadata["sequencenumber"], "50");
}

/// The record is its own again, but in between it was somebody else's. Found by `tests/random`.
#[tokio::test]
async fn a_checkpoint_is_fenced_if_the_partition_is_lost_and_claimed_again_while_it_is_under_way() {
    for answered in [true, false] {
        let (a, container, take_over) = interrupted().await;
        let mut adoption = adopt(&a).await;
        take_over().await;
        let again = a.clone();
        let claim_again = async move {
            let etag = again.list_ownerships().await.unwrap().records.remove(0).etag;
            let mut claiming = again.claim(vec![Claim::over(zero(), etag)]).boxed();
            if answered {
                claiming.await;
                return;
            }
            while again.owner_of(&zero()).await.unwrap().0 != Relation::Mine {
                assert!(futures::poll!(&mut claiming).is_pending());
            }
        };
        *container.meddler.0.lock().unwrap() = Some(claim_again.boxed());
        let fenced = a.checkpoint(&mut adoption, &at(70)).await.unwrap();
        assert_eq!(fenced, CheckpointOutcome::Fenced { by: Some(OwnerId::new("a").unwrap()) }, "{answered}");
        assert_eq!(a.list_checkpoints().await.unwrap().records[0].record.sequence_number, Some(50));
    }
}

/// What the log says.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_bad_blob_is_logged_once_per_version() {
    let log = Captured::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let times = || String::from_utf8_lossy(&log.0.lock().unwrap()).matches("ownership/7").count();

    let container = Arc::new(MemoryContainer::new());
    let a = store_on(container.clone(), "a").await;
    let name = "ns.servicebus.windows.net/hub/$default/ownership/7";
    for expected in 1..=2 {
        container.write(name, &Metadata::new(), &Condition::Any).await.unwrap();
        for _ in 0..3 {
            assert_eq!(a.list_ownerships().await.unwrap().malformed.len(), 1);
            assert_eq!(times(), expected);
        }
    }
}

/// With answers as slow as these, the queue is longer than any of them may take.
#[tokio::test(start_paused = true)]
async fn every_renewal_has_its_turn_however_many_there_are() {
    let faulty = Faulty::new(Arc::new(MemoryContainer::new()), 1);
    let a = store_on(Arc::new(faulty.clone()), "a").await;
    let claims = (0..500u32).map(|id| Claim::unowned(id.into())).collect();
    let won = a.claim(claims).await.into_iter().map(|(_, outcome)| match outcome {
        ClaimOutcome::Won(lease) => lease,
        other => panic!("not won: {other:?}"),
    });
    let leases: Vec<_> = won.collect();
    faulty.set_plan(FaultPlan::always(Fault::Latency(Duration::from_secs(4))));
    let renewed = a.renew(leases).await;
    assert_eq!(renewed.iter().filter(|(_, outcome)| matches!(outcome, ClaimOutcome::Won(_))).count(), 500);
}

/// However few operations may be under way at once.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_request_that_hangs_holds_up_no_renewal() {
    let faulty = Faulty::new(Arc::new(MemoryContainer::new()), 1);
    let owner = OwnerId::new("a").unwrap();
    let builder = GroupStore::builder(Arc::new(faulty.clone()), group(), owner).concurrency(NonZeroUsize::MIN);
    let a = builder.connect().await.unwrap();
    let lease = win(&a, Claim::unowned(zero())).await;
    faulty.next_on(Target::any().named("/checkpoint/"), Fault::Hang);
    let adopting = tokio::spawn({
        let a = a.clone();
        async move { a.adopt(&zero(), None).await.map(drop) }
    });
    tokio::task::yield_now().await;
    let asked = Instant::now();
    assert!(matches!(a.renew(vec![lease]).await.remove(0).1, ClaimOutcome::Won(_)));
    assert!(asked.elapsed() < Duration::from_secs(1));
    assert_eq!(adopting.await.unwrap().unwrap_err().kind(), ErrorKind::Unknown);
}

#[tokio::test]
async fn a_record_that_vanished_is_written_again_as_another_tenure() {
    for fault in [Fault::Latency(Duration::ZERO), Fault::AnswerLost] {
        let container = faulty();
        let a = store_on(container.clone(), "a").await;
        let lease = win(&a, Claim::unowned(zero())).await;
        container.delete("ns.servicebus.windows.net/hub/$default/ownership/0", &Condition::Any).await.unwrap();
        // The first write finds nothing; it is the second that may get lost.
        for fate in [Fault::Latency(Duration::ZERO), fault.clone()] {
            container.next_on(faulty::Operation::Write, fate);
        }
        let ClaimOutcome::Won(renewed) = a.renew(vec![lease.clone()]).await.remove(0).1 else { panic!("not renewed") };
        assert_ne!(renewed.tenure(), lease.tenure(), "{fault:?}");
        assert_eq!(container.waiting(), 0);
    }
}

/// A local clock this far from the one of the container.
#[derive(Debug)]
struct Skewed(time::Duration);

impl WallClock for Skewed {
    fn now(&self) -> time::OffsetDateTime {
        // What the container in memory shows at its beginning.
        time::macros::datetime!(2026-01-01 00:00:00 UTC) + self.0
    }
}

#[tokio::test(start_paused = true)]
async fn the_probe_finds_a_wrong_clock_and_leaves_nothing_behind() {
    for (skew, finds) in [(0, false), (3600, true), (-3600, true)] {
        let container = Arc::new(MemoryContainer::new());
        let builder = GroupStore::builder(container.clone(), group(), OwnerId::new("a/b c").unwrap());
        let clock = Arc::new(Skewed(time::Duration::seconds(skew)));
        let store = builder.probe(true).wall_clock(clock).connect().await.unwrap();
        assert_eq!(store.findings().len(), usize::from(finds), "{:?}", store.findings());
        assert!(container.list("").await.unwrap().blobs.is_empty());
    }
}

/// Every way in which a storage may not do what ownership needs.
#[tokio::test(start_paused = true)]
async fn the_probe_refuses_a_storage_that_cannot_be_trusted_and_says_why() {
    for (weakness, told) in [
        (Weakness::IgnoresConditions, "accepts a write under an ETag that has changed"),
        (Weakness::ListsWithoutMetadata, "does not show what was just written"),
        (Weakness::ReadOnly, "a blob cannot be written"),
        (Weakness::Silent, "was not answered within 5s"),
    ] {
        let container = Arc::new(Meddled { inner: Arc::new(MemoryContainer::new()), meddler: weakness });
        let builder = GroupStore::builder(container, group(), OwnerId::new("a").unwrap());
        let error = builder.probe(true).connect().await.unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Weakness {
    IgnoresConditions,
    ListsWithoutMetadata,
    ReadOnly,
    /// Never answers a read.
    Silent,
}

#[async_trait]
impl Meddle for Weakness {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<BlobList> {
        let mut list = inner.list(prefix).await?;
        if *self == Self::ListsWithoutMetadata {
            list.blobs.iter_mut().for_each(|blob| blob.metadata.clear());
        }
        Ok(list)
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        if *self == Self::Silent {
            std::future::pending::<()>().await;
        }
        inner.get(name).await
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Written> {
        match self {
            Self::IgnoresConditions => inner.write(name, metadata, &Condition::Any).await,
            Self::ListsWithoutMetadata | Self::Silent => inner.write(name, metadata, condition).await,
            Self::ReadOnly => Err(Error::new(ErrorKind::Unauthorized, "only reading is permitted")),
        }
    }
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_with_the_value_and_the_rule() {
    let build = || GroupStore::builder(Arc::new(MemoryContainer::new()), group(), OwnerId::new("a").unwrap());
    let seconds = Duration::from_secs;
    for (builder, named) in [
        (build().expiry(seconds(3)), "the expiry is 3s, but must be at least 4s"),
        (build().expiry(Duration::MAX), "must be at most a day"),
        (build().peer_expiry(seconds(30)), "the peer expiry is 30s, but must be at least the expiry, 60s"),
        (build().request_deadline(seconds(30)), "the request deadline is 30s"),
        (build().request_deadline(Duration::ZERO), "the request deadline is 0ns"),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn a_missing_container_is_known_before_anything_starts_or_made_if_asked_for() {
    let container = Arc::new(MemoryContainer::missing());
    let build = || GroupStore::builder(container.clone(), group(), OwnerId::new("a").unwrap());
    assert_eq!(build().connect().await.unwrap_err().kind(), ErrorKind::ContainerNotFound);
    assert!(build().create_container(true).connect().await.is_ok());
}
