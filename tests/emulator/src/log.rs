//! The events of a partition in order, and the start positions of receivers.

use std::collections::VecDeque;
use std::sync::Arc;

use fe2o3_amqp::Sendable;
use fe2o3_amqp_types::messaging::{Data, Message};
use fe2o3_amqp_types::primitives::Binary;
use time::OffsetDateTime;

use super::bad_start::{BadStart, Bound, OutOfRange};
use super::event::{Annotations, Event};
use super::geo::ReplicatedOffset;
use super::message::milliseconds;
use super::retention::Retention;
use super::selector::{Annotation, Selector};
use super::settings::HubSettings;

/// The size of an event in the log, in addition to its body. Offsets count bytes, so they differ from sequence numbers.
const EVENT_OVERHEAD: i64 = 64;

/// The epoch of an event hub before the first promotion.
const FIRST_EPOCH: i32 = 1;

/// An event in the log.
pub(super) struct StoredEvent {
    pub(super) position: Position,
    /// The encoded event, as `payloads` expects it.
    pub(super) sendable: Sendable<Data>,
}

/// The position of an event. All fields increase along the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) sequence_number: i64,
    pub(super) offset: i64,
    pub(super) enqueued_at: OffsetDateTime,
}

impl Position {
    fn value(&self, by: Annotation) -> i64 {
        match by {
            Annotation::Offset => self.offset,
            Annotation::SequenceNumber => self.sequence_number,
            Annotation::EnqueuedTime => milliseconds(self.enqueued_at),
        }
    }
}

pub(super) struct Log {
    retention: Retention,
    /// The number of the replication epoch, if the event hub is geo-replicated.
    epoch: Option<i32>,
    /// Without those that have expired or were removed.
    events: VecDeque<Arc<StoredEvent>>,
    /// The position of the newest event, which may not exist anymore.
    last: Option<Position>,
    /// The position of the newest expired event.
    expired: Option<Position>,
    next_offset: i64,
}

impl Log {
    pub(super) fn new(settings: &HubSettings) -> Self {
        let epoch = settings.is_geo_replicated.then_some(FIRST_EPOCH);
        let retention = settings.retention;
        Self { retention, epoch, events: VecDeque::new(), last: None, expired: None, next_offset: 0 }
    }

    pub(super) fn epoch(&self) -> Option<i32> {
        self.epoch
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the sequence number of the oldest event, or of the next event if there is none.
    pub(super) fn begin(&self) -> i64 {
        self.events.front().map_or(self.end(), |first| first.position.sequence_number)
    }

    /// Returns the sequence number of the next event.
    pub(super) fn end(&self) -> i64 {
        self.last().map_or(0, |last| last.sequence_number + 1)
    }

    /// Returns the position of the newest event, whether it still exists or not.
    pub(super) fn last(&self) -> Option<Position> {
        self.last
    }

    /// Returns the event with this sequence number, or the next one if that event does not exist anymore. If there is
    /// none yet, returns the sequence number to wait for.
    pub(super) fn at_or_after(&self, sequence_number: i64) -> Result<Arc<StoredEvent>, i64> {
        let event = self.events.get(self.place_of(sequence_number));
        event.cloned().ok_or_else(|| sequence_number.max(self.end()))
    }

    /// Returns the number of events before this sequence number.
    fn place_of(&self, sequence_number: i64) -> usize {
        self.events.partition_point(|event| event.position.sequence_number < sequence_number)
    }

    /// Removes the event with this sequence number, as a compaction does. Returns whether it existed.
    pub(super) fn remove(&mut self, sequence_number: i64) -> bool {
        let place = self.place_of(sequence_number);
        let exists = self.events.get(place).is_some_and(|event| event.position.sequence_number == sequence_number);
        if exists {
            self.events.remove(place);
        }
        exists
    }

    /// Begins the next epoch without the newest `lost` events, whose numbers are used again.
    pub(super) fn promote(&mut self, lost: usize) {
        self.epoch = self.epoch.map(|epoch| epoch + 1);
        self.events.truncate(self.events.len().saturating_sub(lost));
        if lost > 0 {
            self.last = self.events.back().map(|last| last.position).or(self.expired);
        }
    }

    /// Expires the events before this sequence number. Returns their number.
    pub(super) fn expire_before(&mut self, sequence_number: i64) -> usize {
        let expired = self.place_of(sequence_number);
        if let Some(newest) = self.events.drain(..expired).next_back() {
            self.expired = Some(newest.position);
        }
        expired
    }

    /// Appends the event. If there are too many events then, the oldest one expires.
    pub(super) fn append(&mut self, event: &Event<'_>, partition_key: Option<&str>, now: OffsetDateTime) {
        let position = Position {
            sequence_number: self.end(),
            offset: self.next_offset,
            // The wall clock may be set back; the time of a partition never decreases.
            enqueued_at: self.last().map_or(now, |last| last.enqueued_at.max(now)),
        };
        let size: usize = event.data().map(<[u8]>::len).sum();
        self.next_offset += EVENT_OVERHEAD + i64::try_from(size).unwrap_or(i64::MAX);

        let annotated = event.annotated(Annotations {
            sequence_number: position.sequence_number,
            offset: &self.offset_text(position),
            enqueued_at: position.enqueued_at,
            partition_key,
        });
        let message = Message::builder().data(Binary::from(annotated)).build();
        let sendable = Sendable::builder().message(message).settled(true).build();
        self.events.push_back(Arc::new(StoredEvent { position, sendable }));
        self.last = Some(position);
        if self.events.len() > self.retention.count {
            self.expired = self.events.pop_front().map(|oldest| oldest.position);
        }
    }

    /// Returns the offset that receivers see.
    fn offset_text(&self, Position { offset, sequence_number, .. }: Position) -> String {
        match self.epoch {
            Some(epoch) => ReplicatedOffset { epoch, offset, sequence_number }.to_string(),
            None => offset.to_string(),
        }
    }

    /// Returns the sequence number of the first event for a receiver with this selector.
    pub(super) fn start(&self, selector: Selector) -> Result<i64, BadStart> {
        let (by, value, inclusive) = match selector {
            Selector::From { by: Annotation::Offset, value: offset @ 0.., .. } if self.epoch.is_some() => {
                return Err(BadStart::NotReplicated { offset });
            }
            Selector::Replicated { offset, .. } if self.epoch.is_none() => {
                return Err(BadStart::Replicated { offset });
            }
            Selector::Replicated { offset, inclusive } => {
                (Annotation::SequenceNumber, offset.sequence_number, inclusive)
            }
            Selector::Latest { inclusive: false } => return Ok(self.end()),
            Selector::Latest { inclusive: true } => return Ok(self.begin().max(self.end() - 1)),
            Selector::From { by, value, inclusive } => (by, value, inclusive),
        };
        self.check(by, value, inclusive)?;
        let before = self.events.partition_point(|event| {
            let at = event.position.value(by);
            at < value || (at == value && !inclusive)
        });
        Ok(self.events.get(before).map_or(self.end(), |first| first.position.sequence_number))
    }

    /// Rejects offsets and sequence numbers after the last one, as the service does. A time in the future is accepted.
    fn check(&self, by: Annotation, supplied: i64, inclusive: bool) -> Result<(), OutOfRange> {
        if by == Annotation::EnqueuedTime {
            return Ok(());
        }
        let last = self.last().map_or(-1, |last| last.value(by));
        if supplied > last {
            return Err(OutOfRange { by, supplied, bound: Bound::Last(last) });
        }
        // A negative value means the earliest event.
        let (true, 0.., Some(expired)) = (self.retention.reject_expired, supplied, self.expired) else { return Ok(()) };
        let expired = expired.value(by);
        if supplied < expired || (supplied == expired && inclusive) {
            let first = self.events.front().map_or(-1, |first| first.position.value(by));
            return Err(OutOfRange { by, supplied, bound: Bound::First(first) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fe2o3_amqp_types::definitions::Error;
    use time::Duration;
    use time::macros::datetime;

    const BASE: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);
    const KEEP_ALL: Retention = Retention { count: usize::MAX, reject_expired: false };

    /// A data section. With its overhead the event takes 100 bytes.
    const EVENT: [u8; 41] = {
        let mut encoded = [0; 41];
        [encoded[1], encoded[2], encoded[3], encoded[4]] = [0x53, 0x75, 0xa0, 36];
        encoded
    };

    fn append(log: &mut Log, now: OffsetDateTime) {
        log.append(&Event::parse(&EVENT).expect("an event"), None, now);
    }

    /// Returns a log with this many events, whose offsets differ by 100 and whose times differ by one second.
    fn filled(events: i64, retention: Retention) -> Log {
        let mut log = Log::new(&HubSettings { retention, ..HubSettings::new("hub") });
        for n in 0..events {
            append(&mut log, BASE + Duration::seconds(n));
        }
        log
    }

    fn start_in(log: &Log, by: Annotation, value: i64, inclusive: bool) -> Result<i64, BadStart> {
        log.start(Selector::From { by, value, inclusive })
    }

    #[test]
    fn start_is_exclusive_or_inclusive() {
        use Annotation::{EnqueuedTime, Offset, SequenceNumber};
        let three = filled(3, KEEP_ALL);
        let time = milliseconds(BASE) + 1000;
        for (by, value, exclusive, inclusive) in [
            (Offset, -1, 0, 0),
            (Offset, 0, 1, 0),
            (Offset, 100, 2, 1),
            (Offset, 150, 2, 2),
            (Offset, 200, 3, 2),
            (SequenceNumber, -1, 0, 0),
            (SequenceNumber, 1, 2, 1),
            (SequenceNumber, 2, 3, 2),
            (EnqueuedTime, 0, 0, 0),
            (EnqueuedTime, time, 2, 1),
            (EnqueuedTime, time + 1, 2, 2),
            (EnqueuedTime, i64::MAX, 3, 3),
        ] {
            assert_eq!(start_in(&three, by, value, false), Ok(exclusive), "{by:?} > {value}");
            assert_eq!(start_in(&three, by, value, true), Ok(inclusive), "{by:?} >= {value}");
        }
    }

    #[test]
    fn latest_is_exclusive_or_inclusive() {
        let latest = |log: &Log, inclusive| log.start(Selector::Latest { inclusive });
        let (empty, three) = (filled(0, KEEP_ALL), filled(3, KEEP_ALL));
        assert_eq!((latest(&three, false), latest(&three, true)), (Ok(3), Ok(2)));
        assert_eq!((latest(&empty, false), latest(&empty, true)), (Ok(0), Ok(0)));
        assert_eq!(empty.start(Selector::EARLIEST), Ok(0));
    }

    #[test]
    fn positions_after_the_last_event_are_rejected() {
        let three = filled(3, KEEP_ALL);
        let refusal = start_in(&three, Annotation::SequenceNumber, 3, true).expect_err("there is no 3");
        let text = "The supplied sequence number '3' is invalid. The last sequence number in the system is '2'";
        assert_eq!(Error::from(refusal).description.as_deref(), Some(text));
        assert!(start_in(&three, Annotation::Offset, 201, false).is_err());
        assert!(start_in(&filled(0, KEEP_ALL), Annotation::Offset, 0, true).is_err());
    }

    #[test]
    fn retention_keeps_the_newest_events() {
        let log = filled(10, Retention { count: 3, reject_expired: false });
        assert_eq!((log.len(), log.begin(), log.end()), (3, 7, 10));
        assert_eq!(log.last().map(|last| last.offset), Some(900));
        for (requested, expected) in [(0, Some(7)), (7, Some(7)), (9, Some(9)), (10, None)] {
            assert_eq!(
                log.at_or_after(requested).ok().map(|event| event.position.sequence_number),
                expected,
                "{requested}"
            );
        }
    }

    #[test]
    fn numbers_continue_after_all_events_have_expired() {
        let mut log = filled(10, KEEP_ALL);
        log.expire_before(4);
        assert_eq!((log.len(), log.begin(), log.end()), (6, 4, 10));
        log.expire_before(2);
        log.expire_before(i64::MAX);
        log.expire_before(i64::MAX);
        assert_eq!((log.len(), log.begin(), log.end()), (0, 10, 10));
        assert_eq!(log.last().map(|last| (last.sequence_number, last.offset)), Some((9, 900)));
        for (requested, awaited) in [(0, 10), (9, 10), (10, 10), (12, 12)] {
            assert_eq!(log.at_or_after(requested).err(), Some(awaited), "{requested}");
        }
        for inclusive in [false, true] {
            assert_eq!(log.start(Selector::Latest { inclusive }), Ok(10));
            assert_eq!(start_in(&log, Annotation::SequenceNumber, 9, inclusive), Ok(10));
        }
        assert_eq!(log.start(Selector::EARLIEST), Ok(10));
        assert!(start_in(&log, Annotation::SequenceNumber, 10, true).is_err());
        append(&mut log, BASE);
        assert_eq!((log.len(), log.begin(), log.end()), (1, 10, 11));
        assert_eq!(log.last().map(|last| (last.offset, last.enqueued_at)), Some((1000, BASE + Duration::seconds(9))));
        assert_eq!(log.at_or_after(3).ok().map(|event| event.position.sequence_number), Some(10));
    }

    #[test]
    fn a_geo_replicated_log_starts_at_its_own_offsets() {
        let mut log = Log::new(&HubSettings::new("hub").with_geo_replication());
        (0..3).for_each(|_| append(&mut log, BASE));
        let replicated =
            |sequence_number| ReplicatedOffset { epoch: 1, offset: 100 * sequence_number, sequence_number };
        let start_at = |number, inclusive| log.start(Selector::Replicated { offset: replicated(number), inclusive });
        assert_eq!((start_at(1, false), start_at(1, true)), (Ok(2), Ok(1)));
        assert_eq!(start_in(&log, Annotation::SequenceNumber, 1, false), Ok(2));
        assert_eq!(start_in(&log, Annotation::Offset, -1, false), Ok(0));
        assert_eq!(start_in(&log, Annotation::Offset, 100, false), Err(BadStart::NotReplicated { offset: 100 }));
        let offset = replicated(1);
        let elsewhere = filled(3, KEEP_ALL).start(Selector::Replicated { offset, inclusive: true });
        assert_eq!(elsewhere, Err(BadStart::Replicated { offset }));
    }

    #[test]
    fn a_promotion_uses_the_numbers_of_lost_events_again() {
        let mut log = Log::new(&HubSettings::new("hub").with_geo_replication());
        (0..5).for_each(|_| append(&mut log, BASE));
        log.promote(2);
        assert_eq!((log.len(), log.end(), log.epoch()), (3, 3, Some(2)));
        append(&mut log, BASE);
        assert_eq!(log.last().map(|last| last.sequence_number), Some(3));
        log.promote(9);
        assert_eq!((log.len(), log.end()), (0, 0));
    }

    #[test]
    fn a_removed_event_is_skipped_and_stays_the_end() {
        let mut log = filled(5, KEEP_ALL);
        assert!(log.remove(2) && log.remove(4) && !log.remove(2) && !log.remove(9));
        let delivered = |from| log.at_or_after(from).map(|event| event.position.sequence_number);
        assert_eq!((delivered(1), delivered(2), delivered(4)), (Ok(1), Ok(3), Err(5)));
        assert_eq!((log.len(), log.end(), log.last().map(|last| last.sequence_number)), (3, 5, Some(4)));
        assert_eq!(start_in(&log, Annotation::SequenceNumber, 3, false), Ok(5));
        append(&mut log, BASE);
        assert_eq!(log.at_or_after(4).map(|event| event.position.sequence_number), Ok(5));
    }

    #[test]
    fn expired_start_means_the_oldest_event() {
        use Annotation::{EnqueuedTime, Offset, SequenceNumber};
        let log = filled(10, Retention { count: 3, reject_expired: false });
        assert_eq!(log.start(Selector::EARLIEST), Ok(7));
        for (by, value) in [(Offset, 0), (Offset, 600), (SequenceNumber, 2), (EnqueuedTime, milliseconds(BASE))] {
            assert_eq!(start_in(&log, by, value, true), Ok(7), "{by:?} >= {value}");
        }
        assert_eq!(start_in(&log, SequenceNumber, 7, false), Ok(8));
    }

    /// Only positions that would skip an event are rejected.
    #[test]
    fn expired_positions_are_rejected_on_request() {
        use Annotation::{EnqueuedTime, Offset, SequenceNumber};
        let log = filled(10, Retention { count: 3, reject_expired: true });
        let refusal = start_in(&log, Offset, 500, false).expect_err("event 600 would be skipped");
        let text = "The supplied offset '500' is invalid. The first offset in the system is '700'";
        assert_eq!(Error::from(refusal).description.as_deref(), Some(text));
        assert!(start_in(&log, SequenceNumber, 6, true).is_err());
        for (by, value, inclusive) in [(Offset, 600, false), (SequenceNumber, 6, false), (SequenceNumber, 7, true)] {
            assert_eq!(start_in(&log, by, value, inclusive), Ok(7), "{by:?} {value} {inclusive}");
        }
        assert_eq!(log.start(Selector::EARLIEST), Ok(7));
        assert_eq!(start_in(&log, EnqueuedTime, 0, true), Ok(7));
        let whole = filled(3, Retention { count: 3, reject_expired: true });
        assert_eq!(start_in(&whole, SequenceNumber, 0, true), Ok(0));
    }
}
