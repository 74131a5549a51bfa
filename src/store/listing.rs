//! How long a listing may take.

use crate::lock::lock;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The timeouts of listings, by prefix.
///
/// A listing consists of many pages, and is slower than any other request if deleted blobs are kept for a while. No
/// lease waits for it. So a listing that timed out gets more time when it is repeated, up to a limit. It does not get
/// that time at once, because a lost request would then take as long.
#[derive(Debug)]
pub(super) struct ListingTimeouts {
    least: Duration,
    most: Duration,
    /// The timeouts above the least one.
    longer: Mutex<HashMap<String, Duration>>,
}

impl ListingTimeouts {
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, longer: Mutex::default() }
    }

    fn longer(&self) -> MutexGuard<'_, HashMap<String, Duration>> {
        lock(&self.longer)
    }

    pub(super) fn of(&self, prefix: &str) -> Duration {
        self.longer().get(prefix).copied().unwrap_or(self.least)
    }

    /// Records that a listing ended after this time. A listing that failed may have been rejected at once, so it does
    /// not shorten the timeout.
    pub(super) fn ended(&self, prefix: &str, took: Duration, succeeded: bool) {
        let before = if succeeded { self.least } else { self.of(prefix) };
        let timeout = (2 * took).min(self.most).max(before);
        if timeout > self.least {
            self.longer().insert(prefix.to_owned(), timeout);
        } else {
            self.longer().remove(prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn slow_listings_get_more_time_until_one_is_fast() {
        let timeouts = ListingTimeouts::new(seconds(5), seconds(30));
        let ended = |took, succeeded| {
            timeouts.ended("a/", took, succeeded);
            timeouts.of("a/")
        };
        let next = |took| ended(took, true);
        assert_eq!(timeouts.of("a/"), seconds(5));
        assert_eq!([5, 10, 20, 30, 30].map(|took| ended(seconds(took), false)), [10, 20, 30, 30, 30].map(seconds));
        assert_eq!(ended(seconds(0), false), seconds(30), "it was rejected at once");
        assert_eq!(next(seconds(6)), seconds(12));
        assert_eq!(timeouts.of("b/"), seconds(5), "every prefix has its own");
        assert_eq!(next(seconds(1)), seconds(5));
    }
}
