//! What can be seen of a processor from outside: status, health, metrics and spans.

pub(in crate::processor) mod error_summary;
#[cfg(feature = "metrics")]
pub(in crate::processor) mod gauges;
pub(in crate::processor) mod health;
pub(in crate::processor) mod lag_checks;
pub(in crate::processor) mod spans;
pub(in crate::processor) mod status;
#[cfg(feature = "metrics")]
pub(in crate::processor) mod unowned;

pub use error_summary::ErrorSummary;
pub use health::{Health, HealthIssue};
pub use spans::SpanEvents;
pub use status::{PartitionState, PartitionStatus};
