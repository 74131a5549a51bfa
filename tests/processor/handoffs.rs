//! Handoffs on request, and the events of handoffs that fail.

use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::balancer::{DuplicateCause, OwnershipEvent, PartitionOwner, Snapshot};
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::processor::{CheckpointPolicy, ReleaseReason, StopReason};
use eventhubs_checkpoint::store::{Claim, ClaimOutcome, GroupStore, Lease};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, sleep, timeout};

use crate::ownership_log::{OwnershipLog, owner_of_all, publish, record, repeated, requesting_instance};
use crate::world::{TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

const OWNERSHIP: &str = "/ownership/";
const CHECKPOINT: &str = "/checkpoint/";

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
    publish(&world, 2, "before");
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

/// Such a record contains neither the incarnation of its owner nor the support of handoffs.
#[tokio::test(start_paused = true)]
async fn a_foreign_owner_is_stolen_from_without_a_request() {
    let world = World::new(2);
    let python = Metadata::from([("ownerid", "python")]);
    for partition in 0..2 {
        let name = format!("ns.servicebus.windows.net/hub/$default/ownership/{partition}");
        world.container.overwrite(&name, &python).await.unwrap();
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
    let isolated = World { faulty: FaultyContainer::new(world.container.clone(), 3), ..world.clone() };
    let a = owner_of_all(&isolated, 4, Duration::from_secs(3)).await;
    let mut log_a = OwnershipLog::of(&a);
    publish(&world, 4, "before");
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
    publish(&world, 4, "after");
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
    publish(&world, 2, "before");
    let (b, requested) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    let name = format!("ownership/{requested}");
    let mut without_request = record(&world, &name).await.unwrap();
    assert_eq!(without_request.remove("ehchandoffto").as_deref(), Some("b"));
    let full_name = format!("ns.servicebus.windows.net/hub/$default/{name}");
    world.container.overwrite(&full_name, &without_request).await.unwrap();
    log_b.wait_for("claimed: HandedOver").await;
    assert_eq!(log_a.take(), ["requested by b", "releasing: HandedOver", "released"]);
    assert_eq!(log_b.take(), ["claimed: HandedOver"]);
    publish(&world, 2, "after");
    assert_eq!(repeated(&world, 2, &["before", "after"]).await, [""; 0]);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// Every fault of a write, except a concurrent write of another owner.
pub fn write_faults() -> [Fault; 9] {
    [
        Fault::Latency(2 * SECOND),
        Fault::Unreachable,
        Fault::RequestLost,
        Fault::ResponseLost,
        Fault::AppliedLate(30 * SECOND),
        Fault::Hang,
        Fault::Conflict,
        Fault::Throttled { retry_after: None },
        Fault::Throttled { retry_after: Some(SECOND) },
    ]
}

/// The request, the acknowledgement, renewals, the release and the claim; the last checkpoint and the adoption: one at
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
        publish(&world, 2, "before");
        for _ in 0..turn {
            world.faulty.inject_on(written.clone(), Fault::Latency(Duration::ZERO));
        }
        world.faulty.inject_on(written.clone(), fault);
        let mut b = world.start("b").await;
        let mut log_b = OwnershipLog::of(&b);
        b.wait_until_it_holds(1).await;
        a.wait_until_it_holds(1).await;
        publish(&world, 2, "after");
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
