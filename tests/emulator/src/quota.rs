//! The quota of requests for properties.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

const WINDOW: Duration = Duration::from_secs(1);

/// The quota of a namespace. The service allows 50 calls of `GetRuntimeInformation` per second (learn.microsoft.com,
/// event-hubs-quotas).
#[derive(Debug)]
pub(super) struct Quota {
    per_second: u32,
    window: Mutex<Option<Window>>,
}

/// The second that began with the first request after the second before.
#[derive(Debug)]
struct Window {
    began: Instant,
    requests: u32,
}

impl Quota {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second, window: Mutex::default() }
    }

    /// Counts a request, and returns whether it is within the quota.
    pub(super) fn admit(&self, now: Instant) -> bool {
        let mut window = lock(&self.window);
        let current = match &mut *window {
            Some(current) if now.saturating_duration_since(current.began) < WINDOW => current,
            over => over.insert(Window { began: now, requests: 0 }),
        };
        current.requests = current.requests.saturating_add(1);
        current.requests <= self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_has_its_quota() {
        let quota = Quota::new(2);
        let start = Instant::now();
        let admitted = |milliseconds| quota.admit(start + Duration::from_millis(milliseconds));
        assert_eq!([0, 10, 20, 999].map(admitted), [true, true, false, false]);
        assert_eq!([1000, 1500, 1999].map(admitted), [true, true, false]);
    }
}
