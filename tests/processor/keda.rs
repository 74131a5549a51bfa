//! The lag that KEDA's scaler for Event Hubs calculates from the records. It reads only the sequence number of a
//! checkpoint, and the first and the last sequence number of the partition. After an adoption by this crate, the result
//! must be the number of waiting events.
//!
//! KEDA's arithmetic is here a second time, independent of the one in `admin`. Every case compares the two.

use std::future::pending;
use std::time::Duration;

use eventhubs_checkpoint::admin::keda::{KedaLag, KedaReason, KedaRecord, KedaScale};
use eventhubs_checkpoint::admin::{HubRanges, Operator, Reset, ResetOptions, ResetTarget};
use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::processor::{OnFailure, OnInvalidCheckpoint, PartitionState};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::store::{GroupStore, NameCase, StoreConfig};
use eventhubs_checkpoint::testing::EmptiedReport;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, Target};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Position};
use futures::StreamExt;
use tokio::time::sleep;

use crate::support::operator::operator;
use crate::support::{EMPTIED_REPORTS, record, write_record};
use crate::world::World;

/// The record that KEDA reads with `checkpointStrategy: blobMetadata`.
const RECORD: &str = "checkpoint/0";

/// What KEDA finds at the name of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    NoBlob,
    Number(i64),
    /// The key or its number is missing.
    Unreadable,
}

impl Found {
    fn of(metadata: &Metadata) -> Self {
        let number = metadata.iter().find(|(key, _)| key.eq_ignore_ascii_case("sequencenumber"));
        number.and_then(|(_, text)| text.parse().ok()).map_or(Self::Unreadable, Self::Number)
    }
}

/// `GetUnprocessedEventCountInPartition` and `calculateUnprocessedEvents` of kedacore/keda
/// `pkg/scalers/azure_eventhub_scaler.go`, with the default `stalePartitionInfoThreshold`. Without a number, the poll
/// of all partitions fails: `None`.
fn keda_lag(begin: i64, last: i64, found: Found) -> Option<i64> {
    const STALE_PARTITION_INFO: i64 = 10_000;
    if last == -1 {
        return Some(0);
    }
    let lag = match found {
        Found::Unreadable => return None,
        Found::NoBlob if begin == last && last != 0 => return Some(0),
        Found::NoBlob => return Some(last - begin + 1),
        Found::Number(number) if last >= number => last - number,
        Found::Number(number) => i64::MAX - number + last,
    };
    Some(if lag > i64::MAX - STALE_PARTITION_INFO { 0 } else { lag })
}

#[test]
fn the_calculation_is_that_of_the_tests_of_keda() {
    use Found::{NoBlob, Number};
    for (case, begin, last, found, lag) in [
        ("K1", 0, 10, Number(5), 5),
        ("K2", 0, 2, Number(0), 2),
        ("K3", 0, 10, Number(15), 0),
        ("K4", 0, 5, Number(9_223_372_036_854_775_797), 15),
        ("K5", 0, 4_000_000_000_000_000_000, Number(4_000_000_000_000_200_000), 9_223_372_036_854_575_807),
        ("K6", 0, 9_223_372_036_854_775_797, Number(5), 0),
        ("K7", 0, 0, NoBlob, 1),
        ("K8", 255, 255, NoBlob, 0),
        ("K9", 0, 1, NoBlob, 2),
    ] {
        assert_eq!(keda_lag(begin, last, found), Some(lag), "{case}");
    }
}

/// `getTotalLagRelatedToPartitionAmount` of the same file.
fn keda_metric(total: i64, partitions: i64, threshold: i64) -> i64 {
    if total / threshold > partitions { partitions * threshold } else { total }
}

#[test]
fn the_metric_is_that_of_the_tests_of_keda() {
    for (case, partitions, metric) in [("K10", 2, 20), ("K11", 20, 100)] {
        assert_eq!(keda_metric(100, partitions, 10), metric, "{case}");
    }
    for total in [0, 1, 9, 10, 11, 19, 20, 21, 29, 30, 31, 500] {
        for (partitions, threshold) in [(1, 10), (2, 10), (2, 1), (20, 10), (3, 7)] {
            let scale = KedaScale::of(total, usize::try_from(partitions).unwrap(), threshold, 64);
            let expected = (keda_metric(total, partitions, threshold), total > 0);
            assert_eq!((scale.metric, scale.active), expected, "{total}, {partitions}, {threshold}");
        }
    }
}

#[test]
fn both_calculations_agree() {
    const NUMBERS: [i64; 12] =
        [-1, 0, 1, 2, 254, 255, 256, 9_999, 10_000, 10_300, 4_000_000_000_000_000_000, i64::MAX - 10];
    for last in NUMBERS {
        for begin in NUMBERS.into_iter().filter(|begin| (0..=last.saturating_add(1)).contains(begin)) {
            let numbers = NUMBERS.into_iter().map(Found::Number);
            for found in numbers.chain([Found::NoBlob, Found::Unreadable]) {
                let record = match found {
                    Found::NoBlob => KedaRecord::Missing,
                    Found::Number(number) => KedaRecord::Number(number),
                    Found::Unreadable => KedaRecord::Unreadable,
                };
                let counted = KedaLag::count(begin, last, record).events;
                assert_eq!(counted, keda_lag(begin, last, found), "{begin}..{last}, {found:?}");
            }
        }
    }
}

/// A partition with a record that is adopted.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Whether the group starts at the latest event, instead of the earliest.
    latest: bool,
    /// The first available event, and the number of the next one.
    holds: (i64, usize),
    record: Option<&'static [(&'static str, &'static str)]>,
    /// What KEDA calculates before the adoption.
    before: Option<i64>,
    /// What it calculates after the adoption and `more` further events.
    after: Option<i64>,
    more: usize,
}

const CASE: Case = Case { name: "", latest: false, holds: (0, 0), record: None, before: None, after: None, more: 0 };

impl Case {
    /// No instance processes an event: only the adoption counts.
    async fn check(self, report: EmptiedReport) {
        let Self { name, latest, holds: (first, end), record, before, after, more } = self;
        let mut world = World::new(1);
        world.config =
            world.config.with_start_position(if latest { StartPosition::Latest } else { StartPosition::Earliest });
        world.hub.report_emptied(report);
        world.hub.publish_many(0, end, "hang");
        world.hub.expire_before(0, first);
        if let Some(metadata) = record {
            write_record(&world, RECORD, metadata).await;
        }
        assert_eq!(lag(&world).await, before, "{name}, before, {report:?}");
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        a.wait_for_status("the partition is read", |status| status.handled.is_none() && status.lag.events.is_some())
            .await;
        // A checkpoint beyond the end is confirmed for 10 s.
        sleep(Duration::from_secs(15)).await;
        world.hub.publish_many(0, more, "hang");
        assert_eq!(lag(&world).await, after, "{name}, after, {report:?}");
        a.crash().await;
    }
}

async fn found(world: &World) -> Found {
    record(world, RECORD).await.map_or(Found::NoBlob, |metadata| Found::of(&metadata))
}

/// Calculated like KEDA. What an operator shows must be the same.
async fn lag(world: &World) -> Option<i64> {
    let properties = world.hub.source().partition_properties(&0.into()).await.unwrap();
    let last = properties.last_enqueued().map_or(-1, |last| last.sequence_number);
    let calculated = keda_lag(properties.beginning_sequence_number(), last, found(world).await);
    let records = operator(world).await.read().await.unwrap();
    let poll = records.keda(&HubRanges::read(&world.hub.source()).await.unwrap());
    assert_eq!((poll.partitions[0].count.events, poll.total), (calculated, calculated));
    calculated
}

#[tokio::test(start_paused = true)]
async fn keda_counts_the_waiting_events_after_an_adoption() {
    let cases = [
        Case { name: "O1", before: Some(0), after: Some(0), ..CASE },
        Case { name: "O2", before: Some(0), more: 1, after: Some(1), ..CASE },
        Case { name: "O3", holds: (1000, 2000), before: Some(1000), after: Some(1000), ..CASE },
        Case { name: "O5", latest: true, holds: (0, 2000), before: Some(2000), after: Some(0), ..CASE },
        Case { name: "O6", holds: (255, 256), before: Some(0), after: Some(1), ..CASE },
        Case {
            name: "O8",
            holds: (1000, 2000),
            record: Some(&[("sequencenumber", "500"), ("offset", "5000")]),
            before: Some(1499),
            after: Some(1000),
            ..CASE
        },
        Case {
            name: "O10",
            holds: (0, 11),
            record: Some(&[("sequencenumber", "50000"), ("offset", "500000")]),
            before: Some(i64::MAX - 50_000 + 10),
            after: Some(11),
            ..CASE
        },
        Case {
            name: "O11, if an instance adopts it",
            holds: (0, 11),
            record: Some(&[("sequencenumber", "5000"), ("offset", "50000")]),
            before: Some(0),
            after: Some(11),
            ..CASE
        },
    ];
    for case in cases {
        case.check(EmptiedReport::BeginIsLast).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_emptied_partition_with_a_recorded_start() {
    for report in EMPTIED_REPORTS {
        Case { name: "O4", holds: (200, 200), before: Some(0), after: Some(0), ..CASE }.check(report).await;
        Case { name: "O4", holds: (200, 200), before: Some(0), more: 1, after: Some(1), ..CASE }.check(report).await;
    }
}

/// For records of other software.
#[tokio::test(start_paused = true)]
async fn a_record_without_a_number_gets_the_last_number() {
    let empty: &[_] = &[("sequencenumber", ""), ("offset", "1230")];
    let absent: &[_] = &[("offset", "1230")];
    for metadata in [empty, absent] {
        for (name, first) in [("O12, O13", 100), ("O12, O13, emptied", 124)] {
            let case = Case { name, holds: (first, 124), record: Some(metadata), ..CASE };
            for report in EMPTIED_REPORTS {
                Case { after: Some(0), ..case }.check(report).await;
                Case { more: 3, after: Some(3), ..case }.check(report).await;
            }
        }
    }
}

/// An offset with geo-replication is text. The number is taken from the event with the same text.
#[tokio::test(start_paused = true)]
async fn a_number_is_never_guessed() {
    for offset in ["1220", "01230", "1231", "@latest", "lp:1230"] {
        let world = World::new(1);
        world.hub.publish_many(0, 124, "hang");
        write_record(&world, RECORD, &[("sequencenumber", ""), ("offset", offset)]).await;
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        sleep(Duration::from_secs(5)).await;
        assert!(!matches!(found(&world).await, Found::Number(123)), "offset {offset:?}: {:?}", found(&world).await);
        a.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn processing_continues_after_the_same_event() {
    let world = World::new(1);
    world.hub.publish_many(0, 3, "old");
    write_record(&world, RECORD, &[("sequencenumber", ""), ("offset", "20"), ("note", "kept")]).await;
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    a.wait_until_all_idle(1).await;
    let kept = record(&world, RECORD).await.unwrap();
    assert_eq!((&kept["sequencenumber"], &kept["offset"]), ("2", "20"));
    assert_eq!((&kept["note"], &kept["ownerid"]), ("kept", "a"));
    assert_eq!(&kept["ehcupdatedat"], "2026-01-01T00:00:00Z", "when the other SDK wrote it: nothing was processed");
    world.hub.publish(0, "new");
    world.log.wait_for("new", |log| log.times("new") == 1).await;
    a.shut_down().await.unwrap();
    assert_eq!(world.log.bodies(), ["new"]);
    assert_eq!(world.checkpoint().await, Some(3));
}

fn writing() -> Target {
    Target::from(BlobOperation::Write).named(RECORD)
}

const EARLIEST: &[(&str, &str)] = &[("sequencenumber", "-1"), ("offset", "-1")];

#[tokio::test(start_paused = true)]
async fn a_recorded_start_follows_retention() {
    let pinned: &[_] = &[("sequencenumber", "999"), ("offset", "-1")];
    let unnumbered: &[_] = &[("sequencenumber", ""), ("offset", "-1")];
    for (name, holds, metadata, before, after) in [
        ("O7", (1000, 2000), EARLIEST, Some(2000), 1000),
        ("O7, without a number", (1000, 2000), unnumbered, None, 1000),
        ("O9, everything", (2000, 2000), EARLIEST, Some(2000), 0),
        ("O9, pinned", (2000, 2000), pinned, Some(1000), 0),
        ("recorded, some of it expired", (1500, 2000), pinned, Some(1000), 500),
        ("recorded, nothing expired", (1000, 2000), pinned, Some(1000), 1000),
    ] {
        let case = Case { name, holds, record: Some(metadata), before, after: Some(after), ..CASE };
        for report in EMPTIED_REPORTS {
            case.check(report).await;
        }
    }
}

/// The events 5 to 8, and a start at the earliest event. The first write of the checkpoint adopts it, the second one
/// updates its number.
fn with_expired_events() -> World {
    let world = World::new(1);
    world.hub.publish_many(0, 9, "waits");
    world.hub.expire_before(0, 5);
    world
}

#[tokio::test(start_paused = true)]
async fn a_failing_update_stops_nothing() {
    let lost = [
        Fault::Conflict,
        Fault::Unreachable,
        Fault::RequestLost,
        Fault::ResponseLost,
        Fault::AppliedLate(Duration::from_secs(3)),
        Fault::Throttled { retry_after: Some(Duration::from_secs(60)) },
        Fault::Hang,
    ];
    for fault in lost {
        let world = with_expired_events();
        write_record(&world, RECORD, EARLIEST).await;
        world.faulty.inject_on(writing(), Fault::Latency(Duration::ZERO));
        world.faulty.inject_on(writing(), fault.clone());
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.log.wait_for("all four", |log| log.times("waits") == 4).await;
        a.wait_for_status("the checkpoint", |status| status.checkpoint == Some(8)).await;
        sleep(Duration::from_secs(30)).await;
        assert_eq!((a.status().failures, world.faulty.pending()), (0, 0), "{fault:?}");
        assert_eq!(world.log.times("waits"), 4, "{fault:?}");
        a.shut_down().await.unwrap();
        assert!(matches!(found(&world).await, Found::Number(8)), "{fault:?}: {:?}", found(&world).await);
    }
}

/// A displaced owner writes its last checkpoint while the record is updated.
#[tokio::test(start_paused = true)]
async fn a_concurrent_write_is_kept() {
    let world = with_expired_events();
    write_record(&world, RECORD, EARLIEST).await;
    let other = Metadata::from([("sequencenumber", "8"), ("offset", "80"), ("ownerid", "b"), ("note", "kept")]);
    world.faulty.inject_on(writing(), Fault::Latency(Duration::ZERO));
    world.faulty.inject_on(writing(), Fault::ConcurrentWrite(other));
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.log.wait_for("all four", |log| log.times("waits") == 4).await;
    a.wait_for_status("the checkpoint", |status| status.checkpoint == Some(8)).await;
    a.shut_down().await.unwrap();
    let kept = record(&world, RECORD).await.unwrap();
    assert_eq!((&kept["sequencenumber"], &kept["ownerid"], &kept["note"]), ("8", "b", "kept"));
}

/// The record is a start at the earliest event, so no expired event was missed.
#[tokio::test(start_paused = true)]
async fn nothing_is_reported_as_missed() {
    let mut world = with_expired_events();
    world.config = world.config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Fail);
    write_record(&world, RECORD, EARLIEST).await;
    let a = world.start("a").await;
    world.log.wait_for("all four", |log| log.times("waits") == 4).await;
    assert!(a.shut_down().await.unwrap().is_clean());
}

/// A recreated hub starts at 0: processed events must still be checkpointed.
#[tokio::test(start_paused = true)]
async fn a_start_of_another_hub_holds_nothing_back() {
    for (pinned, events) in [("999", 3), ("2", 3), ("1", 3), ("999", 0)] {
        let world = World::new(1);
        world.hub.publish_many(0, events, "waits");
        write_record(&world, RECORD, &[("sequencenumber", pinned), ("offset", "-1")]).await;
        // The writes of the adoption and of the correction, which is retried.
        world.faulty.inject_on(writing(), Fault::Latency(Duration::ZERO));
        world.faulty.inject_on(writing(), Fault::Conflict);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.log.wait_for("all of them", |log| log.times("waits") == events).await;
        world.hub.publish(0, "waits");
        world.log.wait_for("one more", |log| log.times("waits") == events + 1).await;
        a.shut_down().await.unwrap();
        assert_eq!(world.checkpoint().await, i64::try_from(events).ok(), "recorded at {pinned}");
        assert_eq!(lag(&world).await, Some(0), "recorded at {pinned}");
    }
}

/// The events 1000 to 1999.
fn with_thousand_events() -> World {
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
        let world = with_thousand_events();
        let operator = operator(&world).await;
        let (reset, options) = (Reset::to(target.clone()), ResetOptions::default());
        operator.plan(&world.hub.source(), &reset).await.unwrap().init(&operator).await;
        assert_eq!(lag(&world).await, Some(waiting), "initial, {target:?}");

        // O7 and O8: the numbers of other software.
        for number in ["-1", "500"] {
            write_record(&world, RECORD, &[("sequencenumber", number), ("offset", "-1")]).await;
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
    let builder = GroupStore::builder(world.container.clone(), group.clone(), owner).with_config(config.clone());
    let store = builder.with_seed(3).connect().await.unwrap();
    store.init_checkpoint(&0.into(), &Position::new(3, "30")).await.unwrap();
    Operator::builder(world.container.clone(), group).with_config(config).with_seed(5).connect().await.unwrap()
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
    write_record(&world, RECORD, &[("sequencenumber", "8"), ("offset", "80")]).await;
    let poll = operator.read().await.unwrap().keda(&HubRanges::read(&world.hub.source()).await.unwrap());
    assert_eq!((found(&world).await, poll.total), (Found::Number(8), Some(1)));
    assert!(poll.partitions[0].is_wrong() && !poll.names.finds_checkpoints);
}

/// O11: the event hub was recreated, and no instance runs.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_after_the_end_is_reported() {
    for (number, counted, why) in
        [(5000, 0, KedaReason::Stale), (50_000, i64::MAX - 50_000 + 10, KedaReason::WrapAround)]
    {
        let world = World::new(1);
        world.hub.publish_many(0, 11, "waits");
        write_record(&world, RECORD, &[("sequencenumber", number.to_string().as_str()), ("offset", "x")]).await;
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
    write_record(&world, RECORD, &[("sequencenumber", "-9223372036854775808"), ("offset", "40")]).await;
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

/// O19: other blobs, another casing of the metadata key, an offset of geo-replication.
#[tokio::test(start_paused = true)]
async fn only_the_number_of_the_checkpoint_counts() {
    let world = World::new(1);
    world.hub.publish_many(0, 10, "hang");
    write_record(&world, RECORD, &[("SequenceNumber", "6"), ("offset", "lp:3:60:6"), ("note", "kept")]).await;
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
