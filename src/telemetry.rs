//! The spans, log events and metrics of this crate.
//!
//! Events are functions, or methods of [`Telemetry`] if they are rate limited or can be called outside of the span of
//! the instance. Each area has a target. Levels: `error` for failures that nothing retries, `warn` for what an operator
//! should look at, `info` for changes, `debug` for single decisions.
//!
//! Fields: `partition_id`, `other_owner_id` (another instance), `error` (with its causes), `reason`. Durations are
//! logged as `Debug` prints them, such as `1.5s`.

mod balancer;
mod failures;
pub mod metrics;
mod processor;
mod requests;
#[cfg_attr(not(all(feature = "azure", feature = "eventhubs")), allow(dead_code, reason = "events of the features"))]
mod services;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use tracing::Span;

use crate::model::{ConsumerGroup, OwnerId};

pub(crate) use balancer::*;
pub(crate) use failures::Causes;
use failures::WarningRateLimiter;
#[cfg(feature = "metrics")]
pub(crate) use metrics::PartitionGauges;
pub(crate) use metrics::{GroupMetrics, OwnedMetrics, PartitionMetrics};
pub(crate) use processor::*;
pub(crate) use requests::RequestCounters;
pub use requests::{BillingType, RequestCounts, StorageOperation, StorageOutcome};
pub(crate) use services::*;
pub(crate) use spans::{Spans, partition_span, span_failed};

/// The telemetry of one store: its span, the limit of its warnings, its metrics and the numbers of its requests. All
/// clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry(Arc<TelemetryState>);

#[derive(Debug)]
struct TelemetryState {
    span: Span,
    limiter: WarningRateLimiter,
    metrics: GroupMetrics,
    requests: RequestCounters,
}

impl Telemetry {
    /// Creates the span of the instance in the current subscriber, and describes the metrics of the group to the
    /// current recorder. Of similar failures one per interval is logged as a warning.
    pub(crate) fn new(group: &ConsumerGroup, owner: &OwnerId, interval: Duration) -> Self {
        let metrics = GroupMetrics::for_group(group);
        Self(Arc::new(TelemetryState {
            span: spans::processor_span(group, owner),
            limiter: WarningRateLimiter::new(interval),
            requests: RequestCounters::new(metrics.clone()),
            metrics,
        }))
    }

    /// The span of the instance. Every task, and every call from outside that may log, runs inside it.
    pub(crate) fn span(&self) -> &Span {
        &self.0.span
    }

    fn limiter(&self) -> &WarningRateLimiter {
        &self.0.limiter
    }

    pub(crate) fn requests(&self) -> &RequestCounters {
        &self.0.requests
    }

    pub(crate) fn metrics(&self) -> &GroupMetrics {
        &self.0.metrics
    }
}
