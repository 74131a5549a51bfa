//! The owner or the requesting instance crashes or ends before the partition has moved.

use std::time::Duration;

use eventhubs_checkpoint::store::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use tokio::time::{Instant, sleep};

use crate::ownership_log::{OwnershipLog, owner_of_all, publish, record, repeated, requesting_instance};
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// A lease with its grace period, whole seconds of the server, the cycle at its end, and the claim of another partition.
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
    publish(&world, 2, "before");
    let (mut b, requested) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    log_a.wait_for("releasing: HandedOver").await;
    sleep(SECOND).await;
    assert_eq!(&record(&world, &format!("ownership/{requested}")).await.unwrap()["ehcdraining"], "1");
    a.crash().await;
    let crashed_at = Instant::now();
    publish(&world, 2, "after");
    b.wait_until_it_holds(2).await;
    assert!(crashed_at.elapsed() <= EXPIRED_WITHIN, "{:?}", crashed_at.elapsed());
    assert_eq!(log_b.take(), ["claimed: Expired(a)", "claimed: Expired(a)"]);
    repeated(&world, 2, &["before", "after"]).await;
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_owner_acknowledges_and_loses_the_storage() {
    let world = World::new(2);
    let isolated = World { faulty: FaultyContainer::new(world.container.clone(), 3), ..world.clone() };
    let mut a = owner_of_all(&isolated, 2, 7 * SECOND).await;
    let mut log_a = OwnershipLog::of(&a);
    let (b, requested) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    log_a.wait_for("releasing: HandedOver").await;
    sleep(SECOND).await;
    isolated.faulty.set_plan(FaultPlan::always(Fault::Hang));
    publish(&world, 2, "meanwhile");
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
    publish(&world, 2, "before");
    let (mut b, _) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    a.crash().await;
    publish(&world, 2, "after");
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
    publish(&world, 2, "before");
    let (b, _) = requesting_instance(&world).await;
    b.crash().await;
    log_a.wait_for("released").await;
    let released_at = Instant::now();
    publish(&world, 2, "meanwhile");
    a.wait_until_it_holds(2).await;
    assert!(released_at.elapsed() <= REMOVED_WITHIN, "{:?}", released_at.elapsed());
    assert_eq!(log_a.take(), ["requested by b", "releasing: HandedOver", "released", "claimed: Released"]);
    assert_eq!(repeated(&world, 2, &["before", "meanwhile"]).await, [""; 0]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_removed_instance_is_deleted() {
    let world = World::new(1);
    let mut a = owner_of_all(&world, 1, Duration::ZERO).await;
    let mut log_a = OwnershipLog::of(&a);
    sleep(300 * SECOND).await;
    let cycles = a.snapshots.borrow().cycles;
    a.wait_until("a cycle", |snapshot| snapshot.cycles > cycles).await;
    // Before the next cycle, which starts after 27 s at the earliest: a renewal that reads the request would not know
    // that its instance has crashed.
    sleep(SECOND.mul_f64(26.9)).await;
    let ghost = world.store("ghost").await;
    let seen = ghost.list_ownerships().await.unwrap().records.remove(0);
    assert!(matches!(ghost.request_handoff(&seen).await, Ok(HandoffRequestOutcome::Requested(_))));
    for _ in 0..60 {
        publish(&world, 1, "meanwhile");
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
    publish(&world, 2, "before");
    let (b, _) = requesting_instance(&world).await;
    log_a.wait_for("releasing: HandedOver").await;
    assert!(b.shut_down().await.unwrap().is_clean());
    publish(&world, 2, "meanwhile");
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
        publish(&world, 2, "before");
        let (mut b, _) = requesting_instance(&world).await;
        let mut log_b = OwnershipLog::of(&b);
        if acknowledged {
            log_a.wait_for("releasing: HandedOver").await;
        }
        publish(&world, 2, "meanwhile");
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

/// The acknowledgement finds the record deleted and creates it again, which starts a new epoch. That epoch must be
/// released, too.
#[tokio::test(start_paused = true)]
async fn a_record_deleted_during_a_handoff() {
    let world = World::new(2);
    let isolated = World { faulty: FaultyContainer::new(world.container.clone(), 3), ..world.clone() };
    let a = owner_of_all(&isolated, 2, 14 * SECOND).await;
    let mut log_a = OwnershipLog::of(&a);
    publish(&world, 2, "before");
    let (mut b, requested) = requesting_instance(&world).await;
    let name = format!("ns.servicebus.windows.net/hub/$default/ownership/{requested}");
    let writes = Target::from(BlobOperation::Write).named(&name);
    isolated.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, Fault::Latency(2 * SECOND)));
    log_a.wait_for("releasing: HandedOver").await;
    let stop_requested_at = Instant::now();
    sleep(SECOND).await;
    world.container.remove(&name).await.unwrap();
    log_a.wait_for("released").await;
    assert!(stop_requested_at.elapsed() < 14 * SECOND, "{:?}", stop_requested_at.elapsed());
    b.wait_until_it_holds(1).await;
    assert!(stop_requested_at.elapsed() < 14 * SECOND + MAX_CYCLE, "{:?}", stop_requested_at.elapsed());
    publish(&world, 2, "after");
    repeated(&world, 2, &["before", "after"]).await;
    assert!(!log_a.take().iter().any(|reported| reported.contains("HandlerStillRunning")));
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}
