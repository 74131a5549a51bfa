//! Where a partition without a usable checkpoint starts, also if the hub is quiet or busy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{OnInvalidCheckpoint, PartitionContext, handler_fn};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, Position};
use eventhubs_emulator::EventHubEmulator;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use crate::ownership_log::record;
use crate::placing::place;
use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::{Instance, Recorder, World};

#[path = "../common/hub_client/publish.rs"]
mod publish;
use publish::{producer, send, within};

const SECOND: Duration = Duration::from_secs(1);

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

async fn start_with_faults(world: &World, owner: &str, source_faults: &SourceFaults) -> Instance {
    let recorder = Recorder { owner: owner.into(), log: world.log.clone(), checkpoint: false };
    world.start_with(owner, ScriptedSource::new(&world.hub, source_faults.clone()), recorder).await
}

/// Returns the sequence number, the offset, and whether they are marked as a start.
async fn recorded(world: &World, partition: u32) -> Option<(i64, String, bool)> {
    let record = record(world, &format!("checkpoint/{partition}")).await?;
    let number = record["sequencenumber"].parse().unwrap();
    Some((number, record["offset"].to_owned(), record.get("ehcinitial") == record.get("sequencenumber")))
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

/// Returns the record of a new group for a start before any event is handled, and how many events it handles.
async fn resolved_start(
    world: &World,
    start: &StartPosition,
    source_faults: SourceFaults,
) -> ((i64, String, bool), usize) {
    let mut world = World::on(world.hub.clone());
    world.checkpoint = false;
    world.config = world.config.clone().with_start_position(start.clone());
    source_faults.lacks.iter().for_each(|number| world.log.contiguity.lacks(*number));
    let mut a = start_with_faults(&world, "a", &source_faults).await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    sleep(5 * SECOND).await;
    let recorded = recorded(&world, 0).await.expect("the start is not recorded");
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

fn offset(offset: &str) -> StartPosition {
    StartPosition::AfterOffset(offset.into())
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
    let mut a = start_with_faults(&world, "a", &source_faults).await;
    a.wait_until_it_holds(1).await;
    sleep(SECOND).await;
    world.give_to("python").await;
    sleep(15 * SECOND).await;
    assert_eq!(recorded(&world, 0).await, None);
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
        let mut a = start_with_faults(&world, "a", &source_faults).await;
        a.wait_until_it_holds(1).await;
        sleep(SECOND).await;
        world.hub.publish(0, "new");
        world.log.wait_for("the event", |log| log.times("new") == 1).await;
        assert_eq!(recorded(&world, 0).await, Some((0, "0".into(), true)), "mute: {mute_links}");
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
    let a = start_with_faults(&world, "a", &source_faults).await;
    world.log.wait_for("the last event", |log| log.times("9") == 1).await;
    assert_eq!(world.log.bodies(), ["5", "6", "7", "8", "9"]);
    assert_eq!(recorded(&world, 0).await, Some((4, "40".into(), true)));
    a.shut_down().await.unwrap();
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
    assert_eq!(recorded(&world, 0).await, None);
}

/// The application chooses a position for a checkpoint of a deleted hub. The instance ends before it writes another
/// checkpoint.
#[tokio::test(start_paused = true)]
async fn a_chosen_position_is_recorded() {
    use StartPosition::{AfterSequenceNumber, EnqueuedAfter};
    for kind in 0..3 {
        let mut world = World::new(1);
        world.hub.publish_many(0, 50, "old");
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.log.wait_for("50", |log| log.times("old") == 50).await;
        a.shut_down().await.unwrap();
        world.hub.recreate();
        world.hub.publish_many(0, 3, "before");
        let time = world.hub.now();
        sleep(SECOND).await;
        let chosen = [AfterSequenceNumber(2), offset("20"), EnqueuedAfter(time)][kind].clone();
        let policy = OnInvalidCheckpoint::custom(move |_| chosen.clone());
        world.config = world.config.clone().with_on_invalid_checkpoint(policy);
        world.checkpoint = false;
        let b = world.start("b").await;
        b.wait_until_all_idle(1).await;
        b.crash().await;
        assert_eq!(recorded(&world, 0).await, Some((2, "20".into(), false)), "{kind}");
        world.hub.publish_many(0, 5, "after");
        let c = world.start("c").await;
        world.log.wait_for("5 events", |log| log.times("after") == 5).await;
        assert_eq!(world.log.times("before"), 0, "{kind}");
        c.shut_down().await.unwrap();
    }
}

/// The same for a checkpoint whose events have expired, with the policies that need no function.
#[tokio::test(start_paused = true)]
async fn an_expired_start_is_an_invalid_checkpoint() {
    for (policy, handled) in [(OnInvalidCheckpoint::Earliest, 4), (OnInvalidCheckpoint::Latest, 0)] {
        let mut world = with_ten_events().await;
        world.config = world.config.clone().with_on_invalid_checkpoint(policy);
        let mut a = start_at(&mut world, "a", StartPosition::AfterSequenceNumber(9)).await;
        a.wait_until_it_holds(1).await;
        a.wait_until_all_idle(1).await;
        a.crash().await;
        world.hub.publish_many(0, 6, "expired");
        world.hub.publish_many(0, 4, "left");
        world.hub.expire_before(0, 16);
        sleep(90 * SECOND).await;
        let mut b = world.start("b").await;
        b.wait_until_it_holds(1).await;
        b.wait_until_all_idle(1).await;
        sleep(5 * SECOND).await;
        assert_eq!((world.log.times("expired"), world.log.times("left")), (0, handled));
        b.shut_down().await.unwrap();
    }
}

async fn official_source(hub: &EventHubEmulator) -> EventHubSource {
    let connection_string = hub.connection_string().replace("//localhost/", "//ns.servicebus.windows.net/");
    let group = ConsumerGroup::from_connection_string(&connection_string, "$Default").unwrap();
    let endpoint = hub.endpoint();
    let builder = EventHubSource::from_connection_string(&group, connection_string)
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    within("opening a consumer", builder.connect()).await.unwrap()
}

/// The same through the official client, in real time.
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
    assert_eq!(recorded(&world, 0).await, Some(expected));
}

/// 1000 events were processed. Then the next `reports` of the hub, one per second, lack the last event.
async fn with_stale_reports(reports: usize, policy: OnInvalidCheckpoint) -> (World, Instance) {
    let mut world = World::new(1);
    let config = world.config.clone().with_lag_check_interval(SECOND).with_on_invalid_checkpoint(policy);
    world.config = config;
    let stale_reports = Arc::new(AtomicUsize::new(0));
    let source_faults = SourceFaults { stale_reports: stale_reports.clone(), ..SourceFaults::default() };
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let a = world.start_with("a", ScriptedSource::new(&world.hub, source_faults), recorder).await;
    a.wait_until_all_idle(1).await;
    world.hub.publish_many(0, 1000, "x");
    world.log.wait_for("1000 events", |log| log.times("x") == 1000).await;
    sleep(10 * SECOND).await;
    stale_reports.store(reports, Ordering::Relaxed);
    (world, a)
}

/// Two stale reports are too close to each other to prove anything. With 16, the partition starts again, and must find
/// its position valid.
#[tokio::test(start_paused = true)]
async fn stale_reports_repeat_nothing() {
    for reports in [2, 16] {
        let (world, a) = with_stale_reports(reports, OnInvalidCheckpoint::Earliest).await;
        sleep(120 * SECOND).await;
        assert_eq!(world.log.times("x"), 1000, "{reports} reports");
        world.hub.publish(0, "later");
        world.log.wait_for("the next event", |log| log.times("later") == 1).await;
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stale_reports_skip_nothing() {
    let (world, a) = with_stale_reports(16, OnInvalidCheckpoint::Latest).await;
    a.wait_for_status("a failure", |status| status.failures > 0).await;
    world.hub.publish_many(0, 50, "new");
    sleep(120 * SECOND).await;
    assert_eq!((world.log.times("x"), world.log.times("new")), (1000, 50));
    assert_eq!(world.checkpoint().await, Some(1049));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stale_reports_do_not_end_the_processor() {
    let (world, a) = with_stale_reports(16, OnInvalidCheckpoint::Fail).await;
    sleep(120 * SECOND).await;
    assert!(!a.running.is_finished());
    assert_eq!(world.log.times("x"), 1000);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn frequent_reports_detect_a_recreated_hub() {
    let (world, a) = with_stale_reports(0, OnInvalidCheckpoint::Earliest).await;
    world.hub.recreate();
    world.hub.publish_many(0, 3, "new");
    let began = Instant::now();
    world.log.wait_for("3 events", |log| log.times("new") == 3).await;
    assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
    a.shut_down().await.unwrap();
}

/// Starts an instance with large batches that wait long, and waits until it is idle.
async fn batching(events: usize, wait: Duration) -> (World, Instance) {
    let mut world = World::new(1);
    world.config = world.config.clone().with_max_batch_size(events).with_max_batch_wait(wait);
    let a = world.start("a").await;
    a.wait_until_all_idle(1).await;
    (world, a)
}

#[tokio::test(start_paused = true)]
async fn a_waiting_batch_is_not_a_stalled_link() {
    for wait in [20, 30, 50, 70, 90, 300] {
        let (world, a) = batching(1000, wait * SECOND).await;
        for _ in 0..3 {
            world.hub.publish(0, "x");
            for _ in 0..wait + 60 {
                sleep(SECOND).await;
                assert_eq!(a.handle.health().issues, [], "{wait} s");
            }
        }
        assert_eq!((world.log.times("x"), a.status().failures), (3, 0), "{wait} s");
        a.shut_down().await.unwrap();
    }
}

/// Events arrive continuously, in batches of 1000 events or two minutes.
#[tokio::test(start_paused = true)]
async fn a_growing_batch_is_not_a_stalled_link() {
    let (world, a) = batching(1000, 120 * SECOND).await;
    for _ in 0..5 * 3600 {
        world.hub.publish(0, "x");
        sleep(SECOND / 5).await;
    }
    assert_eq!(a.status().failures, 0);
    assert!(world.log.times("x") >= 5 * (3600 - 121), "{}", world.log.times("x"));
    a.shut_down().await.unwrap();
}

/// The first event waits in a batch, then the link stalls. The batch is delivered, and the remaining events follow.
#[tokio::test(start_paused = true)]
async fn a_link_stalls_while_a_batch_waits() {
    for paused in [false, true] {
        let (world, a) = batching(1000, 300 * SECOND).await;
        world.hub.publish(0, "gathered");
        sleep(5 * SECOND).await;
        world.hub.stall_link(0, true);
        world.hub.publish(0, "delayed");
        let began = Instant::now();
        if paused {
            assert!(a.handle.pause(&0.into()));
            sleep(40 * SECOND).await;
            assert!(a.handle.resume(&0.into()));
        }
        world.log.wait_for("the waiting batch", |log| log.times("gathered") == 1).await;
        assert!(began.elapsed() < 150 * SECOND, "{:?}", began.elapsed());
        world.log.wait_for("the delayed event", |log| log.times("delayed") == 1).await;
        assert!(began.elapsed() < 450 * SECOND, "{:?}", began.elapsed());
        assert_eq!((world.log.bodies().len(), a.status().failures), (2, 1));
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
        let a = start_with_faults(&world, "a", &source_faults).await;
        world.log.wait_for("the event", |log| log.times("x") == 1).await;
        a.shut_down().await.unwrap();
    }
}

/// Twenty events, of which an instance processed the first ten.
async fn with_checkpoint_at_9() -> World {
    let world = World::new(1);
    for number in 0..10 {
        world.hub.publish(0, number.to_string());
    }
    let a = world.start("a").await;
    world.log.wait_for("event 9", |log| log.times("9") == 1).await;
    a.shut_down().await.unwrap();
    for number in 10..20 {
        world.hub.publish(0, number.to_string());
    }
    world
}

/// Returns what an instance handles up to event 19 if its first links start one event too late.
async fn handled_with_late_links(world: &World, links: usize) -> Vec<i64> {
    let before = world.log.bodies().len();
    let late = || Arc::new(AtomicUsize::new(links));
    let source_faults = SourceFaults { late_starts: late(), skip_first: late(), ..SourceFaults::default() };
    let b = start_with_faults(world, "b", &source_faults).await;
    world.log.wait_for("event 19", |log| log.times("19") == 1).await;
    b.shut_down().await.unwrap();
    world.log.bodies()[before..].iter().map(|body| body.parse().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn late_links_after_a_checkpoint() {
    let world = with_checkpoint_at_9().await;
    assert_eq!(handled_with_late_links(&world, 1).await, (10..20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn late_links_after_a_reset() {
    for (number, offset) in [(4, "40"), (-1, "-1")] {
        let world = with_checkpoint_at_9().await;
        place(&world.store("operator").await, 0, &Position::new(number, offset)).await;
        assert_eq!(handled_with_late_links(&world, 1).await, (number + 1..20).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn late_links_at_a_chosen_position() {
    use StartPosition::{AfterSequenceNumber, Earliest};
    // One of two links determines the offset of event 4.
    for (chosen, first, links) in [(Earliest, 0, 1), (AfterSequenceNumber(4), 5, 2)] {
        let mut world = with_checkpoint_at_9().await;
        let position = chosen.clone();
        let policy = OnInvalidCheckpoint::custom(move |_| position.clone());
        world.config = world.config.clone().with_on_invalid_checkpoint(policy);
        let wrong = Position::new(70, "700");
        place(&world.store("operator").await, 0, &wrong).await;
        assert_eq!(handled_with_late_links(&world, links).await, (first..20).collect::<Vec<_>>(), "{chosen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_links_at_a_start_position() {
    use StartPosition::{AfterSequenceNumber, Earliest};
    for (start, first, links) in [(Earliest, 0, 1), (AfterSequenceNumber(4), 5, 2)] {
        let mut world = without_checkpoints();
        for number in 0..20 {
            world.hub.publish(0, number.to_string());
        }
        world.config = world.config.clone().with_start_position(start.clone());
        assert_eq!(handled_with_late_links(&world, links).await, (first..20).collect::<Vec<_>>(), "{start:?}");
    }
}

/// The hub receives 20 events per second, and its reports are two seconds old: each link starts at another event, later
/// than reported.
#[tokio::test(start_paused = true)]
async fn events_may_expire_while_links_are_opened() {
    let world = without_checkpoints();
    world.hub.publish_many(0, 5000, "old");
    let hub = world.hub.clone();
    let busy = tokio::spawn(async move {
        for first in 1.. {
            hub.expire_before(0, first);
            hub.publish(0, "new");
            sleep(SECOND / 20).await;
        }
    });
    sleep(100 * SECOND).await;
    let a = start_with_faults(&world, "a", &SourceFaults { first_too_low: 40, ..SourceFaults::default() }).await;
    sleep(60 * SECOND).await;
    let handled = world.log.times("new");
    assert!(handled > 2000, "{handled} events");
    busy.abort();
    a.shut_down().await.unwrap();
}
