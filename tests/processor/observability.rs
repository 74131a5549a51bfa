//! What an instance shows of itself: the status of its partitions, metrics, and spans for tracing systems.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balancer::PartitionOwner;
use eventhubs_checkpoint::processor::{HealthIssue, PartitionContext, PartitionState, handler_fn};
use eventhubs_checkpoint::source::LagState;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::{Instant, sleep};

use crate::support::sources::{SourceFaults, start_scripted};
use crate::support::{MINUTE, SECOND};
use crate::world::World;

/// One visible record per unit of work: its id, start, end, state and owner.
#[tokio::test(start_paused = true)]
async fn every_partition_shows_its_owner_and_state() {
    let world = World::new(3);
    let mut a = world.start("a").await;
    let mut b = world.start("b").await;
    a.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 3).await;
    b.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 3).await;
    sleep(60 * SECOND).await;
    let snapshot = a.snapshots.borrow().clone();
    assert_eq!(snapshot.partitions.len(), 3);
    for view in &snapshot.partitions {
        assert!(matches!(&view.owner, PartitionOwner::This | PartitionOwner::Other(_)), "{view:?}");
        let record = snapshot.leases[&view.partition];
        assert!(record.claimed_at.is_some() && record.age < 60 * SECOND, "{record:?}");
    }
    let statuses = a.handle.partitions();
    assert_eq!(statuses.len(), snapshot.owned.len());
    assert!(statuses.iter().all(|status| status.state == PartitionState::Idle && status.state_for > 20 * SECOND));
    let shown = serde_json::to_value((&*snapshot, &statuses, a.handle.health())).unwrap();
    assert!(shown.to_string().contains(r#""state":"idle""#), "{shown}");
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_and_stalled_in_the_handler_differ() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(1, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let stalled = a.wait_for_status("stuck", |status| status.state == PartitionState::HandlerStalled).await;
    assert_eq!(stalled.partition, PartitionId::from(1));
    assert!(stalled.state_for > 300 * SECOND);
    assert_eq!(a.status().state, PartitionState::Idle);
    let health = a.handle.health();
    assert!(health.ready);
    assert!(
        matches!(&health.issues[..], [HealthIssue::HandlerStalled { partition, .. }] if *partition == 1.into()),
        "{health:?}"
    );
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lag_counts_events_and_has_a_state() {
    let mut world = World::new(1);
    world.checkpoint = false;
    let silent = Arc::new(AtomicBool::new(false));
    let source_faults = SourceFaults { partitions_unavailable: silent.clone(), ..SourceFaults::default() };
    let mut a = start_scripted(&world, "a", source_faults).await;
    a.wait_until_it_holds(1).await;
    let status = a.wait_for_status("idle", |status| status.state == PartitionState::Idle).await;
    assert_eq!((status.lag.events, status.lag.state), (Some(0), LagState::Empty));

    world.hub.publish_many(0, 25, "x");
    let status = a.wait_for_status("25 behind", |status| status.lag.events == Some(25)).await;
    assert_eq!((status.lag.state, status.handled, status.last_enqueued), (LagState::Known, Some(24), Some(24)));
    world.hub.expire_before(0, 20);
    a.wait_for_status("the 5 remaining events", |status| status.lag.events == Some(5)).await;

    silent.store(true, Ordering::Relaxed);
    let status = a.wait_for_status("stale", |status| status.lag.state == LagState::Stale).await;
    assert_eq!(status.lag.events, Some(5), "the last known value");
    silent.store(false, Ordering::Relaxed);
    world.hub.recreate();
    let status = a.wait_for_status("known again", |status| status.lag.state == LagState::Empty).await;
    assert_eq!(status.lag.events, Some(0), "never negative");
    a.shut_down().await.unwrap();
}

/// Every call finishes its first event and fails, so that no batch is ever handled as a whole.
#[tokio::test(start_paused = true)]
async fn progress_inside_failed_batches_is_shown() {
    let world = World::new(1);
    let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
        context.checkpoint(&events[0]);
        Err("failed on request".into())
    });
    let a = world.start_with("a", world.hub.source(), handler).await;
    world.hub.publish_many(0, 20, "x");
    let status = a.wait_for_status("all are processed", |status| status.checkpoint == Some(19)).await;
    assert_eq!(status.handled, Some(19));
    a.crash().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_forgets_the_events_of_a_former_hub() {
    let world = World::new(1);
    world.hub.publish_many(0, 50, "old");
    let a = world.start("a").await;
    a.wait_for_status("50 events", |status| status.handled == Some(49)).await;
    world.hub.recreate();
    world.hub.publish(0, "hang");
    let published = Instant::now();
    world.log.wait_for("an event", |log| log.times("hang") == 1).await;
    sleep(2 * MINUTE).await;
    let status = a.status();
    assert_eq!((status.state, status.handled), (PartitionState::Handling, None));
    let difference = status.behind.unwrap().abs_diff(published.elapsed());
    assert!(difference <= SECOND, "the storage shows whole seconds: {status:?}");
    a.crash().await;
}

/// The instance processes an event of yesterday when it starts, and no lag check finds the partition empty before the
/// next event comes.
#[tokio::test(start_paused = true)]
async fn the_lag_is_that_of_the_event_that_waits() {
    for pauses in [false, true] {
        let world = World::new(1);
        world.hub.publish(0, "yesterday");
        sleep(24 * 60 * MINUTE).await;
        let a = world.start("a").await;
        a.wait_for_status("handled", |status| status.handled == Some(0)).await;
        assert!(!pauses || a.handle.pause(&0.into()));
        world.hub.publish(0, "hang");
        sleep(2 * MINUTE).await;
        let status = a.status();
        // The time to process the first event, and whole seconds of the storage.
        let most = if pauses { 150 * SECOND } else { 121 * SECOND };
        assert!(status.behind.is_some_and(|behind| (119 * SECOND..most).contains(&behind)), "{status:?}");
        a.crash().await;
    }
}

/// The metrics of an instance.
#[cfg(feature = "metrics")]
#[expect(clippy::float_cmp, reason = "small whole numbers are exact")]
mod metrics {
    use std::time::Duration;

    use ::metrics::set_default_local_recorder;
    use eventhubs_checkpoint::metrics::{ALL, MetricKind, SAMPLE_EVERY};
    use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterPolicy};
    use eventhubs_checkpoint::processor::{
        EventError, HandlerError, PartitionContext, Processor, TrackedEvent, handler_fn,
    };
    use eventhubs_checkpoint::store::{BillingType, StorageOperation, StorageOutcome};
    use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
    use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
    use tokio::time::{sleep, timeout};

    use crate::recorded_metrics::RecordedMetrics;
    use crate::support::SECOND;
    use crate::world::World;

    #[tokio::test(start_paused = true)]
    async fn events_handlers_checkpoints_and_links_are_counted() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(2);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        sleep(SECOND).await;
        world.hub.publish_many(0, 3, "x");
        world.hub.publish(1, "y");
        sleep(5 * SECOND).await;
        assert_eq!(observed.get("events_handled_total", "partition=0"), 3.0);
        assert_eq!(observed.get("events_handled_total", "partition=1"), 1.0);
        assert_eq!(observed.get("batches_handled_total", "partition=0"), 1.0);
        assert_eq!(observed.get("checkpoint_writes_total", "outcome=written,partition=0"), 1.0);
        assert_eq!(observed.count("checkpoint_write_duration_seconds"), 2);

        world.hub.publish(0, "fail");
        world.log.wait_for("another attempt", |log| log.times("fail") == 2).await;
        assert_eq!(observed.get("handler_failures_total", "partition=0"), 1.0);
        assert_eq!(observed.get("events_handled_total", "partition=0"), 4.0);
        assert_eq!(observed.count("handler_duration_seconds"), 4);

        world.hub.break_link(1);
        sleep(5 * SECOND).await;
        assert_eq!(observed.get("link_failures_total", "partition=1"), 1.0);
        world.hub.stall_link(1, true);
        world.hub.publish(1, "late");
        world.log.wait_for("late", |log| log.times("late") == 1).await;
        assert_eq!(observed.get("stalled_links_total", "partition=1"), 1.0);
        assert_eq!(observed.get("link_failures_total", "partition=1"), 2.0);

        assert_eq!(observed.get("claims_total", "reason=unowned"), 2.0);
        assert!(observed.count("cycle_duration_seconds") > 2);
        a.shut_down().await.unwrap();
        assert_eq!(observed.get("releases_total", "reason=shutdown"), 2.0);
        observed.assert_described(ALL);
    }

    #[tokio::test(start_paused = true)]
    async fn dead_letters_are_counted() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(1);
        world.hub.publish(0, "poison");
        let handler = handler_fn(|events: Vec<MemoryEvent>, _: PartitionContext| async move {
            Err(EventError::new(&events[0], "poisoned").into())
        });
        let sink = |_: DeadLetter<MemoryEvent>| async { Ok(()) };
        let policy = DeadLetterPolicy::default().with_max_attempts(2).with_min_failing_time(Duration::ZERO);
        let a = world.start_with_dead_letters("a", handler, sink, policy).await;
        a.wait_for_status("a dead letter", |status| status.dead_letters == 1).await;
        assert_eq!(observed.get("dead_letters_total", "partition=0"), 1.0);
        assert_eq!(observed.get("handler_failures_total", "partition=0"), 2.0);
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_duration_of_a_handler_is_recorded() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(1);
        let handler = handler_fn(|_: Vec<MemoryEvent>, _: PartitionContext| async {
            sleep(3 * SECOND).await;
            Ok::<_, HandlerError>(())
        });
        let mut a = world.start_with("a", world.hub.source(), handler).await;
        a.wait_until_it_holds(1).await;
        world.hub.publish(0, "x");
        sleep(2 * SECOND + SAMPLE_EVERY).await;
        let times = observed.values("handler_duration_seconds");
        assert_eq!(times.len(), 1);
        assert!((times[0] - 3.0).abs() < 0.1, "{times:?}");
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn gauges_go_to_zero_with_the_partition() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(2);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        sleep(SECOND).await;
        assert!(a.handle.pause(&0.into()));
        world.hub.publish_many(0, 5, "x");
        sleep(40 * SECOND).await;
        assert_eq!(observed.get("partitions_owned", ""), 2.0);
        assert_eq!(observed.get("partitions", "state=paused"), 1.0);
        assert_eq!(observed.get("partitions", "state=idle"), 1.0);
        assert_eq!(observed.get("lag_events", "partition=0"), 5.0);
        assert_eq!(observed.get("lag_events", "partition=1"), 0.0);
        let age = observed.get("oldest_lease_age_seconds", "");
        assert!(age > 0.0 && age <= 60.0, "{age}");

        world.give_to("python").await;
        a.wait_until_it_holds(1).await;
        sleep(SAMPLE_EVERY + SECOND).await;
        assert_eq!(observed.get("ownership_losses_total", "reason=taken"), 1.0);
        assert_eq!(observed.get("partitions_owned", ""), 1.0);
        assert_eq!(observed.get("lag_events", "partition=0"), 0.0);
        assert_eq!(observed.get("partitions", "state=paused"), 0.0);
        a.shut_down().await.unwrap();
        let gauges = ALL.iter().filter(|metric| metric.kind == MetricKind::Gauge);
        for gauge in gauges.map(|metric| metric.name.trim_start_matches("eventhubs_checkpoint_")) {
            assert_eq!(observed.sum(gauge), 0.0, "{gauge}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_time_and_owner_of_a_partition_are_shown() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(1);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.hub.publish_many(0, 5, "x");
        sleep(100 * SECOND).await;
        let shown = || {
            let get = |name| observed.get(name, "partition=0");
            (get("checkpoint_sequence_number"), get("last_enqueued_sequence_number"), get("seconds_behind"))
        };
        assert_eq!(shown(), (4.0, 4.0, 0.0), "no event waits, however old the last one is");
        assert_eq!(observed.get("owner_info", "owner_id=a,partition=0"), 1.0);

        assert!(a.handle.pause(&0.into()));
        world.hub.publish_many(0, 3, "y");
        sleep(100 * SECOND).await;
        let (checkpoint, last, behind) = shown();
        assert_eq!((checkpoint, last), (4.0, 7.0));
        assert!((90.0..=130.0).contains(&behind), "up to one lag check more than 100 s: {behind}");
        let behind = a.handle.partitions()[0].behind.unwrap();
        assert!((90..=130).contains(&behind.as_secs()), "{behind:?}");
        assert!(a.handle.resume(&0.into()));
        sleep(100 * SECOND).await;
        assert_eq!(shown(), (7.0, 7.0, 0.0));
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_instance_shows_the_lag_of_unowned_partitions() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let mut world = World::new(3);
        world.config.balancer.max_partitions = Some(1);
        let mut a = world.start("a").await;
        let mut b = world.start("b").await;
        a.wait_until_it_holds(1).await;
        b.wait_until_it_holds(1).await;
        for partition in 0..3 {
            world.hub.publish_many(partition, 7, "x");
        }
        sleep(100 * SECOND).await;
        assert_eq!((observed.sum("lag_events"), observed.sum("owner_info")), (7.0, 2.0), "one partition has no owner");
        assert_eq!(observed.sum("last_enqueued_sequence_number"), 18.0);

        // The other instance shows it if the first one ends.
        a.shut_down().await.unwrap();
        assert_eq!(observed.sum("lag_events"), 0.0);
        sleep(150 * SECOND).await;
        assert_eq!((observed.sum("lag_events"), observed.sum("owner_info")), (7.0, 1.0));
        world.config.balancer.max_partitions = None;
        let mut c = world.start("c").await;
        c.wait_until_it_holds(2).await;
        sleep(100 * SECOND).await;
        assert_eq!((observed.sum("lag_events"), observed.sum("owner_info")), (0.0, 3.0));
        b.shut_down().await.unwrap();
        c.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_resets_the_gauges() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(2);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        sleep(SAMPLE_EVERY).await;
        assert_eq!((observed.sum("partitions_owned"), observed.sum("partitions")), (2.0, 2.0));
        a.crash().await;
        assert_eq!((observed.sum("partitions_owned"), observed.sum("partitions")), (0.0, 0.0));
    }

    #[tokio::test(start_paused = true)]
    async fn tracked_events_are_in_flight() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(1);
        let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
            let tokens: Vec<_> = events.iter().map(|event| context.track(event)).collect();
            tokio::spawn(async move {
                sleep(20 * SECOND).await;
                tokens.into_iter().for_each(TrackedEvent::finish);
            });
            Ok::<_, HandlerError>(())
        });
        let mut a = world.start_with("a", world.hub.source(), handler).await;
        a.wait_until_it_holds(1).await;
        world.hub.publish_many(0, 7, "x");
        sleep(SAMPLE_EVERY + SECOND).await;
        assert_eq!(observed.get("events_in_flight", "partition=0"), 7.0);
        sleep(20 * SECOND).await;
        assert_eq!(observed.get("events_in_flight", "partition=0"), 0.0);
        a.shut_down().await.unwrap();
    }

    /// Two instances share two partitions that the first one owned.
    async fn run_move(handoff: bool) -> RecordedMetrics {
        let observed = RecordedMetrics::default();
        let recorder = set_default_local_recorder(&observed);
        let mut world = World::new(2);
        world.config.balancer.handoff = handoff;
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        let mut b = world.start("b").await;
        b.wait_until_it_holds(1).await;
        a.wait_until_it_holds(1).await;
        a.shut_down().await.unwrap();
        b.shut_down().await.unwrap();
        drop(recorder);
        observed
    }

    #[tokio::test(start_paused = true)]
    async fn a_handoff_is_counted_by_both_instances() {
        let observed = run_move(true).await;
        assert_eq!(observed.get("handoff_requests_total", ""), 1.0);
        assert_eq!(observed.get("releases_total", "reason=handed_over"), 1.0);
        assert_eq!(observed.get("claims_total", "reason=handed_over"), 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_theft_is_counted_by_both_instances() {
        let observed = run_move(false).await;
        assert_eq!(observed.get("claims_total", "reason=stolen"), 1.0);
        assert_eq!(observed.get("ownership_losses_total", "reason=taken"), 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_invalid_checkpoint_is_counted_with_its_reason() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(1);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.hub.publish(0, "first");
        world.log.wait_for("first", |log| log.times("first") == 1).await;
        a.shut_down().await.unwrap();
        world.hub.publish_many(0, 9, "x");
        world.hub.expire_before(0, 5);
        let b = world.start("b").await;
        world.log.wait_for("the remaining events", |log| log.times("x") == 5).await;
        assert_eq!(observed.get("invalid_checkpoints_total", "partition=0,reason=expired"), 1.0);
        b.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn requests_match_the_counts_of_the_store() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(3);
        let store = world.store("a").await;
        let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
            for event in &events {
                context.checkpoint(event);
            }
            Ok::<_, HandlerError>(())
        });
        let processor = Processor::builder(world.hub.source(), store.clone(), handler);
        let processor = processor.with_config(world.config.clone()).build().unwrap();
        world.hub.publish(0, "x");
        world.faulty.set_plan(FaultPlan::default().with(0.1, Fault::Unreachable).with(0.1, Fault::RequestLost));
        processor.run(sleep(600 * SECOND)).await.unwrap();
        let requests = store.request_counts();
        let counted = |operation: StorageOperation, outcome: StorageOutcome, billing: BillingType| {
            let labels =
                [("billing", billing.as_str()), ("operation", operation.as_str()), ("outcome", outcome.as_str())];
            observed.get("storage_requests_total", &labels.map(|(name, value)| format!("{name}={value}")).join(","))
        };
        let mut by_billing = [0.0; BillingType::ALL.len()];
        for &operation in StorageOperation::ALL {
            for &outcome in StorageOutcome::ALL {
                let of_types = BillingType::ALL.iter().map(|billing| counted(operation, outcome, *billing));
                let of_types: Vec<_> = of_types.collect();
                by_billing.iter_mut().zip(&of_types).for_each(|(sum, count)| *sum += count);
                let sum: f64 = of_types.iter().sum();
                assert_eq!(sum.to_string(), requests.of(operation, outcome).to_string(), "{operation:?} {outcome:?}");
            }
        }
        for (&billing, sum) in BillingType::ALL.iter().zip(by_billing) {
            assert_eq!(sum.to_string(), requests.billed_as(billing).to_string(), "{billing:?}");
        }
        assert!(
            requests.of(StorageOperation::List, StorageOutcome::Ok) > 10
                && requests.of(StorageOperation::Renew, StorageOutcome::Ok) > 10
        );
        assert!(observed.sum("cycle_failures_total") > 0.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_no_stream_took_is_not_handled() {
        let observed = RecordedMetrics::default();
        let _recorder = set_default_local_recorder(&observed);
        let world = World::new(1);
        let builder = Processor::streams(world.hub.source(), world.store("a").await);
        let mut partitions = builder.with_config(world.config.clone()).start().unwrap();
        let mut partition = partitions.next().await.unwrap();
        world.hub.publish_many(0, 2, "taken");
        assert_eq!(partition.next().await.unwrap().len(), 2);
        assert!(timeout(SECOND, partition.next()).await.is_err(), "the application is finished with them");
        world.hub.publish_many(0, 2, "not taken");
        sleep(SECOND).await;
        partitions.handle().shutdown();
        sleep(SECOND).await;
        drop(partition);
        let report = partitions.shutdown().await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(observed.get("events_handled_total", "partition=0"), 2.0);
        assert_eq!(observed.get("handler_failures_total", "partition=0"), 0.0);
    }
}

/// The spans for tracing systems.
mod spans {
    use std::collections::BTreeMap;
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use eventhubs_checkpoint::processor::traces::SpanEvents;
    use eventhubs_checkpoint::processor::{CheckpointPolicy, HandlerError, PartitionContext, Processor, handler_fn};
    use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
    use tokio::time::sleep;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Level, Subscriber};
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::Context;
    use tracing_subscriber::prelude::*;
    use tracing_subscriber::registry::LookupSpan;

    use crate::captured::let_threads_decide;
    use crate::support::SECOND;
    use crate::world::World;

    type Fields = BTreeMap<&'static str, String>;

    /// Keeps the fields of all spans, in the order of their creation.
    #[derive(Clone, Default)]
    struct Spans(Arc<Mutex<Vec<(Id, Fields)>>>);

    struct Visitor<'a>(&'a mut Fields);

    impl Visit for Visitor<'_> {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name(), value.to_owned());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name(), format!("{value:?}"));
        }
    }

    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
            let mut fields = Fields::new();
            attributes.record(&mut Visitor(&mut fields));
            self.0.lock().unwrap().push((id.clone(), fields));
        }

        fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
            let mut spans = self.0.lock().unwrap();
            // Ids are used again.
            let (_, fields) = spans.iter_mut().rev().find(|(known, _)| known == id).unwrap();
            record.record(&mut Visitor(fields));
        }
    }

    impl Spans {
        fn capture(&self, level: Level) -> tracing::subscriber::DefaultGuard {
            let_threads_decide();
            let filter = Targets::new().with_target("eventhubs_checkpoint::spans", level);
            tracing_subscriber::registry().with(filter).with(self.clone()).set_default()
        }

        fn named(&self, name: &str) -> Vec<Fields> {
            let spans = self.0.lock().unwrap();
            spans.iter().map(|(_, fields)| fields).filter(|fields| fields["otel.name"] == name).cloned().collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_call_has_its_kind() {
        let spans = Spans::default();
        let _captured = spans.capture(Level::DEBUG);
        let world = World::new(1);
        world.hub.publish_many(0, 3, "fail");
        let a = world.start("a").await;
        world.log.wait_for("another attempt", |log| log.times("fail") >= 4).await;
        sleep(10 * SECOND).await;
        a.shut_down().await.unwrap();
        let calls = spans.named("process hub");
        let fields = |name| calls.iter().map(|span| span.get(name).map(String::as_str)).collect::<Vec<_>>();
        assert_eq!(fields("otel.status_code"), [Some("ERROR"), None]);
        assert_eq!(fields("error.type"), [Some("handler"), None]);
        assert_eq!(calls[0]["messaging.batch.message_count"], "3");
        assert_eq!(calls[0]["otel.kind"], "consumer");
        let written = spans.named("checkpoint hub");
        assert!(!written.is_empty() && written.iter().all(|span| !span.contains_key("error.type")), "{written:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_displaced_checkpoint_is_fenced() {
        let spans = Spans::default();
        let _captured = spans.capture(Level::DEBUG);
        let mut world = World::new(1);
        world.config.checkpoint_policy = CheckpointPolicy::default().with_interval(SECOND);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        // The cycle soon after the claim has passed, so that the checkpoint detects the loss.
        sleep(3 * SECOND).await;
        world.give_to("b").await;
        world.checkpoint_as_another_sdk(0).await;
        world.hub.publish(0, "x");
        a.wait_until_it_holds(0).await;
        let fenced = |span: &Fields| span.get("error.type").is_some_and(|kind| kind == "fenced");
        assert!(spans.named("checkpoint hub").iter().any(fenced), "{:?}", spans.named("checkpoint hub"));
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_receives_and_does_not_process() {
        let spans = Spans::default();
        let _captured = spans.capture(Level::DEBUG);
        let world = World::new(1);
        world.hub.publish_many(0, 5, "x");
        let builder = Processor::streams(world.hub.source(), world.store("a").await);
        let mut partitions = builder.with_config(world.config.clone()).start().unwrap();
        let mut partition = partitions.next().await.unwrap();
        assert_eq!(partition.next().await.unwrap().len(), 5);
        let received = spans.named("receive hub");
        assert_eq!((received.len(), received[0]["otel.kind"].as_str()), (1, "client"));
        assert_eq!(received[0]["messaging.operation.type"], "receive");
        assert!(spans.named("process hub").is_empty());
        partitions.shutdown().await.unwrap();
    }

    /// Counts the calls of the hook.
    async fn hook_calls(level: Level, hook: impl Fn() + Send + Sync + 'static) -> usize {
        let spans = Spans::default();
        let _captured = spans.capture(level);
        let calls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&calls);
        let world = World::new(1);
        world.hub.publish(0, "x");
        let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
            context.checkpoint(&events[0]);
            Ok::<_, HandlerError>(())
        });
        let builder = Processor::builder(world.hub.source(), world.store("a").await, handler);
        let builder = builder.with_config(world.config.clone()).with_span_hook(move |_, events: SpanEvents<'_>| {
            assert_eq!((events.count, events.contexts.len()), (1, 0), "events in memory have no trace context");
            *counted.lock().unwrap() += 1;
            hook();
        });
        let report = builder.build().unwrap().run(sleep(20 * SECOND)).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(world.checkpoint().await, Some(0));
        *calls.lock().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_hook_is_called_for_enabled_spans_only() {
        assert_eq!(hook_calls(Level::INFO, || ()).await, 0);
        assert_eq!(hook_calls(Level::DEBUG, || ()).await, 2, "a batch and a checkpoint");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_that_panics_changes_nothing() {
        assert_eq!(hook_calls(Level::DEBUG, || panic!("on request")).await, 2);
    }
}
