//! What a partition's task is asked to do.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::stop::StopReason;

/// What a partition's task is asked to do.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) stop: Option<StopReason>,
    /// When it was asked to stop first.
    pub(super) requested_at: Option<Instant>,
    /// For how long not to take the partition again, when it was asked to be given back.
    pub(super) cooldown: Duration,
    pub(super) paused: bool,
    /// It was told to go on since its handler failed.
    pub(super) resumed: bool,
}

impl Orders {
    /// False if it stops already.
    pub(super) fn request_stop(&mut self, reason: StopReason) -> bool {
        let first = self.stop.is_none();
        if first {
            (self.stop, self.requested_at) = (Some(reason), Some(Instant::now()));
        }
        first
    }
}

/// Whether a partition's task is asked to stop.
#[derive(Clone, Debug)]
pub(super) struct Stopping(watch::Receiver<Orders>);

impl Stopping {
    pub(super) fn new(orders: watch::Receiver<Orders>) -> Self {
        Self(orders)
    }

    /// Also when the task has ended.
    pub(super) fn is_requested(&self) -> bool {
        self.0.borrow().stop.is_some() || self.0.has_changed().is_err()
    }
}
