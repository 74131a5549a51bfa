//! Determines which events of a partition are new, and whether reading continues where it should: after the last
//! delivered event, and after a checkpoint that was not compared with the partition yet.

use std::time::Duration;

use tokio::time::Instant;

use super::reading_end::ReadingEnd;
use super::stall_detector::{OLDEST_REPORT, StallDetector};
use crate::error::{Error, ErrorKind, Result};
use crate::model::CheckpointRecord;
use crate::processor::start::invalid::{InvalidReason, invalid_reason};
use crate::source::offset_format::BEFORE_EVERYTHING;
use crate::source::properties::PartitionProperties;
use crate::source::{Positioned, StartPosition};

/// What one start of the handler knows about its reading, which decides what may reach the handler: which events are
/// new, whether the link delivers all events, and whether the checkpoint is valid after which reading began.
#[derive(Debug)]
pub(super) struct Continuity {
    pub(super) delivered: DeliveryProgress,
    pub(super) stall_detector: StallDetector,
    /// The recorded position, if reading began before it was compared with the partition.
    pub(super) unvalidated: Unvalidated,
    pub(super) end: ReadingEnd,
}

impl Continuity {
    /// Creates the state of a start at this position. A link counts as stalled by two lag checks in a row.
    pub(super) fn new(
        from: StartPosition,
        unvalidated: Unvalidated,
        end: ReadingEnd,
        lag_check_interval: Option<Duration>,
    ) -> Self {
        // Jitter brings a lag check forward by up to a quarter of the interval.
        let stall_timeout = lag_check_interval.map_or(Duration::MAX, |interval| interval / 4 * 3);
        Self {
            delivered: DeliveryProgress::new(from),
            stall_detector: StallDetector::new(stall_timeout),
            unvalidated,
            end,
        }
    }

    /// Returns whether all events up to the end position are delivered.
    pub(super) fn is_at_end(&self) -> bool {
        self.end.is_reached(self.delivered.last_delivered())
    }

    /// Records that a link was opened at [`next_position`](DeliveryProgress::next_position).
    pub(super) fn record_opening(&mut self) {
        self.stall_detector.record_opening(&self.delivered.next_position());
        self.delivered.record_opening();
        self.end.is_passed = false;
    }

    /// Checks that the link has not restarted. Otherwise the processor must read no more from it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::EventSource`] if it has.
    pub(super) fn check_restart(&self) -> Result<()> {
        match self.delivered.link_restart() {
            Some(LinkRestart { received, after }) => Err(Error::new(
                ErrorKind::EventSource,
                format!("the link restarted: event {received} arrived after event {after}"),
            )),
            None => Ok(()),
        }
    }

    /// Records that the processor waits on the receiver, and the last event that waits until its batch is full. Returns
    /// whether this event has arrived since the last call.
    pub(super) fn record_waiting<E: Positioned>(&mut self, gathered: Option<&E>) -> bool {
        self.stall_detector.start_waiting();
        gathered.is_some_and(|last| self.stall_detector.record_gathered(last.sequence_number()))
    }

    /// Removes the events of a batch that must not reach the handler, and records the batch. Returns how many events
    /// were removed.
    pub(super) fn admit<E: Positioned>(&mut self, batch: &mut Vec<E>) -> usize {
        // Old events that arrive through a link whose numbers increase show that the link works: they come to an end.
        self.stall_detector.record_received(batch.last().and_then(E::sequence_number));
        self.end.cut(batch);
        let removed = self.delivered.keep_new(batch);
        if !batch.is_empty() {
            // Events arrive after the checkpoint, so it is valid.
            self.unvalidated.record = None;
        }
        removed
    }
}

/// How far a partition was delivered since its handler started. Events that arrive twice are dropped.
///
/// The sequence numbers that arrive through one link must increase. If one does not, the link has restarted: the
/// official client re-attaches a link at the position where it was opened, so all events since then would arrive before
/// the next new one. Such a link must be closed, and another one opened after the last delivered event.
///
/// The state belongs to one start of the handler: events that were delivered before a failure must be redelivered.
#[derive(Debug)]
pub(crate) struct DeliveryProgress {
    /// The position at which reading started.
    from: StartPosition,
    last: Option<i64>,
    /// No event has arrived since the link was opened.
    opened: bool,
    /// The gap because of which the previous link was closed.
    rejected: Option<Gap>,
    /// The last event that arrived through the link, new or not.
    last_received: Option<i64>,
    restarted: Option<LinkRestart>,
}

/// The first event that a link delivered again, and the event that arrived before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkRestart {
    pub(crate) received: i64,
    pub(crate) after: i64,
}

/// The events from the due event up to the first event that arrived through a new link, which is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The event that is due: the one after the last delivered event, or the first event ever if reading starts at the
    /// earliest one.
    pub(crate) due: i64,
    pub(crate) received: i64,
}

impl Gap {
    /// Returns whether the events in the gap have expired.
    pub(crate) fn is_expired(self, properties: &PartitionProperties) -> bool {
        self.received <= properties.beginning_sequence_number()
    }
}

impl DeliveryProgress {
    pub(crate) fn new(from: StartPosition) -> Self {
        let last = match &from {
            StartPosition::AfterSequenceNumber(seen) => Some(*seen),
            _ => None,
        };
        Self { from, last, opened: false, rejected: None, last_received: None, restarted: None }
    }

    /// Records that a link was opened at [`next_position`](Self::next_position).
    pub(crate) fn record_opening(&mut self) {
        self.opened = true;
        self.last_received = None;
        self.restarted = None;
    }

    /// Returns the gap before the first events that arrive through a link, if there is one.
    pub(crate) fn find_gap<E: Positioned>(&mut self, batch: &[E]) -> Option<Gap> {
        if !std::mem::take(&mut self.opened) {
            return None;
        }
        let due = match self.next_position() {
            StartPosition::AfterSequenceNumber(last) => last.saturating_add(1),
            StartPosition::Earliest => 0,
            StartPosition::Latest | StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) => return None,
        };
        let received = batch.first()?.sequence_number()?;
        (received > due).then_some(Gap { due, received })
    }

    /// Returns whether the previous link left out other events at the same position. Events may expire all the time,
    /// and the reports of the event hub can be some seconds old.
    pub(crate) fn has_rejected_another(&self, gap: Gap) -> bool {
        self.rejected.is_some_and(|rejected| rejected.due == gap.due && rejected != gap)
    }

    /// Returns whether to open another link, because the events in the gap still exist according to the event hub. If
    /// the next link has the same gap, the gap belongs to the event hub, as gaps of compaction do.
    pub(crate) fn reject_gap(&mut self, gap: Gap, properties: &PartitionProperties) -> bool {
        if gap.is_expired(properties) || self.rejected == Some(gap) {
            return false;
        }
        self.rejected = Some(gap);
        true
    }

    /// Returns the last delivered event, or the one after which reading started.
    pub(crate) fn last_delivered(&self) -> Option<i64> {
        self.last
    }

    /// Returns where to open the next link.
    pub(crate) fn next_position(&self) -> StartPosition {
        self.last.map_or_else(|| self.from.clone(), StartPosition::AfterSequenceNumber)
    }

    /// Counts an event as delivered that cannot be: the next link is opened after it.
    pub(crate) fn skip_event(&mut self, number: i64) {
        self.last = self.last.max(Some(number));
    }

    /// Removes events that were delivered already, and all events from the point where the link restarted. The
    /// remaining numbers increase. Returns how many events were removed.
    pub(crate) fn keep_new<E: Positioned>(&mut self, batch: &mut Vec<E>) -> usize {
        let total = batch.len();
        if let Some(first) = batch.iter().position(|event| self.detect_restart(event)) {
            batch.truncate(first);
        }
        batch.retain(|event| {
            let number = event.sequence_number();
            let is_new = number.is_none() || number > self.last;
            self.last = self.last.max(number);
            is_new
        });
        total - batch.len()
    }

    fn detect_restart<E: Positioned>(&mut self, event: &E) -> bool {
        let Some(number) = event.sequence_number() else { return false };
        match self.last_received {
            Some(after) if number <= after => self.restarted = Some(LinkRestart { received: number, after }),
            _ => self.last_received = Some(number),
        }
        self.restarted.is_some()
    }

    /// Returns where the link restarted, if it has: the processor must read no more from it.
    pub(crate) fn link_restart(&self) -> Option<LinkRestart> {
        self.restarted
    }
}

/// Returns whether reading may begin after this checkpoint before it is compared with the partition: the comparison
/// would not change the record, and reading shows if events after it have expired.
pub(super) fn needs_no_correction(record: &CheckpointRecord) -> bool {
    record.sequence_number.is_some() && record.offset.as_deref() != Some(BEFORE_EVERYTHING)
}

/// The checkpoint after which reading began, until the first lag check, gap or event shows whether it is valid.
#[derive(Debug, Default)]
pub(super) struct Unvalidated {
    record: Option<CheckpointRecord>,
    /// Since when the event hub reports that it ends before the checkpoint.
    beyond_end_since: Option<Instant>,
    is_refuted: bool,
}

impl Unvalidated {
    pub(super) fn new(record: CheckpointRecord) -> Self {
        Self { record: Some(record), ..Self::default() }
    }

    /// Returns whether the checkpoint is known to be invalid.
    pub(super) fn is_refuted(&self) -> bool {
        self.is_refuted
    }

    /// Compares the checkpoint with the partition. A report can be some seconds old, so the end counts only if a later
    /// report confirms it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPosition`] if the checkpoint is invalid: take it over again.
    pub(super) fn compare_with_hub(&mut self, properties: &PartitionProperties) -> Result<()> {
        let Some(record) = &self.record else { return Ok(()) };
        let Some(reason) = invalid_reason(record, properties) else {
            self.record = None;
            return Ok(());
        };
        if reason == InvalidReason::BeyondEnd
            && self.beyond_end_since.get_or_insert_with(Instant::now).elapsed() < OLDEST_REPORT
        {
            return Ok(());
        }
        self.is_refuted = true;
        Err(Error::new(ErrorKind::InvalidPosition, format!("the checkpoint is invalid: {reason}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Position;

    #[derive(Debug, PartialEq)]
    struct Numbered(i64);

    impl Positioned for Numbered {
        fn sequence_number(&self) -> Option<i64> {
            Some(self.0)
        }

        fn offset(&self) -> Option<&str> {
            None
        }
    }

    fn kept(delivered: &mut DeliveryProgress, numbers: &[i64]) -> Vec<i64> {
        let mut batch = numbers.iter().copied().map(Numbered).collect();
        delivered.keep_new(&mut batch);
        batch.iter().map(|event| event.0).collect()
    }

    #[test]
    fn events_that_arrive_twice_are_dropped() {
        let mut delivered = DeliveryProgress::new(StartPosition::AfterSequenceNumber(6));
        assert_eq!(kept(&mut delivered, &[5, 6, 7, 8]), [7, 8]);
        delivered.record_opening();
        assert_eq!(kept(&mut delivered, &[7, 8, 9]), [9]);
        assert_eq!(delivered.next_position(), StartPosition::AfterSequenceNumber(9));
        assert_eq!(delivered.link_restart(), None);
        assert_eq!(DeliveryProgress::new(StartPosition::Earliest).next_position(), StartPosition::Earliest);
    }

    fn holds(first: i64) -> PartitionProperties {
        PartitionProperties::new(first, Some(Position { sequence_number: 99, offset: "x".into() }), false)
    }

    #[test]
    fn each_link_is_checked_for_a_gap_once() {
        let after = |number| DeliveryProgress::new(StartPosition::AfterSequenceNumber(number));
        let mut delivered = after(6);
        assert_eq!(delivered.find_gap(&[Numbered(9)]), None, "no link was opened");
        delivered.record_opening();
        assert_eq!(delivered.find_gap(&[Numbered(9)]), Some(Gap { due: 7, received: 9 }));
        assert_eq!(delivered.find_gap(&[Numbered(9)]), None);
        for first in [5, 6, 7] {
            delivered.record_opening();
            assert_eq!(delivered.find_gap(&[Numbered(first), Numbered(20)]), None, "{first}");
        }
        kept(&mut delivered, &[7, 8]);
        delivered.record_opening();
        assert_eq!(delivered.find_gap(&[Numbered(10)]), Some(Gap { due: 9, received: 10 }));
        let mut earliest = DeliveryProgress::new(StartPosition::Earliest);
        earliest.record_opening();
        assert_eq!(earliest.find_gap(&[Numbered(3)]), Some(Gap { due: 0, received: 3 }));
        let mut latest = DeliveryProgress::new(StartPosition::Latest);
        latest.record_opening();
        assert_eq!(latest.find_gap(&[Numbered(3)]), None);
    }

    #[test]
    fn a_gap_is_rejected_unless_the_hub_confirms_it() {
        let mut delivered = DeliveryProgress::new(StartPosition::AfterSequenceNumber(6));
        let gap = Gap { due: 7, received: 9 };
        assert!(!delivered.reject_gap(gap, &holds(9)), "the events in the gap have expired");
        assert!(delivered.reject_gap(gap, &holds(8)), "event 8 is still available");
        let another = Gap { due: 7, received: 12 };
        assert!(delivered.reject_gap(another, &holds(8)), "the link continues where the previous one ended");
        assert!(!delivered.reject_gap(another, &holds(8)), "two links have the same gap");
    }

    mod defects {
        use super::*;

        #[test]
        fn a_link_with_decreasing_numbers_has_restarted() {
            for (before, batch, expected, again) in [
                (&[][..], &[7, 8, 7, 8, 9][..], &[7, 8][..], Some((7, 8))),
                (&[7, 8], &[7, 8, 9], &[], Some((7, 8))),
                (&[7, 8], &[8, 9], &[], Some((8, 8))),
                (&[7, 8], &[0], &[], Some((0, 8))),
                (&[7, 8], &[12, 9], &[12], Some((9, 12))),
                (&[3, 4], &[3, 7], &[], Some((3, 4))),
                // Events from before the start, but the numbers increase.
                (&[3, 4], &[5, 6, 7, 9], &[7, 9], None),
            ] {
                let mut delivered = DeliveryProgress::new(StartPosition::AfterSequenceNumber(6));
                delivered.record_opening();
                kept(&mut delivered, before);
                assert_eq!(kept(&mut delivered, batch), expected, "{batch:?} after {before:?}");
                let again = again.map(|(received, after)| LinkRestart { received, after });
                assert_eq!(delivered.link_restart(), again, "{batch:?} after {before:?}");
                delivered.record_opening();
                assert_eq!(delivered.link_restart(), None, "another link");
            }
        }
    }
}
