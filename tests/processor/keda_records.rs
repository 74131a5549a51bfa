//! Which records KEDA finds, and what it counts after the calls and events that write them.

use std::future::pending;
use std::time::Duration;

use eventhubs_checkpoint::admin::{HubRanges, KedaReason, Operator, Reset, ResetOptions, ResetTarget};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::{OnFailure, PartitionState};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::{GroupStore, NameCase, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Position};
use futures::StreamExt;
use tokio::time::sleep;

use crate::keda::{Found, RECORD, found, lag, operator, write};
use crate::world::World;

/// The events 1000 to 1999.
fn with_expired_events() -> World {
    let world = World::new(1);
    world.hub.publish_many(0, 2000, "waits");
    world.hub.expire_before(0, 1000);
    world
}

/// O3 and O5, as an operator writes them.
#[tokio::test(start_paused = true)]
async fn initial_checkpoints_and_resets_count_right() {
    let targets = [
        (ResetTarget::Start(StartPosition::Earliest), 1000),
        (ResetTarget::Start(StartPosition::Latest), 0),
        (ResetTarget::Start(StartPosition::AfterSequenceNumber(1499)), 500),
    ];
    for (target, waiting) in targets {
        let world = with_expired_events();
        let operator = operator(&world).await;
        let (reset, options) = (Reset::to(target.clone()), ResetOptions::default());
        operator.plan(&world.hub.source(), &reset).await.unwrap().init(&operator).await;
        assert_eq!(lag(&world).await, Some(waiting), "initial, {target:?}");

        // O7 and O8: the numbers of other software.
        for number in ["-1", "500"] {
            write(&world, RECORD, &[("sequencenumber", number), ("offset", "-1")]).await;
            let plan = operator.plan(&world.hub.source(), &reset).await.unwrap();
            let outcomes: Vec<_> = plan.execute(&operator, &options, pending()).await.unwrap().collect().await;
            assert_eq!((outcomes.len(), lag(&world).await), (1, Some(waiting)), "from {number}, {target:?}");
        }
    }
}

/// A group under these names, with a checkpoint that the crate wrote.
async fn checkpointed(world: &World, group: (&str, &str, &str), case: NameCase) -> Operator {
    let group = ConsumerGroup::new(group.0, group.1, group.2).unwrap();
    let owner = OwnerId::new("any").unwrap();
    let config = StoreConfig::default().with_blob_name_case(case.into());
    let settings = GroupStore::builder(world.container.clone(), group, owner).with_config(config);
    let store = settings.clone().with_seed(3).connect().await.unwrap();
    store.init_checkpoint(&0.into(), &Position::new(3, "30")).await.unwrap();
    Operator::connect(settings.with_seed(5)).await.unwrap()
}

/// What KEDA finds if it is configured with these names.
async fn found_as(world: &World, (namespace, hub, group): (&str, &str, &str)) -> Found {
    let name = format!("{namespace}/{hub}/{}/checkpoint/0", group.to_lowercase());
    world.container.get(&name).await.map_or(Found::NoBlob, |blob| Found::of(&blob.metadata))
}

/// O14 to O16: KEDA converts only the consumer group to lower case.
#[tokio::test(start_paused = true)]
async fn names_must_have_the_letter_case_of_the_blobs() {
    const NAMESPACE: &str = "MyNs.servicebus.windows.net";
    const LOWER_NAMESPACE: &str = "myns.servicebus.windows.net";
    for (case, blob_name_case, group, configured, is_found) in [
        ("O14", NameCase::Lower, "$Default", (NAMESPACE, "My-Hub"), false),
        ("O14, namespace", NameCase::Lower, "$Default", (LOWER_NAMESPACE, "My-Hub"), false),
        ("lower", NameCase::Lower, "$Default", (LOWER_NAMESPACE, "my-hub"), true),
        ("O15", NameCase::Verbatim, "$Default", (NAMESPACE, "My-Hub"), false),
        ("O15, lower", NameCase::Verbatim, "$Default", (LOWER_NAMESPACE, "my-hub"), false),
        ("O16", NameCase::Verbatim, "orders-app", (NAMESPACE, "My-Hub"), true),
    ] {
        let world = World::new(1);
        world.hub.publish_many(0, 10, "waits");
        let operator = checkpointed(&world, (NAMESPACE, "My-Hub", group), blob_name_case).await;
        let found = found_as(&world, (configured.0, configured.1, group)).await;
        assert_eq!(found, if is_found { Found::Number(3) } else { Found::NoBlob }, "{case}");

        let poll = operator.read().await.unwrap().keda(&HubRanges::read(&world.hub.source()).await.unwrap());
        let names = &poll.names;
        let found = found_as(&world, (&names.namespace, &names.event_hub, &names.consumer_group)).await;
        assert_eq!(found == Found::Number(3), names.finds_checkpoints, "{case}: {names:?}");
        let counted = (poll.partitions[0].sequence_number, poll.total);
        assert_eq!(counted, if names.finds_checkpoints { (Some(3), Some(6)) } else { (None, Some(10)) }, "{case}");
    }
}

/// O15, with namespace and event hub in lower case: KEDA reads what a program with lower-case names wrote.
#[tokio::test(start_paused = true)]
async fn keda_reads_the_checkpoints_of_the_other_name_case() {
    let world = World::new(1);
    world.hub.publish_many(0, 10, "waits");
    let group = ("ns.servicebus.windows.net", "hub", "$Default");
    let operator = checkpointed(&world, group, NameCase::Verbatim).await;
    write(&world, RECORD, &[("sequencenumber", "8"), ("offset", "80")]).await;
    let poll = operator.read().await.unwrap().keda(&HubRanges::read(&world.hub.source()).await.unwrap());
    assert_eq!((found(&world).await, poll.total), (Found::Number(8), Some(1)));
    assert!(poll.partitions[0].is_wrong() && !poll.names.finds_checkpoints);
}

/// O11: the event hub was created again, and no instance runs.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_after_the_end_is_reported() {
    for (number, counted, why) in
        [(5000, 0, KedaReason::Stale), (50_000, i64::MAX - 50_000 + 10, KedaReason::WrapAround)]
    {
        let world = World::new(1);
        world.hub.publish_many(0, 11, "waits");
        write(&world, RECORD, &[("sequencenumber", &number.to_string()), ("offset", "x")]).await;
        assert_eq!(lag(&world).await, Some(counted));
        let records = operator(&world).await.read().await.unwrap();
        let poll = records.keda(&HubRanges::read(&world.hub.source()).await.unwrap());
        let wrong: Vec<_> = poll.wrong().map(|partition| partition.count.why).collect();
        assert_eq!(wrong, [why]);
    }
}

/// .NET writes the smallest number if it has none.
#[tokio::test(start_paused = true)]
async fn the_smallest_number_is_one_for_keda() {
    let world = World::new(1);
    world.hub.publish_many(0, 10, "waits");
    write(&world, RECORD, &[("sequencenumber", "-9223372036854775808"), ("offset", "40")]).await;
    let records = operator(&world).await.read().await.unwrap();
    let poll = records.keda(&HubRanges::read(&world.hub.source()).await.unwrap());
    assert_eq!((poll.total, poll.scale(1000, None).unwrap().metric), (Some(i64::MAX), 1000));
    assert!(poll.partitions[0].is_wrong());
}

/// O17: at least one instance stays.
#[tokio::test(start_paused = true)]
async fn a_parked_partition_keeps_its_lag() {
    let mut world = World::new(1);
    world.config = world.config.with_on_failure(OnFailure::Park);
    world.hub.publish_many(0, 5, "fine");
    world.hub.publish(0, "fail");
    world.hub.publish(0, "after it");
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    a.wait_for_status("parked", |status| status.state == PartitionState::Parked).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(lag(&world).await, Some(2));
    a.shut_down().await.unwrap();
    assert_eq!(lag(&world).await, Some(2));
}

/// O18: KEDA scales to zero.
#[tokio::test(start_paused = true)]
async fn nothing_waits_after_an_orderly_shutdown() {
    let world = World::new(1);
    world.hub.publish_many(0, 20, "processed");
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.log.wait_for("all of them", |log| log.times("processed") == 20).await;
    a.shut_down().await.unwrap();
    assert_eq!(lag(&world).await, Some(0));
    world.hub.publish(0, "waits");
    assert_eq!(lag(&world).await, Some(1), "KEDA starts an instance");
}

/// O19: other blobs, other letter case of the key, an offset of geo-replication.
#[tokio::test(start_paused = true)]
async fn only_the_number_of_the_checkpoint_counts() {
    let world = World::new(1);
    world.hub.publish_many(0, 10, "hang");
    write(&world, RECORD, &[("SequenceNumber", "6"), ("offset", "lp:3:60:6"), ("note", "kept")]).await;
    assert_eq!(lag(&world).await, Some(3));
    let (mut a, b) = (world.start("a").await, world.start("b").await);
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_secs(60)).await;
    let blobs = world.container.list("").await.unwrap().blobs;
    assert!(blobs.len() > 2, "{blobs:?}");
    assert_eq!(lag(&world).await, Some(3));
    a.crash().await;
    b.crash().await;
}
