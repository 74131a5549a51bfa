//! Requests to shut down, and the report of a shutdown.

pub(in crate::processor) mod limits;
pub(in crate::processor) mod signals;
pub(in crate::processor) mod stop;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::Span;

use crate::model::PartitionId;
use crate::telemetry;

pub use stop::{EventError, HandlerError, StopReason};

/// A request within this time after the first one counts as the same request: a program may listen for a signal in two
/// places, and some senders send it twice.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// The shutdown requests of a processor. All clones share the state.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    state: Arc<watch::Sender<RequestState>>,
    /// The span of the processor, because requests may come from any task.
    span: Span,
}

#[derive(Clone, Copy, Debug, Default)]
struct RequestState {
    first: Option<Instant>,
    again: bool,
    ended: bool,
}

impl Requests {
    pub(super) fn new(span: Span) -> Self {
        Self { state: Arc::default(), span }
    }

    pub(super) fn request(&self) {
        self.state.send_if_modified(|state| match state.first {
            None => {
                state.first = Some(Instant::now());
                telemetry::shutdown_requested(&self.span);
                true
            }
            Some(first) if first.elapsed() >= SAME_REQUEST && !state.again => {
                state.again = true;
                telemetry::shutdown_forced(&self.span);
                true
            }
            Some(_) => false,
        });
    }

    /// Requests a shutdown, unless one was requested already.
    pub(super) fn request_once(&self) {
        if !self.is_requested() {
            self.request();
        }
    }

    pub(super) fn is_requested(&self) -> bool {
        self.state.borrow().first.is_some()
    }

    pub(super) fn end(&self) {
        self.state.send_modify(|state| state.ended = true);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }

    pub(super) async fn requested(&self) {
        self.wait_for(|state| state.first.is_some()).await;
    }

    pub(super) async fn requested_again(&self) {
        self.wait_for(|state| state.again).await;
    }

    async fn wait_for(&self, condition: impl FnMut(&RequestState) -> bool) {
        let mut state = self.state.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = state.wait_for(condition).await;
    }
}

/// How a processor shut down. [`is_clean`](Self::is_clean) sums it up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Handlers and events in flight finish, last checkpoints are written, receivers are closed.
    pub drain: PhaseReport,
    /// Partitions are released, or kept for the restart of this owner.
    pub release: PhaseReport,
    /// The event source is closed.
    pub close: PhaseReport,
    /// The partitions whose handler or events in flight did not finish in time. Those events are redelivered.
    pub aborted: BTreeSet<PartitionId>,
    /// The partitions whose last requested position could not be written. Events after the previous checkpoint are
    /// redelivered.
    pub uncheckpointed: BTreeSet<PartitionId>,
    /// The partitions in which a [`TrackedEvent`](super::TrackedEvent) was dropped unfinished. Its event and all later
    /// events are redelivered, even those that were finished. An event that was dropped because the partition stopped
    /// counts only if a later event was finished.
    pub held_back: BTreeSet<PartitionId>,
    /// How many partitions this instance kept for its restart: [`OnShutdown::Keep`](super::OnShutdown::Keep).
    pub kept: usize,
    /// How many partitions could not be released in time. They stay owned until their leases expire.
    pub unreleased: usize,
    /// Whether a second request forced the shutdown, which then ended at once.
    pub forced: bool,
}

impl ShutdownReport {
    /// Returns the report of a processor that had not started to process.
    pub(super) fn nothing_done() -> Self {
        let done = PhaseReport { took: Duration::ZERO, complete: true };
        Self { drain: done, release: done, close: done, ..Self::default() }
    }

    /// Returns whether the shutdown was clean: other instances can continue at once, and no handled event is
    /// redelivered.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let complete = [&self.drain, &self.release, &self.close].iter().all(|phase| phase.complete);
        let settled =
            [&self.aborted, &self.uncheckpointed, &self.held_back].iter().all(|partitions| partitions.is_empty());
        complete && !self.forced && settled && self.unreleased == 0
    }
}

/// How one phase of the shutdown went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PhaseReport {
    /// How long it took. Serialized as seconds.
    #[serde(serialize_with = "crate::seconds::serialize")]
    pub took: Duration,
    /// Whether the phase completed within its time limit.
    pub complete: bool,
}

/// Runs one phase for at most this long.
pub(super) async fn phase<T>(limit: Duration, work: impl Future<Output = T>) -> (PhaseReport, Option<T>) {
    let began = Instant::now();
    let done = timeout(limit, work).await.ok();
    (PhaseReport { took: began.elapsed(), complete: done.is_some() }, done)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_request_counts_after_one_second() {
        let requests = Requests::new(Span::none());
        let requested = |requests: &Requests| (requests.is_requested(), requests.state.borrow().again);
        assert_eq!(requested(&requests), (false, false));
        requests.request();
        requests.request();
        advance(SAME_REQUEST.saturating_sub(Duration::from_millis(1))).await;
        requests.request();
        assert_eq!(requested(&requests), (true, false));
        advance(Duration::from_millis(1)).await;
        requests.request_once();
        assert_eq!(requested(&requests), (true, false));
        requests.request();
        assert_eq!(requested(&requests), (true, true));
    }
}
