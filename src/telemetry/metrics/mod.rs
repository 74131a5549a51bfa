//! Numbers for a monitoring system, through the facade of the `metrics` crate; with the feature `metrics`.
//!
//! Install a recorder, such as an exporter for Prometheus, before [`GroupStore`](crate::store::GroupStore) connects:
//! what is counted before goes nowhere. Without the feature nothing is counted, at no cost.
//!
//! All have the labels `with_event_hub` and `with_consumer_group`, and those of the table:
//!
//! | name | kind | unit | labels | what |
//! |---|---|---|---|---|
//! | `eventhubs_checkpoint_events_handled_total` | counter | count | `partition` | Events of batches from which the handler returned well. |
//! | `eventhubs_checkpoint_batches_handled_total` | counter | count | `partition` | Batches from which the handler returned well. |
//! | `eventhubs_checkpoint_handler_duration_seconds` | histogram | seconds | | How long the handler had a batch, whatever came of it. |
//! | `eventhubs_checkpoint_handler_failures_total` | counter | count | `partition` | Errors, panics and missed deadlines of the handler. |
//! | `eventhubs_checkpoint_link_failures_total` | counter | count | `partition` | Links that could not be opened, or broke, or were silent. |
//! | `eventhubs_checkpoint_silent_links_total` | counter | count | `partition` | Links that delivered nothing although there were events, and were opened again. |
//! | `eventhubs_checkpoint_repeated_events_total` | counter | count | `partition` | Events that a link delivered again, and that were left out. |
//! | `eventhubs_checkpoint_checkpoint_writes_total` | counter | count | `partition`, `outcome` | Checkpoints that were to be written: `written`, `superseded` by a later one, `failed`, and so pending, or refused: `fenced`. |
//! | `eventhubs_checkpoint_checkpoint_write_duration_seconds` | histogram | seconds | | How long writing a checkpoint took, whatever came of it. |
//! | `eventhubs_checkpoint_invalid_checkpoints_total` | counter | count | `partition`, `reason` | Checkpoints from which reading could not go on: `expired`, `beyond_end`, `refused`. |
//! | `eventhubs_checkpoint_events_in_flight` | gauge | count | `partition` | Events that are tracked and not finished. |
//! | `eventhubs_checkpoint_lag_events` | gauge | count | `partition` | Events behind the checkpoint, as of the last probe. |
//! | `eventhubs_checkpoint_partitions` | gauge | count | `state` | Partitions at work, by what they are doing. |
//! | `eventhubs_checkpoint_partitions_held` | gauge | count | | Partitions that this instance holds. |
//! | `eventhubs_checkpoint_renewal_age_seconds` | gauge | seconds | | Age of the own lease that was renewed longest ago. Beyond the expiry others take it. |
//! | `eventhubs_checkpoint_claims_total` | counter | count | `reason` | Partitions won: `reclaimed`, `unowned`, `released`, `handed_over`, `expired`, or `stolen` from a live owner. |
//! | `eventhubs_checkpoint_losses_total` | counter | count | `reason` | Partitions lost: `taken` by another owner, or `outlived` their lease. |
//! | `eventhubs_checkpoint_releases_total` | counter | count | `reason` | Partitions given back: `asked`, `shutdown`, `stalled`, `handed_over`, `gone`, `not_assigned`, `above_max`. |
//! | `eventhubs_checkpoint_asked_total` | counter | count | | Partitions that other owners were asked to hand over. |
//! | `eventhubs_checkpoint_declared_dead_total` | counter | count | | Times that another instance took this one for dead. |
//! | `eventhubs_checkpoint_duplicates_possible_total` | counter | count | `cause` | Partitions that moved without their last checkpoint although they were asked for: `not_answered`, `not_released`, `still_running`, `not_settled`. |
//! | `eventhubs_checkpoint_cycle_duration_seconds` | histogram | seconds | | How long a balancing cycle took, from its listing to its decision. |
//! | `eventhubs_checkpoint_cycle_failures_total` | counter | count | | Balancing cycles that failed. |
//! | `eventhubs_checkpoint_storage_requests_total` | counter | count | `operation`, `outcome` | Requests to the storage: see [`Operation`](crate::Operation) and [`Outcome`](crate::Outcome). |
//!
//! # Gauges
//!
//! `events_in_flight`, `lag_events` and `partitions` are set every five seconds. What
//! belongs to a partition that is not at work here any more goes to 0, as the facade cannot take a series away; so do
//! all of them at the end. So sums and maxima over the instances of a group are right, but for the moment in which a
//! partition moves. A lag that is not known, as without probes, is not set.
//!
//! Instances of one group within one process share their series: of the gauges the last one written is seen.
//!
//! Histograms have no label for the partition, for each of their series is many.

#[cfg(feature = "metrics")]
mod facade;
#[cfg(not(feature = "metrics"))]
#[path = "silent.rs"]
mod facade;
mod names;

use std::time::Duration;

use crate::model::{ConsumerGroup, PartitionId};
use facade::{Counter, Histogram, Scope};
use names::{
    ASKED, BATCHES_HANDLED, CHECKPOINT_WRITE_DURATION, CHECKPOINT_WRITES, CLAIMS, CYCLE_DURATION, CYCLE_FAILURES,
    DECLARED_DEAD, DUPLICATES_POSSIBLE, EVENTS_HANDLED, HANDLER_DURATION, HANDLER_FAILURES, INVALID_CHECKPOINTS,
    LINK_FAILURES, LOSSES, PARTITIONS_HELD, RELEASES, RENEWAL_AGE, REPEATED_EVENTS, SILENT_LINKS, STORAGE_REQUESTS,
};
#[cfg(feature = "metrics")]
use names::{EVENTS_IN_FLIGHT, LAG, PARTITIONS};

pub(crate) use facade::Timer;
#[doc(hidden)]
pub use names::{ALL, Kind, Metric, SAMPLE_EVERY, Unit};

/// Those of one consumer group in this process. Each call looks its metric up, so not for every event.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupMetrics(Scope);

impl GroupMetrics {
    /// Describes them all to the recorder that is there now.
    pub(crate) fn describe(group: &ConsumerGroup) -> Self {
        facade::describe();
        Self(Scope::new(group))
    }

    pub(crate) fn of_partition(&self, partition: &PartitionId) -> PartitionMetrics {
        PartitionMetrics::new(self, partition)
    }

    pub(crate) fn request(&self, operation: &'static str, outcome: &'static str) {
        let labels = [("operation", operation), ("outcome", outcome)];
        self.0.counter(&STORAGE_REQUESTS, &labels).increment(1);
    }

    pub(crate) fn claimed(&self, reason: &'static str) {
        self.0.counter(&CLAIMS, &[("reason", reason)]).increment(1);
    }

    pub(crate) fn lost(&self, reason: &'static str) {
        self.0.counter(&LOSSES, &[("reason", reason)]).increment(1);
    }

    pub(crate) fn releasing(&self, reason: &'static str) {
        self.0.counter(&RELEASES, &[("reason", reason)]).increment(1);
    }

    pub(crate) fn asked(&self) {
        self.0.counter(&ASKED, &[]).increment(1);
    }

    pub(crate) fn declared_dead(&self) {
        self.0.counter(&DECLARED_DEAD, &[]).increment(1);
    }

    pub(crate) fn duplicates_possible(&self, cause: &'static str) {
        self.0.counter(&DUPLICATES_POSSIBLE, &[("cause", cause)]).increment(1);
    }

    pub(crate) fn cycle_took(&self, time: Duration) {
        self.0.histogram(&CYCLE_DURATION).record(time.as_secs_f64());
    }

    pub(crate) fn cycle_failed(&self) {
        self.0.counter(&CYCLE_FAILURES, &[]).increment(1);
    }

    pub(crate) fn held(&self, partitions: usize) {
        self.0.gauge(&PARTITIONS_HELD, &[]).set(count(partitions));
    }

    /// Not asked for where nobody wants to know.
    pub(crate) fn renewal_age(&self, age: impl FnOnce() -> Duration) {
        if facade::IS_ON {
            self.0.gauge(&RENEWAL_AGE, &[]).set(age().as_secs_f64());
        }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn in_state(&self, state: &'static str, partitions: usize) {
        self.0.gauge(&PARTITIONS, &[("state", state)]).set(count(partitions));
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn in_flight(&self, partition: &PartitionId, events: usize) {
        self.0.gauge(&EVENTS_IN_FLIGHT, &[("partition", partition.as_str())]).set(count(events));
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn lag(&self, partition: &PartitionId, events: u64) {
        self.0
            .gauge(&LAG, &[("partition", partition.as_str())])
            .set(count(usize::try_from(events).unwrap_or(usize::MAX)));
    }
}

/// Counts beyond 2^53 are rounded.
#[expect(clippy::cast_precision_loss, reason = "as exact as a gauge can be")]
fn count(things: usize) -> f64 {
    things as f64
}

/// Those of one partition, looked up once.
#[derive(Clone, Debug)]
pub(crate) struct PartitionMetrics {
    group: GroupMetrics,
    partition: PartitionId,
    events: Counter,
    batches: Counter,
    handling: Histogram,
}

impl PartitionMetrics {
    fn new(group: &GroupMetrics, partition: &PartitionId) -> Self {
        let counter = |metric| group.0.counter(metric, &[("partition", partition.as_str())]);
        Self {
            events: counter(&EVENTS_HANDLED),
            batches: counter(&BATCHES_HANDLED),
            handling: group.0.histogram(&HANDLER_DURATION),
            group: group.clone(),
            partition: partition.clone(),
        }
    }

    pub(crate) fn handling(&self) -> Timer {
        Timer::of(self.handling.clone())
    }

    pub(crate) fn handled(&self, events: usize) {
        self.events.increment(u64::try_from(events).unwrap_or(u64::MAX));
        self.batches.increment(1);
    }

    pub(crate) fn handler_failed(&self) {
        self.counter(&HANDLER_FAILURES).increment(1);
    }

    pub(crate) fn link_failed(&self) {
        self.counter(&LINK_FAILURES).increment(1);
    }

    pub(crate) fn link_silent(&self) {
        self.counter(&SILENT_LINKS).increment(1);
    }

    pub(crate) fn repeated(&self, events: usize) {
        if events > 0 {
            self.counter(&REPEATED_EVENTS).increment(u64::try_from(events).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn writing(&self) -> Timer {
        Timer::of(self.group.0.histogram(&CHECKPOINT_WRITE_DURATION))
    }

    pub(crate) fn checkpoint(&self, outcome: &'static str) {
        let labels = [("partition", self.partition.as_str()), ("outcome", outcome)];
        self.group.0.counter(&CHECKPOINT_WRITES, &labels).increment(1);
    }

    pub(crate) fn invalid_checkpoint(&self, reason: &'static str) {
        let labels = [("partition", self.partition.as_str()), ("reason", reason)];
        self.group.0.counter(&INVALID_CHECKPOINTS, &labels).increment(1);
    }

    fn counter(&self, metric: &Metric) -> Counter {
        self.group.0.counter(metric, &[("partition", self.partition.as_str())])
    }
}

/// What the balancing loop holds. Nothing any more, when this is dropped.
#[derive(Debug)]
pub(crate) struct HeldMetrics(pub(crate) GroupMetrics);

impl Drop for HeldMetrics {
    fn drop(&mut self) {
        self.0.held(0);
        self.0.renewal_age(|| Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_docs_tells_all_and_nothing_else() {
        let rows = include_str!("mod.rs").lines().filter(|line| line.starts_with("//! | `"));
        let table = ALL.iter().map(|metric| {
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (kind, unit) = (format!("{:?}", metric.kind), format!("{:?}", metric.unit));
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
    fn names_tell_kind_and_unit() {
        for metric in ALL {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
            assert_eq!(metric.name.ends_with("_seconds"), metric.unit == Unit::Seconds, "{}", metric.name);
        }
    }
}
