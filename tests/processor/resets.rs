//! Resets by an operator of partitions that running processors own.

use std::time::Duration;

use eventhubs_checkpoint::admin::{ResetOptions, ResetOutcome};
use eventhubs_checkpoint::balancer::{LoadBalancingStrategy, OnLeaseExpiry};
use eventhubs_checkpoint::processor::{
    OnFailure, OnInvalidCheckpoint, OnShutdown, PartitionState, StopReason, TrackedEvent,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, Target};
use eventhubs_checkpoint::{ErrorKind, LeaseScope, PartitionId, Position};
use tokio::time::{Instant, sleep, timeout};

use crate::support::handlers::{OpenTokens, owner_of_all};
use crate::support::operator::{EXPIRY, at, operator, processed, publish, reset, times, with_ten_checkpointed};
use crate::support::ownership_log::{OwnershipLog, requesting_instance};
use crate::support::{SECOND, checkpoint_of, write_record};
use crate::world::{Instance, TIMEOUT, World, random_faults};

/// Half a lease duration and an interval: by then, the previous owner has claimed its partition again.
const RECOVERY_TIME: Duration = Duration::from_secs(40);

/// A partition that an operator released is reserved for a lease duration and the grace period.
const RESERVATION: Duration = Duration::from_secs(62);

/// Starts a group of three that has been settled for a long time, so that its cycles are long.
async fn settled(strategy: LoadBalancingStrategy, partitions: u32) -> (World, Vec<Instance>) {
    let mut world = World::new(partitions);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_load_balancing_strategy(strategy));
    let mut group = vec![world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut group {
        instance.wait_until_it_holds(partitions as usize / 3).await;
    }
    publish(&world, partitions, 0..10);
    processed(&world, partitions, 9, 1).await;
    sleep(300 * SECOND).await;
    (world, group)
}

fn holdings(group: &[Instance]) -> Vec<Vec<PartitionId>> {
    group.iter().map(|instance| instance.snapshots.borrow().owned.keys().cloned().collect()).collect()
}

/// Waits until all instances own the same partitions as before, and returns the time that this took.
async fn wait_until_restored(group: &[Instance], before: &[Vec<PartitionId>]) -> Duration {
    let began = Instant::now();
    let waiting = async {
        while holdings(group) != before {
            sleep(SECOND / 10).await;
        }
    };
    timeout(TIMEOUT, waiting).await.expect("never restored");
    began.elapsed()
}

async fn shut_down(group: Vec<Instance>) {
    for instance in group {
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_previous_owner_continues_at_the_new_position() {
    for strategy in [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy] {
        let (world, group) = settled(strategy.clone(), 6).await;
        let before = holdings(&group);
        let mut reported: Vec<_> = group.iter().map(OwnershipLog::of).collect();
        for partition in 0..6 {
            for reported in &mut reported {
                reported.take();
            }
            let stops = world.log.stops.lock().unwrap().len();
            reset(&world, &[(partition, 4)]).await;
            assert_eq!(checkpoint_of(&world, partition).await, Some(4));
            // The owner may not have detected the reset yet.
            world.log.wait_for("the stop", |log| log.stops.lock().unwrap().len() > stops).await;
            let took = wait_until_restored(&group, &before).await;
            assert!(took <= RECOVERY_TIME, "{strategy:?}: {took:?}");
            world.log.wait_for("again", |log| log.times(&format!("{partition}:9")) == 2).await;
            sleep(120 * SECOND).await;
            assert_eq!(times(&world, partition, 0..10), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2], "{strategy:?}");
            assert_eq!(checkpoint_of(&world, partition).await, Some(9));
            let (owner, _) = before.iter().enumerate().find(|(_, held)| held.contains(&partition.into())).unwrap();
            for (index, reported) in reported.iter_mut().enumerate() {
                let (logged, expected) = (reported.take(), if index == owner { 2 } else { 0 });
                assert_eq!(logged.len(), expected, "{strategy:?}, {index} of {partition}: {logged:?}");
                assert!(logged.first().is_none_or(|first| first.starts_with("lost to ")), "{logged:?}");
                assert!(logged.last().is_none_or(|last| last.starts_with("claimed: ")), "{logged:?}");
            }
            let reason = world.log.stops.lock().unwrap().last().cloned().unwrap();
            assert!(matches!(reason, (_, _, StopReason::OwnershipLost { .. })), "{reason:?}");
        }
        shut_down(group).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_partitions_return_to_their_owners() {
    for strategy in [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy] {
        let (world, group) = settled(strategy.clone(), 6).await;
        let before = holdings(&group);
        let mut reported: Vec<_> = group.iter().map(OwnershipLog::of).collect();
        reset(&world, &[(0, -1), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]).await;
        for (partition, to) in (0..6).zip(-1..) {
            assert_eq!(checkpoint_of(&world, partition).await, Some(to));
        }
        let reset_at = Instant::now();
        processed(&world, 6, 9, 2).await;
        assert!(reset_at.elapsed() <= RECOVERY_TIME, "{strategy:?}: {:?}", reset_at.elapsed());
        sleep(300 * SECOND).await;
        assert_eq!(holdings(&group), before, "{strategy:?}");
        for reported in &mut reported {
            let logged = reported.take();
            assert_eq!(logged.iter().filter(|logged| logged.starts_with("claimed: ")).count(), 2, "{logged:?}");
            assert_eq!(logged.iter().filter(|logged| logged.starts_with("requested ")).count(), 0, "{logged:?}");
        }
        for (partition, to) in (0..6).zip(-1..) {
            let expected: Vec<_> = (0..10).map(|number| if number > to { 2 } else { 1 }).collect();
            assert_eq!(times(&world, partition, 0..10), expected, "{strategy:?}, {partition}");
        }
        shut_down(group).await;
    }
}

/// The operator waits for longer than its lease lasts, while an instance wants the partition.
#[tokio::test(start_paused = true)]
async fn an_operator_that_waits_renews_its_lease() {
    let world = World::new(2);
    publish(&world, 2, 0..10);
    write_record(&world, "ownership/1", &[("ownerid", "python")]).await;
    let a = world.start("a").await;
    processed(&world, 1, 9, 1).await;
    let options = ResetOptions::default().with_allow_foreign(true).with_settle(5 * EXPIRY);
    let outcomes = operator(&world).await.reset(vec![(1.into(), at(4))], &options).await.unwrap();
    assert!(matches!(outcomes[..], [(_, ResetOutcome::Done)]), "{outcomes:?}");
    world.log.wait_for("1:9", |log| log.times("1:9") == 1).await;
    assert_eq!(times(&world, 1, 0..10), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    a.shut_down().await.unwrap();
}

/// Events arrive continuously.
#[tokio::test(start_paused = true)]
async fn a_busy_owner_stops_at_its_next_checkpoint() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    let hub = world.hub.clone();
    let publishing = tokio::spawn(async move {
        for number in 10.. {
            sleep(SECOND / 4).await;
            hub.publish(0, format!("0:{number}"));
        }
    });
    sleep(60 * SECOND).await;
    let reset_at = Instant::now();
    reset(&world, &[(0, 4)]).await;
    let stop = world.first_stop().await;
    assert!(reset_at.elapsed() <= 2 * SECOND, "{:?}", reset_at.elapsed());
    assert!(matches!(stop, StopReason::OwnershipLost { .. }), "{stop:?}");
    assert_eq!(checkpoint_of(&world, 0).await, Some(4));
    processed(&world, 1, 5, 2).await;
    assert!(reset_at.elapsed() <= RECOVERY_TIME);
    sleep(10 * SECOND).await;
    publishing.abort();
    assert!(times(&world, 0, 0..5).iter().all(|times| *times == 1));
    assert!(checkpoint_of(&world, 0).await > Some(250), "it catches up");
    a.shut_down().await.unwrap();
}

/// A pause ends with the reset.
#[tokio::test(start_paused = true)]
async fn a_reset_forward_skips_events() {
    let world = World::new(1);
    let mut a = with_ten_checkpointed(&world, 1).await;
    assert!(a.handle.pause(&0.into()));
    a.wait_for_status("paused", |status| status.state == PartitionState::Paused).await;
    publish(&world, 1, 10..20);
    reset(&world, &[(0, 14)]).await;
    processed(&world, 1, 19, 1).await;
    a.wait_until_it_holds(1).await;
    sleep(60 * SECOND).await;
    assert_eq!(times(&world, 0, 0..20), [[1; 10].as_slice(), &[0; 5], &[1; 5]].concat());
    assert_eq!(checkpoint_of(&world, 0).await, Some(19));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_parked_partition_starts_again() {
    let mut world = World::new(1);
    world.config = world.config.with_on_failure(OnFailure::Park);
    let a = with_ten_checkpointed(&world, 1).await;
    world.hub.publish(0, "fail");
    a.wait_for_status("parked", |status| status.state == PartitionState::Parked).await;
    let reset_at = Instant::now();
    reset(&world, &[(0, 7)]).await;
    world.log.wait_for("the event again", |log| log.times("fail") == 2).await;
    assert!(reset_at.elapsed() <= RECOVERY_TIME);
    sleep(10 * SECOND).await;
    assert_eq!(times(&world, 0, 6..10), [1, 1, 2, 2]);
    assert_eq!(checkpoint_of(&world, 0).await, Some(10));
    assert_eq!(a.handle.health().issues, []);
    a.shut_down().await.unwrap();
}

/// A hanging batch is cancelled, and the partition continues after it.
#[tokio::test(start_paused = true)]
async fn a_stalled_partition_continues_after_the_event() {
    let mut world = World::new(2);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_stall_timeout(60 * SECOND));
    let mut a = with_ten_checkpointed(&world, 2).await;
    world.hub.publish(0, "hang");
    world.hub.publish(0, "after");
    a.wait_until("stalled", |snapshot| snapshot.stalled.any()).await;
    let reset_at = Instant::now();
    reset(&world, &[(0, 10)]).await;
    world.log.wait_for("after", |log| log.times("after") == 1).await;
    assert!(reset_at.elapsed() <= RECOVERY_TIME + 20 * SECOND, "{:?}", reset_at.elapsed());
    sleep(60 * SECOND).await;
    assert_eq!((a.held(), world.log.times("hang"), world.log.times("after")), (2, 1, 1));
    assert_eq!(checkpoint_of(&world, 0).await, Some(11));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tokens_from_before_the_reset_move_nothing() {
    let world = World::new(1);
    let handler = OpenTokens::default();
    let mut a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_it_holds(1).await;
    publish(&world, 1, 0..10);
    sleep(5 * SECOND).await;
    let mut before = handler.take();
    assert_eq!(before.len(), 10);
    for number in 0..6 {
        before.remove(&number).unwrap().finish();
    }
    sleep(5 * SECOND).await;
    assert_eq!(checkpoint_of(&world, 0).await, Some(5));
    reset(&world, &[(0, 2)]).await;
    // Between the reset and its detection, and after it.
    before.remove(&6).unwrap().finish();
    sleep(RECOVERY_TIME + 20 * SECOND).await;
    assert_eq!(checkpoint_of(&world, 0).await, Some(2));
    before.into_values().for_each(TrackedEvent::finish);
    sleep(10 * SECOND).await;
    assert_eq!(checkpoint_of(&world, 0).await, Some(2));
    let after = handler.take();
    assert_eq!(after.keys().copied().collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9]);
    after.into_values().for_each(TrackedEvent::finish);
    sleep(5 * SECOND).await;
    assert_eq!(checkpoint_of(&world, 0).await, Some(9));
    a.shut_down().await.unwrap();
}

/// The partition drains for an instance that requested it. That instance gets it, and starts at the new position.
#[tokio::test(start_paused = true)]
async fn a_reset_during_a_handoff() {
    let world = World::new(2);
    let a = owner_of_all(&world, 2, 10 * SECOND).await;
    publish(&world, 2, 0..10);
    processed(&world, 2, 9, 1).await;
    sleep(2 * SECOND).await;
    let mut log_a = OwnershipLog::of(&a);
    let (mut b, requested) = requesting_instance(&world).await;
    let mut log_b = OwnershipLog::of(&b);
    log_a.wait_for("releasing: HandedOver").await;
    let reset_at = Instant::now();
    let partition: u32 = requested.as_str().parse().unwrap();
    reset(&world, &[(partition, 4)]).await;
    b.wait_until_it_holds(1).await;
    assert!(reset_at.elapsed() <= RECOVERY_TIME, "{:?}", reset_at.elapsed());
    world.log.wait_for("again", |log| log.times(&format!("{partition}:9")) == 2).await;
    sleep(120 * SECOND).await;
    assert_eq!(times(&world, partition, 0..10), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    assert_eq!((a.held(), b.held()), (1, 1));
    let claims = log_b.take().into_iter().filter(|logged| logged.starts_with("claimed: ")).count();
    assert_eq!(claims, 1);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// The owner shuts down: another instance claims the partition after the reservation.
#[tokio::test(start_paused = true)]
async fn a_reset_during_the_drain_of_a_shutdown() {
    let (world, a, mut b, partition) = slow_owner_and_peer().await;
    let ending = tokio::spawn(a.shut_down());
    sleep(SECOND).await;
    let reset_at = Instant::now();
    reset(&world, &[(partition, 4)]).await;
    b.wait_until_it_holds(2).await;
    let took = reset_at.elapsed();
    assert!(took >= RESERVATION && took <= RESERVATION + RECOVERY_TIME, "{took:?}");
    world.log.wait_for("again", |log| log.times(&format!("{partition}:9")) == 2).await;
    assert_eq!(times(&world, partition, 0..10), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    ending.await.unwrap().unwrap();
    b.shut_down().await.unwrap();
}

/// The application has released the partition.
#[tokio::test(start_paused = true)]
async fn a_reset_during_the_drain_of_a_release() {
    let (world, a, b, partition) = slow_owner_and_peer().await;
    assert!(a.handle.release(&partition.into(), Duration::ZERO));
    sleep(SECOND).await;
    reset(&world, &[(partition, 4)]).await;
    let reset_at = Instant::now();
    world.log.wait_for("again", |log| log.times(&format!("{partition}:9")) == 2).await;
    assert!(reset_at.elapsed() <= RESERVATION + RECOVERY_TIME, "{:?}", reset_at.elapsed());
    assert_eq!(times(&world, partition, 0..10), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    sleep(120 * SECOND).await;
    assert_eq!((a.held(), b.held()), (1, 1));
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// Two instances with one partition each. The handler of the first one stops slowly. Returns its partition, too.
async fn slow_owner_and_peer() -> (World, Instance, Instance, u32) {
    let world = World::new(2);
    let mut a = owner_of_all(&world, 2, 10 * SECOND).await;
    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    a.wait_until_it_holds(1).await;
    publish(&world, 2, 0..10);
    processed(&world, 2, 9, 1).await;
    sleep(60 * SECOND).await;
    let partition = a.snapshots.borrow().owned.keys().next().unwrap().as_str().parse().unwrap();
    (world, a, b, partition)
}

#[tokio::test(start_paused = true)]
async fn a_reset_before_the_first_event_applies_the_policy() {
    for (policy, expected) in [
        (OnInvalidCheckpoint::Earliest, [0, 2, 2, 2, 2]),
        (OnInvalidCheckpoint::Latest, [0, 1, 1, 1, 1]),
        (OnInvalidCheckpoint::custom(|_| StartPosition::AfterSequenceNumber(7)), [0, 1, 1, 2, 2]),
    ] {
        let mut world = World::new(1);
        world.config = world.config.with_on_invalid_checkpoint(policy.clone());
        let a = with_ten_checkpointed(&world, 1).await;
        world.hub.expire_before(0, 6);
        reset(&world, &[(0, 2)]).await;
        assert_eq!(checkpoint_of(&world, 0).await, Some(2));
        sleep(RECOVERY_TIME + 20 * SECOND).await;
        world.hub.publish(0, "later");
        world.log.wait_for("later", |log| log.times("later") == 1).await;
        let found = times(&world, 0, 5..10);
        assert_eq!(found[1..], expected[1..], "{policy:?}");
        assert_eq!(found[0], 1, "{policy:?}");
        sleep(5 * SECOND).await;
        assert_eq!(checkpoint_of(&world, 0).await, Some(10), "{policy:?}");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_beyond_the_last_event_applies_the_policy() {
    for refuses in [false, true] {
        for (policy, expected) in [(OnInvalidCheckpoint::Earliest, 2), (OnInvalidCheckpoint::Latest, 1)] {
            let mut world = World::new(1);
            world.hub.reject_positions(refuses);
            world.config = world.config.with_on_invalid_checkpoint(policy.clone());
            let a = with_ten_checkpointed(&world, 1).await;
            reset(&world, &[(0, 1000)]).await;
            assert_eq!(checkpoint_of(&world, 0).await, Some(1000));
            sleep(RECOVERY_TIME + 20 * SECOND).await;
            world.hub.publish(0, "later");
            world.log.wait_for("later", |log| log.times("later") == 1).await;
            assert_eq!(times(&world, 0, 0..10), [expected; 10], "{policy:?}, refuses: {refuses}");
            sleep(5 * SECOND).await;
            assert_eq!(checkpoint_of(&world, 0).await, Some(10), "{policy:?}, refuses: {refuses}");
            a.shut_down().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_position_can_end_the_processor() {
    for to in [2, 1000] {
        let mut world = World::new(1);
        world.config = world.config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Fail);
        let a = with_ten_checkpointed(&world, 1).await;
        world.hub.expire_before(0, 6);
        reset(&world, &[(0, to)]).await;
        let error = a.ended().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(&to.to_string()), "{error}");
        assert_eq!(checkpoint_of(&world, 0).await, Some(to));
    }
}

/// A checkpoint of the displaced owner is in flight during the reset, and arrives after the release.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_in_flight_is_refused() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    sleep(120 * SECOND).await;
    world.faulty.inject_on(Target::from(BlobOperation::Write).named("/checkpoint/0"), Fault::Latency(2 * SECOND));
    publish(&world, 1, 10..11);
    processed(&world, 1, 10, 1).await;
    sleep(3 * SECOND / 2).await;
    assert_eq!((world.faulty.pending(), checkpoint_of(&world, 0).await), (0, Some(9)), "it is in flight");
    reset(&world, &[(0, 4)]).await;
    let reset_at = Instant::now();
    while world.log.times("0:5") == 1 {
        assert_eq!(checkpoint_of(&world, 0).await, Some(4), "its owner has not returned");
        sleep(SECOND / 4).await;
    }
    assert!(reset_at.elapsed() > SECOND, "it arrives before the owner returns");
    processed(&world, 1, 10, 2).await;
    sleep(5 * SECOND).await;
    assert_eq!(times(&world, 0, 4..11), [1, 2, 2, 2, 2, 2, 2]);
    assert_eq!(checkpoint_of(&world, 0).await, Some(10));
    a.shut_down().await.unwrap();
}

/// Two owners, of which `a` has shut down and keeps its partitions for its restart.
async fn with_kept_partitions() -> (World, Instance, Vec<u32>) {
    let mut world = World::new(4);
    world.config = world.config.with_on_shutdown(OnShutdown::Keep);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(4).await;
    let mut b = world.start("b").await;
    b.wait_until_it_holds(2).await;
    publish(&world, 4, 0..10);
    processed(&world, 4, 9, 1).await;
    sleep(120 * SECOND).await;
    let kept: Vec<u32> = a.snapshots.borrow().owned.keys().map(|held| held.as_str().parse().unwrap()).collect();
    assert_eq!(kept.len(), 2);
    assert_eq!(a.shut_down().await.unwrap().kept, 2);
    (world, b, kept)
}

#[tokio::test(start_paused = true)]
async fn a_kept_partition_returns_to_its_owner() {
    let (world, b, kept) = with_kept_partitions().await;
    let mut log_b = OwnershipLog::of(&b);
    sleep(5 * SECOND).await;
    reset(&world, &[(kept[0], 4), (kept[1], 6)]).await;
    sleep(20 * SECOND).await;
    assert_eq!(b.held(), 2);
    let began = Instant::now();
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    assert!(began.elapsed() <= SECOND, "{:?}", began.elapsed());
    for (partition, again) in [(kept[0], 5), (kept[1], 7)] {
        world.log.wait_for("again", |log| log.times(&format!("{partition}:9")) == 2).await;
        let expected: Vec<_> = (0..10).map(|number| if number < again { 1 } else { 2 }).collect();
        assert_eq!(times(&world, partition, 0..10), expected);
    }
    sleep(120 * SECOND).await;
    assert_eq!((a.held(), b.held()), (2, 2));
    // It depends on the moments of its cycles whether `b` sees that `a` is away.
    let mut changes = log_b.take();
    changes.retain(|change| !change.starts_with("OwnerAway"));
    assert_eq!(changes, [""; 0]);
    a.crash().await;
    b.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_kept_partition_without_its_owner_moves() {
    let (world, mut b, kept) = with_kept_partitions().await;
    reset(&world, &[(kept[0], 4), (kept[1], 6)]).await;
    let reset_at = Instant::now();
    b.wait_until_it_holds(4).await;
    let took = reset_at.elapsed();
    assert!(took >= RESERVATION && took <= RESERVATION + RECOVERY_TIME, "{took:?}");
    for partition in kept {
        world.log.wait_for("again", |log| log.times(&format!("{partition}:9")) == 2).await;
    }
    b.crash().await;
}

/// The records of the group are not renewed individually: its owners detect the reset by a listing or by a checkpoint.
#[tokio::test(start_paused = true)]
async fn owners_with_instance_leases_continue() {
    let mut world = World::new(6);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_lease_scope(LeaseScope::Instance));
    let mut group = vec![world.start("a").await, world.start("b").await];
    for instance in &mut group {
        instance.wait_until_it_holds(3).await;
    }
    publish(&world, 6, 0..10);
    processed(&world, 6, 9, 1).await;
    sleep(600 * SECOND).await;
    let before = holdings(&group);
    let mut reported: Vec<_> = group.iter().map(OwnershipLog::of).collect();
    reset(&world, &[(0, 4), (1, 4), (2, 4)]).await;
    let reset_at = Instant::now();
    processed(&world, 3, 9, 2).await;
    assert!(reset_at.elapsed() <= RECOVERY_TIME, "{:?}", reset_at.elapsed());
    sleep(300 * SECOND).await;
    assert_eq!(holdings(&group), before);
    for partition in 0..3 {
        assert_eq!(times(&world, partition, 0..10), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    }
    let logged: Vec<_> = reported.iter_mut().flat_map(OwnershipLog::take).collect();
    let (lost, claimed): (Vec<_>, Vec<_>) = logged.iter().partition(|logged| logged.starts_with("lost to "));
    assert!(lost.len() == 3 && claimed.len() == 3, "{logged:?}");
    assert!(claimed.iter().all(|logged| logged.starts_with("claimed: ")), "{logged:?}");
    shut_down(group).await;
}

#[tokio::test(start_paused = true)]
async fn strict_leases_change_nothing() {
    let mut world = World::new(2);
    world.config = world.config.clone().with_balancer(|balancer| balancer.with_on_lease_expiry(OnLeaseExpiry::Stop));
    let mut a = with_ten_checkpointed(&world, 2).await;
    sleep(120 * SECOND).await;
    reset(&world, &[(0, 4)]).await;
    let reset_at = Instant::now();
    processed(&world, 1, 9, 2).await;
    assert!(reset_at.elapsed() <= RECOVERY_TIME);
    a.wait_until_it_holds(2).await;
    assert_eq!(times(&world, 0, 0..10), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    assert!(matches!(world.first_stop().await, StopReason::OwnershipLost { .. }));
    a.shut_down().await.unwrap();
}

/// The last of several resets wins, whether the owner returned between them or not.
#[tokio::test(start_paused = true)]
async fn the_last_of_several_resets_wins() {
    let world = World::new(1);
    let a = with_ten_checkpointed(&world, 1).await;
    sleep(60 * SECOND).await;
    for (to, wait) in [(2, 0), (8, 0), (5, 0), (4, 10), (3, 20), (6, 0)] {
        reset(&world, &[(0, to)]).await;
        sleep(wait * SECOND).await;
    }
    assert_eq!(checkpoint_of(&world, 0).await, Some(6));
    let again = world.log.times("0:9");
    world.log.wait_for("again", |log| log.times("0:9") > again).await;
    sleep(60 * SECOND).await;
    assert_eq!(checkpoint_of(&world, 0).await, Some(9));
    a.shut_down().await.unwrap();
}

/// Random requests fail, also those of the operator: a reset reported as done is done.
#[tokio::test(start_paused = true)]
async fn a_reported_outcome_is_true_despite_faults() {
    let world = World::new(3);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(3).await;
    let mut b = world.start("b").await;
    b.wait_until_it_holds(1).await;
    publish(&world, 3, 0..10);
    processed(&world, 3, 9, 1).await;
    let operator = operator(&world).await;
    world.faulty.set_plan(random_faults());
    let mut done = 0;
    for round in 0..60 {
        let (partition, to) = (round % 3, i64::from(round % 8));
        let before = world.log.times(&format!("{partition}:9"));
        let position = Position::new(to, (to * 10).to_string());
        let Ok(mut outcomes) = operator.reset(vec![(partition.into(), position)], &ResetOptions::default()).await
        else {
            continue;
        };
        if matches!(outcomes.remove(0).1, ResetOutcome::Done) {
            done += 1;
            world.log.wait_for("the last event again", |log| log.times(&format!("{partition}:9")) > before).await;
        }
        sleep(90 * SECOND).await;
    }
    assert!(done > 40, "{done}");
    a.crash().await;
    b.crash().await;
}
