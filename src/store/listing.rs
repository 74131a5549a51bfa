//! How long a listing may take.

use crate::lock::lock;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The time for listings below each prefix.
///
/// A listing is read in many pages, and is slower than any other request where deleted blobs are kept for a while. No
/// lease waits for it. So one that is not answered in time has more time when it is repeated, up to a limit. It does
/// not have that from the start, because a request that was lost would then cost as much.
#[derive(Debug)]
pub(super) struct ListingTimeouts {
    least: Duration,
    most: Duration,
    /// Those above the least.
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

    /// A listing ended after this time. One that was not answered may have been refused at once, so it shortens
    /// nothing.
    pub(super) fn ended(&self, prefix: &str, took: Duration, answered: bool) {
        let before = if answered { self.least } else { self.of(prefix) };
        let deadline = (2 * took).min(self.most).max(before);
        if deadline > self.least {
            self.longer().insert(prefix.to_owned(), deadline);
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
    fn a_slow_listing_has_ever_more_time_until_it_is_quick_again() {
        let deadlines = ListingTimeouts::new(seconds(5), seconds(30));
        let ended = |took, answered| {
            deadlines.ended("a/", took, answered);
            deadlines.of("a/")
        };
        let next = |took| ended(took, true);
        assert_eq!(deadlines.of("a/"), seconds(5));
        assert_eq!([5, 10, 20, 30, 30].map(|took| ended(seconds(took), false)), [10, 20, 30, 30, 30].map(seconds));
        assert_eq!(ended(seconds(0), false), seconds(30), "it was refused");
        assert_eq!(next(seconds(6)), seconds(12));
        assert_eq!(deadlines.of("b/"), seconds(5), "every prefix has its own");
        assert_eq!(next(seconds(1)), seconds(5));
    }
}
