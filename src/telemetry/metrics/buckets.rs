//! Recommended buckets of the histograms.

use super::names::{CHECKPOINT_WRITE_DURATION, CYCLE_DURATION, HANDLER_DURATION};

/// Buckets for `handler_duration_seconds`, in seconds: those that the semantic conventions of OpenTelemetry advise for
/// `messaging.process.duration`, and more, because a handler is stalled only after 300 s with the default settings.
pub const HANDLER_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0];

/// Buckets for `checkpoint_write_duration_seconds`, in seconds: those that the semantic conventions of OpenTelemetry
/// advise for `messaging.client.operation.duration`. With the default settings a request has 5 s, and a write makes up
/// to two requests.
pub const CHECKPOINT_WRITE_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Buckets for `cycle_duration_seconds`, in seconds: the same and one more. With the default settings a listing has
/// 5 s, and up to 30 s after it timed out.
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
    use super::super::names::{ALL, Kind};
    use super::*;

    #[test]
    fn every_histogram_has_ascending_buckets() {
        let histograms = ALL.iter().filter(|metric| metric.kind == Kind::Histogram).map(|metric| metric.name);
        assert_eq!(BUCKETS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), histograms.collect::<Vec<_>>());
        assert!(BUCKETS.iter().all(|(_, buckets)| buckets.is_sorted_by(|one, next| one < next)));
    }
}
