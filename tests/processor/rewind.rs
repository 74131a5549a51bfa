//! A checkpoint that is put back by name: whole instances meet it and go on from there.

use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::StopReason;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, Operation, Target};
use eventhubs_checkpoint::{LeaseScope, PartitionId, Position};
use tokio::time::{Instant, sleep};

use crate::world::{Instance, PATIENCE, World};

fn zero() -> PartitionId {
    0.into()
}

fn writes(blob: &str) -> Target {
    Target::from(Operation::Write).named(blob)
}

/// Where "sequence_number" comes next.
fn before(sequence_number: i64) -> Position {
    let before = sequence_number - 1;
    Position::new(before, if before < 0 { "-1".into() } else { before.to_string() })
}

/// An instance that holds the one partition and has processed "0" to "4", all of it durable.
async fn settled(world: &World) -> Instance {
    let mut instance = world.start("a").await;
    instance.wait_until_it_holds(1).await;
    for number in 0..5 {
        world.hub.publish(0, number.to_string());
    }
    world.log.wait_for("4", |log| log.times("4") == 1).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.checkpoint().await, Some(4));
    instance
}

fn stops(world: &World) -> Vec<StopReason> {
    world.log.stops.lock().unwrap().iter().map(|(_, _, reason)| reason.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_owner_with_nothing_to_write_meets_it_at_its_next_renewal() {
    let world = World::new(1);
    let instance = settled(&world).await;
    let rewound = world.store("operator").await.rewind(&zero(), &before(2)).await.unwrap();
    assert_eq!(rewound.told.unwrap().as_str(), "a");
    let told = Instant::now();
    world.log.wait_for("2 to 4 again", |log| (2..5).all(|number| log.times(&number.to_string()) == 2)).await;
    assert!(told.elapsed() <= Duration::from_secs(31), "{:?}", told.elapsed());
    assert_eq!((world.log.times("0"), world.log.times("1")), (1, 1));
    assert!(matches!(stops(&world)[..], [StopReason::Rewound]), "{:?}", stops(&world));

    // Known by now: the mark stays in the record and does no harm.
    sleep(Duration::from_secs(200)).await;
    assert_eq!(world.checkpoint().await, Some(4));
    assert_eq!((stops(&world).len(), world.log.times("2")), (1, 2));
    instance.shut_down().await.unwrap();
}

/// Its records are not renewed one by one: it finds the mark in its next listing, however old the record is.
#[tokio::test(start_paused = true)]
async fn an_owner_that_lives_by_its_presence_meets_it_at_its_next_listing() {
    for settled_for in [0, 45, 300] {
        let mut world = World::new(1);
        let balancer = world.config.balancer.clone().with_lease_scope(LeaseScope::Instance);
        world.config = world.config.clone().with_balancer(balancer);
        let instance = settled(&world).await;
        sleep(Duration::from_secs(settled_for)).await;
        let asked = Instant::now();
        let rewound = world.store("operator").await.rewind(&zero(), &before(2)).await.unwrap();
        assert_eq!(rewound.told.map(|told| told.to_string()).as_deref(), Some("a"), "after {settled_for} s");
        world.log.wait_for("2 to 4 again", |log| (2..5).all(|number| log.times(&number.to_string()) == 2)).await;
        assert!(asked.elapsed() <= Duration::from_secs(31 + 30), "after {settled_for} s: {:?}", asked.elapsed());
        assert!(matches!(stops(&world)[..], [StopReason::Rewound]), "{:?}", stops(&world));
        sleep(Duration::from_secs(200)).await;
        assert_eq!((stops(&world).len(), world.log.times("2")), (1, 2), "once");
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_writes_meets_it_at_its_next_checkpoint_and_does_not_undo_it() {
    let world = World::new(1);
    let instance = settled(&world).await;
    world.store("operator").await.rewind(&zero(), &before(0)).await.unwrap();
    world.hub.publish(0, "5");
    let told = Instant::now();
    world.log.wait_for("all again", |log| (0..6).all(|number| log.times(&number.to_string()) == 2)).await;
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    sleep(Duration::from_secs(100)).await;
    assert!(matches!(stops(&world)[..], [StopReason::Rewound]), "{:?}", stops(&world));
    assert_eq!(world.checkpoint().await, Some(5));
    assert_eq!(world.log.times("5"), 2);
    instance.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_an_owner_the_next_one_starts_there() {
    let world = World::new(1);
    settled(&world).await.shut_down().await.unwrap();
    let rewound = world.store("operator").await.rewind(&zero(), &before(3)).await.unwrap();
    assert_eq!(rewound.told, None);
    let instance = world.start("b").await;
    world.log.wait_for("3 and 4 again", |log| log.times("3") == 2 && log.times("4") == 2).await;
    assert_eq!(world.log.times("2"), 1);
    instance.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_owner_is_not_kept_alive_by_it() {
    let world = World::new(1);
    settled(&world).await.crash().await;
    let died = Instant::now();
    // Older than half the expiry: it waits until the record is renewed or has expired.
    sleep(Duration::from_secs(35)).await;
    let rewound = world.store("operator").await.rewind(&zero(), &before(1)).await.unwrap();
    assert_eq!(rewound.told, None);
    let mut instance = world.start("b").await;
    instance.wait_until_it_holds(1).await;
    assert!(died.elapsed() < Duration::from_secs(62 + 12), "{:?}", died.elapsed());
    world.log.wait_for("1 again", |log| log.times("1") == 2).await;
    assert_eq!(world.log.times("0"), 1);
    instance.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_that_get_lost_neither_hide_it_nor_do_it_twice() {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Conflict] {
        let world = World::new(1);
        let instance = settled(&world).await;
        let operator = world.store("operator").await;
        world.faulty.next_on(writes("checkpoint/0"), fault.clone());
        world.faulty.next_on(writes("ownership/0"), fault.clone());
        operator.rewind(&zero(), &before(4)).await.unwrap();
        world.log.wait_for("4 again", |log| log.times("4") == 2).await;
        sleep(Duration::from_secs(100)).await;
        assert_eq!((world.log.times("3"), world.log.times("4")), (1, 2), "{fault:?}");
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_adopted_is_released_and_left_alone_for_a_while() {
    let world = World::new(1);
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes("checkpoint/0"), Fault::Conflict));
    let instance = world.start("a").await;
    let released = async {
        while world.owners().await.get("0").is_none_or(|owner| !owner.is_empty()) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, released).await.expect("held for ever");
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    let etag = world.container.get(name).await.unwrap().etag;
    sleep(Duration::from_secs(9)).await;
    assert_eq!(world.container.get(name).await.unwrap().etag, etag, "claimed again at once");

    world.faulty.set_plan(FaultPlan::default());
    world.hub.publish(0, "x");
    world.log.wait_for("x", |log| log.times("x") == 1).await;
    instance.shut_down().await.unwrap();
}
