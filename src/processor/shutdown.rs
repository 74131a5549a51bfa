//! Why a partition stops, who requests a shutdown, how long it may take, and what it reports.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::Span;

use crate::balancer::ReleaseReason;
use crate::error::{Error, Result};
use crate::model::{OwnerId, PartitionId};
use crate::source::CLOSE_LIMIT;
use crate::store::GroupStore;
use crate::telemetry;

/// A request within this time after the first one counts as the same request: a program may listen for a signal in two
/// places, and some senders send it twice.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Why a partition stops. [`Handler::stopped`](crate::processor::Handler::stopped) receives it.
#[doc(alias = "CloseReason")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// Another instance owns the partition now, or none does. Checkpoints are no longer accepted.
    OwnershipLost {
        /// The new owner, if it is known.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner is running. Checkpoints are no longer accepted.
    Replaced,
    /// The lease could not be renewed in time, and the processor is configured to stop then:
    /// [`OnLeaseExpiry::Stop`](crate::balancer::OnLeaseExpiry::Stop).
    LeaseExpired,
    /// This instance releases the partition. Checkpoints are still accepted.
    Released {
        /// Why. After [`HandedOver`](ReleaseReason::HandedOver), [`NotAssigned`](ReleaseReason::NotAssigned) and
        /// [`OverLimit`](ReleaseReason::OverLimit) another instance continues with the partition, so state that a
        /// handler keeps for it is of no use anymore. After [`Requested`](ReleaseReason::Requested) the partition may
        /// come back once the cooldown is over. After [`PartitionRemoved`](ReleaseReason::PartitionRemoved) no instance
        /// processes it.
        reason: ReleaseReason,
    },
    /// The processor is shutting down. Checkpoints are still accepted.
    Shutdown,
    /// [`ProcessorHandle::restart`](crate::processor::ProcessorHandle::restart) was called: this instance keeps the
    /// partition, and starts it again. Checkpoints are still accepted.
    Restarting,
    /// All events up to the [end position](crate::processor::ProcessorConfig::with_end_position) were processed, and
    /// their checkpoint is written, as far as the handler requested it. Checkpoints are still accepted.
    EndReached,
    /// The handler failed, and [`OnFailure`](crate::processor::OnFailure) determines what follows; or the event source
    /// failed so that reopening the receiver does not help, and the partition restarts from its checkpoint. Checkpoints
    /// are still accepted.
    Failed {
        /// The error with its sources.
        error: Arc<Error>,
    },
}

/// Returns how long a partition may take to stop: the batch or the call of `started`, and the events in flight; the
/// receiver; the call of `stopped`.
pub(crate) fn stopping_time(drain: Duration) -> Duration {
    2 * drain + CLOSE_LIMIT
}

/// Returns how long all partitions together may take to stop at shutdown, last checkpoints included.
pub(crate) fn stop_limit(drain: Duration, store: &GroupStore) -> Duration {
    3 * drain + 4 * store.request_timeout()
}

/// How a processor shut down. [`is_clean`](Self::is_clean) sums it up.
///
/// ```
/// use eventhubs_checkpoint::processor::ShutdownReport;
///
/// fn report_end(report: &ShutdownReport) {
///     if !report.is_clean() {
///         eprintln!("not everything was written or released: {report:?}");
///     }
/// }
/// ```
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
    /// Whether a second request, or the [shutdown timeout](super::ProcessorConfig::with_shutdown_timeout), forced the
    /// shutdown, which then ended at once.
    pub forced: bool,
}

impl ShutdownReport {
    /// Returns whether the shutdown was clean: other instances can continue at once, and no handled event is
    /// redelivered.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let phases = [self.drain, self.release, self.close];
        let redelivering = [&self.aborted, &self.uncheckpointed, &self.held_back];
        phases.iter().all(|phase| phase.complete)
            && redelivering.iter().all(|partitions| partitions.is_empty())
            && self.unreleased == 0
            && !self.forced
    }
}

/// How one phase of the shutdown went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PhaseReport {
    /// How long it took. Serialized as seconds.
    #[serde(serialize_with = "crate::util::serialize_seconds")]
    pub took: Duration,
    /// Whether the phase completed within its time limit.
    pub complete: bool,
}

impl PhaseReport {
    /// Runs the phase for at most this long, and records how it went. Returns what the work returned in time.
    pub(super) async fn run_phase<T>(&mut self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let began = Instant::now();
        let done = timeout(limit, work).await.ok();
        *self = Self { took: began.elapsed(), complete: done.is_some() };
        done
    }
}

/// The shutdown requests of a processor. All clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownRequests {
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

impl ShutdownRequests {
    pub(crate) fn new(span: Span) -> Self {
        Self { state: Arc::default(), span }
    }

    pub(crate) fn request_shutdown(&self) {
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
    pub(crate) fn request_once(&self) {
        if self.state.borrow().first.is_none() {
            self.request_shutdown();
        }
    }

    /// Returns whether a shutdown was requested, or the processor has ended.
    pub(crate) fn is_ending(&self) -> bool {
        let state = self.state.borrow();
        state.first.is_some() || state.ended
    }

    pub(crate) fn mark_ended(&self) {
        self.state.send_modify(|state| state.ended = true);
    }

    pub(crate) async fn wait_for_request(&self) {
        self.wait_for(|state| state.first.is_some()).await;
    }

    pub(crate) async fn wait_for_second_request(&self) {
        self.wait_for(|state| state.again).await;
    }

    async fn wait_for(&self, condition: impl FnMut(&RequestState) -> bool) {
        let mut state = self.state.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = state.wait_for(condition).await;
    }
}

/// Ctrl-C, and SIGTERM on Unix. From then on they no longer end the process by themselves, also after this is dropped.
#[derive(Debug)]
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
    #[cfg(windows)]
    terminate: tokio::signal::windows::CtrlShutdown,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(signal_error)?,
            terminate: signal(SignalKind::terminate()).map_err(signal_error)?,
        })
    }

    #[cfg(windows)]
    pub(crate) fn listen() -> Result<Self> {
        use tokio::signal::windows::{ctrl_c, ctrl_shutdown};

        Ok(Self { interrupt: ctrl_c().map_err(signal_error)?, terminate: ctrl_shutdown().map_err(signal_error)? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            Some(()) = self.interrupt.recv() => {}
            Some(()) = self.terminate.recv() => {}
            else => std::future::pending().await,
        }
    }
}

fn signal_error(error: std::io::Error) -> Error {
    Error::config("cannot install signal handlers; use `run` with another shutdown future").with_source(error)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_request_counts_after_one_second() {
        let requests = ShutdownRequests::new(Span::none());
        let requested = |requests: &ShutdownRequests| (requests.is_ending(), requests.state.borrow().again);
        assert_eq!(requested(&requests), (false, false));
        requests.request_shutdown();
        requests.request_shutdown();
        advance(SAME_REQUEST.saturating_sub(Duration::from_millis(1))).await;
        requests.request_shutdown();
        assert_eq!(requested(&requests), (true, false));
        advance(Duration::from_millis(1)).await;
        requests.request_once();
        assert_eq!(requested(&requests), (true, false));
        requests.request_shutdown();
        assert_eq!(requested(&requests), (true, true));
    }
}
