//! What is to be checkpointed of one partition: the requested position, and the tokens that hold it back.
//!
//! A token is one [`TrackedEvent`](crate::processor::TrackedEvent). Only the greatest position counts, and the
//! [`Tracker`] determines which position may be written.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::Span;

use super::tracker::{Reached, Tracker};
use crate::error::Error;
use crate::model::{PartitionId, Position};
use crate::processor::monitoring::ErrorSummary;
use crate::processor::monitoring::spans::TracedEvents;
use crate::processor::partition::orders::{SessionEnd, StopView};
use crate::util::lock;

/// What the requests for checkpoints and the task that writes them share.
#[derive(Debug)]
pub(crate) struct CheckpointState {
    pending: Mutex<PendingCheckpoint>,
    /// The size of the events whose tokens exist.
    pub(super) bytes_in_flight: AtomicUsize,
    /// Wakes the writing task if it has something new to write, or enough for a write.
    pub(super) advanced: Notify,
    /// Changes when a token is finished, dropped or failed.
    pub(super) finished: watch::Sender<()>,
    /// The error of the first token that failed.
    pub(super) failed: watch::Sender<Option<Arc<Error>>>,
    max_events: Option<i64>,
    pub(super) start: Start,
}

/// The start of the partition that the checkpoints belong to.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) partition: PartitionId,
    pub(crate) stopping: StopView,
    pub(crate) over: SessionEnd,
    /// Tokens may be dropped outside of the partition's task.
    pub(crate) span: Span,
}

impl Start {
    pub(super) fn is_stopping(&self) -> bool {
        self.over.has_ended() || self.stopping.is_requested()
    }
}

impl CheckpointState {
    /// Creates the state after the durable checkpoint. A write is due after `max_events`, if there is such a limit.
    pub(super) fn new(written: Option<i64>, max_events: Option<u32>, start: Start) -> Self {
        Self {
            pending: Mutex::new(PendingCheckpoint::new(written)),
            bytes_in_flight: AtomicUsize::new(0),
            advanced: Notify::new(),
            finished: watch::Sender::default(),
            failed: watch::Sender::default(),
            max_events: max_events.map(i64::from),
            start,
        }
    }

    pub(super) fn with_pending<T>(&self, access: impl FnOnce(&mut PendingCheckpoint) -> T) -> T {
        access(&mut lock(&self.pending))
    }

    pub(super) fn has_enough(&self, pending: &PendingCheckpoint) -> bool {
        self.max_events.is_some_and(|events| pending.distance_to_written() >= events)
    }

    /// Advances the position that may be written, and wakes the writing task if that changes what the task has to do.
    pub(super) fn advance_position<'a>(&self, step: impl FnOnce(&mut Tracker) -> Option<Reached<'a>>) {
        let wakes = self.with_pending(|pending| {
            let was_idle = pending.unwritten_position().is_none();
            pending.advance_position(step) && (was_idle || self.has_enough(pending))
        });
        if wakes {
            self.advanced.notify_one();
        }
    }
}

/// The state of requested positions.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    pub(super) tracker: Tracker,
    /// The greatest position that may be written. Kept after the write, so that its text is reused.
    requested: Option<Position>,
    /// The sequence number of the durable checkpoint.
    pub(super) written: Option<i64>,
    /// Why the last write failed, until a write succeeds.
    pub(super) failure: Option<ErrorSummary>,
    /// The partition has another owner, or none. Set before any error reports it. The writing task then ends.
    pub(super) fenced: bool,
    pub(super) dropped: DroppedTokens,
    /// For the span of the write.
    pub(super) traced: TracedEvents,
}

impl PendingCheckpoint {
    fn new(written: Option<i64>) -> Self {
        Self {
            tracker: Tracker::new(written),
            requested: None,
            written,
            failure: None,
            fenced: false,
            dropped: DroppedTokens::default(),
            traced: TracedEvents::default(),
        }
    }

    /// Advances the position that may be written: by this step, and over events that the handler does not process.
    /// Returns whether it has changed. The tracker returns increasing positions only.
    fn advance_position<'a>(&mut self, step: impl FnOnce(&mut Tracker) -> Option<Reached<'a>>) -> bool {
        let Self { tracker, requested, .. } = self;
        let reached = step(tracker);
        let mut has_advanced = reached.is_some();
        if let Some(reached) = &reached {
            reached.replace(requested);
        }
        while let Some(passed) = tracker.next_passed() {
            passed.replace(requested);
            has_advanced = true;
        }
        has_advanced
    }

    pub(super) fn unwritten_position(&self) -> Option<&Position> {
        self.requested
            .as_ref()
            .filter(|requested| self.written.is_none_or(|written| written < requested.sequence_number))
    }

    /// Returns how many events lie between the durable position and the requested one.
    pub(super) fn distance_to_written(&self) -> i64 {
        self.unwritten_position()
            .map_or(0, |requested| requested.sequence_number.saturating_sub(self.written.unwrap_or(-1)))
    }

    /// Returns whether finished events will be redelivered because of a dropped token, or a token was dropped while the
    /// partition was running.
    pub(super) fn is_held_back(&self) -> bool {
        self.dropped.first.is_some() || (self.dropped.count > 0 && self.tracker.last_waiting().is_some())
    }

    pub(super) fn view(&self) -> CheckpointView {
        CheckpointView {
            reached: self.tracker.last_reached(),
            written: self.written,
            in_flight: self.tracker.in_flight(),
            failure: self.failure.clone(),
            held: self.dropped.first.map(|(event, since)| HeldCheckpoint {
                event,
                held_for: since.elapsed(),
                checkpoint: self.written,
                finished_after: self
                    .tracker
                    .last_waiting()
                    .map_or(0, |last| last.saturating_sub(event).max(0).unsigned_abs()),
            }),
        }
    }
}

/// The tokens of one start of the partition that were dropped unfinished.
#[derive(Debug, Default)]
pub(super) struct DroppedTokens {
    pub(super) count: usize,
    /// The first event that holds the checkpoint back, and the time of the first such drop.
    first: Option<(i64, Instant)>,
}

impl DroppedTokens {
    /// Adds a token, with its event if that holds the checkpoint back. Returns whether it is the first event that does.
    pub(super) fn add_token(&mut self, event: Option<i64>) -> bool {
        self.count += 1;
        let Some(event) = event else { return false };
        let is_first = self.first.is_none();
        let first = self.first.get_or_insert_with(|| (event, Instant::now()));
        first.0 = first.0.min(event);
        is_first
    }
}

/// The checkpoints of one start at one time.
#[derive(Debug, Default)]
pub(crate) struct CheckpointView {
    /// The last event up to which all events are finished.
    pub(crate) reached: Option<i64>,
    /// The sequence number of the durable checkpoint.
    pub(crate) written: Option<i64>,
    /// How many tokens are not finished.
    pub(crate) in_flight: usize,
    /// Why the last write failed, if none has succeeded since.
    pub(crate) failure: Option<ErrorSummary>,
    /// Why the checkpoint cannot advance, if a dropped token holds it back.
    pub(crate) held: Option<HeldCheckpoint>,
}

/// A checkpoint that cannot advance because a token was dropped while the partition was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldCheckpoint {
    /// The first event whose token was dropped.
    pub(crate) event: i64,
    pub(crate) held_for: Duration,
    /// The sequence number of the durable checkpoint.
    pub(crate) checkpoint: Option<i64>,
    /// How far, in sequence numbers, the last finished event is after `event`.
    pub(crate) finished_after: u64,
}

/// A start of a partition, and what ends it.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct TestStart {
    pub(super) orders: watch::Sender<crate::processor::partition::orders::Orders>,
    pub(super) over: watch::Sender<bool>,
}

#[cfg(test)]
impl TestStart {
    pub(super) fn new() -> (Self, Start) {
        let orders = watch::Sender::default();
        let over = watch::Sender::new(false);
        let start = Start {
            partition: 0.into(),
            stopping: StopView::new(orders.subscribe()),
            over: SessionEnd::new(over.subscribe()),
            span: Span::none(),
        };
        (Self { orders, over }, start)
    }

    pub(super) fn request_stop(&self) {
        self.orders.send_if_modified(|orders| orders.request_stop(crate::processor::StopReason::Shutdown));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_start_ends_with_its_session_or_by_a_stop() {
        let (_running, start) = TestStart::new();
        assert!(!start.is_stopping());
        let (stopped, start) = TestStart::new();
        stopped.request_stop();
        assert!(start.is_stopping());
        let (ended, start) = TestStart::new();
        ended.over.send_replace(true);
        assert!(start.is_stopping());
    }

    /// The first position starts the interval of the policy.
    #[test]
    fn only_a_first_or_a_last_position_wakes_the_writer() {
        let state = CheckpointState::new(None, Some(3), TestStart::new().1);
        let wakes = |number| {
            state.advance_position(|tracker| tracker.request_position(number, ""));
            state.advanced.notified().now_or_never().is_some()
        };
        for (number, expected) in [(0, true), (1, false), (2, true), (2, false), (3, true)] {
            assert_eq!(wakes(number), expected, "{number}");
        }
        state.with_pending(|pending| pending.written = Some(3));
        assert!(wakes(4) && !wakes(5) && wakes(6));
    }

    #[test]
    fn only_the_first_event_that_holds_back_is_first() {
        let mut dropped = DroppedTokens::default();
        let added = [None, Some(7), Some(3), Some(9), None].map(|event| dropped.add_token(event));
        assert_eq!(added, [false, true, false, false, false]);
        assert_eq!((dropped.count, dropped.first.map(|(event, _)| event)), (5, Some(3)));
    }

    #[test]
    fn the_greatest_requested_position_counts() {
        let mut pending = PendingCheckpoint::new(Some(3));
        assert_eq!(pending.unwritten_position(), None);
        for (number, offset) in [(5, "five"), (9, "nine"), (7, "seven")] {
            pending.advance_position(|tracker| tracker.request_position(number, offset));
        }
        assert_eq!(pending.unwritten_position(), Some(&Position { sequence_number: 9, offset: "nine".into() }));
        assert_eq!(pending.distance_to_written(), 6);
        pending.written = Some(i64::MIN + 1);
        assert_eq!(pending.distance_to_written(), i64::MAX);
        pending.written = Some(9);
        assert_eq!(pending.unwritten_position(), None);
        assert_eq!(pending.distance_to_written(), 0);
    }
}
