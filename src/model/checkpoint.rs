//! How far a partition was processed.

use std::collections::BTreeMap;

use serde::Serialize;
use time::OffsetDateTime;

use super::owner::OwnerId;

/// A place in a partition: an event that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Position {
    /// Grows with every event of the partition.
    pub sequence_number: i64,
    /// Text whose meaning only the service knows.
    pub offset: String,
}

impl Position {
    /// The place of the event with this sequence number and offset.
    #[must_use]
    pub fn new(sequence_number: i64, offset: impl Into<String>) -> Self {
        Self { sequence_number, offset: offset.into() }
    }
}

/// What a checkpoint blob says. Either part of the position may be missing: other SDKs leave them out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointRecord {
    /// The sequence number of the last event processed.
    pub sequence_number: Option<i64>,
    /// The offset of that event.
    pub offset: Option<String>,
    /// Who wrote it. Information only: what fences is the ETag.
    pub owner: Option<OwnerId>,
    /// When it was written, by the server's clock.
    pub updated_at: Option<OffsetDateTime>,
    /// The ETag of the same partition's checkpoint in the other tree of names, when it was last looked at; `none` in a
    /// [start](Self::initial) that was written down while there was none.
    pub source_etag: Option<String>,
    /// The position is a start that was written down before any event up to it was processed. It is a usable position
    /// for every reader, but says nothing about progress: any checkpoint of an owner replaces it, a smaller one too.
    pub initial: bool,
    /// Keys that this version does not read. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl CheckpointRecord {
    /// Whether it names any position at all.
    #[must_use]
    pub fn has_position(&self) -> bool {
        self.sequence_number.is_some() || self.offset.is_some()
    }
}
