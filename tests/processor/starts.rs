//! Start positions of partitions without a checkpoint.

use std::time::Duration;

use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::InitOutcome;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::{ErrorKind, Position};
use tokio::time::sleep;

use crate::placing::place;
use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::{Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

fn at_the_latest(partitions: u32) -> World {
    let mut world = World::new(partitions);
    world.config = world.config.with_start_position(StartPosition::Latest);
    world
}

/// With one claim per interval, the last of eight partitions is claimed after more than a minute.
#[tokio::test(start_paused = true)]
async fn a_group_at_latest_skips_nothing_of_later_claims() {
    let world = at_the_latest(8);
    for partition in 0..8 {
        world.hub.publish(partition, "old");
    }
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    for partition in 0..8 {
        world.hub.publish(partition, "new");
    }
    world.log.wait_for("8", |log| log.times("new") == 8).await;
    assert_eq!(world.log.times("old"), 0);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_added_partition_starts_at_the_earliest() {
    for restarted in [false, true] {
        let world = at_the_latest(1);
        world.hub.publish(0, "old");
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        a.wait_until_all_idle(1).await;
        world.hub.grow_to(2);
        world.hub.publish(1, "before detection");
        if restarted {
            a.crash().await;
            a = world.start("a").await;
        }
        world.log.wait_for("it", |log| log.times("before detection") == 1).await;
        assert_eq!(world.log.times("old"), 0);
        a.shut_down().await.unwrap();
    }
}

/// Found by simulation (seed 546): the last of the added partitions was claimed first, and an instance that started
/// then treated the others as initial partitions of the group.
#[tokio::test(start_paused = true)]
async fn an_instance_started_during_claims_of_added_ones() {
    let world = at_the_latest(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.grow_to(6);
    for partition in 1..6 {
        world.hub.publish(partition, "early");
    }
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    let b = world.start("b").await;
    world.log.wait_for("the events of all five", |log| log.times("early") >= 5).await;
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

/// Found by simulation (seed 4130): foreign owners record no start. Their checkpoint in the last partition made an
/// instance that started then treat the others as initial partitions, and they started at the latest event.
#[tokio::test(start_paused = true)]
async fn an_instance_started_after_a_foreign_checkpoint() {
    let mut world = at_the_latest(4);
    world.checkpoint_as_another_sdk(1).await;
    let only = |partition: u32| LoadBalancingStrategy::Static(Assignment::partitions([partition.into()]));
    world.config.balancer.load_balancing_strategy = only(0);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    world.hub.publish(2, "new");
    world.checkpoint_as_another_sdk(3).await;
    world.config.balancer.load_balancing_strategy = only(2);
    let b = world.start("b").await;
    world.log.wait_for("it", |log| log.times("new") == 1).await;
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_added_partition_may_have_its_own_start() {
    let mut world = at_the_latest(1);
    world.config = world.config.with_start_position_of(1.into(), StartPosition::Latest);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.grow_to(2);
    world.hub.publish(1, "before detection");
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    world.hub.publish(1, "after");
    world.log.wait_for("after", |log| log.times("after") == 1).await;
    assert_eq!(world.log.times("before detection"), 0);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outage_delays_only_the_start_of_a_group() {
    let world = at_the_latest(2);
    world.hub.publish(0, "old");
    let mut a = world.start("a").await;
    world.faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    sleep(100 * SECOND).await;
    world.faulty.set_plan(FaultPlan::default());
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    world.hub.publish(0, "new");
    world.log.wait_for("new", |log| log.times("new") == 1).await;
    assert_eq!(world.log.times("old"), 0);
    a.shut_down().await.unwrap();
}

/// Of two instances that start a group together, the second one finds it already started.
#[tokio::test(start_paused = true)]
async fn joining_while_a_group_starts_adds_no_partition() {
    let world = at_the_latest(8);
    for partition in 0..8 {
        world.hub.publish(partition, "old");
    }
    // The first instance crashes after it has recorded the start of the last partition only.
    let properties = Position::new(0, "0");
    assert_eq!(world.store("dead").await.init_checkpoint(&7.into(), &properties).await.unwrap(), InitOutcome::Written);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(8).await;
    a.wait_until_all_idle(8).await;
    assert_eq!(world.log.times("old"), 0);
    a.shut_down().await.unwrap();
}

/// The recorded start is then a checkpoint of the deleted hub, and the policy for invalid checkpoints applies.
#[tokio::test(start_paused = true)]
async fn a_hub_recreated_before_the_first_checkpoint() {
    let mut world = World::new(1);
    world.checkpoint = false;
    world.config = world.config.with_start_position(StartPosition::AfterSequenceNumber(1));
    world.hub.publish_many(0, 50, "old");
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.log.wait_for("48", |log| log.times("old") == 48).await;
    world.hub.recreate();
    world.hub.publish_many(0, 5, "new");
    world.log.wait_for("5", |log| log.times("new") == 5).await;
    assert!(!a.running.is_finished());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_reported_at_the_start() {
    let world = at_the_latest(1);
    let forbidden = SourceFaults { partition_error: Some(ErrorKind::Unauthorized), ..SourceFaults::default() };
    let source = ScriptedSource::new(&world.hub, forbidden);
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let a = world.start_with("a", source, recorder).await;
    assert_eq!(a.ended().await.unwrap_err().kind(), ErrorKind::Unauthorized);
}

#[tokio::test(start_paused = true)]
async fn the_next_owner_starts_at_a_moved_checkpoint() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    for number in 0..5 {
        world.hub.publish(0, number.to_string());
    }
    world.log.wait_for("4", |log| log.times("4") == 1).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(4));
    place(&world.store("operator").await, 0, &Position::new(2, "2")).await;
    let b = world.start("b").await;
    world.log.wait_for("3 and 4 again", |log| log.times("3") == 2 && log.times("4") == 2).await;
    assert_eq!(world.log.times("2"), 1);
    b.shut_down().await.unwrap();
}
