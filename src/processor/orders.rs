//! Requests to the task of one partition.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::stop::StopReason;

/// The requests to the task of one partition.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) stop: Option<StopReason>,
    /// The time of the first stop request.
    pub(super) requested_at: Option<Instant>,
    /// After a requested release, how long this instance does not claim the partition.
    pub(super) cooldown: Duration,
    pub(super) paused: bool,
    /// The application called `resume` after the last failure of the handler.
    pub(super) resumed: bool,
}

impl Orders {
    /// Requests a stop. Returns false if the partition is already stopping.
    pub(super) fn request_stop(&mut self, reason: StopReason) -> bool {
        let first = self.stop.is_none();
        if first {
            (self.stop, self.requested_at) = (Some(reason), Some(Instant::now()));
        }
        first
    }
}

/// Reports whether one start of the handler is ending. It also ends if its task ends without saying so: because the
/// processor was dropped, or because of a panic.
#[derive(Clone, Debug)]
pub(super) struct Over(watch::Receiver<bool>);

impl Over {
    pub(super) fn new(over: watch::Receiver<bool>) -> Self {
        Self(over)
    }

    pub(super) fn is_over(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    pub(super) async fn until_over(&self) {
        // An error means that the task has ended.
        let _ = self.0.clone().wait_for(|over| *over).await;
    }
}

/// Reports whether a partition's task was requested to stop.
#[derive(Clone, Debug)]
pub(super) struct Stopping(watch::Receiver<Orders>);

impl Stopping {
    pub(super) fn new(orders: watch::Receiver<Orders>) -> Self {
        Self(orders)
    }

    /// Returns true also after the task has ended.
    pub(super) fn is_requested(&self) -> bool {
        self.0.borrow().stop.is_some() || self.0.has_changed().is_err()
    }
}
