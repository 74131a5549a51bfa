//! The metrics: their names, kinds, units and labels.

use std::time::Duration;

/// How often the gauges of partitions are set: well within the period at which exporters are asked.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// What a metric is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// A number of things.
    Count,
    /// Seconds.
    Seconds,
}

/// One metric, as it is described to the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The whole name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it is measured in.
    pub unit: Unit,
    /// Its labels, beside those that all have.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub description: &'static str,
}

/// Declares the metrics, and a list of them all.
macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, $unit:ident, [$($label:literal),*], $description:literal;)*) => {
        $(
            pub(super) const $id: Metric = Metric {
                name: concat!("eventhubs_checkpoint_", $name),
                kind: Kind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                description: $description,
            };
        )*

        /// All of them.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

metrics! {
    EVENTS_HANDLED = "events_handled_total", Counter, Count, ["partition"],
        "Events of batches from which the handler returned well.";
    BATCHES_HANDLED = "batches_handled_total", Counter, Count, ["partition"],
        "Batches from which the handler returned well.";
    HANDLER_DURATION = "handler_duration_seconds", Histogram, Seconds, [],
        "How long the handler had a batch, whatever came of it.";
    HANDLER_FAILURES = "handler_failures_total", Counter, Count, ["partition"],
        "Errors, panics and missed deadlines of the handler.";
    LINK_FAILURES = "link_failures_total", Counter, Count, ["partition"],
        "Links that could not be opened, or broke, or were silent.";
    SILENT_LINKS = "silent_links_total", Counter, Count, ["partition"],
        "Links that delivered nothing although there were events, and were opened again.";
    REPEATED_EVENTS = "repeated_events_total", Counter, Count, ["partition"],
        "Events that a link delivered again, and that were left out.";
    CHECKPOINT_WRITES = "checkpoint_writes_total", Counter, Count, ["partition", "outcome"],
        "Checkpoints that were to be written: `written`, `superseded` by a later one, `failed`, and so pending, or refused: `fenced`.";
    CHECKPOINT_WRITE_DURATION = "checkpoint_write_duration_seconds", Histogram, Seconds, [],
        "How long writing a checkpoint took, whatever came of it.";
    INVALID_CHECKPOINTS = "invalid_checkpoints_total", Counter, Count, ["partition", "reason"],
        "Checkpoints from which reading could not go on: `expired`, `beyond_end`, `refused`.";
    EVENTS_IN_FLIGHT = "events_in_flight", Gauge, Count, ["partition"],
        "Events that are tracked and not finished.";
    LAG = "lag_events", Gauge, Count, ["partition"],
        "Events behind the checkpoint, as of the last probe.";
    PARTITIONS = "partitions", Gauge, Count, ["state"],
        "Partitions at work, by what they are doing.";
    PARTITIONS_HELD = "partitions_held", Gauge, Count, [],
        "Partitions that this instance holds.";
    RENEWAL_AGE = "renewal_age_seconds", Gauge, Seconds, [],
        "Age of the own lease that was renewed longest ago. Beyond the expiry others take it.";
    CLAIMS = "claims_total", Counter, Count, ["reason"],
        "Partitions won: `reclaimed`, `unowned`, `released`, `handed_over`, `expired`, or `stolen` from a live owner.";
    LOSSES = "losses_total", Counter, Count, ["reason"],
        "Partitions lost: `taken` by another owner, or `outlived` their lease.";
    RELEASES = "releases_total", Counter, Count, ["reason"],
        "Partitions given back: `asked`, `shutdown`, `stalled`, `handed_over`, `gone`, `not_assigned`, `above_max`.";
    ASKED = "asked_total", Counter, Count, [],
        "Partitions that other owners were asked to hand over.";
    DECLARED_DEAD = "declared_dead_total", Counter, Count, [],
        "Times that another instance took this one for dead.";
    DUPLICATES_POSSIBLE = "duplicates_possible_total", Counter, Count, ["cause"],
        "Partitions that moved without their last checkpoint although they were asked for: `not_answered`, `not_released`, `still_running`, `not_settled`.";
    CYCLE_DURATION = "cycle_duration_seconds", Histogram, Seconds, [],
        "How long a balancing cycle took, from its listing to its decision.";
    CYCLE_FAILURES = "cycle_failures_total", Counter, Count, [],
        "Balancing cycles that failed.";
    STORAGE_REQUESTS = "storage_requests_total", Counter, Count, ["operation", "outcome"],
        "Requests to the storage: see [`Operation`](crate::Operation) and [`Outcome`](crate::Outcome).";
}
