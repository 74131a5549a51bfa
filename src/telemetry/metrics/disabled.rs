//! Replaces `facade` without the feature `metrics`: all types are zero-sized, and all functions are empty.

use super::names::Metric;
use crate::model::ConsumerGroup;

pub(super) const IS_ON: bool = false;

#[derive(Clone, Debug, Default)]
pub(super) struct Scope;

#[derive(Clone, Debug)]
pub(super) struct Counter;

pub(super) struct Gauge;

#[derive(Clone, Debug)]
pub(super) struct Histogram;

#[derive(Debug)]
pub(crate) struct Timer;

#[expect(clippy::unused_self, reason = "same signature as in `facade`")]
impl Scope {
    pub(super) fn new(_: &ConsumerGroup) -> Self {
        Self
    }

    pub(super) fn counter(&self, _: &Metric, _: &[(&'static str, &str)]) -> Counter {
        Counter
    }

    pub(super) fn gauge(&self, _: &Metric, _: &[(&'static str, &str)]) -> Gauge {
        Gauge
    }

    pub(super) fn histogram(&self, _: &Metric) -> Histogram {
        Histogram
    }
}

#[expect(clippy::unused_self, reason = "same signature as in `facade`")]
impl Counter {
    pub(super) fn increment(&self, _: u64) {}
}

#[expect(clippy::unused_self, reason = "same signature as in `facade`")]
impl Gauge {
    pub(super) fn set(&self, _: f64) {}
}

#[expect(clippy::unused_self, reason = "same signature as in `facade`")]
impl Histogram {
    pub(super) fn record(&self, _: f64) {}
}

impl Timer {
    pub(super) fn start(_: Histogram) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "same signature as in `facade`")]
    pub(crate) fn end(self) {}
}

pub(super) fn describe_metrics() {}
