//! Where a partition ends, if the processor has an end position.

use time::OffsetDateTime;

use super::stall_detector::OLDEST_REPORT;
use crate::source::properties::{PartitionProperties, Undelivered};
use crate::source::{EndPosition, Positioned};

/// The end of one start of the handler. Without an end position, nothing ends.
#[derive(Debug, Default)]
pub(super) struct ReadingEnd {
    /// The end, until its number is known.
    unknown: Option<EndPosition>,
    /// The number of the last event to deliver. -1 if there is none.
    pub(super) last: Option<i64>,
    /// An event after the end has arrived.
    is_passed: bool,
    /// The last events of the partition, if no link delivers them. They are not awaited.
    pub(super) undelivered: Option<Undelivered>,
}

impl ReadingEnd {
    pub(super) fn new(position: Option<EndPosition>) -> Self {
        match position {
            Some(EndPosition::SequenceNumber(number)) => Self { last: Some(number), ..Self::default() },
            unknown => Self { unknown, ..Self::default() },
        }
    }

    /// Learns the number of the last event from a report of the event hub, which can be some seconds old. `now` is the
    /// server's time.
    pub(super) fn learn_from(&mut self, properties: &PartitionProperties, now: OffsetDateTime) {
        match &self.unknown {
            None => return,
            Some(EndPosition::EnqueuedUntil(time))
                if now <= *time + OLDEST_REPORT || properties.last_enqueued_at().is_some_and(|last| last > *time) =>
            {
                return;
            }
            Some(_) => {}
        }
        self.unknown = None;
        self.last = Some(properties.last_enqueued().map_or(-1, |last| last.sequence_number));
    }

    /// Removes the events after the end.
    pub(super) fn cut<E: Positioned>(&mut self, batch: &mut Vec<E>) {
        let first_after = match &self.unknown {
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

    /// Returns whether all events up to the end are delivered, if this is the last one.
    pub(super) fn is_reached(&self, delivered: Option<i64>) -> bool {
        let delivered = delivered.unwrap_or(-1);
        let undelivered = self.undelivered.filter(|events| delivered >= events.after).map(|events| events.up_to);
        self.is_passed || self.last.is_some_and(|last| Some(delivered).max(undelivered) >= Some(last))
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
        end.learn_from(&properties(3, 3), NOON);
        end.undelivered = Some(Undelivered { after: 3, up_to: 9 });
        assert_eq!(left(&mut end).len(), 10);
        assert!(!end.is_reached(Some(i64::MAX)));
    }

    #[test]
    fn events_after_a_number_are_cut_off() {
        let mut end = ReadingEnd::new(Some(EndPosition::SequenceNumber(4)));
        assert!(!end.is_reached(None) && !end.is_reached(Some(3)) && end.is_reached(Some(4)));
        assert_eq!(left(&mut end), [0, 1, 2, 3, 4]);
        assert!(end.is_reached(Some(3)), "the partition has a later event");
    }

    #[test]
    fn the_latest_event_is_the_first_one_reported() {
        let mut end = ReadingEnd::new(Some(EndPosition::Latest));
        assert!(!end.is_reached(Some(9)), "nothing is known yet");
        end.learn_from(&properties(6, 6), NOON);
        end.learn_from(&properties(8, 8), NOON);
        assert!(!end.is_reached(Some(5)) && end.is_reached(Some(6)));
        let mut empty = ReadingEnd::new(Some(EndPosition::Latest));
        empty.learn_from(&PartitionProperties::new(0, None, true), NOON);
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
        let mut end = ReadingEnd::new(Some(EndPosition::EnqueuedUntil(until)));
        end.learn_from(&properties(3, 3), until + OLDEST_REPORT);
        assert_eq!(end.last, None, "the report may be from before that time");
        end.learn_from(&properties(9, 9), until + 2 * OLDEST_REPORT);
        assert_eq!(end.last, None, "a later event is still to come");
        end.learn_from(&properties(3, 3), until + 2 * OLDEST_REPORT);
        assert!(!end.is_reached(Some(2)) && end.is_reached(Some(3)));
    }

    #[test]
    fn events_that_no_link_delivers_are_not_awaited() {
        for (up_to, is_reached) in [(9, true), (6, true), (5, false)] {
            let mut end = ReadingEnd::new(Some(EndPosition::SequenceNumber(6)));
            end.undelivered = Some(Undelivered { after: 3, up_to });
            assert_eq!(end.is_reached(Some(3)), is_reached, "{up_to}");
            assert!(!end.is_reached(Some(2)), "an event before them waits for its batch");
        }
    }
}
