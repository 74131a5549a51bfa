//! Another program writes into the container: a group continues, and names what it ignores.

use std::time::Duration;

use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};
use tokio::time::sleep;

use crate::captured::Captured;
use crate::world::{Instance, World};

const GROUP: &str = "ns.servicebus.windows.net/hub/$default/";

/// Names that differ from those of the records by as little as possible.
const IMITATIONS: [&str; 9] = [
    "ownership/00",
    "ownership/0 ",
    "ownership/-1",
    "ownership/\u{0660}",
    "ownership/0/0",
    "ownership/",
    "checkpoint/00",
    "checkpoint/0/",
    "heartbeat/0/0",
];

async fn put(world: &World, name: &str, metadata: &Metadata) {
    world.container.overwrite(name, metadata).await.unwrap();
}

/// Writes imitations, thousands of blobs as large as Azure allows below the prefix, and more outside of it.
async fn fill(world: &World) {
    let owner = Metadata::from([("ownerid", "another"), ("sequencenumber", "none"), ("offset", "none")]);
    for name in IMITATIONS {
        put(world, &format!("{GROUP}{name}"), &owner).await;
    }
    let huge = Metadata::from([("ownerid", "x".repeat(8000))]);
    for number in 0..2000 {
        put(world, &format!("{GROUP}ownership/{number}/x"), &huge).await;
        put(world, &format!("{GROUP}other/{number}"), &huge).await;
    }
    for number in 0..20_000 {
        put(world, &format!("another/{number}"), &owner).await;
    }
}

async fn processes(world: &World, numbers: std::ops::Range<u32>) {
    for number in numbers.clone() {
        world.hub.publish(number % 4, number.to_string());
    }
    world.log.wait_for("all events", |log| numbers.clone().all(|number| log.times(&number.to_string()) > 0)).await;
}

async fn two_instances(world: &World) -> [Instance; 2] {
    let mut instances = [world.start("a").await, world.start("b").await];
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    instances
}

#[tokio::test(start_paused = true)]
async fn foreign_blobs_do_not_stop_a_group() {
    let (log, _capturing) = Captured::begin();
    let world = World::new(4);
    fill(&world).await;
    let [a, mut b] = two_instances(&world).await;
    processes(&world, 0..40).await;
    a.crash().await;
    b.wait_until_it_holds(4).await;
    processes(&world, 40..80).await;
    sleep(Duration::from_secs(3600)).await;
    b.shut_down().await.unwrap();
    for name in IMITATIONS {
        let blob = world.container.get(&format!("{GROUP}{name}")).await.unwrap();
        assert_eq!(&blob.metadata["ownerid"], "another", "{name} is as it was");
    }
    let reports = log.text().lines().filter(|line| line.contains("malformed")).count();
    assert!((2..=44).contains(&reports), "{reports} reports of thousands of unchanged blobs in an hour");
}

/// So an instance also continues if foreign blobs make all listings fail.
#[tokio::test(start_paused = true)]
async fn owned_partitions_need_no_listing() {
    let world = World::new(4);
    let instances = two_instances(&world).await;
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::List, Fault::Unreachable));
    for hour in 0..6 {
        processes(&world, hour * 40..(hour + 1) * 40).await;
        sleep(Duration::from_secs(3600)).await;
    }
    assert!(world.log.stops.lock().unwrap().is_empty(), "{:?}", world.log.stops);
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    assert!((0..240).all(|number: u32| world.log.times(&number.to_string()) == 1));
}
