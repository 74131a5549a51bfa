//! Resolves a start to a position, which a checkpoint can record.
//!
//! The properties of the partition are enough for most starts. For the others the processor opens receivers to find one
//! event. The position found is at the start or before it, never after it: an extra event is only processed again, but
//! a skipped event is lost. So the properties must have been read before any receiver is opened.
//!
//! An owner opens these receivers with its own epoch. With a lower epoch the broker could reject them while the
//! previous owner is still attached. With a higher epoch the broker could reject the owner's own receiver while they
//! are attached. For a partition that this instance may not own, the epoch is [`NO_EPOCH`](super::NO_EPOCH), with which
//! a receiver displaces no other: the search must not interrupt the owner.

use std::error::Error as _;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::timeout;

use super::event::Positioned;
use super::offset_format::{BEFORE_EVERYTHING, is_offset_beyond_end, plain_number};
use super::properties::PartitionProperties;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{PartitionId, Position};
use crate::source::{CLOSE_LIMIT, EventSource, StartPosition, guard_request};

/// How long a receiver may take to deliver an event. After that time it counts as a receiver that has nothing to
/// deliver.
const FIRST_EVENT_LIMIT: Duration = Duration::from_secs(10);

/// How much earlier to look for an event that the source can decode, one after another.
const EARLIER: &[Duration] =
    &[Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(3600), Duration::from_secs(24 * 3600)];

/// What must be found to resolve a start.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sought {
    /// Nothing: the properties show the position.
    Known(Position),
    /// The offset of this event, which the partition holds.
    Offset(i64),
    /// The first event after the start.
    First {
        /// True if the partition holds such an event. Otherwise there may be none yet.
        exists: bool,
    },
}

/// Returns what must be found. A sequence number or an offset after the end resolves to the end: later events are
/// processed when they arrive.
fn plan_search(start: &StartPosition, properties: &PartitionProperties) -> Sought {
    let beginning = Sought::Known(properties.beginning_position());
    let end = Sought::Known(properties.end_position());
    let Some(last) = properties.last_enqueued() else { return end };
    match start {
        StartPosition::Earliest => beginning,
        StartPosition::Latest => end,
        StartPosition::AfterSequenceNumber(number) if *number >= last.sequence_number => end,
        StartPosition::AfterSequenceNumber(number) if *number < properties.beginning_sequence_number() => beginning,
        StartPosition::AfterSequenceNumber(number) => Sought::Offset(*number),
        StartPosition::AfterOffset(offset) if offset == BEFORE_EVERYTHING => beginning,
        StartPosition::EnqueuedAfter(time) if *time <= OffsetDateTime::UNIX_EPOCH => beginning,
        StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) if properties.is_empty() => end,
        StartPosition::AfterOffset(offset) if *offset == last.offset => end,
        StartPosition::AfterOffset(offset) => match plain_number(offset) {
            Some(offset) if is_offset_beyond_end(offset, Some(last)) => end,
            offset => Sought::First { exists: offset.is_some() && plain_number(&last.offset).is_some() },
        },
        StartPosition::EnqueuedAfter(time) => match properties.last_enqueued_at() {
            Some(last) if last <= *time => end,
            last => Sought::First { exists: last.is_some() },
        },
    }
}

/// Returns whether the event is after the start, so that a receiver opened there must deliver it; `None` if that is
/// unknown.
fn is_after(start: &StartPosition, event: &impl Positioned) -> Option<bool> {
    match start {
        StartPosition::EnqueuedAfter(time) => event.enqueued_at().map(|at| at > *time),
        StartPosition::AfterOffset(start) => {
            event.offset().and_then(plain_number).zip(plain_number(start)).map(|(offset, start)| offset > start)
        }
        _ => None,
    }
}

/// Resolves a start to a position. The properties must have been read just before. `epoch` is the epoch of the
/// ownership, or [`NO_EPOCH`](super::NO_EPOCH).
///
/// # Errors
///
/// [`ErrorKind::Config`] if the broker rejects the start, or if the events of the source have no sequence numbers.
/// [`ErrorKind::Fenced`] if the broker rejects the receiver because of another reader. After any other error the caller
/// should read the properties again and retry.
pub(crate) async fn resolve_start<S: EventSource>(
    source: &S,
    partition: &PartitionId,
    start: &StartPosition,
    properties: &PartitionProperties,
    epoch: i64,
) -> Result<Position> {
    let search = Search { source, partition, start, epoch };
    match plan_search(start, properties) {
        Sought::Known(position) => Ok(position),
        Sought::Offset(number) => Ok(search.find_event(number).await?.0),
        Sought::First { exists } => search.before_first(properties, exists).await,
    }
}

/// Returns whether the broker rejects the start, so that another one must be chosen.
pub(crate) fn is_rejection(error: &Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<Error>());
    [Some(error), cause].into_iter().flatten().any(|error| error.kind() == ErrorKind::InvalidPosition)
}

struct Search<'a, S> {
    source: &'a S,
    partition: &'a PartitionId,
    start: &'a StartPosition,
    epoch: i64,
}

impl<S: EventSource> Search<'_, S> {
    /// Returns the position before the first event after the start, or an earlier one if the source cannot decode that
    /// event.
    async fn before_first(&self, properties: &PartitionProperties, exists: bool) -> Result<Position> {
        let first = match self.first_event(self.start).await {
            Err(error) if error.kind() == ErrorKind::Undecodable => {
                return self.before_undecodable(properties, error).await;
            }
            first => first.map_err(|error| self.rejection_error(error))?,
        };
        let Some(first) = first else {
            // The start is the end of the partition if it received no events meanwhile and none of its events is after
            // the start.
            let now = guard_request(self.source.partition_properties(self.partition)).await?;
            if exists || now.last_enqueued() != properties.last_enqueued() || !self.nothing_is_after(&now).await? {
                return Err(
                    self.suspect_link("the link delivers nothing, although the event hub may have events after")
                );
            }
            return Ok(now.end_position());
        };
        let number = first.sequence_number().ok_or_else(|| self.missing_number_error())?;
        if number <= properties.beginning_sequence_number() {
            return Ok(properties.beginning_position());
        }
        let (before, event) = self.find_event(number.saturating_sub(1)).await?;
        if event.is_some_and(|event| is_after(self.start, &event) == Some(true)) {
            return Err(
                self.suspect_link(&format!("the link started at event {number}, which is not the first one after"))
            );
        }
        Ok(before)
    }

    /// Returns the position before an event whose number is not known, because the source cannot decode it: before the
    /// first event that it can decode and that is older than the start. Events in between are processed again.
    async fn before_undecodable(&self, properties: &PartitionProperties, error: Error) -> Result<Position> {
        let StartPosition::EnqueuedAfter(time) = self.start else { return Err(error) };
        for earlier in EARLIER {
            let start = StartPosition::EnqueuedAfter(*time - *earlier);
            let number = match self.first_event(&start).await {
                Ok(Some(event)) => event.sequence_number().ok_or_else(|| self.missing_number_error())?,
                Ok(None) => return Err(error),
                Err(error) if error.kind() == ErrorKind::Undecodable => continue,
                Err(error) => return Err(error),
            };
            if number <= properties.beginning_sequence_number() {
                return Ok(properties.beginning_position());
            }
            return Ok(self.find_event(number.saturating_sub(1)).await?.0);
        }
        Ok(properties.beginning_position())
    }

    /// Returns the position of an event, and the event if it still exists. It may have expired meanwhile. An event hub
    /// with compaction may not have it, and the source may not be able to decode it; the offset then remains unknown.
    async fn find_event(&self, number: i64) -> Result<(Position, Option<S::Event>)> {
        let event = match self.first_event(&StartPosition::AfterSequenceNumber(number.saturating_sub(1))).await {
            Err(error) if error.kind() == ErrorKind::Undecodable => None,
            event => event?,
        };
        let event = event.filter(|event| event.sequence_number() == Some(number));
        if let Some(position) = event.as_ref().and_then(Positioned::position) {
            return Ok((position, event));
        }
        let properties = guard_request(self.source.partition_properties(self.partition)).await?;
        if number < properties.beginning_sequence_number() {
            return Ok((properties.beginning_position(), None));
        }
        Ok((Position { sequence_number: number, offset: String::new() }, None))
    }

    /// Returns whether no event is after the start. One receiver that delivers nothing proves nothing. A second
    /// receiver must deliver the last event; if that event does not show whether it is after the start, a third
    /// receiver must deliver nothing, too.
    async fn nothing_is_after(&self, properties: &PartitionProperties) -> Result<bool> {
        let Some(last) = properties.last_enqueued().filter(|_| !properties.is_empty()) else { return Ok(true) };
        let Some(event) = self.find_event(last.sequence_number).await?.1 else { return Ok(false) };
        match is_after(self.start, &event) {
            Some(is_after) => Ok(!is_after),
            None => Ok(self.first_event(self.start).await?.is_none()),
        }
    }

    async fn first_event(&self, from: &StartPosition) -> Result<Option<S::Event>> {
        let mut receiver =
            guard_request(self.source.open_receiver(self.partition, from.clone(), 1, self.epoch)).await?;
        let first = timeout(FIRST_EVENT_LIMIT, receiver.next_batch(1)).await;
        receiver.close(CLOSE_LIMIT).await;
        first.map_or(Ok(None), |events| Ok(events?.into_iter().next()))
    }

    fn suspect_link(&self, what: &str) -> Error {
        self.source.connection_suspect(self.partition);
        Error::new(ErrorKind::EventSource, format!("{what} the start position {:?}", self.start))
    }

    fn rejection_error(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::InvalidPosition {
            return error;
        }
        let Self { partition, start, .. } = self;
        Error::config(format!(
            "the broker rejects the start position {start:?} of partition {partition}: choose another one"
        ))
        .with_source(error)
    }

    fn missing_number_error(&self) -> Error {
        let Self { partition, start, .. } = self;
        Error::config(format!(
            "partition {partition} cannot start at {start:?}, because the events of the source have no sequence \
             numbers: start at the earliest or the latest event"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Event(&'static str, Option<OffsetDateTime>);

    impl Positioned for Event {
        fn sequence_number(&self) -> Option<i64> {
            Some(7)
        }

        fn offset(&self) -> Option<&str> {
            Some(self.0)
        }

        fn enqueued_at(&self) -> Option<OffsetDateTime> {
            self.1
        }
    }

    const NOON: OffsetDateTime = time::macros::datetime!(2026-01-01 12:00 UTC);
    const SECOND: Duration = Duration::from_secs(1);

    fn after(offset: &str) -> StartPosition {
        StartPosition::AfterOffset(offset.to_owned())
    }

    fn holds(first: i64, last: i64, offset: &str) -> PartitionProperties {
        PartitionProperties::new(first, Some(Position { sequence_number: last, offset: offset.to_owned() }), false)
    }

    #[test]
    fn text_offsets_cannot_be_compared() {
        let sought_in = |start: &str, last: &str| plan_search(&after(start), &holds(0, 9, last));
        let end = |offset: &str| Sought::Known(holds(0, 9, offset).end_position());
        assert_eq!(sought_in("10", "90"), Sought::First { exists: true });
        assert_eq!(sought_in("91", "90"), end("90"));
        assert_eq!(sought_in("a:10", "a:90"), Sought::First { exists: false });
        assert_eq!(sought_in("91", "a:90"), Sought::First { exists: false });
        assert_eq!(sought_in("a:91", "90"), Sought::First { exists: false });
        assert_eq!(sought_in("a:90", "a:90"), end("a:90"));
    }

    #[test]
    fn a_time_is_compared_with_the_last_event() {
        let at =
            |time| plan_search(&StartPosition::EnqueuedAfter(time), &holds(0, 9, "90").with_last_enqueued_at(NOON));
        let end = Sought::Known(holds(0, 9, "90").end_position());
        assert_eq!(at(NOON - SECOND), Sought::First { exists: true });
        assert_eq!(at(NOON), end);
        assert_eq!(at(NOON + SECOND), end);
        let unknown = plan_search(&StartPosition::EnqueuedAfter(NOON), &holds(0, 9, "90"));
        assert_eq!(unknown, Sought::First { exists: false });
    }

    #[test]
    fn an_event_is_compared_by_time_or_offset() {
        let by_time = StartPosition::EnqueuedAfter(NOON);
        for (enqueued_at, expected) in [(None, None), (Some(NOON), Some(false)), (Some(NOON + SECOND), Some(true))] {
            assert_eq!(is_after(&by_time, &Event("1", enqueued_at)), expected, "{enqueued_at:?}");
        }
        for (offset, expected) in [("90", Some(false)), ("91", Some(true)), ("a:91", None)] {
            assert_eq!(is_after(&after("90"), &Event(offset, None)), expected, "{offset}");
        }
        assert_eq!(is_after(&after("a:90"), &Event("91", None)), None);
    }
}
