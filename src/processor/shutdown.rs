//! The end of a processor: asked for how often, and how it went.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::Span;

use crate::model::PartitionId;
use crate::telemetry;

/// A request so soon after the first is the same one: a program may listen for a signal in two places, and some send it
/// twice.
const TOGETHER: Duration = Duration::from_secs(1);

/// Whether the processor was asked to end, once or again. All clones share the state.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    state: Arc<watch::Sender<Asked>>,
    /// That of the processor: requests come from anywhere.
    span: Span,
}

#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    first: Option<Instant>,
    again: bool,
    ended: bool,
}

impl Requests {
    pub(super) fn new(span: Span) -> Self {
        Self { state: Arc::default(), span }
    }

    pub(super) fn request(&self) {
        self.state.send_if_modified(|asked| match asked.first {
            None => {
                asked.first = Some(Instant::now());
                telemetry::shutdown_requested(&self.span);
                true
            }
            Some(first) if first.elapsed() >= TOGETHER && !asked.again => {
                asked.again = true;
                telemetry::shutdown_forced(&self.span);
                true
            }
            Some(_) => false,
        });
    }

    /// Unless it was asked already.
    pub(super) fn request_once(&self) {
        if !self.is_requested() {
            self.request();
        }
    }

    pub(super) fn is_requested(&self) -> bool {
        self.state.borrow().first.is_some()
    }

    pub(super) fn end(&self) {
        self.state.send_modify(|asked| asked.ended = true);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }

    pub(super) async fn requested(&self) {
        self.wait_for(|asked| asked.first.is_some()).await;
    }

    pub(super) async fn requested_again(&self) {
        self.wait_for(|asked| asked.again).await;
    }

    async fn wait_for(&self, condition: impl FnMut(&Asked) -> bool) {
        let mut asked = self.state.subscribe();
        // The sender is `self`: it does not go away.
        let _ = asked.wait_for(condition).await;
    }
}

/// How a processor ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Handlers finish, and what is in flight; last checkpoints are written; links are closed.
    pub drain: PhaseReport,
    /// Partitions are released, or left for the restart of this owner.
    pub release: PhaseReport,
    /// The event source is closed.
    pub close: PhaseReport,
    /// Partitions whose handler, or something in flight, did not finish in time. What they were at comes again.
    pub aborted: BTreeSet<PartitionId>,
    /// Partitions whose last marked position could not be written. What is behind the one before comes again.
    pub uncheckpointed: BTreeSet<PartitionId>,
    /// Partitions with events whose [`TrackedEvent`](super::TrackedEvent) was dropped. Such an event and all after it are processed
    /// again, although these may be finished. A token that was dropped because the partition stopped counts only if a
    /// later event was finished.
    pub held_back: BTreeSet<PartitionId>,
    /// How many partitions were left for the restart of this owner: [`OnShutdown::Keep`](super::OnShutdown::Keep).
    pub kept: usize,
    /// How many partitions could not be released in time. They expire.
    pub unreleased: usize,
    /// Whether it was asked for again meanwhile, and ended at once.
    pub forced: bool,
}

impl ShutdownReport {
    /// Nothing had begun.
    pub(super) fn nothing_done() -> Self {
        let done = PhaseReport { took: Duration::ZERO, complete: true };
        Self { drain: done, release: done, close: done, ..Self::default() }
    }

    /// Whether everything ended as it should: the next owners go on at once, and nothing that was handled comes again.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let complete = [&self.drain, &self.release, &self.close].iter().all(|phase| phase.complete);
        let settled =
            [&self.aborted, &self.uncheckpointed, &self.held_back].iter().all(|partitions| partitions.is_empty());
        complete && !self.forced && settled && self.unreleased == 0
    }
}

/// How one phase of the end went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PhaseReport {
    /// How long it took.
    pub took: Duration,
    /// Whether it came to its end within its time.
    pub complete: bool,
}

/// Runs one phase, for this long at the most.
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
    async fn a_second_request_counts_from_a_second_after_the_first_on() {
        let requests = Requests::new(Span::none());
        let asked = |requests: &Requests| (requests.is_requested(), requests.state.borrow().again);
        assert_eq!(asked(&requests), (false, false));
        requests.request();
        requests.request();
        advance(TOGETHER.saturating_sub(Duration::from_millis(1))).await;
        requests.request();
        assert_eq!(asked(&requests), (true, false));
        advance(Duration::from_millis(1)).await;
        requests.request_once();
        assert_eq!(asked(&requests), (true, false));
        requests.request();
        assert_eq!(asked(&requests), (true, true));
    }
}
