//! What the task of one partition was asked to do, and read-only views of that.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::processor::shutdown::StopReason;

/// The requests to the task of one partition.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    pub(crate) stop: Option<StopReason>,
    /// The time of the first stop request.
    pub(crate) requested_at: Option<Instant>,
    /// After a requested release, how long this instance does not claim the partition.
    pub(crate) cooldown: Duration,
    pub(crate) paused: bool,
    /// The application called `resume` after the last failure of the handler, and after its own last `pause`.
    pub(crate) resumed: bool,
}

impl Orders {
    /// Requests a stop. Returns false if the partition is already stopping for good.
    pub(crate) fn request_stop(&mut self, reason: StopReason) -> bool {
        let first = matches!(self.stop, None | Some(StopReason::Restarting));
        if first {
            self.stop = Some(reason);
            self.requested_at = Some(Instant::now());
        }
        first
    }
}

/// Reports whether one start of the handler is ending. It also ends if its task ends without saying so: because the
/// processor was dropped, or because of a panic.
#[derive(Clone, Debug)]
pub(crate) struct SessionEnd(watch::Receiver<bool>);

impl SessionEnd {
    pub(crate) fn new(over: watch::Receiver<bool>) -> Self {
        Self(over)
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    pub(crate) async fn wait_for_end(&self) {
        // An error means that the task has ended.
        let _ = self.0.clone().wait_for(|over| *over).await;
    }
}

/// Reports whether a partition's task was requested to stop.
#[derive(Clone, Debug)]
pub(crate) struct StopView(watch::Receiver<Orders>);

impl StopView {
    pub(crate) fn new(orders: watch::Receiver<Orders>) -> Self {
        Self(orders)
    }

    /// Returns true also after the task has ended.
    pub(crate) fn is_requested(&self) -> bool {
        self.0.borrow().stop.is_some() || self.0.has_changed().is_err()
    }
}
