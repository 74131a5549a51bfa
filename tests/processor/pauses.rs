//! Pauses that are stored in the checkpoint: of an operator, and of a partition that was parked after a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::admin::{Check, ResetError, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, HealthIssue, OnFailure, PartitionContext, PartitionState, PartitionStatus, ProcessorHandle,
    StopReason,
};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{ErrorKind, LeaseScope, PartitionId, Pause};
use tokio::time::{Instant, sleep};

use crate::support::operator::{operator, publish, reset, times, with_ten_checkpointed};
use crate::support::{HOUR, SECOND, wait_for, wait_for_checkpoint};
use crate::world::{Instance, World};

/// Pauses the first partition for this time, or until it is resumed.
async fn pause(world: &World, time: Option<Duration>) -> ResetOutcome {
    let operator = operator(world).await;
    let until = time.map(|time| world.hub.now() + time);
    let paused = operator.pause(vec![0.into()], until, Some("a migration"), &ResetOptions::default()).await;
    paused.unwrap().remove(0).1
}

async fn resume(world: &World) -> ResetOutcome {
    let resumed = operator(world).await.resume(vec![0.into()], &ResetOptions::default()).await;
    resumed.unwrap().remove(0).1
}

async fn stored_pause(world: &World) -> Option<Pause> {
    world.store("observer").await.checkpoint_of(&0.into()).await.unwrap()?.record.paused
}

fn is_paused(status: &PartitionStatus) -> bool {
    status.partition == 0.into() && status.state == PartitionState::Paused && status.pause.is_some()
}

fn assert_done(outcome: &ResetOutcome) {
    assert!(matches!(outcome, ResetOutcome::Done), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_paused_partition_is_kept_and_not_delivered() {
    for scope in [LeaseScope::Partition, LeaseScope::Instance] {
        let mut world = World::new(2);
        world.config = world.config.clone().with_balancer(|balancer| balancer.with_lease_scope(scope));
        let mut a = with_ten_checkpointed(&world, 2).await;
        assert_done(&pause(&world, None).await);
        let status = a.wait_for_status("paused", is_paused).await;
        assert_eq!(status.pause.unwrap().reason.as_deref(), Some("a migration"));
        publish(&world, 2, 10..20);
        sleep(HOUR).await;
        assert_eq!((a.held(), times(&world, 0, 10..20), times(&world, 1, 10..20)), (2, [0; 10].into(), [1; 10].into()));
        let issues = a.handle.health().issues;
        let [HealthIssue::Paused { partition, .. }] = &issues[..] else { panic!("{issues:?}") };
        assert_eq!(partition.as_str(), "0");
        let described = operator(&world).await.read().await.unwrap().describe(None);
        let found = operator(&world).await.read().await.unwrap().diagnose(None, HOUR);
        assert!(found.iter().any(|found| found.check == Check::PausedPartition), "{found:?}");
        let checkpoint = described.partitions[0].checkpoint.as_ref().unwrap();
        assert_eq!(checkpoint.paused.as_ref().unwrap().reason.as_deref(), Some("a migration"));

        assert_done(&resume(&world).await);
        wait_for_checkpoint(&world, 19).await;
        assert_eq!((times(&world, 0, 0..20), stored_pause(&world).await), ([1; 20].into(), None));
        a.wait_until_it_holds(2).await;
        assert_eq!(a.handle.health().issues, []);
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_survives_a_restart_and_a_reset() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    assert_done(&pause(&world, None).await);
    a.wait_for_status("paused", is_paused).await;
    a.shut_down().await.unwrap();
    let b = world.start("b").await;
    b.wait_for_status("paused", is_paused).await;
    reset(&world, &[(0, 4)]).await;
    sleep(120 * SECOND).await;
    b.wait_for_status("paused", is_paused).await;
    assert_eq!((times(&world, 0, 0..10), world.checkpoint().await), ([1; 10].into(), Some(4)));
    assert_done(&resume(&world).await);
    wait_for_checkpoint(&world, 9).await;
    assert_eq!(times(&world, 0, 5..10), [2; 5], "it continues at the position of the reset");
    b.shut_down().await.unwrap();
}

/// Then the next checkpoint removes it.
#[tokio::test(start_paused = true)]
async fn a_pause_ends_by_itself_at_its_time() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    let began = Instant::now();
    assert_done(&pause(&world, Some(600 * SECOND)).await);
    a.wait_for_status("paused", is_paused).await;
    publish(&world, 1, 10..20);
    sleep(590 * SECOND).await;
    wait_for_checkpoint(&world, 19).await;
    let took = began.elapsed();
    assert!((600 * SECOND..620 * SECOND).contains(&took), "{took:?}");
    assert_eq!(stored_pause(&world).await, None);
    a.shut_down().await.unwrap();
}

/// A circuit breaker of the application pauses and resumes all partitions, and they restart.
#[tokio::test(start_paused = true)]
async fn the_application_ends_no_pause_of_an_operator() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    assert_done(&pause(&world, None).await);
    a.wait_for_status("paused", is_paused).await;
    publish(&world, 1, 10..20);
    for change in [ProcessorHandle::pause, ProcessorHandle::resume, ProcessorHandle::restart] {
        assert!(change(&a.handle, &0.into()));
        sleep(60 * SECOND).await;
    }
    a.wait_for_status("paused", is_paused).await;
    assert_eq!((times(&world, 0, 10..20), stored_pause(&world).await.is_some()), ([0; 10].into(), true));
    a.shut_down().await.unwrap();
}

/// The checkpoint counts, although no handler has started.
#[tokio::test(start_paused = true)]
async fn the_lag_of_a_paused_partition_is_right() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    assert_done(&pause(&world, None).await);
    a.wait_for_status("paused", is_paused).await;
    sleep(120 * SECOND).await;
    let status = a.status();
    assert_eq!((status.checkpoint, status.lag.events, status.behind), (Some(9), Some(0), Some(Duration::ZERO)));
    publish(&world, 1, 10..15);
    sleep(120 * SECOND).await;
    assert_eq!(a.status().lag.events, Some(5));
    a.shut_down().await.unwrap();
}

/// It would end after ten minutes, and the handler would fail at the same event.
#[tokio::test(start_paused = true)]
async fn a_pause_replaces_no_parking() {
    let (mut world, handler) = (World::new(1), Breakable::broken());
    world.hub.publish_many(0, 3, "x");
    let a = start_parking(&mut world, "a", &handler).await;
    a.wait_for_status("parked", is_parked).await;
    let outcome = pause(&world, Some(600 * SECOND)).await;
    assert!(matches!(outcome, ResetOutcome::NotDone(ResetError::Parked)), "{outcome:?}");
    sleep(HOUR).await;
    assert_eq!(handler.calls(), 1);
    a.shut_down().await.unwrap();
}

/// The stop is requested while the handler's `stopped` runs, before the mark is written.
#[tokio::test(start_paused = true)]
async fn a_shutdown_while_it_parks_does_not_lose_the_mark() {
    #[derive(Clone)]
    struct Slow(Breakable);
    impl Handler<MemoryEvent> for Slow {
        async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
            self.0.handle(events, context).await
        }
        async fn stopped(&self, _: PartitionContext, _: StopReason) {
            sleep(5 * SECOND).await;
        }
    }
    let (mut world, handler) = (World::new(1), Breakable::broken());
    world.hub.publish_many(0, 3, "x");
    world.config = world.config.clone().with_on_failure(OnFailure::Park);
    let a = world.start_with("a", world.hub.source(), Slow(handler.clone())).await;
    wait_for("the failure", || handler.calls() == 1).await;
    sleep(SECOND).await;
    a.shut_down().await.unwrap();
    assert!(stored_pause(&world).await.is_some_and(|pause| pause.parked));
}

#[tokio::test(start_paused = true)]
async fn a_partition_without_a_checkpoint_cannot_be_paused() {
    let world = World::new(1);
    let outcome = pause(&world, None).await;
    let ResetOutcome::NotDone(ResetError::Failed(error)) = outcome else { panic!("{outcome:?}") };
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("has no checkpoint"), "{error}");
    assert_eq!(world.checkpoint().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_resumption_without_a_pause_disturbs_nobody() {
    let world = World::new(1);
    let mut a = with_ten_checkpointed(&world, 1).await;
    let owned = a.snapshots.borrow().owned.clone();
    assert_done(&resume(&world).await);
    sleep(60 * SECOND).await;
    a.wait_until_it_holds(1).await;
    assert_eq!(a.snapshots.borrow().owned, owned);
    a.shut_down().await.unwrap();
}

/// An operator that must not displace live owners changes nothing.
#[tokio::test(start_paused = true)]
async fn a_pause_respects_live_owners_if_asked_to() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    let options = ResetOptions::default().with_allow_live(false);
    let outcomes = operator(&world).await.pause(vec![0.into()], None, None, &options).await.unwrap();
    assert!(matches!(&outcomes[0].1, ResetOutcome::NotDone(ResetError::Live { owner }) if owner.as_str() == "a"));
    assert_eq!(stored_pause(&world).await, None);
    a.shut_down().await.unwrap();
}

/// Fails while it is broken.
#[derive(Clone, Default)]
struct Breakable {
    is_broken: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
}

impl Handler<MemoryEvent> for Breakable {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_broken.load(Ordering::Relaxed) {
            return Err("the schema is unknown".into());
        }
        context.checkpoint(events.last().unwrap());
        Ok(())
    }
}

impl Breakable {
    fn broken() -> Self {
        Self { is_broken: Arc::new(AtomicBool::new(true)), ..Self::default() }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn repair(&self) {
        self.is_broken.store(false, Ordering::Relaxed);
    }
}

async fn start_parking(world: &mut World, owner: &str, handler: &Breakable) -> Instance {
    world.config = world.config.clone().with_on_failure(OnFailure::Park);
    world.start_with(owner, world.hub.source(), handler.clone()).await
}

fn is_parked(status: &PartitionStatus) -> bool {
    status.state == PartitionState::Parked && status.pause.is_some()
}

/// The handler of no other instance fails at the same event, and an operator ends it.
#[tokio::test(start_paused = true)]
async fn a_parked_partition_stays_parked_elsewhere() {
    let (mut world, handler) = (World::new(1), Breakable::broken());
    world.hub.publish_many(0, 3, "x");
    let a = start_parking(&mut world, "a", &handler).await;
    a.wait_for_status("parked", is_parked).await;
    let reason = stored_pause(&world).await.unwrap().reason.unwrap();
    assert_eq!(reason, "the handler failed: the schema is unknown");
    a.crash().await;
    let b = start_parking(&mut world, "b", &handler).await;
    b.wait_for_status("parked", is_parked).await;
    let issues = b.handle.health().issues;
    assert!(matches!(&issues[..], [HealthIssue::Parked { error: None, pause: Some(_), .. }]), "{issues:?}");
    sleep(HOUR).await;
    assert_eq!(handler.calls(), 1);
    handler.repair();
    assert_done(&resume(&world).await);
    wait_for_checkpoint(&world, 2).await;
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_parked_partition_is_resumed_where_it_is() {
    let (mut world, handler) = (World::new(1), Breakable::broken());
    world.hub.publish_many(0, 3, "x");
    let a = start_parking(&mut world, "a", &handler).await;
    a.wait_for_status("parked", is_parked).await;
    assert!(a.handle.resume(&0.into()));
    wait_for("it fails again", || handler.calls() == 2).await;
    a.wait_for_status("parked", is_parked).await;
    handler.repair();
    assert!(a.handle.resume(&0.into()));
    wait_for_checkpoint(&world, 2).await;
    assert_eq!(stored_pause(&world).await, None);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_parked_while_the_storage_is_down() {
    let (mut world, handler) = (World::new(1), Breakable::default());
    let a = start_parking(&mut world, "a", &handler).await;
    a.wait_until_all_idle(1).await;
    world.faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    handler.is_broken.store(true, Ordering::Relaxed);
    world.hub.publish_many(0, 3, "x");
    a.wait_for_status("parked", |status| status.state == PartitionState::Parked).await;
    sleep(30 * SECOND).await;
    assert_eq!(handler.calls(), 1);
    world.faulty.set_plan(FaultPlan::default());
    a.wait_for_status("recorded", is_parked).await;
    assert!(stored_pause(&world).await.is_some());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_pauses_of_a_group_are_independent() {
    let world = World::new(2);
    let a = with_ten_checkpointed(&world, 2).await;
    let all: Vec<PartitionId> = vec![0.into(), 1.into()];
    let operator = operator(&world).await;
    let outcomes = operator.pause(all.clone(), None, None, &ResetOptions::default()).await.unwrap();
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, ResetOutcome::Done)), "{outcomes:?}");
    sleep(60 * SECOND).await;
    publish(&world, 2, 10..20);
    assert_done(&resume(&world).await);
    wait_for_checkpoint(&world, 19).await;
    assert_eq!(times(&world, 1, 10..20), [0; 10]);
    let outcomes = operator.resume(all, &ResetOptions::default()).await.unwrap();
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, ResetOutcome::Done)), "{outcomes:?}");
    wait_for("the other partition", || times(&world, 1, 10..20) == [1; 10]).await;
    assert_eq!(times(&world, 0, 0..20), [1; 20]);
    a.shut_down().await.unwrap();
}
