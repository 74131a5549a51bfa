//! How often the handler has failed without any progress.

use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::stop::EventError;
use crate::error::Error;
use crate::lock::lock;

/// The failures of the handler, in one epoch, since it last processed an event that it had not processed before.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<Option<Failing>>);

/// At least one failure.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) failures: u32,
    since: Instant,
    /// The last failure.
    pub(super) error: Arc<Error>,
}

impl Failing {
    /// Returns the event that failed as a tracked event, if the last failure was that.
    pub(super) fn tracked_event(&self) -> Option<i64> {
        event_error(&self.error).filter(|error| error.is_tracked())?.sequence_number()
    }

    /// Returns the time since the first failure.
    pub(super) fn failing_for(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Returns the event that a failure names, if it names one.
pub(super) fn failed_event(error: &Error) -> Option<i64> {
    event_error(error)?.sequence_number()
}

fn event_error(error: &Error) -> Option<&EventError> {
    error.source()?.downcast_ref()
}

impl Attempts {
    pub(super) fn failed(&self, error: &Arc<Error>) {
        let mut failing = lock(&self.0);
        let (failures, since) =
            failing.as_ref().map_or((0, Instant::now()), |failing| (failing.failures, failing.since));
        *failing = Some(Failing { failures: failures.saturating_add(1), since, error: Arc::clone(error) });
    }

    pub(super) fn progressed(&self) {
        *lock(&self.0) = None;
    }

    pub(super) fn failing(&self) -> Option<Failing> {
        lock(&self.0).clone()
    }
}
