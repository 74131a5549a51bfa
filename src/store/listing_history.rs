//! What a store remembers of its listings: how long they took, and which malformed blobs it has logged.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::records::Listing;
use crate::blob::ETag;
use crate::error::Result;
use crate::telemetry::Telemetry;
use crate::util::lock;

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

    /// Lists blobs within the timeout of their prefix, and records how long that took.
    pub(super) async fn limit_listing<T, F>(&self, prefix: &str, list: impl FnOnce(Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let began = Instant::now();
        let listed = list(self.timeout_of(prefix)).await;
        self.record_end(prefix, began.elapsed(), listed.is_ok());
        listed
    }

    fn timeout_of(&self, prefix: &str) -> Duration {
        lock(&self.longer).get(prefix).copied().unwrap_or(self.least)
    }

    /// Records that a listing ended after this time. A listing that failed may have been rejected at once, so it does
    /// not shorten the timeout.
    fn record_end(&self, prefix: &str, took: Duration, succeeded: bool) {
        let before = if succeeded { self.least } else { self.timeout_of(prefix) };
        let timeout = (2 * took).min(self.most).max(before);
        if timeout > self.least {
            lock(&self.longer).insert(prefix.to_owned(), timeout);
        } else {
            lock(&self.longer).remove(prefix);
        }
    }
}

/// The malformed blobs of the last listings, by kind of record.
#[derive(Debug, Default)]
pub(super) struct MalformedLogs {
    pub(super) ownerships: MalformedLog,
    pub(super) checkpoints: MalformedLog,
    pub(super) heartbeats: MalformedLog,
}

/// The versions of the malformed blobs in the last listing of one kind, by name.
#[derive(Debug, Default)]
pub(super) struct MalformedLog(Mutex<HashMap<String, ETag>>);

impl MalformedLog {
    /// Logs the malformed blobs that the last listing did not contain in this version.
    pub(super) fn log_new<T>(&self, telemetry: &Telemetry, listing: &Listing<T>) {
        /// So that another program that writes thousands of blobs below the prefix does not fill the log.
        const MOST_LOGGED: usize = 10;
        let mut last = lock(&self.0);
        let new: Vec<_> = listing
            .malformed
            .iter()
            .filter(|record| last.get(&record.blob) != listing.malformed_versions.get(&record.blob))
            .collect();
        new.iter().take(MOST_LOGGED).for_each(|record| telemetry.malformed_record(record));
        if new.len() > MOST_LOGGED {
            telemetry.malformed_records_not_logged(new.len() - MOST_LOGGED);
        }
        last.clone_from(&listing.malformed_versions);
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
            timeouts.record_end("a/", took, succeeded);
            timeouts.timeout_of("a/")
        };
        let next = |took| ended(took, true);
        assert_eq!(timeouts.timeout_of("a/"), seconds(5));
        assert_eq!([5, 10, 20, 30, 30].map(|took| ended(seconds(took), false)), [10, 20, 30, 30, 30].map(seconds));
        assert_eq!(ended(seconds(0), false), seconds(30), "it was rejected at once");
        assert_eq!(next(seconds(6)), seconds(12));
        assert_eq!(timeouts.timeout_of("b/"), seconds(5), "every prefix has its own");
        assert_eq!(next(seconds(1)), seconds(5));
    }
}
