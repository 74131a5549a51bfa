//! Where a partition ends, if the processor has an end position.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::source::properties::{PartitionProperties, Undelivered};
use crate::source::{EndPosition, Positioned};

/// How long after a time a report of the event hub has all events up to it: reports can be ten seconds old, a request
/// may take half a minute, and clocks differ.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// How long links must not deliver the last events of the partition until they are no longer awaited. They may be gone
/// after a compaction, but links may also have stalled.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The end of one start of the handler. Without an end position, nothing ends.
#[derive(Debug, Default)]
pub(super) struct ReadingEnd {
    position: Option<EndPosition>,
    /// The number of the last event to deliver, once it is known; -1 if there is none. With a time, a number that is
    /// not before it.
    pub(super) last: Option<i64>,
    /// An event after the end has arrived through the link. The next link delivers it again.
    pub(super) is_passed: bool,
    /// The last events of the partition, if they have expired.
    expired: Option<Undelivered>,
    /// The last events of the partition, if no link delivers them, and since when that is known.
    undelivered: Option<(Undelivered, Instant)>,
}

impl ReadingEnd {
    pub(super) fn new(position: Option<EndPosition>) -> Self {
        let last = match &position {
            Some(EndPosition::SequenceNumber(number)) => Some(*number),
            _ => None,
        };
        Self { position, last, ..Self::default() }
    }

    /// Returns whether a report of the event hub must still show which event is the latest one.
    pub(super) fn awaits_latest(&self) -> bool {
        self.last.is_none() && self.position == Some(EndPosition::Latest)
    }

    /// Learns which event is the latest one. The first report counts. Returns its number, if it was not known.
    pub(super) fn learn_latest(&mut self, properties: &PartitionProperties) -> Option<i64> {
        if !self.awaits_latest() {
            return None;
        }
        self.last = Some(properties.last_enqueued().map_or(-1, |last| last.sequence_number));
        self.last
    }

    /// Learns from a report of the event hub that has just arrived which events are not after the time. `now` is the
    /// server's time.
    pub(super) fn learn_time(&mut self, properties: &PartitionProperties, now: OffsetDateTime) {
        if let Some(EndPosition::EnqueuedUntil(time)) = &self.position
            && self.last.is_none()
            && now > *time + SETTLED_AFTER
        {
            self.last = Some(properties.last_enqueued().map_or(-1, |last| last.sequence_number));
        }
    }

    /// Removes the events after the end.
    pub(super) fn cut<E: Positioned>(&mut self, batch: &mut Vec<E>) {
        let first_after = match &self.position {
            Some(EndPosition::EnqueuedUntil(time)) => {
                batch.iter().position(|event| event.enqueued_at().is_some_and(|at| at > *time))
            }
            _ => self.last.and_then(|last| batch.iter().position(|event| event.sequence_number() > Some(last))),
        };
        if let Some(first_after) = first_after {
            batch.truncate(first_after);
            self.is_passed = true;
        }
    }

    /// Records the last events of the partition that no link delivers, and those that have expired.
    pub(super) fn record_undelivered(&mut self, undelivered: Option<Undelivered>, expired: Option<Undelivered>) {
        let since = match self.undelivered {
            Some((known, since)) if Some(known) == undelivered => since,
            _ => Instant::now(),
        };
        self.undelivered = undelivered.map(|events| (events, since));
        self.expired = expired;
    }

    /// Returns whether all events up to the end are delivered, if this is the last one.
    pub(super) fn is_reached(&self, delivered: Option<i64>) -> bool {
        let Some(last) = self.last else { return self.is_passed };
        let delivered = delivered.unwrap_or(-1);
        let undelivered = self.undelivered.filter(|(_, since)| since.elapsed() >= LONGEST_WAIT);
        let up_to = [self.expired, undelivered.map(|(events, _)| events)]
            .into_iter()
            .flatten()
            .filter(|events| delivered >= events.after)
            .map(|events| events.up_to)
            .fold(delivered, i64::max);
        self.is_passed || up_to >= last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Position;
    use time::macros::datetime;

    const NOON: OffsetDateTime = datetime!(2026-01-01 12:00 UTC);

    /// An event with this number, enqueued so many seconds after noon.
    struct Event(i64, i64);

    impl Positioned for Event {
        fn sequence_number(&self) -> Option<i64> {
            Some(self.0)
        }

        fn offset(&self) -> Option<&str> {
            None
        }

        fn enqueued_at(&self) -> Option<OffsetDateTime> {
            Some(NOON + time::Duration::seconds(self.1))
        }
    }

    fn properties(last: i64, seconds: i64) -> PartitionProperties {
        PartitionProperties::new(0, Some(Position::new(last, "")), false)
            .with_last_enqueued_at(NOON + time::Duration::seconds(seconds))
    }

    /// Returns the numbers that are left of a batch of 10 events, one per second.
    fn left(end: &mut ReadingEnd) -> Vec<i64> {
        let mut batch = (0..10).map(|number| Event(number, number)).collect();
        end.cut(&mut batch);
        batch.iter().map(|event| event.0).collect()
    }

    #[test]
    fn without_an_end_position_nothing_ends() {
        let mut end = ReadingEnd::new(None);
        assert_eq!(end.learn_latest(&properties(3, 3)), None);
        end.learn_time(&properties(3, 3), NOON);
        end.record_undelivered(None, Some(Undelivered { after: 3, up_to: 9 }));
        assert_eq!(left(&mut end).len(), 10);
        assert!(!end.is_reached(Some(i64::MAX)));
    }

    #[test]
    fn events_after_a_number_are_cut_off() {
        let mut end = ReadingEnd::new(Some(EndPosition::SequenceNumber(4)));
        assert!(!end.is_reached(None) && !end.is_reached(Some(3)) && end.is_reached(Some(4)));
        assert_eq!(left(&mut end), [0, 1, 2, 3, 4]);
        assert!(end.is_reached(Some(3)), "the partition has a later event");
        end.is_passed = false;
        assert!(!end.is_reached(Some(3)), "another link delivers event 4 again");
    }

    #[test]
    fn the_latest_event_is_the_first_one_reported() {
        let mut end = ReadingEnd::new(Some(EndPosition::Latest));
        assert!(!end.is_reached(Some(9)), "nothing is known yet");
        assert_eq!(end.learn_latest(&properties(6, 6)), Some(6));
        assert_eq!(end.learn_latest(&properties(8, 8)), None);
        assert!(!end.is_reached(Some(5)) && end.is_reached(Some(6)));
        let mut empty = ReadingEnd::new(Some(EndPosition::Latest));
        assert_eq!(empty.learn_latest(&PartitionProperties::new(0, None, true)), Some(-1));
        assert!(empty.is_reached(None));
    }

    #[test]
    fn a_time_ends_at_the_first_later_event() {
        let mut end = ReadingEnd::new(Some(EndPosition::EnqueuedUntil(NOON + time::Duration::seconds(4))));
        assert_eq!(left(&mut end), [0, 1, 2, 3, 4]);
        assert!(end.is_reached(Some(4)));
    }

    #[test]
    fn a_later_report_ends_a_quiet_partition() {
        let until = NOON + time::Duration::seconds(4);
        for last in [3, 9] {
            let mut end = ReadingEnd::new(Some(EndPosition::EnqueuedUntil(until)));
            end.learn_time(&properties(last, last), until + SETTLED_AFTER);
            assert!(!end.is_reached(Some(last)), "the report may be from before that time");
            end.learn_time(&properties(last, last), until + 2 * SETTLED_AFTER);
            assert!(!end.is_reached(Some(last - 1)) && end.is_reached(Some(last)));
            assert_eq!(left(&mut end), [0, 1, 2, 3, 4], "the time counts, and not the last event");
        }
    }

    #[test]
    fn expired_events_are_not_awaited() {
        for (up_to, is_reached) in [(9, true), (6, true), (5, false)] {
            let mut end = ReadingEnd::new(Some(EndPosition::SequenceNumber(6)));
            end.record_undelivered(None, Some(Undelivered { after: 3, up_to }));
            assert_eq!(end.is_reached(Some(3)), is_reached, "{up_to}");
            assert!(!end.is_reached(Some(2)), "an event before them waits for its batch");
        }
    }

    /// Two links may have stalled.
    #[tokio::test(start_paused = true)]
    async fn undelivered_events_are_awaited_for_a_while() {
        let mut end = ReadingEnd::new(Some(EndPosition::SequenceNumber(6)));
        let undelivered = Some(Undelivered { after: 3, up_to: 9 });
        end.record_undelivered(undelivered, None);
        tokio::time::sleep(LONGEST_WAIT / 2).await;
        end.record_undelivered(undelivered, None);
        assert!(!end.is_reached(Some(3)));
        tokio::time::sleep(LONGEST_WAIT / 2).await;
        assert!(end.is_reached(Some(3)));
        end.record_undelivered(Some(Undelivered { after: 4, up_to: 9 }), None);
        assert!(!end.is_reached(Some(4)));
    }
}
