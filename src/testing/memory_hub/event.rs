//! An event of the hub.

use std::sync::Arc;

use crate::source::Positioned;

/// An event of a [`MemoryHub`](super::MemoryHub). Its texts are shared, so a read does not copy them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEvent {
    /// The sequence number, starting at 0.
    pub sequence_number: i64,
    /// The sequence number times 10, as text.
    pub offset: Arc<str>,
    /// The published body.
    pub body: Arc<str>,
}

impl MemoryEvent {
    /// Creates an event with this sequence number, and with the offset that the hub assigns to it.
    #[must_use]
    pub fn new(sequence_number: i64, body: impl Into<Arc<str>>) -> Self {
        Self { sequence_number, offset: (sequence_number * 10).to_string().into(), body: body.into() }
    }
}

impl Positioned for MemoryEvent {
    fn sequence_number(&self) -> Option<i64> {
        Some(self.sequence_number)
    }

    fn offset(&self) -> Option<&str> {
        Some(&self.offset)
    }
}
