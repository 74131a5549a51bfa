//! The quota of a namespace for requests about the event hub and its partitions.

use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use tokio::time::Instant;

/// The quota of the service, in requests per second.
pub const SERVICE: u32 = 50;

/// Counts the requests of all instances. Clones share the same counts.
#[derive(Clone, Debug)]
pub(super) struct Quota(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    began: Instant,
    /// `None`: all requests are accepted.
    per_second: Option<u32>,
    second: u64,
    within: u32,
    total: u64,
    rejected: u64,
    busiest: u32,
}

/// The requests of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagementRequests {
    /// All requests.
    pub total: u64,
    /// The requests that were rejected as `server-busy`.
    pub rejected: u64,
    /// The most within one second.
    pub busiest: u32,
}

impl ManagementRequests {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.rejected += other.rejected;
        self.busiest = self.busiest.max(other.busiest);
    }
}

impl Quota {
    pub(super) fn new(per_second: Option<u32>) -> Self {
        let counts =
            Counts { began: Instant::now(), per_second, second: 0, within: 0, total: 0, rejected: 0, busiest: 0 };
        Self(Arc::new(Mutex::new(counts)))
    }

    /// Counts a request.
    ///
    /// # Errors
    ///
    /// As an event hub that responds with `server-busy`, if the quota of this second is used up.
    pub(super) fn request(&self) -> Result<()> {
        let mut counts = lock(&self.0);
        let second = counts.began.elapsed().as_secs();
        if counts.second != second {
            (counts.second, counts.within) = (second, 0);
        }
        counts.within += 1;
        counts.total += 1;
        counts.busiest = counts.busiest.max(counts.within);
        if counts.per_second.is_none_or(|most| counts.within <= most) {
            return Ok(());
        }
        counts.rejected += 1;
        Err(Error::new(ErrorKind::EventSource, "com.microsoft:server-busy: the quota of this second is used up"))
    }

    pub(super) fn counted(&self) -> ManagementRequests {
        let counts = lock(&self.0);
        ManagementRequests { total: counts.total, rejected: counts.rejected, busiest: counts.busiest }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_above_the_quota_of_a_second_fail() {
        let quota = Quota::new(Some(2));
        let accepted = || (0..3).filter(|_| quota.request().is_ok()).count();
        assert_eq!(accepted(), 2);
        advance(Duration::from_secs(1)).await;
        assert_eq!(accepted(), 2);
        assert_eq!(quota.counted(), ManagementRequests { total: 6, rejected: 2, busiest: 3 });
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_quota_requests_are_only_counted() {
        let quota = Quota::new(None);
        assert!((0..1000).all(|_| quota.request().is_ok()));
        assert_eq!(quota.counted().busiest, 1000);
    }
}
