//! How failures are logged: with their causes, and rate limited if they are retried, because during an outage every
//! partition fails at every attempt.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::mem::{self, Discriminant, discriminant};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::requests::StorageOperation;
use crate::error::ErrorKind;
use crate::util::lock;

/// An error with its causes, on one line. A cause is left out if the text before it contains it.
pub(crate) struct Causes<'a>(pub(crate) &'a (dyn StdError + 'static));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !last.contains(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            cause = error.source();
        }
        Ok(())
    }
}

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
    fn new(now: Instant) -> Self {
        Self { opened_at: now, suppressed: 0 }
    }
}

impl WarningRateLimiter {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, windows: Mutex::default() }
    }

    /// Returns the number of failures that were suppressed since the last warning, if this failure is to be a warning.
    /// After an interval without a failure the count starts again at zero.
    pub(super) fn check_limit(
        &self,
        message: &'static str,
        operation: Option<StorageOperation>,
        kind: ErrorKind,
    ) -> Option<u64> {
        let now = Instant::now();
        let mut windows = lock(&self.windows);
        let topic = (message, operation, discriminant(&kind));
        let Some(window) = windows.get_mut(&topic) else {
            windows.insert(topic, Window::new(now));
            return Some(0);
        };
        let open_for = now.duration_since(window.opened_at);
        if open_for < self.interval {
            window.suppressed += 1;
            return None;
        }
        let suppressed = mem::replace(window, Window::new(now)).suppressed;
        Some(if open_for < 2 * self.interval { suppressed } else { 0 })
    }
}

/// Logs a failure that is retried: as a warning, or at `debug` if the [`WarningRateLimiter`] suppresses the warning.
macro_rules! warn_retry {
    ($target:ident, $telemetry:expr, $error:expr, $message:literal $(, $($fields:tt)+)?) => {
        warn_retry!(of None, $target, $telemetry, $error, $message $(, $($fields)+)?)
    };
    (of $operation:expr, $target:ident, $telemetry:expr, $error:expr, $message:literal $(, $($fields:tt)+)?) => {
        match $telemetry.limiter().check_limit($message, $operation, $error.kind()) {
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
        let fail = || limiter.check_limit("cycle", None, ErrorKind::Indeterminate);
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
        let unknown = |operation, kind| limiter.check_limit("unknown", Some(operation), kind);
        assert_eq!(unknown(StorageOperation::Renew, ErrorKind::Indeterminate), Some(0));
        assert_eq!(unknown(StorageOperation::Claim, ErrorKind::Indeterminate), Some(0));
        assert_eq!(limiter.check_limit("checkpoint", None, ErrorKind::Indeterminate), Some(0));
        assert_eq!(unknown(StorageOperation::Renew, throttled(1)), Some(0));
        assert_eq!(unknown(StorageOperation::Renew, throttled(2)), None, "the time to wait is not part of the topic");
    }
}
