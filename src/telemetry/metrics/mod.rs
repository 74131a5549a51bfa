//! Metrics for a monitoring system, through the facade of the `metrics` crate, with the feature `metrics`.
//!
//! Install a recorder, such as an exporter for Prometheus, before [`GroupStore`](crate::store::GroupStore) connects:
//! what is counted before is lost. Without the feature nothing is counted, at no cost.
//!
//! All metrics have the labels `namespace`, `event_hub` and `consumer_group`, and the labels of the table:
//!
//! | name | kind | unit | labels | meaning |
//! |---|---|---|---|---|
//! | `eventhubs_checkpoint_events_handled_total` | counter | count | `partition` | Events that the handler processed without an error. |
//! | `eventhubs_checkpoint_batches_handled_total` | counter | count | `partition` | Batches that the handler processed without an error. |
//! | `eventhubs_checkpoint_handler_duration_seconds` | histogram | seconds | | Time that the handler took for a batch, whatever the outcome. |
//! | `eventhubs_checkpoint_handler_failures_total` | counter | count | `partition` | Errors, panics and timeouts of the handler. |
//! | `eventhubs_checkpoint_dead_letters_total` | counter | count | `partition` | Events that were moved to the dead letters. |
//! | `eventhubs_checkpoint_undecodable_events_total` | counter | count | `partition`, `outcome` | Events that the source cannot decode: `skipped`, or `failed` at each attempt. |
//! | `eventhubs_checkpoint_link_failures_total` | counter | count | `partition` | Links that failed to open, broke, stalled, or were taken by another reader. |
//! | `eventhubs_checkpoint_stalled_links_total` | counter | count | `partition` | Links that were reopened because they delivered nothing although the partition had events. |
//! | `eventhubs_checkpoint_repeated_events_total` | counter | count | `partition` | Events that a link delivered again and that were dropped. |
//! | `eventhubs_checkpoint_checkpoint_writes_total` | counter | count | `partition`, `outcome` | Checkpoint writes: `written`, `superseded` by a later checkpoint, `failed` and pending, or `fenced` because the partition has another owner. |
//! | `eventhubs_checkpoint_checkpoint_write_duration_seconds` | histogram | seconds | | Time that a checkpoint write took, whatever the outcome. |
//! | `eventhubs_checkpoint_invalid_checkpoints_total` | counter | count | `partition`, `reason` | Checkpoints from which reading could not continue: `expired`, `recreated`, `beyond_end`, `rejected`. |
//! | `eventhubs_checkpoint_starts_before_checkpoint_total` | counter | count | `partition` | Starts at a position of the application that is before the checkpoint, so that events are processed again. Refused ones do not count. |
//! | `eventhubs_checkpoint_events_in_flight` | gauge | count | `partition` | Events that are tracked and not finished. |
//! | `eventhubs_checkpoint_lag_events` | gauge | count | `partition` | Events after the checkpoint, as of the last lag check, also of partitions that no instance owns. |
//! | `eventhubs_checkpoint_seconds_behind` | gauge | seconds | `partition` | Time by which processing lags behind the event hub. 0 if no event waits. |
//! | `eventhubs_checkpoint_checkpoint_sequence_number` | gauge | count | `partition` | Sequence number of the checkpoint, also of partitions that no instance owns. |
//! | `eventhubs_checkpoint_last_enqueued_sequence_number` | gauge | count | `partition` | Sequence number of the last event in the event hub, as of the last lag check, also of partitions that no instance owns. |
//! | `eventhubs_checkpoint_owner_info` | gauge | count | `partition`, `owner_id` | 1 for each partition that this instance processes; 0 after it stopped. |
//! | `eventhubs_checkpoint_partitions` | gauge | count | `state` | Partitions that this instance processes, by state. |
//! | `eventhubs_checkpoint_partitions_owned` | gauge | count | | Partitions that this instance owns. |
//! | `eventhubs_checkpoint_partitions_unowned` | gauge | count | | Partitions without a live owner, as this instance sees them. |
//! | `eventhubs_checkpoint_oldest_lease_age_seconds` | gauge | seconds | | Time since the least recent renewal among the leases of this instance. After the lease duration others claim the partition. |
//! | `eventhubs_checkpoint_claims_total` | counter | count | `reason` | Partitions claimed: `reclaimed`, `unowned`, `released`, `handed_over`, `expired`, `stolen`. |
//! | `eventhubs_checkpoint_ownership_losses_total` | counter | count | `reason` | Partitions lost: `taken` by another owner, or `lease_expired`. |
//! | `eventhubs_checkpoint_releases_total` | counter | count | `reason` | Partitions released: `requested`, `shutdown`, `handed_over`, `partition_removed`, `not_assigned`, `over_limit`. |
//! | `eventhubs_checkpoint_handoff_requests_total` | counter | count | | Handoffs that this instance requested from other owners. |
//! | `eventhubs_checkpoint_declared_dead_total` | counter | count | | Times that another instance declared this instance dead, or deleted its heartbeat. |
//! | `eventhubs_checkpoint_incomplete_handoffs_total` | counter | count | `cause` | Requested handoffs in which the partition moved without its last checkpoint: `not_acknowledged`, `handler_still_running`, `checkpoint_not_written`. |
//! | `eventhubs_checkpoint_cycle_duration_seconds` | histogram | seconds | | Time that a load-balancing cycle took, from its listing to its decision. |
//! | `eventhubs_checkpoint_cycle_failures_total` | counter | count | | Load-balancing cycles that failed. |
//! | `eventhubs_checkpoint_storage_requests_total` | counter | count | `operation`, `outcome`, `billing` | Requests to the storage, by operation, outcome and the type that Azure bills: `list`, `write`, `other`, `free`. |
//!
//! # Gauges
//!
//! The gauges of partitions are set every five seconds. When this instance stops processing a partition, they are set
//! to 0, because the facade cannot remove a series. When a processor ends, all its gauges are set to 0. Take the
//! maximum of a partition over the instances before you sum: while a partition moves, two instances may have a value. A
//! value that is unknown, for example a lag without lag checks, is not set.
//!
//! The gauges of a partition that no instance owns are reported by one instance: the owner of this crate with the
//! lowest owner ID. It reads them at every lag check, as long as a partition stays without an owner from one check to
//! the next. A group without any instance has no metrics: see `ehcp serve`.
//!
//! Instances of one group in one process share their series, so a gauge shows the value that was written last.
//!
//! # Histograms
//!
//! Most exporters make summaries of histograms without buckets, and summaries of several instances cannot be
//! aggregated. [`BUCKETS`] has recommended buckets for each histogram. With `metrics-exporter-prometheus`:
//!
//! ```
//! // let mut exporter = PrometheusBuilder::new();
//! for (name, buckets) in eventhubs_checkpoint::metrics::BUCKETS {
//!     // exporter = exporter.set_buckets_for_metric(Matcher::Full(name.to_string()), buckets)?;
//!     # assert!(!name.is_empty() && !buckets.is_empty());
//! }
//! ```
//!
//! Histograms have no label for the partition, because each histogram has many series.

#[cfg(feature = "metrics")]
mod facade;
#[cfg(not(feature = "metrics"))]
#[path = "disabled.rs"]
mod facade;
mod names;

use std::time::Duration;

#[cfg(feature = "metrics")]
use crate::model::OwnerId;
use crate::model::{ConsumerGroup, PartitionId};
use facade::{Counter, Histogram, Scope};
use names::{
    BATCHES_HANDLED, CHECKPOINT_WRITE_DURATION, CHECKPOINT_WRITES, CLAIMS, CYCLE_DURATION, CYCLE_FAILURES,
    DEAD_LETTERS, DECLARED_DEAD, EVENTS_HANDLED, HANDLER_DURATION, HANDLER_FAILURES, HANDOFF_REQUESTS,
    INCOMPLETE_HANDOFFS, INVALID_CHECKPOINTS, LINK_FAILURES, OLDEST_LEASE_AGE, OWNERSHIP_LOSSES, PARTITIONS_OWNED,
    RELEASES, REPEATED_EVENTS, STALLED_LINKS, STARTS_BEFORE_CHECKPOINT, STORAGE_REQUESTS, UNDECODABLE_EVENTS,
};
#[cfg(feature = "metrics")]
use names::{
    CHECKPOINT_SEQUENCE_NUMBER, EVENTS_IN_FLIGHT, LAG, LAST_ENQUEUED_SEQUENCE_NUMBER, OWNER_INFO, PARTITIONS,
    PARTITIONS_UNOWNED, SECONDS_BEHIND,
};

pub(crate) use facade::Timer;
#[doc(hidden)]
pub use names::{ALL, Metric, MetricKind, SAMPLE_EVERY, Unit};
pub use names::{BUCKETS, CHECKPOINT_WRITE_BUCKETS, CYCLE_BUCKETS, HANDLER_BUCKETS};

/// The metrics of one consumer group. Each call looks up its metric, so it is too slow to be made per event.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupMetrics(Scope);

impl GroupMetrics {
    /// Describes all metrics to the current recorder.
    pub(crate) fn for_group(group: &ConsumerGroup) -> Self {
        facade::describe_metrics();
        Self(Scope::new(group))
    }

    pub(crate) fn count_request(&self, operation: &'static str, outcome: &'static str, billing: &'static str) {
        self.0
            .counter(&STORAGE_REQUESTS, &[("operation", operation), ("outcome", outcome), ("billing", billing)])
            .increment(1);
    }

    pub(crate) fn count_claim(&self, reason: &'static str) {
        self.0.counter(&CLAIMS, &[("reason", reason)]).increment(1);
    }

    pub(crate) fn count_loss(&self, reason: &'static str) {
        self.0.counter(&OWNERSHIP_LOSSES, &[("reason", reason)]).increment(1);
    }

    pub(crate) fn count_release(&self, reason: &'static str) {
        self.0.counter(&RELEASES, &[("reason", reason)]).increment(1);
    }

    pub(crate) fn count_handoff_request(&self) {
        self.0.counter(&HANDOFF_REQUESTS, &[]).increment(1);
    }

    pub(crate) fn count_declared_dead(&self) {
        self.0.counter(&DECLARED_DEAD, &[]).increment(1);
    }

    pub(crate) fn count_incomplete_handoff(&self, cause: &'static str) {
        self.0.counter(&INCOMPLETE_HANDOFFS, &[("cause", cause)]).increment(1);
    }

    pub(crate) fn record_cycle_duration(&self, time: Duration) {
        self.0.histogram(&CYCLE_DURATION).record(time.as_secs_f64());
    }

    pub(crate) fn count_failed_cycle(&self) {
        self.0.counter(&CYCLE_FAILURES, &[]).increment(1);
    }

    pub(crate) fn set_owned(&self, partitions: usize) {
        self.0.gauge(&PARTITIONS_OWNED, &[]).set(gauge_value(partitions));
    }

    /// Does not compute the age without the feature `metrics`.
    pub(crate) fn set_oldest_lease_age(&self, age: impl FnOnce() -> Duration) {
        if facade::IS_ON {
            self.0.gauge(&OLDEST_LEASE_AGE, &[]).set(age().as_secs_f64());
        }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn set_in_state(&self, state: &'static str, partitions: usize) {
        self.0.gauge(&PARTITIONS, &[("state", state)]).set(gauge_value(partitions));
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn set_in_flight(&self, partition: &PartitionId, events: usize) {
        self.0.gauge(&EVENTS_IN_FLIGHT, &[("partition", partition.as_str())]).set(gauge_value(events));
    }

    /// Sets the gauges of a partition whose values are known.
    #[cfg(feature = "metrics")]
    pub(crate) fn set_progress(&self, partition: &PartitionId, progress: &PartitionGauges) {
        for (metric, value) in [
            (&LAG, progress.lag.map(|events| gauge_value(usize::try_from(events).unwrap_or(usize::MAX)))),
            (&SECONDS_BEHIND, progress.behind.map(|behind| behind.as_secs_f64())),
            (&CHECKPOINT_SEQUENCE_NUMBER, progress.checkpoint.map(sequence_number_value)),
            (&LAST_ENQUEUED_SEQUENCE_NUMBER, progress.last_enqueued.map(sequence_number_value)),
        ] {
            if let Some(value) = value {
                self.0.gauge(metric, &[("partition", partition.as_str())]).set(value);
            }
        }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn set_unowned(&self, partitions: usize) {
        self.0.gauge(&PARTITIONS_UNOWNED, &[]).set(gauge_value(partitions));
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn set_owner_info(&self, partition: &PartitionId, owner: &OwnerId, owns: bool) {
        self.0
            .gauge(&OWNER_INFO, &[("partition", partition.as_str()), ("owner_id", owner.as_str())])
            .set(gauge_value(usize::from(owns)));
    }
}

/// How far a partition is processed. What is `None` is not set.
#[cfg(feature = "metrics")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionGauges {
    pub(crate) lag: Option<u64>,
    pub(crate) behind: Option<Duration>,
    pub(crate) checkpoint: Option<i64>,
    pub(crate) last_enqueued: Option<i64>,
}

#[cfg(feature = "metrics")]
impl PartitionGauges {
    /// The gauges of a partition that this instance does not process anymore.
    pub(crate) const GONE: Self =
        Self { lag: Some(0), behind: Some(Duration::ZERO), checkpoint: Some(0), last_enqueued: Some(0) };
}

/// Sequence numbers above 2^53 are rounded.
#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "as exact as a gauge can be")]
fn sequence_number_value(sequence_number: i64) -> f64 {
    sequence_number as f64
}

/// Counts above 2^53 are rounded.
#[expect(clippy::cast_precision_loss, reason = "as exact as a gauge can be")]
fn gauge_value(things: usize) -> f64 {
    things as f64
}

/// The metrics of one partition. The frequent ones are looked up once.
#[derive(Clone, Debug)]
pub(crate) struct PartitionMetrics {
    group: GroupMetrics,
    partition: PartitionId,
    events: Counter,
    batches: Counter,
    handling: Histogram,
}

impl PartitionMetrics {
    pub(crate) fn new(group: &GroupMetrics, partition: &PartitionId) -> Self {
        let labels = [("partition", partition.as_str())];
        Self {
            events: group.0.counter(&EVENTS_HANDLED, &labels),
            batches: group.0.counter(&BATCHES_HANDLED, &labels),
            handling: group.0.histogram(&HANDLER_DURATION),
            group: group.clone(),
            partition: partition.clone(),
        }
    }

    pub(crate) fn time_handler(&self) -> Timer {
        Timer::start(self.handling.clone())
    }

    pub(crate) fn count_handled(&self, events: usize) {
        self.events.increment(u64::try_from(events).unwrap_or(u64::MAX));
        self.batches.increment(1);
    }

    pub(crate) fn count_handler_failure(&self) {
        self.partition_counter(&HANDLER_FAILURES).increment(1);
    }

    pub(crate) fn count_dead_letter(&self) {
        self.partition_counter(&DEAD_LETTERS).increment(1);
    }

    pub(crate) fn count_undecodable(&self, outcome: &'static str) {
        self.partition_counter_with(&UNDECODABLE_EVENTS, ("outcome", outcome)).increment(1);
    }

    pub(crate) fn count_link_failure(&self) {
        self.partition_counter(&LINK_FAILURES).increment(1);
    }

    pub(crate) fn count_stalled_link(&self) {
        self.partition_counter(&STALLED_LINKS).increment(1);
    }

    pub(crate) fn count_repeated(&self, events: usize) {
        if events > 0 {
            self.partition_counter(&REPEATED_EVENTS).increment(u64::try_from(events).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn time_checkpoint_write(&self) -> Timer {
        Timer::start(self.group.0.histogram(&CHECKPOINT_WRITE_DURATION))
    }

    pub(crate) fn count_checkpoint_write(&self, outcome: &'static str) {
        self.partition_counter_with(&CHECKPOINT_WRITES, ("outcome", outcome)).increment(1);
    }

    pub(crate) fn count_invalid_checkpoint(&self, reason: &'static str) {
        self.partition_counter_with(&INVALID_CHECKPOINTS, ("reason", reason)).increment(1);
    }

    pub(crate) fn count_start_before_checkpoint(&self) {
        self.partition_counter(&STARTS_BEFORE_CHECKPOINT).increment(1);
    }

    fn partition_counter(&self, metric: &Metric) -> Counter {
        self.group.0.counter(metric, &[("partition", self.partition.as_str())])
    }

    fn partition_counter_with(&self, metric: &Metric, label: (&'static str, &'static str)) -> Counter {
        self.group.0.counter(metric, &[("partition", self.partition.as_str()), label])
    }
}

/// The gauges of the load-balancing loop. They are set to 0 when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedMetrics(pub(crate) GroupMetrics);

impl Drop for OwnedMetrics {
    fn drop(&mut self) {
        self.0.set_owned(0);
        self.0.set_oldest_lease_age(|| Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_docs_is_complete() {
        let rows = include_str!("mod.rs").lines().filter(|line| line.starts_with("//! | `"));
        let table = ALL.iter().map(|metric| {
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let kind = format!("{:?}", metric.kind);
            let unit = format!("{:?}", metric.unit);
            let labels = if labels.is_empty() { String::new() } else { format!(" {}", labels.join(", ")) };
            format!(
                "//! | `{}` | {} | {} |{labels} | {} |",
                metric.name,
                kind.to_lowercase(),
                unit.to_lowercase(),
                metric.description
            )
        });
        assert_eq!(rows.collect::<Vec<_>>().join("\n"), table.collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn names_end_with_kind_or_unit() {
        for metric in ALL {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricKind::Counter, "{}", metric.name);
            let is_in_seconds = metric.name.ends_with("_seconds") || metric.name.ends_with("_seconds_behind");
            assert_eq!(is_in_seconds, metric.unit == Unit::Seconds, "{}", metric.name);
        }
    }
}
