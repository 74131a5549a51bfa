//! Where a partition without a usable checkpoint starts, also if the hub is quiet or busy, and what is recorded.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership, ReceivedEventData};
use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::eventhubs::{BlobCheckpointStore, EventHubSource};
use eventhubs_checkpoint::processor::{PartitionContext, handler_fn};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::store::StorageOperation as Purpose;
use eventhubs_checkpoint::store::protocol::InitOutcome;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, Position};
use eventhubs_emulator::EventHubEmulator;
use time::OffsetDateTime;
use tokio::time::sleep;

use crate::placing::place;
use crate::publish::{producer, send, within};
use crate::support::sources::{SourceFaults, start_scripted};
use crate::support::{CHECKPOINT, SECOND, group, publish_numbers, recorded_position, write_record};
use crate::world::{Instance, World};

/// One partition, and handlers that write no checkpoints.
fn without_checkpoints() -> World {
    let mut world = World::new(1);
    world.checkpoint = false;
    world
}

/// Publishes the events 0 to 9 with their numbers as bodies, one per second.
async fn with_ten_events() -> World {
    let world = without_checkpoints();
    for number in 0..10 {
        world.hub.publish(0, number.to_string());
        sleep(SECOND).await;
    }
    world
}

async fn start_at(world: &mut World, owner: &str, start: StartPosition) -> Instance {
    world.config = world.config.clone().with_start_position(start);
    world.start(owner).await
}

/// The setting of an application that starts with the last seconds.
fn five_seconds_ago(world: &World) -> StartPosition {
    StartPosition::EnqueuedAfter(world.hub.now() - 5 * SECOND)
}

fn offset(offset: &str) -> StartPosition {
    StartPosition::AfterOffset(offset.into())
}

/// Returns the record of a new group for a start before any event is handled, and how many events it handles.
async fn resolved_start(
    world: &World,
    start: &StartPosition,
    source_faults: SourceFaults,
) -> ((i64, String, bool), usize) {
    let mut world = World::on(world.hub.clone());
    world.checkpoint = false;
    world.config = world.config.clone().with_start_position(start.clone());
    if let Some(number) = source_faults.lacks {
        world.log.contiguity.lacks(number);
    }
    let mut a = start_scripted(&world, "a", source_faults).await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    sleep(5 * SECOND).await;
    let recorded = recorded_position(&world, 0).await.expect("the start is not recorded");
    a.shut_down().await.unwrap();
    (recorded, world.log.bodies().len())
}

async fn assert_resolved(world: &World, table: &[(StartPosition, i64, &str, usize)]) {
    for (start, number, offset, handled) in table {
        for times_unknown in [false, true] {
            let source_faults = SourceFaults { times_unknown, ..SourceFaults::default() };
            let expected = ((*number, (*offset).to_owned(), true), *handled);
            let context = format!("{start:?}, times unknown: {times_unknown}");
            assert_eq!(resolved_start(world, start, source_faults).await, expected, "{context}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_start_is_recorded() {
    use StartPosition::{AfterSequenceNumber, Earliest, EnqueuedAfter, Latest};
    let world = with_ten_events().await;
    let end = world.hub.now();
    let enqueued = |number: u32| end - SECOND * (10 - number);
    world.hub.reject_positions(true);
    let table = [
        (Earliest, -1, "-1", 10),
        (Latest, 9, "90", 0),
        (AfterSequenceNumber(4), 4, "40", 5),
        (AfterSequenceNumber(0), 0, "0", 9),
        (AfterSequenceNumber(-1), -1, "-1", 10),
        (AfterSequenceNumber(i64::MIN), -1, "-1", 10),
        (AfterSequenceNumber(9), 9, "90", 0),
        (AfterSequenceNumber(70), 9, "90", 0),
        (offset("40"), 4, "40", 5),
        (offset("45"), 4, "40", 5),
        (offset("-1"), -1, "-1", 10),
        (offset("90"), 9, "90", 0),
        (offset("700"), 9, "90", 0),
        (EnqueuedAfter(OffsetDateTime::UNIX_EPOCH), -1, "-1", 10),
    ];
    assert_resolved(&world, &table).await;
    for (time, number, offset, handled) in [
        (enqueued(4), 4, "40", 5),
        (enqueued(4) - SECOND / 2, 3, "30", 6),
        (enqueued(0) - SECOND, -1, "-1", 10),
        (enqueued(8), 8, "80", 1),
        (enqueued(9), 9, "90", 0),
        (end + 3600 * SECOND, 9, "90", 0),
    ] {
        assert_resolved(&world, &[(EnqueuedAfter(time), number, offset, handled)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_among_expired_events() {
    use StartPosition::{AfterSequenceNumber, Earliest, EnqueuedAfter};
    let world = with_ten_events().await;
    world.hub.expire_before(0, 3);
    let starts = [
        AfterSequenceNumber(-1),
        AfterSequenceNumber(1),
        AfterSequenceNumber(2),
        Earliest,
        offset("10"),
        offset("20"),
        EnqueuedAfter(world.hub.now() - 60 * SECOND),
    ];
    assert_resolved(&world, &starts.map(|start| (start, 2, "-1", 7))).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_in_a_partition_without_events() {
    use StartPosition::{AfterSequenceNumber, EnqueuedAfter};
    for (events, recorded_offset) in [(0, "-1"), (5, "40")] {
        let world = without_checkpoints();
        world.hub.publish_many(0, events, "expired");
        world.hub.expire_before(0, i64::MAX);
        world.hub.reject_positions(true);
        let last = i64::try_from(events).unwrap() - 1;
        for start in [AfterSequenceNumber(70), offset("700"), EnqueuedAfter(world.hub.now() - 60 * SECOND)] {
            assert_resolved(&world, &[(start, last, recorded_offset, 0)]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hub_with_gaps_has_a_start_for_every_number() {
    let world = with_ten_events().await;
    let source_faults = SourceFaults { lacks: Some(4), ..SourceFaults::default() };
    let (record, handled) = resolved_start(&world, &StartPosition::AfterSequenceNumber(4), source_faults).await;
    assert_eq!((record, handled), ((4, String::new(), true), 5));
}

#[tokio::test(start_paused = true)]
async fn a_refused_offset_ends_the_processor() {
    let mut world = with_ten_events().await;
    let a = start_at(&mut world, "a", offset("text")).await;
    let error = a.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("text"), "{error}");
    assert_eq!(recorded_position(&world, 0).await, None);
}

async fn official_source(hub: &EventHubEmulator) -> EventHubSource {
    let connection_string = hub.connection_string().replace("//localhost/", "//ns.servicebus.windows.net/");
    let group = ConsumerGroup::from_connection_string(&connection_string, "$Default").unwrap();
    let endpoint = hub.endpoint();
    let builder = EventHubSource::from_connection_string(&group, connection_string)
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    within("opening a consumer", builder.connect()).await.unwrap()
}

/// Through the official client, in real time.
#[tokio::test]
async fn a_start_by_time_with_the_official_client() {
    let hub = EventHubEmulator::builder("hub").with_partitions(1).start("127.0.0.1:0").await.unwrap();
    let mut world = World::new(1);
    let producer = producer(&hub).await;
    send(&producer, "0", vec![b"old".to_vec(); 3]).await;
    let old = official_source(&hub).await.partition_properties(&0.into()).await.unwrap();
    let time = old.last_enqueued_at().unwrap();
    sleep(SECOND / 50).await;
    send(&producer, "0", vec![b"new".to_vec(); 2]).await;
    let numbers = Arc::new(Mutex::new(Vec::new()));
    // After the restart, no event is after the configured time.
    for (owner, start) in [("a", time), ("a", time + 3600 * SECOND)] {
        world.config = world.config.clone().with_start_position(StartPosition::EnqueuedAfter(start));
        let seen = numbers.clone();
        let handler = handler_fn(move |events: Vec<ReceivedEventData>, _: PartitionContext| {
            seen.lock().unwrap().extend(events.iter().filter_map(ReceivedEventData::sequence_number));
            async { Ok(()) }
        });
        let instance = world.start_with(owner, official_source(&hub).await, handler).await;
        let both = async {
            while numbers.lock().unwrap().last() != Some(&4) {
                sleep(SECOND / 50).await;
            }
        };
        within("both events", both).await;
        assert_eq!(std::mem::take(&mut *numbers.lock().unwrap()), [3, 4]);
        instance.crash().await;
    }
    let expected = (2, old.last_enqueued().unwrap().offset.clone(), true);
    assert_eq!(recorded_position(&world, 0).await, Some(expected));
}

/// An instance with a start relative to the current time ends before its first checkpoint, by a crash or not, while its
/// partition holds the events of `publish`. Then 80 events arrive. Another instance starts a minute later.
async fn check_moving_start(publish: impl Fn(&World), crashes: bool) {
    let mut world = without_checkpoints();
    publish(&world);
    let start = five_seconds_ago(&world);
    let mut a = start_at(&mut world, "a", start).await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    if crashes {
        a.crash().await;
    } else {
        a.shut_down().await.unwrap();
    }
    world.hub.publish_many(0, 80, "while down");
    sleep(60 * SECOND).await;
    let start = five_seconds_ago(&world);
    let b = start_at(&mut world, "b", start).await;
    world.log.wait_for("80 events", |log| log.times("while down") == 80).await;
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_relative_start_in_an_empty_partition() {
    for crashes in [false, true] {
        check_moving_start(|_| {}, crashes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_relative_start_in_an_emptied_partition() {
    let publish_and_expire = |world: &World| {
        world.hub.publish_many(0, 7, "expired");
        world.hub.expire_before(0, i64::MAX);
    };
    for crashes in [false, true] {
        check_moving_start(publish_and_expire, crashes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_relative_start_after_a_recent_event() {
    for crashes in [false, true] {
        check_moving_start(|world| assert_eq!(world.hub.publish_many(0, 7, "recent"), Some(0..7)), crashes).await;
    }
}

/// After the restart, the configuration differs. It must not matter.
#[tokio::test(start_paused = true)]
async fn the_recorded_start_overrides_the_configuration() {
    use StartPosition::{AfterSequenceNumber, EnqueuedAfter, Latest};
    let starts = [
        |_: &World| AfterSequenceNumber(4),
        |_: &World| offset("40"),
        |world: &World| EnqueuedAfter(world.hub.now() - 6 * SECOND),
    ];
    for start in starts {
        let mut world = with_ten_events().await;
        let start = start(&world);
        let a = start_at(&mut world, "a", start.clone()).await;
        world.log.wait_for("the last event", |log| log.times("9") == 1).await;
        a.crash().await;
        let b = start_at(&mut world, "b", Latest).await;
        world.log.wait_for("the last event again", |log| log.times("9") == 2).await;
        let all: Vec<_> = (5..10).chain(5..10).map(|number| number.to_string()).collect();
        assert_eq!(world.log.bodies(), all, "{start:?}");
        b.shut_down().await.unwrap();
    }
}

/// The partition moves while it is idle, to an instance with a later start.
#[tokio::test(start_paused = true)]
async fn a_partition_that_moves_keeps_its_start() {
    let mut world = without_checkpoints();
    let start = five_seconds_ago(&world);
    let mut a = start_at(&mut world, "a", start).await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    assert!(a.handle.pause(&0.into()));
    world.hub.publish_many(0, 80, "while paused");
    sleep(60 * SECOND).await;
    let start = five_seconds_ago(&world);
    let mut b = start_at(&mut world, "b", start).await;
    sleep(20 * SECOND).await;
    assert!(a.handle.release(&0.into(), 600 * SECOND));
    b.wait_until_it_holds(1).await;
    world.log.wait_for("80 events", |log| log.times("while paused") == 80).await;
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_instances_that_start_at_once_skip_nothing() {
    let mut world = World { checkpoint: false, ..World::new(4) };
    for round in 0..3 {
        let start = five_seconds_ago(&world);
        let mut a = start_at(&mut world, "a", start.clone()).await;
        let mut b = start_at(&mut world, "b", start).await;
        for instance in [&mut a, &mut b] {
            instance.wait_until_it_holds(2).await;
            instance.wait_until_all_idle(2).await;
        }
        let body = format!("after round {round}");
        a.crash().await;
        b.crash().await;
        for partition in 0..4 {
            world.hub.publish_many(partition, 5, body.as_str());
        }
        sleep(90 * SECOND).await;
    }
    let start = five_seconds_ago(&world);
    let c = start_at(&mut world, "c", start).await;
    let all = |round| format!("after round {round}");
    world.log.wait_for("20 events of each round", |log| (0..3).all(|round| log.times(&all(round)) >= 20)).await;
    c.shut_down().await.unwrap();
}

/// Another instance takes the partition while this one determines the start.
#[tokio::test(start_paused = true)]
async fn no_record_after_losing_the_partition() {
    let mut world = without_checkpoints();
    world.hub.publish(0, "old");
    sleep(60 * SECOND).await;
    world.config = world.config.clone().with_start_position(five_seconds_ago(&world));
    let source_faults = SourceFaults { times_unknown: true, ..SourceFaults::default() };
    let mut a = start_scripted(&world, "a", source_faults).await;
    a.wait_until_it_holds(1).await;
    sleep(SECOND).await;
    world.give_to("python").await;
    sleep(15 * SECOND).await;
    assert_eq!(recorded_position(&world, 0).await, None);
    a.wait_until_it_holds(0).await;
    a.crash().await;
}

/// Without times, an open link must show that there are no events. Events that arrive while it is open must not be
/// skipped.
#[tokio::test(start_paused = true)]
async fn an_event_arrives_while_the_start_is_resolved() {
    for mute_links in [0, 1] {
        let mut world = without_checkpoints();
        world.hub.publish(0, "old");
        sleep(60 * SECOND).await;
        world.config = world.config.clone().with_start_position(five_seconds_ago(&world));
        let source_faults = SourceFaults {
            times_unknown: true,
            mute_links: Arc::new(AtomicUsize::new(mute_links)),
            ..SourceFaults::default()
        };
        let mut a = start_scripted(&world, "a", source_faults).await;
        a.wait_until_it_holds(1).await;
        sleep(SECOND).await;
        world.hub.publish(0, "new");
        world.log.wait_for("the event", |log| log.times("new") == 1).await;
        assert_eq!(recorded_position(&world, 0).await, Some((0, "0".into(), true)), "mute: {mute_links}");
        assert_eq!(world.log.times("old"), 0);
        a.shut_down().await.unwrap();
    }
}

/// According to the hub, the event exists. A link that does not deliver it proves nothing.
#[tokio::test(start_paused = true)]
async fn a_mute_link_decides_nothing() {
    let mut world = with_ten_events().await;
    world.config = world.config.clone().with_start_position(StartPosition::EnqueuedAfter(world.hub.now() - 6 * SECOND));
    let source_faults = SourceFaults { mute_links: Arc::new(AtomicUsize::new(1)), ..SourceFaults::default() };
    let a = start_scripted(&world, "a", source_faults).await;
    world.log.wait_for("the last event", |log| log.times("9") == 1).await;
    assert_eq!(world.log.bodies(), ["5", "6", "7", "8", "9"]);
    assert_eq!(recorded_position(&world, 0).await, Some((4, "40".into(), true)));
    a.shut_down().await.unwrap();
}

/// A link may be slow. The next one shows that it was.
#[tokio::test(start_paused = true)]
async fn a_slow_link_is_not_the_end_of_the_partition() {
    for (ago, expected) in [(3600, 0), (3, 2), (0, 5)] {
        let mut world = World::new(1);
        for number in 0..5 {
            world.hub.publish(0, number.to_string());
            sleep(SECOND).await;
        }
        let start = StartPosition::EnqueuedAfter(world.hub.now() - (ago * SECOND).mul_f64(1.1));
        world.config = world.config.clone().with_start_position(start);
        let mute_links = Arc::new(AtomicUsize::new(1));
        let source_faults = SourceFaults { times_unknown: true, mute_links, ..SourceFaults::default() };
        let a = start_scripted(&world, "a", source_faults).await;
        a.wait_until_all_idle(1).await;
        world.hub.publish(0, "5");
        world.log.wait_for("the last event", |log| log.times("5") == 1).await;
        let expected: Vec<_> = (expected..=5).map(|number| number.to_string()).collect();
        assert_eq!(world.log.bodies(), expected, "{ago} s ago");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_hub_at_the_start_ends_nothing() {
    for (hub_failures, check_failures) in [(1, 0), (0, 1), (5, 5)] {
        let world = World::new(1);
        world.hub.publish(0, "x");
        let busy = |times| Arc::new(AtomicUsize::new(times));
        let source_faults = SourceFaults {
            hub_failures: busy(hub_failures),
            check_failures: busy(check_failures),
            ..SourceFaults::default()
        };
        let a = start_scripted(&world, "a", source_faults).await;
        world.log.wait_for("the event", |log| log.times("x") == 1).await;
        a.shut_down().await.unwrap();
    }
}

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
async fn a_start_at_latest_is_recorded_before_a_crash() {
    let world = World { checkpoint: false, ..at_the_latest(1) };
    world.hub.publish(0, "old");
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    sleep(Duration::from_secs(1)).await;
    a.crash().await;
    world.hub.publish(0, "while down");
    let b = world.start("b").await;
    world.log.wait_for("the event", |log| log.times("while down") > 0).await;
    assert_eq!(world.log.times("old"), 0);
    b.shut_down().await.unwrap();
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
    let refused = (1..5).fold(FaultPlan::default(), |plan, partition| {
        let claims = Target::from(BlobOperation::Write).named(format!("ownership/{partition}"));
        plan.with_on(1.0, claims, Fault::Unreachable)
    });
    world.faulty.set_plan(refused);
    world.hub.grow_to(6);
    for partition in 1..6 {
        world.hub.publish(partition, "early");
    }
    a.wait_until_it_holds(2).await;
    a.wait_until_all_idle(2).await;
    world.faulty.set_plan(FaultPlan::default());
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

/// The start of a group honors `retry_after` like every other phase.
#[tokio::test(start_paused = true)]
async fn the_start_of_a_group_honors_retry_after() {
    let world = at_the_latest(1);
    let writes = Target::from(BlobOperation::Write).named(CHECKPOINT);
    let fault = Fault::Throttled { retry_after: Some(20 * SECOND) };
    world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, fault));
    let store = world.store("a").await;
    let a = world.start_on(store.clone(), world.hub.source(), world.recorder("a"));
    sleep(19 * SECOND).await;
    assert_eq!(store.request_counts().total(Purpose::Checkpoint), 1);
    a.crash().await;
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

#[tokio::test(start_paused = true)]
async fn the_next_owner_starts_at_a_moved_checkpoint() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    publish_numbers(&world.hub, 0..5);
    world.log.wait_for("4", |log| log.times("4") == 1).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.checkpoint().await, Some(4));
    place(&world.store("operator").await, 0, &Position::new(2, "2")).await;
    let b = world.start("b").await;
    world.log.wait_for("3 and 4 again", |log| log.times("3") == 2 && log.times("4") == 2).await;
    assert_eq!(world.log.times("2"), 1);
    b.shut_down().await.unwrap();
}

/// A partition with the events 0 to 100, of a group that starts at the latest event.
fn with_hundred_events() -> World {
    let world = at_the_latest(1);
    publish_numbers(&world.hub, 0..=100);
    world
}

/// A processor starts while another application owns the partition, and records its start at event 100. The other
/// application then writes its first checkpoint at event 80 and ends. The processor must continue after event 80.
async fn assert_resumes_after_80(world: &World, checkpoint_80_and_end: impl Future<Output = ()>) {
    let new = world.start("new").await;
    sleep(Duration::from_secs(15)).await;
    assert_eq!(world.checkpoint().await, Some(100), "the start is recorded");
    checkpoint_80_and_end.await;
    world.log.wait_for("event 100", |log| log.times("100") == 1).await;
    let expected: Vec<_> = (81..=100).map(|number| number.to_string()).collect();
    assert_eq!(world.log.bodies(), expected);
    new.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_adapter_owner_overrides_a_recorded_start() {
    let world = with_hundred_events();
    let adapter = BlobCheckpointStore::new(world.container.clone());
    let group = group();
    let claim = Ownership {
        fully_qualified_namespace: group.namespace().into(),
        event_hub_name: group.event_hub().into(),
        consumer_group: group.name().into(),
        partition_id: "0".into(),
        owner_id: Some("old".into()),
        ..Default::default()
    };
    assert_eq!(adapter.claim_ownership(&[claim]).await.unwrap().len(), 1);
    assert_resumes_after_80(&world, async move {
        let checkpoint = Checkpoint {
            fully_qualified_namespace: group.namespace().into(),
            event_hub_name: group.event_hub().into(),
            consumer_group: group.name().into(),
            partition_id: "0".into(),
            offset: Some("80".into()),
            sequence_number: Some(80),
        };
        adapter.update_checkpoint(checkpoint).await.unwrap();
    })
    .await;
}

/// Writes records like another SDK.
#[tokio::test(start_paused = true)]
async fn a_foreign_owner_overrides_a_recorded_start() {
    let world = with_hundred_events();
    write_record(&world, "ownership/0", &[("ownerid", "old")]).await;
    let checkpoint = [("sequencenumber", "80"), ("offset", "80")];
    assert_resumes_after_80(&world, write_record(&world, "checkpoint/0", &checkpoint)).await;
}
