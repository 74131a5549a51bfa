//! The events of one partition.

use std::collections::VecDeque;
use std::ops::Range;

use time::OffsetDateTime;

use super::event::{MemoryEvent, NewEvent, STRIDE, offset};
use crate::error::{Error, Result};
use crate::model::Position;
use crate::source::StartPosition;
use crate::source::{PartitionProperties, undecodable};
use crate::testing::EmptiedReport;

#[derive(Debug, Default)]
pub(super) struct Log {
    /// The number of the first event that has not expired, or of the next event.
    first: i64,
    events: VecDeque<Stored>,
    /// The time of the last event, expired or not.
    last_enqueued_at: Option<OffsetDateTime>,
}

#[derive(Debug)]
struct Stored {
    event: MemoryEvent,
    content: Content,
}

/// What a reader gets of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Readable,
    Undecodable,
    /// Compaction has removed it.
    Removed,
}

impl Log {
    /// Returns the number of the next event.
    fn end(&self) -> i64 {
        self.first.saturating_add_unsigned(self.events.len() as u64)
    }

    /// Appends this many copies of the event, and returns their numbers.
    pub(super) fn append(&mut self, copies: usize, event: &NewEvent, now: OffsetDateTime) -> Range<i64> {
        let begin = self.end();
        let numbers = begin..begin.saturating_add_unsigned(copies as u64);
        self.events.extend(numbers.clone().map(|number| Stored {
            event: MemoryEvent::from_published(number, event, now),
            content: Content::Readable,
        }));
        if let Some(last) = self.events.back().filter(|_| !numbers.is_empty()) {
            self.last_enqueued_at = Some(last.event.enqueued_at);
        }
        numbers
    }

    /// Returns the events from this number on, at most `limit`, and the number to continue with. Expired and removed
    /// events are left out.
    ///
    /// # Errors
    ///
    /// If the next event cannot be decoded.
    pub(super) fn read(&self, next: i64, limit: usize) -> Result<(Vec<MemoryEvent>, i64)> {
        let (mut events, mut next) = (Vec::new(), next.max(self.first));
        for stored in self.events.range(self.index(next)..) {
            match stored.content {
                _ if events.len() == limit => break,
                Content::Readable => events.push(stored.event.clone()),
                Content::Removed => {}
                Content::Undecodable if events.is_empty() => return Err(undecodable(None, "it was published as such")),
                Content::Undecodable => break,
            }
            next = next.saturating_add(1);
        }
        Ok((events, next))
    }

    /// Changes what readers get of an event. Returns whether it exists.
    pub(super) fn set_content(&mut self, sequence_number: i64, content: Content) -> bool {
        let index = usize::try_from(sequence_number.saturating_sub(self.first)).ok();
        let stored = index.and_then(|index| self.events.get_mut(index));
        stored.map(|stored| stored.content = content).is_some()
    }

    pub(super) fn expire_before(&mut self, sequence_number: i64) {
        let expired = self.index(sequence_number);
        self.events.drain(..expired);
        self.first = self.first.saturating_add_unsigned(expired as u64);
    }

    pub(super) fn properties(&self, emptied: EmptiedReport) -> PartitionProperties {
        let last = self.end() - 1;
        let is_empty = self.events.is_empty();
        let first = if is_empty && last >= 0 { emptied.beginning(last) } else { self.first };
        let last = Position::new(last, offset(last));
        let properties = PartitionProperties::new(first, Some(last), is_empty);
        match self.last_enqueued_at {
            Some(time) => properties.with_last_enqueued_at(time),
            None => properties,
        }
    }

    /// Returns the number of the first event to read, and the number of the next event of the partition. The first
    /// number may be greater than the second.
    pub(super) fn start(&self, from: &StartPosition) -> Result<(i64, i64)> {
        let next = match from {
            StartPosition::Earliest => self.first,
            StartPosition::Latest => self.end(),
            StartPosition::AfterSequenceNumber(seen) => seen.saturating_add(1),
            StartPosition::AfterOffset(offset) => {
                let seen: i64 =
                    offset.parse().map_err(|_| Error::config(format!("offset {offset:?} is not a number")))?;
                seen.div_euclid(STRIDE).saturating_add(1)
            }
            StartPosition::EnqueuedAfter(time) => {
                let before = self.events.partition_point(|stored| stored.event.enqueued_at <= *time);
                self.first.saturating_add_unsigned(before as u64)
            }
        };
        Ok((next.max(self.first), self.end()))
    }

    /// Returns the index of this event, or the nearest valid index if the event has expired or does not exist yet.
    fn index(&self, sequence_number: i64) -> usize {
        usize::try_from(sequence_number.saturating_sub(self.first)).unwrap_or(0).min(self.events.len())
    }
}
