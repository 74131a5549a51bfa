//! The place of an event.

use time::OffsetDateTime;

use crate::model::Position;

/// An event that knows its place in the partition.
pub trait Positioned {
    /// Grows with every event of the partition.
    fn sequence_number(&self) -> Option<i64>;

    /// Text whose meaning only the service knows.
    fn offset(&self) -> Option<&str>;

    /// Both, if both are there.
    fn position(&self) -> Option<Position> {
        Some(Position { sequence_number: self.sequence_number()?, offset: self.offset()?.to_owned() })
    }

    /// When the hub enqueued it, if that is known. A link that is opened to resolve
    /// [`EnqueuedAfter`](super::StartPosition::EnqueuedAfter) is checked with it.
    fn enqueued_at(&self) -> Option<OffsetDateTime> {
        None
    }

    /// Bytes of the body, as far as known; for the byte limit of a batch.
    fn size(&self) -> usize {
        0
    }
}
