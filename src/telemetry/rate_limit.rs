//! Rate limit for warnings about failures that are retried: during an outage every partition fails at every attempt.

use std::collections::HashMap;
use std::mem::{self, Discriminant, discriminant};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::requests::StorageOperation;
use crate::error::ErrorKind;
use crate::lock::lock;

/// The message, the operation, and the kind of error. Failures with the same topic share one limit.
type Topic = (&'static str, Option<StorageOperation>, Discriminant<ErrorKind>);

/// Limits the warnings of one instance: the first failure of a topic is a warning, then one per interval.
#[derive(Debug)]
pub(crate) struct WarningRateLimiter {
    interval: Duration,
    windows: Mutex<HashMap<Topic, Window>>,
}

/// The time since the last warning about a topic.
#[derive(Clone, Copy, Debug)]
struct Window {
    opened_at: Instant,
    suppressed: u64,
}

impl Window {
    fn open(now: Instant) -> Self {
        Self { opened_at: now, suppressed: 0 }
    }
}

impl WarningRateLimiter {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, windows: Mutex::default() }
    }

    /// Returns the number of failures that were suppressed since the last warning, if this failure is to be a warning.
    /// After an interval without a failure the count starts again at zero.
    pub(super) fn check(
        &self,
        message: &'static str,
        operation: Option<StorageOperation>,
        kind: ErrorKind,
    ) -> Option<u64> {
        let now = Instant::now();
        let mut windows = lock(&self.windows);
        let topic = (message, operation, discriminant(&kind));
        let Some(window) = windows.get_mut(&topic) else {
            windows.insert(topic, Window::open(now));
            return Some(0);
        };
        let open_for = now.duration_since(window.opened_at);
        if open_for < self.interval {
            window.suppressed += 1;
            return None;
        }
        let suppressed = mem::replace(window, Window::open(now)).suppressed;
        Some(if open_for < 2 * self.interval { suppressed } else { 0 })
    }
}

/// Logs a failure that is retried: as a warning, or at `debug` if the [`WarningRateLimiter`] suppresses the warning.
macro_rules! warn_retry {
    ($target:ident, $telemetry:expr, $error:expr, $message:literal $(, $($fields:tt)+)?) => {
        warn_retry!(of None, $target, $telemetry, $error, $message $(, $($fields)+)?)
    };
    (of $operation:expr, $target:ident, $telemetry:expr, $error:expr, $message:literal $(, $($fields:tt)+)?) => {
        match $telemetry.limiter().check($message, $operation, $error.kind()) {
            Some(suppressed) => {
                tracing::warn!(target: $target, $($($fields)+,)? error = %Causes($error), suppressed, $message);
            }
            None => tracing::debug!(target: $target, $($($fields)+,)? error = %Causes($error), $message),
        }
    };
}

pub(super) use warn_retry;

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn one_warning_per_interval_counts_the_others() {
        let limiter = WarningRateLimiter::new(INTERVAL);
        let fail = || limiter.check("cycle", None, ErrorKind::Indeterminate);
        assert_eq!(fail(), Some(0));
        for _ in 0..7 {
            assert_eq!(fail(), None);
        }
        advance(INTERVAL).await;
        assert_eq!(fail(), Some(7));
        assert_eq!(fail(), None);
        advance(2 * INTERVAL).await;
        assert_eq!(fail(), Some(0), "the failures of an earlier outage do not count");
    }

    #[tokio::test(start_paused = true)]
    async fn each_topic_has_its_own_limit() {
        let limiter = WarningRateLimiter::new(INTERVAL);
        let throttled = |seconds| ErrorKind::Throttled { retry_after: Some(Duration::from_secs(seconds)) };
        let unknown = |operation, kind| limiter.check("unknown", Some(operation), kind);
        assert_eq!(unknown(StorageOperation::Renew, ErrorKind::Indeterminate), Some(0));
        assert_eq!(unknown(StorageOperation::Claim, ErrorKind::Indeterminate), Some(0));
        assert_eq!(limiter.check("checkpoint", None, ErrorKind::Indeterminate), Some(0));
        assert_eq!(unknown(StorageOperation::Renew, throttled(1)), Some(0));
        assert_eq!(unknown(StorageOperation::Renew, throttled(2)), None, "the time to wait is not part of the topic");
    }
}
