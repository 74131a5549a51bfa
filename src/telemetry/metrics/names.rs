//! The metrics: their names, kinds, units and labels, and the recommended buckets of the histograms.

use std::time::Duration;

/// The interval at which the gauges of partitions are set, shorter than the usual interval of scrapes.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// A count.
    Count,
    /// Seconds.
    Seconds,
}

/// One metric, as described to the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The full name.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The unit.
    pub unit: Unit,
    /// The labels in addition to `namespace`, `event_hub` and `consumer_group`.
    pub labels: &'static [&'static str],
    /// The meaning.
    pub description: &'static str,
}

/// Declares the metrics and a list of them.
macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, $unit:ident, [$($label:literal),*], $description:literal;)*) => {
        $(
            pub(super) const $id: Metric = Metric {
                name: concat!("eventhubs_checkpoint_", $name),
                kind: MetricKind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                description: $description,
            };
        )*

        /// All metrics.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

metrics! {
    EVENTS_HANDLED = "events_handled_total", Counter, Count, ["partition"],
        "Events that the handler processed without an error.";
    BATCHES_HANDLED = "batches_handled_total", Counter, Count, ["partition"],
        "Batches that the handler processed without an error.";
    HANDLER_DURATION = "handler_duration_seconds", Histogram, Seconds, [],
        "Time that the handler took for a batch, whatever the outcome.";
    HANDLER_FAILURES = "handler_failures_total", Counter, Count, ["partition"],
        "Errors, panics and timeouts of the handler.";
    DEAD_LETTERS = "dead_letters_total", Counter, Count, ["partition"],
        "Events that were moved to the dead letters.";
    UNDECODABLE_EVENTS = "undecodable_events_total", Counter, Count, ["partition", "outcome"],
        "Events that the source cannot decode: `skipped`, or `failed` at each attempt.";
    LINK_FAILURES = "link_failures_total", Counter, Count, ["partition"],
        "Links that failed to open, broke, stalled, or were taken by another reader.";
    STALLED_LINKS = "stalled_links_total", Counter, Count, ["partition"],
        "Links that were reopened because they delivered nothing although the partition had events.";
    REPEATED_EVENTS = "repeated_events_total", Counter, Count, ["partition"],
        "Events that a link delivered again and that were dropped.";
    CHECKPOINT_WRITES = "checkpoint_writes_total", Counter, Count, ["partition", "outcome"],
        "Checkpoint writes: `written`, `superseded` by a later checkpoint, `failed` and pending, or `fenced` because the partition has another owner.";
    CHECKPOINT_WRITE_DURATION = "checkpoint_write_duration_seconds", Histogram, Seconds, [],
        "Time that a checkpoint write took, whatever the outcome.";
    INVALID_CHECKPOINTS = "invalid_checkpoints_total", Counter, Count, ["partition", "reason"],
        "Checkpoints from which reading could not continue: `expired`, `recreated`, `beyond_end`, `rejected`.";
    STARTS_BEFORE_CHECKPOINT = "starts_before_checkpoint_total", Counter, Count, ["partition"],
        "Starts at a position of the application that is before the checkpoint, so that events are processed again. Refused ones do not count.";
    EVENTS_IN_FLIGHT = "events_in_flight", Gauge, Count, ["partition"],
        "Events that are tracked and not finished.";
    LAG = "lag_events", Gauge, Count, ["partition"],
        "Events after the checkpoint, as of the last lag check, also of partitions that no instance owns.";
    SECONDS_BEHIND = "seconds_behind", Gauge, Seconds, ["partition"],
        "Time by which processing lags behind the event hub. 0 if no event waits.";
    CHECKPOINT_SEQUENCE_NUMBER = "checkpoint_sequence_number", Gauge, Count, ["partition"],
        "Sequence number of the checkpoint, also of partitions that no instance owns.";
    LAST_ENQUEUED_SEQUENCE_NUMBER = "last_enqueued_sequence_number", Gauge, Count, ["partition"],
        "Sequence number of the last event in the event hub, as of the last lag check, also of partitions that no instance owns.";
    OWNER_INFO = "owner_info", Gauge, Count, ["partition", "owner_id"],
        "1 for each partition that this instance processes; 0 after it stopped.";
    PARTITIONS = "partitions", Gauge, Count, ["state"],
        "Partitions that this instance processes, by state.";
    PARTITIONS_OWNED = "partitions_owned", Gauge, Count, [],
        "Partitions that this instance owns.";
    PARTITIONS_UNOWNED = "partitions_unowned", Gauge, Count, [],
        "Partitions without a live owner, as this instance sees them.";
    OLDEST_LEASE_AGE = "oldest_lease_age_seconds", Gauge, Seconds, [],
        "Time since the least recent renewal among the leases of this instance. After the lease duration others claim the partition.";
    CLAIMS = "claims_total", Counter, Count, ["reason"],
        "Partitions claimed: `reclaimed`, `unowned`, `released`, `handed_over`, `expired`, `stolen`.";
    OWNERSHIP_LOSSES = "ownership_losses_total", Counter, Count, ["reason"],
        "Partitions lost: `taken` by another owner, or `lease_expired`.";
    RELEASES = "releases_total", Counter, Count, ["reason"],
        "Partitions released: `requested`, `shutdown`, `handed_over`, `partition_removed`, `not_assigned`, `over_limit`.";
    HANDOFF_REQUESTS = "handoff_requests_total", Counter, Count, [],
        "Handoffs that this instance requested from other owners.";
    DECLARED_DEAD = "declared_dead_total", Counter, Count, [],
        "Times that another instance declared this instance dead, or deleted its heartbeat.";
    INCOMPLETE_HANDOFFS = "incomplete_handoffs_total", Counter, Count, ["cause"],
        "Requested handoffs in which the partition moved without its last checkpoint: `not_acknowledged`, `handler_still_running`, `checkpoint_not_written`.";
    CYCLE_DURATION = "cycle_duration_seconds", Histogram, Seconds, [],
        "Time that a load-balancing cycle took, from its listing to its decision.";
    CYCLE_FAILURES = "cycle_failures_total", Counter, Count, [],
        "Load-balancing cycles that failed.";
    STORAGE_REQUESTS = "storage_requests_total", Counter, Count, ["operation", "outcome", "billing"],
        "Requests to the storage, by operation, outcome and the type that Azure bills: `list`, `write`, `other`, `free`.";
}

/// Buckets for `handler_duration_seconds`, in seconds: the buckets that the semantic conventions of OpenTelemetry
/// advise for `messaging.process.duration`, and more, because a handler is stalled only after 300 s with the default
/// settings.
pub const HANDLER_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0];

/// Buckets for `checkpoint_write_duration_seconds`, in seconds: the buckets that the semantic conventions of
/// OpenTelemetry advise for `messaging.client.operation.duration`. With the default settings a request has 5 s, and a
/// write makes up to two requests.
pub const CHECKPOINT_WRITE_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Buckets for `cycle_duration_seconds`, in seconds: the same buckets and one more. With the default settings a listing
/// has 5 s, and up to 30 s after it timed out.
pub const CYCLE_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0];

/// The full name and the recommended buckets of each histogram.
pub const BUCKETS: &[(&str, &[f64])] = &[
    (HANDLER_DURATION.name, HANDLER_BUCKETS),
    (CHECKPOINT_WRITE_DURATION.name, CHECKPOINT_WRITE_BUCKETS),
    (CYCLE_DURATION.name, CYCLE_BUCKETS),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_histogram_has_ascending_buckets() {
        let histograms = ALL.iter().filter(|metric| metric.kind == MetricKind::Histogram).map(|metric| metric.name);
        assert_eq!(BUCKETS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), histograms.collect::<Vec<_>>());
        assert!(BUCKETS.iter().all(|(_, buckets)| buckets.is_sorted_by(|one, next| one < next)));
    }
}
