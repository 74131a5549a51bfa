//! The waits between attempts at an operation that may succeed later.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep_until};

use super::GroupStore;
use crate::backoff::{CountingBackoff, lengthen_wait};
use crate::error::Error;
use crate::util::lock;

/// When the attempts at an operation begin, until a moment if there is one.
#[derive(Debug)]
pub(crate) struct RetrySchedule {
    lease_duration: Duration,
    backoff: CountingBackoff,
    pub(crate) until: Option<Instant>,
    rng: Arc<Mutex<StdRng>>,
}

impl RetrySchedule {
    /// Creates the schedule of an operation that is repeated until this moment; without one, forever. The wait grows to
    /// a sixth of the lease duration, as long as the time between two writes of a record in the steady state.
    pub(super) fn new(lease_duration: Duration, until: Option<Instant>, rng: Arc<Mutex<StdRng>>) -> Self {
        let first = (lease_duration / 16).min(Duration::from_secs(1));
        Self { lease_duration, backoff: CountingBackoff::new(first, lease_duration / 6), until, rng }
    }

    /// Returns when the next attempt begins. The last one begins when the time is over. `None` if there is none: the
    /// time is over, or the error cannot pass.
    pub(crate) fn next_attempt_after(&mut self, error: &Error) -> Option<Instant> {
        let now = Instant::now();
        if !error.may_pass() || self.until.is_some_and(|until| until <= now) {
            return None;
        }
        let next = now + wait_after(error, self.lease_duration, &mut self.backoff, &self.rng);
        Some(self.until.map_or(next, |until| next.min(until)))
    }

    /// Waits until the next attempt. Returns false if there is none.
    pub(crate) async fn wait_for_next_attempt(&mut self, error: &Error) -> bool {
        let Some(next) = self.next_attempt_after(error) else { return false };
        sleep_until(next).await;
        true
    }
}

impl GroupStore {
    /// Creates the schedule of an operation of this store; see [`RetrySchedule::new`].
    pub(crate) fn retry_schedule(&self, until: Option<Instant>) -> RetrySchedule {
        RetrySchedule::new(self.lease_durations().own, until, Arc::clone(&self.inner.rng))
    }

    /// Returns the wait after an operation that failed.
    pub(crate) fn wait_after_error(&self, error: &Error, backoff: &mut CountingBackoff) -> Duration {
        wait_after(error, self.lease_durations().own, backoff, &self.inner.rng)
    }
}

/// Returns the wait after an operation that failed. The wait that the server asks for counts up to the lease duration.
fn wait_after(error: &Error, lease_duration: Duration, backoff: &mut CountingBackoff, rng: &Mutex<StdRng>) -> Duration {
    let retry_after = error.retry_after().unwrap_or_default().min(lease_duration);
    lengthen_wait(backoff.next_wait().max(retry_after), lock(rng).random_range(0.0..1.0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::error::ErrorKind;
    use crate::model::{ConsumerGroup, OwnerId};

    const SECOND: Duration = Duration::from_secs(1);

    async fn store() -> GroupStore {
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
        builder.with_seed(3).connect().await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_attempt_begins_when_the_time_is_over() {
        let store = store().await;
        let began = Instant::now();
        let mut schedule = store.retry_schedule(Some(began + 20 * SECOND));
        let error = Error::new(ErrorKind::Throttled { retry_after: Some(9 * SECOND) }, "busy");
        let mut times = Vec::new();
        while schedule.wait_for_next_attempt(&error).await {
            times.push(began.elapsed());
        }
        assert!(times.len() >= 2 && times[0] >= 9 * SECOND && times.last() == Some(&(20 * SECOND)), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn errors_that_cannot_pass_are_not_retried() {
        let mut schedule = store().await.retry_schedule(None);
        for (kind, again) in [
            (ErrorKind::Unavailable, true),
            (ErrorKind::Indeterminate, true),
            (ErrorKind::Contended, true),
            (ErrorKind::Unauthorized, false),
            (ErrorKind::Rejected, false),
            (ErrorKind::ContainerNotFound, false),
        ] {
            assert_eq!(schedule.wait_for_next_attempt(&Error::new(kind, "broken")).await, again, "{kind:?}");
        }
    }
}
