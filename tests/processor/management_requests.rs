//! Requests for properties of the event hub, of which a namespace admits 50 per second.

use std::sync::atomic::Ordering;
use std::time::Duration;

use eventhubs_checkpoint::Position;
use eventhubs_checkpoint::balancer::Snapshot;
use eventhubs_checkpoint::processor::OnInvalidCheckpoint;
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::counted_source::Counted;
use crate::placing::place;
use crate::recreations::with_checkpoint_at_49;
use crate::world::{Recorder, World};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn recorder(world: &World, owner: &str) -> Recorder {
    Recorder { owner: owner.into(), log: world.log.clone(), checkpoint: world.checkpoint }
}

#[tokio::test(start_paused = true)]
async fn instances_spread_their_periodic_requests() {
    const INSTANCES: usize = 12;
    let world = World::new(48);
    let source = Counted::new(&world.hub);
    let mut instances = Vec::new();
    for number in 0..INSTANCES {
        let owner = format!("instance-{number}");
        instances.push(world.start_with(&owner, source.clone(), recorder(&world, &owner)).await);
    }
    for instance in &mut instances {
        instance.wait_until_it_holds(4).await;
    }
    sleep(10 * MINUTE).await;
    let most = source.requests.most_per_second(300);
    assert!(most <= 4 * INSTANCES / 2, "{most} requests in one second");
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn instances_spread_reads_of_unowned_partitions() {
    const INSTANCES: usize = 8;
    let mut world = World::new(16);
    // Without handoffs each instance reads them.
    world.config = world
        .config
        .with_balancer(|balancer| balancer.with_handoff(false).with_max_partitions(1))
        .with_lag_check_interval(MINUTE);
    let source = Counted::new(&world.hub);
    let mut instances = Vec::new();
    for number in 0..INSTANCES {
        let owner = format!("instance-{number}");
        instances.push(world.start_with(&owner, source.clone(), recorder(&world, &owner)).await);
    }
    sleep(20 * MINUTE).await;
    let (of_partitions, most) =
        (source.requests.of_partitions.load(Ordering::Relaxed), source.requests.most_per_second(600));
    assert!(of_partitions > 16 * INSTANCES, "{of_partitions} requests");
    assert!(most <= 9 * INSTANCES / 2, "{most} requests in one second");
    for instance in instances {
        instance.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_of_partitions_is_read_seldom() {
    let world = World::new(2);
    let source = Counted::new(&world.hub);
    let mut a = world.start_with("a", source.clone(), recorder(&world, "a")).await;
    a.wait_until_it_holds(2).await;
    sleep(MINUTE).await;
    let before = source.of_hub();
    sleep(HOUR).await;
    let reads = source.of_hub() - before;
    assert!((10..=17).contains(&reads), "{reads} reads in an hour");
    a.shut_down().await.unwrap();
}

/// The first instance does not know that the event hub has grown. The second one knows, and owns a new partition.
#[tokio::test(start_paused = true)]
async fn partitions_that_others_own_are_looked_up() {
    let mut world = World::new(2);
    world.config = world.config.with_balancer(|balancer| balancer.with_max_partitions(2));
    let source = Counted::new(&world.hub);
    let mut a = world.start_with("a", source.clone(), recorder(&world, "a")).await;
    a.wait_until_it_holds(2).await;
    sleep(MINUTE).await;
    for partitions in [4, 6] {
        world.hub.grow_to(partitions);
        let before = source.of_hub();
        let mut b = world.start(&format!("b{partitions}")).await;
        b.wait_until_it_holds(2).await;
        let knows_all = |snapshot: &Snapshot| snapshot.partitions.len() == usize::try_from(partitions).unwrap();
        let since = Instant::now();
        a.wait_until("all partitions are known", knows_all).await;
        assert!(since.elapsed() <= MINUTE, "known after {:?}", since.elapsed());
        assert!(source.of_hub() - before <= 2, "{} reads", source.of_hub() - before);
        b.crash().await;
    }
    a.shut_down().await.unwrap();
}

/// All links of an event hub that is deleted end.
#[tokio::test(start_paused = true)]
async fn the_hub_is_read_again_after_a_link_failed() {
    let world = World::new(1);
    let source = Counted::new(&world.hub);
    let mut a = world.start_with("a", source.clone(), recorder(&world, "a")).await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    for _ in 0..20 {
        sleep(MINUTE / 2).await;
        let before = source.of_hub();
        world.hub.break_link(0);
        sleep(11 * SECOND).await;
        assert!(source.of_hub() > before);
    }
    a.shut_down().await.unwrap();
}

mod a_busy_hub {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_no_partition_with_a_checkpoint() {
        let world = with_checkpoint_at_49().await;
        world.hub.publish(0, "new");
        let source = Counted::new(&world.hub);
        source.set_busy(true);
        let began = Instant::now();
        let b = world.start_with("b", source.clone(), recorder(&world, "b")).await;
        world.log.wait_for("the event", |log| log.times("new") == 1).await;
        assert!(began.elapsed() < 5 * SECOND, "processed after {:?}", began.elapsed());
        source.set_busy(false);
        sleep(MINUTE).await;
        assert_eq!((world.log.times("old"), world.log.stops.lock().unwrap().len()), (50, 1), "nothing has restarted");
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn delays_a_partition_without_a_checkpoint() {
        let world = World::new(1);
        world.hub.publish(0, "first");
        let source = Counted::new(&world.hub);
        source.set_busy(true);
        let a = world.start_with("a", source.clone(), recorder(&world, "a")).await;
        sleep(MINUTE).await;
        assert_eq!((world.log.times("first"), source.requests.links.load(Ordering::Relaxed)), (0, 0));
        source.set_busy(false);
        world.log.wait_for("the event", |log| log.times("first") == 1).await;
        a.shut_down().await.unwrap();
    }

    /// The policy decides about events that have expired, also if that is found out later.
    #[tokio::test(start_paused = true)]
    async fn hides_no_expired_events() {
        for emptied in [false, true] {
            let (log, _guard) = Captured::begin();
            let mut world = with_checkpoint_at_49().await;
            world.config = world.config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Latest);
            world.hub.publish_many(0, 50, "new");
            world.hub.expire_before(0, if emptied { i64::MAX } else { 60 });
            let source = Counted::new(&world.hub);
            source.set_busy(true);
            let b = world.start_with("b", source.clone(), recorder(&world, "b")).await;
            sleep(MINUTE).await;
            assert_eq!(world.log.times("new"), 0, "delivered before it was clear what the policy is");
            source.set_busy(false);
            sleep(2 * MINUTE).await;
            assert!(log.text().contains("events after it expired before they were processed"), "{}", log.text());
            world.hub.publish(0, "last");
            world.log.wait_for("the last event", |log| log.times("last") == 1).await;
            assert_eq!(world.log.times("new"), 0, "the start is at the latest event");
            b.shut_down().await.unwrap();
        }
    }

    /// The hub lets a reader wait after an event that does not exist, as some brokers do.
    #[tokio::test(start_paused = true)]
    async fn hides_no_checkpoint_after_the_end() {
        let (log, _guard) = Captured::begin();
        let world = World::new(1);
        world.hub.publish_many(0, 20, "other");
        place(&world.store("former").await, 0, &Position::new(49, "490")).await;
        let source = Counted::new(&world.hub);
        source.set_busy(true);
        let b = world.start_with("b", source.clone(), recorder(&world, "b")).await;
        sleep(MINUTE).await;
        source.set_busy(false);
        world.log.wait_for("20 events", |log| log.times("other") == 20).await;
        assert!(log.text().contains("the event hub has lost its last events"), "{}", log.text());
        b.shut_down().await.unwrap();
    }
}
