//! A partition: its log of events, and where in it a receiver starts.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fe2o3_amqp::Sendable;
use fe2o3_amqp_types::messaging::Body;
use fe2o3_amqp_types::primitives::Value;
use time::OffsetDateTime;
use tokio::sync::watch;

use super::message::{AnyMessage, annotate, milliseconds, timestamp};
use super::receivers::Receivers;
use super::selector::{Annotation, Selector};

/// What an event takes in the log beside its body. Offsets count bytes, so they are no sequence numbers.
const EVENT_OVERHEAD: i64 = 64;

/// What the hub knows about a partition, as a client is told it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionProperties {
    /// The partition's id.
    pub partition_id: String,
    /// The sequence number of the oldest event. Always 0, as nothing expires.
    pub beginning_sequence_number: i64,
    /// The sequence number of the newest event, -1 if there is none.
    pub last_enqueued_sequence_number: i64,
    /// The offset of the newest event, `"-1"` if there is none.
    pub last_enqueued_offset: String,
    /// When the newest event was appended, if there is one.
    pub last_enqueued_time: Option<OffsetDateTime>,
    /// Whether there is no event.
    pub is_empty: bool,
}

/// An event as it lies in the log.
pub(super) struct StoredEvent {
    position: Position,
    pub(super) sendable: Sendable<Body<Value>>,
}

/// Where an event stands. All of it only grows along the log.
#[derive(Clone, Copy, Debug)]
struct Position {
    sequence_number: i64,
    offset: i64,
    enqueued_at: OffsetDateTime,
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

/// A start above all that the partition ever held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BeyondEnd {
    by: Annotation,
    supplied: i64,
    last: i64,
}

impl fmt::Display for BeyondEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, supplied, last } = self;
        let what = match by {
            Annotation::Offset => "offset",
            Annotation::SequenceNumber => "sequence number",
            Annotation::EnqueuedTime => "enqueued time",
        };
        write!(f, "The supplied {what} '{supplied}' is invalid. The last {what} in the system is '{last}'")
    }
}

#[derive(Default)]
struct Log {
    events: Vec<Arc<StoredEvent>>,
    next_offset: i64,
}

pub(super) struct Partition {
    id: String,
    log: Mutex<Log>,
    /// The number of events, for receivers that wait for more.
    length: watch::Sender<usize>,
    receivers: Arc<Receivers>,
}

impl Partition {
    pub(super) fn new(id: String) -> Self {
        Self { id, log: Mutex::default(), length: watch::channel(0).0, receivers: Arc::default() }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn receivers(&self) -> &Arc<Receivers> {
        &self.receivers
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends these events in order, with nothing between them.
    pub(super) fn append(&self, events: Vec<AnyMessage>, partition_key: Option<&str>, now: OffsetDateTime) {
        let mut log = self.log();
        for event in events {
            log.append(event, partition_key, now);
        }
        self.length.send_replace(log.events.len());
    }

    pub(super) fn get(&self, index: usize) -> Option<Arc<StoredEvent>> {
        self.log().events.get(index).cloned()
    }

    /// Follows the number of events.
    pub(super) fn length(&self) -> watch::Receiver<usize> {
        self.length.subscribe()
    }

    /// The index in the log of the first event for a receiver with this selector.
    pub(super) fn start(&self, selector: Selector) -> Result<usize, BeyondEnd> {
        let log = self.log();
        start(&log.events, |event| event.position, selector)
    }

    pub(super) fn event_count(&self) -> usize {
        self.log().events.len()
    }

    pub(super) fn properties(&self) -> PartitionProperties {
        let last = self.log().events.last().map(|event| event.position);
        PartitionProperties {
            partition_id: self.id.clone(),
            beginning_sequence_number: 0,
            last_enqueued_sequence_number: last.map_or(-1, |last| last.sequence_number),
            last_enqueued_offset: last.map_or(-1, |last| last.offset).to_string(),
            last_enqueued_time: last.map(|last| last.enqueued_at),
            is_empty: last.is_none(),
        }
    }
}

impl Log {
    fn append(&mut self, mut event: AnyMessage, partition_key: Option<&str>, now: OffsetDateTime) {
        let last = self.events.last().map(|last| last.position);
        let position = Position {
            sequence_number: last.map_or(0, |last| last.sequence_number + 1),
            offset: self.next_offset,
            // The wall clock may be put back; a partition's time never goes back.
            enqueued_at: last.map_or(now, |last| last.enqueued_at.max(now)),
        };
        self.next_offset += EVENT_OVERHEAD + body_size(&event);

        event.header = None;
        event.delivery_annotations = None;
        annotate(&mut event, "x-opt-sequence-number", Value::Long(position.sequence_number));
        annotate(&mut event, "x-opt-offset", Value::String(position.offset.to_string()));
        annotate(&mut event, "x-opt-enqueued-time", timestamp(position.enqueued_at));
        if let Some(key) = partition_key {
            annotate(&mut event, "x-opt-partition-key", Value::String(key.to_owned()));
        }
        let sendable = Sendable::builder().message(event).settled(false).build();
        self.events.push(Arc::new(StoredEvent { position, sendable }));
    }
}

/// Short, for the log names it with every link.
impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = *self.length.borrow();
        f.debug_struct("Partition").field("id", &self.id).field("events", &events).finish_non_exhaustive()
    }
}

fn body_size(event: &AnyMessage) -> i64 {
    let size = match &event.body {
        Body::Data(parts) => parts.iter().map(|part| part.0.len()).sum(),
        _ => 0,
    };
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// The index of the first of these events that the selector selects.
///
/// Offsets and sequence numbers above the last one are refused, as the service does; a time in the future is not.
fn start<E>(events: &[E], position: impl Fn(&E) -> Position, selector: Selector) -> Result<usize, BeyondEnd> {
    let (by, value, inclusive) = match selector {
        Selector::Latest { inclusive: false } => return Ok(events.len()),
        Selector::Latest { inclusive: true } => return Ok(events.len().saturating_sub(1)),
        Selector::From { by, value, inclusive } => (by, value, inclusive),
    };
    let last = events.last().map_or(-1, |last| position(last).value(by));
    if value > last && by != Annotation::EnqueuedTime {
        return Err(BeyondEnd { by, supplied: value, last });
    }
    Ok(events.partition_point(|event| {
        let at = position(event).value(by);
        at < value || (at == value && !inclusive)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fe2o3_amqp_types::messaging::{Data, Message};
    use fe2o3_amqp_types::primitives::Binary;
    use time::Duration;
    use time::macros::datetime;

    const BASE: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

    /// Three events, 100 apart in offset and one second apart in time.
    fn three() -> [Position; 3] {
        [0, 1, 2].map(|n| Position { sequence_number: n, offset: n * 100, enqueued_at: BASE + Duration::seconds(n) })
    }

    fn start_in(events: &[Position], by: Annotation, value: i64, inclusive: bool) -> Result<usize, BeyondEnd> {
        start(events, |event| *event, Selector::From { by, value, inclusive })
    }

    #[test]
    fn starts_after_an_event_or_with_it() {
        use Annotation::{EnqueuedTime, Offset, SequenceNumber};
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
            assert_eq!(start_in(&three(), by, value, false), Ok(exclusive), "{by:?} > {value}");
            assert_eq!(start_in(&three(), by, value, true), Ok(inclusive), "{by:?} >= {value}");
        }
    }

    #[test]
    fn starts_at_the_end_or_with_the_last_event() {
        let latest = |events: &[Position], inclusive| start(events, |event| *event, Selector::Latest { inclusive });
        assert_eq!((latest(&three(), false), latest(&three(), true)), (Ok(3), Ok(2)));
        assert_eq!((latest(&[], false), latest(&[], true)), (Ok(0), Ok(0)));
        assert_eq!(start(&[], |event: &Position| *event, Selector::EARLIEST), Ok(0));
    }

    #[test]
    fn refuses_a_position_above_the_last_one() {
        let refusal = start_in(&three(), Annotation::SequenceNumber, 3, true).expect_err("there is no 3");
        let text = "The supplied sequence number '3' is invalid. The last sequence number in the system is '2'";
        assert_eq!(refusal.to_string(), text);
        assert!(start_in(&three(), Annotation::Offset, 201, false).is_err());
        assert!(start_in(&[], Annotation::Offset, 0, true).is_err());
    }

    fn event(body: &[u8]) -> AnyMessage {
        Message::builder().body(Body::Data(vec![Data(Binary::from(body.to_vec()))].into())).build()
    }

    #[test]
    fn numbers_and_dates_what_it_appends() {
        let partition = Partition::new("7".into());
        assert_eq!(partition.properties().last_enqueued_offset, "-1");
        assert!(partition.properties().is_empty);

        partition.append(vec![event(b"0123456789"), event(b"")], Some("key"), BASE);
        partition.append(vec![event(b"")], None, BASE - Duration::HOUR);

        let expected = PartitionProperties {
            partition_id: "7".into(),
            beginning_sequence_number: 0,
            last_enqueued_sequence_number: 2,
            last_enqueued_offset: "138".into(),
            last_enqueued_time: Some(BASE),
            is_empty: false,
        };
        assert_eq!(partition.properties(), expected);
        assert_eq!((partition.event_count(), *partition.length().borrow()), (3, 3));
        assert!(partition.get(2).is_some() && partition.get(3).is_none());
    }
}
