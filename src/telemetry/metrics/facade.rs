//! Access to the recorder.

use ::metrics::{Gauge, Label};
use tokio::time::Instant;

use super::names::{ALL, Metric, MetricKind, Unit};
use crate::model::ConsumerGroup;

pub(super) use ::metrics::{Counter, Histogram};

pub(super) const IS_ON: bool = true;

/// The labels of all metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope(Vec<Label>);

impl Scope {
    pub(super) fn new(group: &ConsumerGroup) -> Self {
        Self(vec![
            Label::new("namespace", group.namespace().to_owned()),
            Label::new("event_hub", group.event_hub().to_owned()),
            Label::new("consumer_group", group.name().to_owned()),
        ])
    }

    fn all_labels(&self, labels: &[(&'static str, &str)]) -> Vec<Label> {
        self.0
            .iter()
            .cloned()
            .chain(labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())))
            .collect()
    }

    pub(super) fn counter(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Counter {
        ::metrics::counter!(metric.name, self.all_labels(labels))
    }

    pub(super) fn gauge(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Gauge {
        ::metrics::gauge!(metric.name, self.all_labels(labels))
    }

    pub(super) fn histogram(&self, metric: &Metric) -> Histogram {
        ::metrics::histogram!(metric.name, self.all_labels(&[]))
    }
}

/// Measures a duration.
#[derive(Debug)]
#[must_use = "the duration is recorded by `end`"]
pub(crate) struct Timer {
    began: Instant,
    histogram: Histogram,
}

impl Timer {
    pub(super) fn start(histogram: Histogram) -> Self {
        Self { began: Instant::now(), histogram }
    }

    pub(crate) fn end(self) {
        self.histogram.record(self.began.elapsed().as_secs_f64());
    }
}

pub(super) fn describe_metrics() {
    for Metric { name, kind, unit, description, .. } in ALL {
        let unit = match unit {
            Unit::Count => ::metrics::Unit::Count,
            Unit::Seconds => ::metrics::Unit::Seconds,
        };
        match kind {
            MetricKind::Counter => ::metrics::describe_counter!(*name, unit, *description),
            MetricKind::Gauge => ::metrics::describe_gauge!(*name, unit, *description),
            MetricKind::Histogram => ::metrics::describe_histogram!(*name, unit, *description),
        }
    }
}
