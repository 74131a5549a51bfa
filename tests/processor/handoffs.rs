//! Handoffs on request, and the events of handoffs that fail.

use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::balancer::{DuplicateCause, OwnershipEvent, PartitionOwner, Snapshot};
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, OnFailure, PartitionContext, PartitionState, ReleaseReason, StopReason,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::protocol::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome, Lease};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, sleep, timeout};

use crate::support::handlers::owner_of_all;
use crate::support::ownership_log::{OwnershipLog, requesting_instance};
use crate::support::{
    CHECKPOINT, OWNERSHIP, SECOND, blob_name, greedy, isolated, limited_store, publish_to_each, record, remove_record,
    repeated, write_faults, write_record,
};
use crate::world::{Instance, Recorder, TIMEOUT, World};

/// Returns the cause of the next move that may cause duplicates.
async fn duplicate_cause(mut events: Receiver<OwnershipEvent>) -> DuplicateCause {
    let waiting = async {
        loop {
            if let OwnershipEvent::DuplicatesPossible { cause, .. } = events.recv().await.unwrap() {
                return cause;
            }
        }
    };
    timeout(TIMEOUT, waiting).await.expect("no event")
}

#[tokio::test(start_paused = true)]
async fn a_hanging_handler_reports_duplicates_possible() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "hang");
    world.hub.publish(1, "hang");
    world.log.wait_for("both", |log| log.times("hang") == 2).await;
    let events = a.handle.ownership_events();
    let b = world.start("b").await;
    assert_eq!(duplicate_cause(events).await, DuplicateCause::CheckpointNotWritten);
    world.log.wait_for("the event again", |log| log.times("hang") == 3).await;
    b.crash().await;
    a.crash().await;
}

/// Renews the leases of an owner that supports handoffs, but ignores all requests.
async fn ignore_requests(store: GroupStore, mut leases: Vec<Lease>) {
    loop {
        sleep(Duration::from_secs(10)).await;
        let renewed = store.renew_all(leases).await;
        leases = renewed.into_iter().filter_map(|(_, outcome)| won(outcome)).collect();
    }
}

fn won(outcome: ClaimOutcome) -> Option<Lease> {
    match outcome {
        ClaimOutcome::Won(lease) => Some(lease),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_ignores_requests_is_stolen_from() {
    let world = World::new(2);
    let store = world.store("deaf").await;
    let claims = [0, 1].map(|id: u32| Claim::unowned(id.into()).with_cooperative(true)).to_vec();
    let leases: Vec<_> = store.claim_all(claims).await.into_iter().filter_map(|(_, outcome)| won(outcome)).collect();
    assert_eq!(leases.len(), 2);
    let renewing = tokio::spawn(ignore_requests(store, leases));
    let mut b = world.start("b").await;
    let events = b.handle.ownership_events();
    b.wait_until("a request", |snapshot| !snapshot.requested_handoffs.is_empty()).await;
    assert_eq!(duplicate_cause(events).await, DuplicateCause::NotAcknowledged);
    b.wait_until_it_holds(1).await;
    renewing.abort();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_stops_is_released_anyway() {
    let world = World::new(2);
    let a = owner_of_all(&world, 2, Duration::from_secs(60)).await;
    let mut log_a = OwnershipLog::of(&a);
    for partition in 0..2 {
        world.hub.publish(partition, "hang");
    }
    world.log.wait_for("both", |log| log.times("hang") == 2).await;
    let (b, _) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    log_b.wait_for("claimed: HandedOver").await;
    let expected = ["requested by b", "releasing: HandedOver", "duplicates: CheckpointNotWritten", "released"];
    assert_eq!(log_a.take(), expected);
    assert_eq!(log_b.take(), ["claimed: HandedOver"]);
    world.log.wait_for("the event again", |log| log.times("hang") == 3).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(log_a.take(), [""; 0], "its handler ends later, and it owns nothing then");
    b.crash().await;
    a.crash().await;
}

/// The owner renews its lease while it drains, and the requesting instance waits.
#[tokio::test(start_paused = true)]
async fn a_drain_may_take_longer_than_a_lease() {
    let mut world = World { expiry: 20 * SECOND, ..World::new(2) };
    world.config = world.config.with_drain_timeout(60 * SECOND);
    world.config.balancer.load_balancing_interval = 5 * SECOND;
    let a = owner_of_all(&world, 2, 50 * SECOND).await;
    let mut log_a = OwnershipLog::of(&a);
    publish_to_each(&world, 2, "before");
    let (b, _) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    let requested_at = Instant::now();
    log_b.wait_for("claimed: HandedOver").await;
    assert!(requested_at.elapsed() > 50 * SECOND, "{:?}", requested_at.elapsed());
    sleep(60 * SECOND).await;
    assert_eq!(log_a.take(), ["requested by b", "releasing: HandedOver", "released"]);
    assert_eq!(log_b.take(), ["claimed: HandedOver"]);
    assert_eq!(repeated(&world, 2, &["before"]).await, [""; 0]);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_shows_the_next_owner_during_a_handoff() {
    let world = World::new(2);
    let mut a = owner_of_all(&world, 2, Duration::from_secs(3)).await;
    let mut log_a = OwnershipLog::of(&a);
    let (b, requested) = requesting_instance(&world).await;
    let shown = |snapshot: &Snapshot| {
        let view = snapshot.partitions.iter().find(|view| view.partition == requested).unwrap();
        (view.owner.clone(), view.handoff_to.as_ref().map(ToString::to_string))
    };
    log_a.wait_for("releasing: HandedOver").await;
    // Regardless of what a renewal or a cycle publishes meanwhile.
    for _ in 0..5 {
        sleep(Duration::from_millis(500)).await;
        assert_eq!(shown(&a.snapshots.borrow()), (PartitionOwner::This, Some("b".to_owned())));
    }
    log_a.wait_for("released").await;
    a.wait_until("that", |snapshot| shown(snapshot) == (PartitionOwner::Released, Some("b".to_owned()))).await;
    a.wait_until("the next owner", |snapshot| {
        shown(snapshot) == (PartitionOwner::Other(OwnerId::new("b").unwrap()), None)
    })
    .await;
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_says_why_the_partition_is_released() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    let b = world.start("b").await;
    assert!(matches!(world.first_stop().await, StopReason::Released { reason: ReleaseReason::HandedOver }));
    a.wait_until_it_holds(1).await;
    world.log.stops.lock().unwrap().clear();
    assert!(a.handle.release(&a.status().partition, SECOND));
    assert!(matches!(world.first_stop().await, StopReason::Released { reason: ReleaseReason::Requested }));
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// Such a record contains neither the incarnation of its owner nor the support of handoffs.
#[tokio::test(start_paused = true)]
async fn a_foreign_owner_is_stolen_from_without_a_request() {
    let world = World::new(2);
    for name in ["ownership/0", "ownership/1"] {
        write_record(&world, name, &[("ownerid", "python")]).await;
    }
    let mut b = world.start("b").await;
    let mut log_b = OwnershipLog::of(&b);
    b.wait_until_it_holds(1).await;
    assert_eq!(log_b.take(), ["claimed: Stolen(python)"]);
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_instances_request_the_same_partition() {
    let world = World::new(4);
    let isolated = isolated(&world);
    let a = owner_of_all(&isolated, 4, Duration::from_secs(3)).await;
    let mut log_a = OwnershipLog::of(&a);
    publish_to_each(&world, 4, "before");
    // Both instances have listed before the first request is written, and choose the same partition because they have
    // the same seed.
    let slow = Fault::Latency(Duration::from_secs(1));
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, Target::from(BlobOperation::Write).named(OWNERSHIP), slow));
    let (mut b, mut c) = (world.start("b").await, world.start("c").await);
    let (mut log_b, mut log_c) = (OwnershipLog::of(&b), OwnershipLog::of(&c));
    b.wait_until_it_holds(1).await;
    c.wait_until_it_holds(1).await;
    let requests: Vec<_> = world.faulty.trace().into_iter().map(|injected| injected.name).collect();
    assert_eq!(requests[0], requests[1], "choose another seed: they requested different partitions");
    sleep(Duration::from_secs(60)).await;
    publish_to_each(&world, 4, "after");
    assert_eq!((a.held(), b.held(), c.held()), (2, 1, 1));
    for reported in [&mut log_b, &mut log_c] {
        assert_eq!(reported.take(), ["requested from a", "claimed: HandedOver"]);
    }
    let handed_over =
        |by: &str| [&format!("requested by {by}"), "releasing: HandedOver", "released"].map(str::to_owned);
    let reported = log_a.take();
    assert!(
        reported == [handed_over("b"), handed_over("c")].concat()
            || reported == [handed_over("c"), handed_over("b")].concat(),
        "{reported:?}"
    );
    assert_eq!(repeated(&world, 4, &["before", "after"]).await, [""; 0]);
    for instance in [a, b, c] {
        instance.shut_down().await.unwrap();
    }
}

/// Like another SDK or a tool that ignores unknown keys.
#[tokio::test(start_paused = true)]
async fn an_erased_request_is_repeated() {
    let world = World::new(2);
    let a = owner_of_all(&world, 2, Duration::ZERO).await;
    let mut log_a = OwnershipLog::of(&a);
    publish_to_each(&world, 2, "before");
    let (b, requested) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    let name = format!("ownership/{requested}");
    let mut without_request = record(&world, &name).await.unwrap();
    assert_eq!(without_request.remove("ehchandoffto").as_deref(), Some("b"));
    world.container.overwrite(&blob_name(&name), &without_request).await.unwrap();
    log_b.wait_for("claimed: HandedOver").await;
    assert_eq!(log_a.take(), ["requested by b", "releasing: HandedOver", "released"]);
    assert_eq!(log_b.take(), ["claimed: HandedOver"]);
    publish_to_each(&world, 2, "after");
    assert_eq!(repeated(&world, 2, &["before", "after"]).await, [""; 0]);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// The request, the acknowledgment, renewals, the release and the claim; the last checkpoint and the adoption: one at
/// a time.
#[tokio::test(start_paused = true)]
async fn one_failing_write_in_a_handoff_repeats_nothing() {
    let turns = (0..8).map(|turn| (OWNERSHIP, turn)).chain((0..3).map(|turn| (CHECKPOINT, turn)));
    for ((name, turn), fault) in turns.flat_map(|turn| write_faults().map(|fault| (turn, fault))) {
        let mut world = World::new(2);
        if name == CHECKPOINT {
            // Only the last checkpoint is written.
            world.config.checkpoint_policy = CheckpointPolicy::default().with_interval(600 * SECOND);
        }
        let written = Target::from(BlobOperation::Write).named(name);
        let mut a = owner_of_all(&world, 2, SECOND).await;
        let (mut log_a, case) = (OwnershipLog::of(&a), format!("{name} {turn} {fault:?}"));
        a.wait_until_all_idle(2).await;
        publish_to_each(&world, 2, "before");
        for _ in 0..turn {
            world.faulty.inject_on(written.clone(), Fault::Latency(Duration::ZERO));
        }
        world.faulty.inject_on(written.clone(), fault);
        let mut b = world.start("b").await;
        let mut log_b = OwnershipLog::of(&b);
        b.wait_until_it_holds(1).await;
        a.wait_until_it_holds(1).await;
        publish_to_each(&world, 2, "after");
        assert_eq!(repeated(&world, 2, &["before", "after"]).await, [""; 0], "{case}");
        assert_eq!(log_a.take(), ["requested by b", "releasing: HandedOver", "released"], "{case}");
        assert_eq!(log_b.take(), ["requested from a", "claimed: HandedOver"], "{case}");
        sleep(60 * SECOND).await;
        assert_eq!((a.held(), b.held()), (1, 1), "{case}");
        a.shut_down().await.unwrap();
        b.shut_down().await.unwrap();
        assert_eq!(world.faulty.pending(), 0, "{case}");
    }
}

/// Waits until `count` partitions are stopping.
async fn wait_until_stopping(instance: &Instance, count: usize) {
    let stopping = || instance.handle.partitions().iter().filter(|of| of.state == PartitionState::Stopping).count();
    let waiting = async {
        while stopping() < count {
            sleep(SECOND / 100).await;
        }
    };
    timeout(600 * SECOND, waiting).await.expect("the partitions never stop");
}

/// The partition did not stop because of the handoff, but it has stopped.
#[tokio::test(start_paused = true)]
async fn a_handoff_requested_while_an_old_epoch_stops() {
    let mut world = World::new(2);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_interval(5 * SECOND));
    let mut a = owner_of_all(&world, 2, 14 * SECOND).await;
    let store = world.store("b").await;
    let mut b = world.start_on(store.clone(), world.hub.source(), world.recorder("b"));
    a.wait_until_it_holds(1).await;
    b.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    let partition = a.status().partition;
    let mut log_a = OwnershipLog::of(&a);
    // The next renewal writes the record again and starts a new epoch.
    remove_record(&world, &format!("ownership/{partition}")).await;
    wait_until_stopping(&a, 1).await;
    let began = Instant::now();
    let seen = store.list_ownerships().await.unwrap().records;
    let seen = seen.into_iter().find(|seen| seen.partition == partition).unwrap();
    assert!(matches!(store.request_handoff(&seen).await, Ok(HandoffRequestOutcome::Requested(_))));
    log_a.wait_for("releasing: HandedOver").await;
    assert!(began.elapsed() < 14 * SECOND, "{:?}", began.elapsed());
    log_a.wait_for("released").await;
    assert!(began.elapsed() <= 15 * SECOND, "{:?}", began.elapsed());
    assert!(!log_a.take().iter().any(|reported| reported.contains("duplicates")));
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// Fails at "work" when the partition stops, and at "poison" immediately.
struct FailsAtTheEnd(Recorder);

impl Handler<MemoryEvent> for FailsAtTheEnd {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.0.started(context).await
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        let (work, poison) = (&*events[0].body == b"work", &*events[0].body == b"poison");
        self.0.handle(events, context.clone()).await?;
        if work {
            context.stopping().await;
        }
        if work || poison { Err("failed on request".into()) } else { Ok(()) }
    }
}

/// A part of the batch may have been processed, although the handler was not cancelled.
#[tokio::test(start_paused = true)]
async fn a_batch_that_failed_before_a_handoff_may_repeat() {
    for body in ["work", "poison", "good"] {
        let mut world = World::new(2);
        world.checkpoint = body == "good";
        let mut a = world.start_with("a", world.hub.source(), FailsAtTheEnd(world.recorder("a"))).await;
        a.wait_until_it_holds(2).await;
        a.wait_until_all_idle(2).await;
        for partition in 0..2 {
            world.hub.publish(partition, body);
        }
        // By then, the delays between restarts are long.
        sleep(120 * SECOND).await;
        let mut log_a = OwnershipLog::of(&a);
        let (b, _) = requesting_instance(&world).await;
        log_a.wait_for("released").await;
        let reported = log_a.take().iter().any(|reported| reported == "duplicates: CheckpointNotWritten");
        assert_eq!(reported, body != "good", "{body}");
        a.crash().await;
        b.crash().await;
    }
}

/// All partitions wait for one request that hangs.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_hangs_delays_no_release() {
    let world = greedy(4);
    let mut a = world.start_on(limited_store(&world, "a", 1).await, world.hub.source(), world.recorder("a"));
    a.wait_until_it_holds(4).await;
    a.wait_until_all_idle(4).await;
    let mut log_a = OwnershipLog::of(&a);
    let writes = Target::from(BlobOperation::Write).named(CHECKPOINT);
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, Fault::Hang));
    publish_to_each(&world, 4, "x");
    // Until the checkpoints of all four wait.
    sleep(30 * SECOND).await;
    let (b, _) = requesting_instance(&world).await;
    log_a.wait_for("releasing: HandedOver").await;
    let began = Instant::now();
    log_a.wait_for("duplicates: CheckpointNotWritten").await;
    log_a.wait_for("released").await;
    // Twice the drain timeout of 15 s, the closing of the link, and four requests.
    assert!(began.elapsed() < 52 * SECOND, "{:?}", began.elapsed());
    a.crash().await;
    b.crash().await;
}

/// The handler fails and stops slowly. Meanwhile, the instance receives a handoff request for the partition.
#[tokio::test(start_paused = true)]
async fn a_failure_releases_a_partition_in_a_handoff() {
    let mut world = World::new(2);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_interval(5 * SECOND));
    world.config =
        world.config.with_drain_timeout(16 * SECOND).with_on_failure(OnFailure::Release { cooldown: 600 * SECOND });
    let a = owner_of_all(&world, 2, 15 * SECOND).await;
    a.wait_until_all_idle(2).await;
    let mut log_a = OwnershipLog::of(&a);
    let (b, requested) = requesting_instance(&world).await;
    world.hub.publish(requested.as_str().parse().unwrap(), "fail");
    world.log.wait_for("a failure", |log| log.times("fail") == 1).await;
    log_a.wait_for("released").await;
    assert_eq!(
        log_a.take(),
        ["requested by b", "releasing: HandedOver", "duplicates: CheckpointNotWritten", "released"]
    );
    a.crash().await;
    b.crash().await;
}

/// Instance `b` has requested half of 32 partitions from `a`. From then on, the storage throttles its requests.
async fn throttled_while_requesting() -> (World, Instance, World, Instance) {
    let world = greedy(32);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(32).await;
    let isolated = isolated(&world);
    let mut b = isolated.start("b").await;
    b.wait_until("16 requests", |snapshot| snapshot.requested_handoffs.len() == 16).await;
    isolated.faulty.set_plan(FaultPlan::always(Fault::Throttled { retry_after: None }));
    (world, a, isolated, b)
}

#[tokio::test(start_paused = true)]
async fn request_checks_back_off_while_throttled() {
    let (_world, a, isolated, b) = throttled_while_requesting().await;
    sleep(120 * SECOND).await;
    let before = isolated.faulty.trace().len();
    sleep(600 * SECOND).await;
    let refused = isolated.faulty.trace().len() - before;
    isolated.faulty.set_plan(FaultPlan::always(Fault::Latency(SECOND / 1000)));
    sleep(120 * SECOND).await;
    let before = isolated.faulty.trace().len();
    sleep(600 * SECOND).await;
    let normal = isolated.faulty.trace().len() - before;
    assert_eq!((a.held(), b.held()), (16, 16));
    assert!(refused <= normal, "{refused} requests in ten minutes while throttled, {normal} otherwise");
}

/// The partitions were handed over, and claimed again by `a` when `b` did not claim them. `b` must request them again.
#[tokio::test(start_paused = true)]
async fn handoffs_are_requested_again_after_an_outage() {
    let (world, mut a, isolated, mut b) = throttled_while_requesting().await;
    sleep(300 * SECOND).await;
    a.wait_until_it_holds(32).await;
    let (mut log_a, mut log_b) = (OwnershipLog::of(&a), OwnershipLog::of(&b));
    isolated.faulty.set_plan(FaultPlan::default());
    b.wait_until_it_holds(16).await;
    sleep(120 * SECOND).await;
    let reported = [log_a.take(), log_b.take()].concat();
    let unplanned = reported.iter().filter(|reported| reported.contains("Stolen") || reported.contains("duplicates"));
    assert_eq!(unplanned.count(), 0, "{reported:?}");
    assert_eq!((a.held(), b.held(), world.log.contiguity.violations()), (16, 16, vec![]));
}

/// The owner or the requesting instance crashes or ends before the partition has moved.
mod cut_short {
    use super::*;

    /// A lease with its grace period, whole seconds of the server, the cycle at its end, and the claim of another
    /// partition.
    const EXPIRED_WITHIN: Duration = Duration::from_secs(60 + 2 + 1 + 2 + 2);

    /// An interval and its jitter.
    const MAX_CYCLE: Duration = Duration::from_secs(10 + 1);

    /// How long the heartbeat of a crashed instance counts, and a cycle of the instance that takes its share.
    const REMOVED_WITHIN: Duration = Duration::from_secs(60 + 2 + 10 + 1);

    #[tokio::test(start_paused = true)]
    async fn the_owner_acknowledges_and_crashes() {
        let world = World::new(2);
        let a = owner_of_all(&world, 2, 10 * SECOND).await;
        let mut log_a = OwnershipLog::of(&a);
        publish_to_each(&world, 2, "before");
        let (mut b, requested) = requesting_instance(&world).await;
        let mut log_b = OwnershipLog::of(&b);
        log_a.wait_for("releasing: HandedOver").await;
        sleep(SECOND).await;
        assert_eq!(&record(&world, &format!("ownership/{requested}")).await.unwrap()["ehcdraining"], "1");
        a.crash().await;
        let crashed_at = Instant::now();
        publish_to_each(&world, 2, "after");
        b.wait_until_it_holds(2).await;
        assert!(crashed_at.elapsed() <= EXPIRED_WITHIN, "{:?}", crashed_at.elapsed());
        assert_eq!(log_b.take(), ["claimed: Expired(a)", "claimed: Expired(a)"]);
        repeated(&world, 2, &["before", "after"]).await;
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_owner_acknowledges_and_loses_the_storage() {
        let world = World::new(2);
        let isolated = isolated(&world);
        let mut a = owner_of_all(&isolated, 2, 7 * SECOND).await;
        let mut log_a = OwnershipLog::of(&a);
        let (b, requested) = requesting_instance(&world).await;
        let mut log_b = OwnershipLog::of(&b);
        log_a.wait_for("releasing: HandedOver").await;
        sleep(SECOND).await;
        isolated.faulty.set_plan(FaultPlan::always(Fault::Hang));
        publish_to_each(&world, 2, "meanwhile");
        let isolated_at = Instant::now();
        log_b.wait_for("claimed: Expired(a)").await;
        assert!(isolated_at.elapsed() <= EXPIRED_WITHIN, "{:?}", isolated_at.elapsed());
        isolated.faulty.set_plan(FaultPlan::default());
        a.wait_until("the loss is detected", |snapshot| snapshot.other_owner(&requested).is_some()).await;
        repeated(&world, 2, &["meanwhile"]).await;
        sleep(120 * SECOND).await;
        assert_eq!((a.held(), b.held()), (1, 1));
        // The release is repeated until `a` detects that it no longer owns the partition.
        assert_eq!(log_a.take()[..3], ["requested by b", "releasing: HandedOver", "lost to Some(b)"]);
        assert_eq!(log_b.take()[0], "claimed: Expired(a)");
        a.shut_down().await.unwrap();
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_owner_crashes_before_it_acknowledges() {
        let world = World::new(2);
        let a = owner_of_all(&world, 2, Duration::ZERO).await;
        publish_to_each(&world, 2, "before");
        let (mut b, _) = requesting_instance(&world).await;
        let mut log_b = OwnershipLog::of(&b);
        a.crash().await;
        publish_to_each(&world, 2, "after");
        b.wait_until_it_holds(2).await;
        assert_eq!(log_b.take(), ["duplicates: NotAcknowledged", "claimed: Stolen(a)", "claimed: Expired(a)"]);
        repeated(&world, 2, &["before", "after"]).await;
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_requesting_instance_crashes() {
        let world = World::new(2);
        let mut a = owner_of_all(&world, 2, SECOND).await;
        let mut log_a = OwnershipLog::of(&a);
        publish_to_each(&world, 2, "before");
        let (b, _) = requesting_instance(&world).await;
        b.crash().await;
        log_a.wait_for("released").await;
        let released_at = Instant::now();
        publish_to_each(&world, 2, "meanwhile");
        a.wait_until_it_holds(2).await;
        assert!(released_at.elapsed() <= REMOVED_WITHIN, "{:?}", released_at.elapsed());
        assert_eq!(log_a.take(), ["requested by b", "releasing: HandedOver", "released", "claimed: Released"]);
        assert_eq!(repeated(&world, 2, &["before", "meanwhile"]).await, [""; 0]);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_of_a_removed_instance_is_deleted() {
        let world = World::new(1);
        let a = owner_of_all(&world, 1, Duration::ZERO).await;
        let mut log_a = OwnershipLog::of(&a);
        sleep(300 * SECOND).await;
        let ghost = world.store("ghost").await;
        let seen = ghost.list_ownerships().await.unwrap().records.remove(0);
        assert!(matches!(ghost.request_handoff(&seen).await, Ok(HandoffRequestOutcome::Requested(_))));
        // Its last act. A renewal that reads the request would not know that its instance has crashed; a listing does.
        write_record(&world, "beacon", &[("ehcchange", "9000000000000000")]).await;
        for _ in 0..60 {
            publish_to_each(&world, 1, "meanwhile");
            sleep(SECOND).await;
        }
        assert!(!record(&world, "ownership/0").await.unwrap().contains_key("ehchandoffto"));
        assert_eq!((log_a.take(), world.log.times("meanwhile 0")), (Vec::new(), 60));
        a.shut_down().await.unwrap();
    }

    /// The requesting instance has left the group, and the owner detects that in its next cycle.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_ends_before_it_is_read() {
        let world = World::new(2);
        let mut a = owner_of_all(&world, 2, Duration::ZERO).await;
        let mut log_a = OwnershipLog::of(&a);
        let (b, requested) = requesting_instance(&world).await;
        assert!(log_a.take().is_empty(), "choose another seed: the owner read it immediately");
        b.shut_down().await.unwrap();
        let record_of = format!("ownership/{requested}");
        assert_eq!(&record(&world, &record_of).await.unwrap()["ehchandoffto"], "b", "a request cannot be withdrawn");
        let cycles = a.snapshots.borrow().cycles;
        a.wait_until("a cycle", |snapshot| snapshot.cycles > cycles + 1).await;
        sleep(40 * SECOND).await;
        assert!(!record(&world, &record_of).await.unwrap().contains_key("ehchandoffto"));
        assert_eq!(log_a.take(), [""; 0]);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_requesting_instance_ends_during_the_drain() {
        let world = World::new(2);
        let mut a = owner_of_all(&world, 2, 3 * SECOND).await;
        let mut log_a = OwnershipLog::of(&a);
        publish_to_each(&world, 2, "before");
        let (b, _) = requesting_instance(&world).await;
        log_a.wait_for("releasing: HandedOver").await;
        assert!(b.shut_down().await.unwrap().is_clean());
        publish_to_each(&world, 2, "meanwhile");
        log_a.wait_for("released").await;
        let released_at = Instant::now();
        a.wait_until_it_holds(2).await;
        // It is reserved only for an instance that is alive.
        assert!(released_at.elapsed() <= MAX_CYCLE, "{:?}", released_at.elapsed());
        assert_eq!(log_a.take(), ["requested by b", "releasing: HandedOver", "released", "claimed: Released"]);
        assert_eq!(repeated(&world, 2, &["before", "meanwhile"]).await, [""; 0]);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_owner_shuts_down_during_the_handoff() {
        for acknowledged in [false, true] {
            let world = World::new(2);
            let a = owner_of_all(&world, 2, 3 * SECOND).await;
            let mut log_a = OwnershipLog::of(&a);
            publish_to_each(&world, 2, "before");
            let (mut b, _) = requesting_instance(&world).await;
            let mut log_b = OwnershipLog::of(&b);
            if acknowledged {
                log_a.wait_for("releasing: HandedOver").await;
            }
            publish_to_each(&world, 2, "meanwhile");
            assert!(a.shut_down().await.unwrap().is_clean());
            b.wait_until_it_holds(2).await;
            assert_eq!(log_b.take(), ["claimed: HandedOver", "claimed: Released"], "{acknowledged}");
            let reported = log_a.take();
            assert_eq!(reported.contains(&"releasing: HandedOver".to_owned()), acknowledged, "{reported:?}");
            assert_eq!(reported[reported.len() - 2..], ["released", "released"]);
            assert_eq!(repeated(&world, 2, &["before", "meanwhile"]).await, [""; 0], "{acknowledged}");
            b.shut_down().await.unwrap();
        }
    }

    /// The acknowledgment finds the record deleted and creates it again, which starts a new epoch. That epoch must be
    /// released, too.
    #[tokio::test(start_paused = true)]
    async fn a_record_deleted_during_a_handoff() {
        let world = World::new(2);
        let isolated = isolated(&world);
        let a = owner_of_all(&isolated, 2, 14 * SECOND).await;
        let mut log_a = OwnershipLog::of(&a);
        publish_to_each(&world, 2, "before");
        let (mut b, requested) = requesting_instance(&world).await;
        let name = format!("ownership/{requested}");
        let writes = Target::from(BlobOperation::Write).named(&name);
        isolated.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, Fault::Latency(2 * SECOND)));
        log_a.wait_for("releasing: HandedOver").await;
        let stop_requested_at = Instant::now();
        sleep(SECOND).await;
        remove_record(&world, &name).await;
        log_a.wait_for("released").await;
        assert!(stop_requested_at.elapsed() < 14 * SECOND, "{:?}", stop_requested_at.elapsed());
        b.wait_until_it_holds(1).await;
        assert!(stop_requested_at.elapsed() < 14 * SECOND + MAX_CYCLE, "{:?}", stop_requested_at.elapsed());
        publish_to_each(&world, 2, "after");
        repeated(&world, 2, &["before", "after"]).await;
        assert!(!log_a.take().iter().any(|reported| reported.contains("HandlerStillRunning")));
        a.shut_down().await.unwrap();
        b.shut_down().await.unwrap();
    }
}
