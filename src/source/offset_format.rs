//! The two formats of offsets.
//!
//! Usually an offset is a plain number. In a namespace with geo-replication the offsets of events are text, but the
//! properties of a partition still report a plain number, which the namespace rejects as a start
//! (`TestConsumerClient_GeoDR` of Azure/azure-sdk-for-go). It accepts sequence numbers. So positions that come from the
//! properties are recorded without an offset there: it is empty, and a reader starts by the sequence number.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::Position;

/// The offset of the position before all events.
pub(crate) const BEFORE_EVERYTHING: &str = "-1";

/// The format that the checkpoints of the group show.
#[derive(Debug, Default)]
pub(crate) struct OffsetFormat {
    is_text: AtomicBool,
}

impl OffsetFormat {
    /// Records the offset of a checkpoint.
    pub(crate) fn record_offset(&self, offset: Option<&str>) {
        if offset.is_some_and(is_text) {
            self.is_text.store(true, Ordering::Relaxed);
        }
    }

    /// Returns a position as a checkpoint records it.
    pub(crate) fn to_recordable(&self, position: Position) -> Position {
        if self.is_text.load(Ordering::Relaxed) && plain_number(&position.offset).is_some() {
            return Position { offset: String::new(), ..position };
        }
        position
    }
}

/// Returns whether the offset is one of a namespace with geo-replication.
pub(crate) fn is_text(offset: &str) -> bool {
    plain_number(offset).is_none() && !offset.is_empty() && offset != BEFORE_EVERYTHING
}

/// Returns the offset if it is a plain number. With geo-replication offsets are text that changes with the replica, so
/// a difference means nothing.
pub(crate) fn plain_number(offset: &str) -> Option<u64> {
    offset.bytes().all(|byte| byte.is_ascii_digit()).then(|| offset.parse().ok()).flatten()
}

/// Returns whether two offsets for one sequence number show that they belong to different events.
pub(crate) fn names_another_event(one: &str, other: &str) -> bool {
    plain_number(one).zip(plain_number(other)).is_some_and(|(one, other)| one != other)
}

/// Returns whether an offset is after the end. A text offset of the last event shows nothing.
pub(crate) fn is_offset_beyond_end(offset: u64, last: Option<&Position>) -> bool {
    last.is_none_or(|last| plain_number(&last.offset).is_some_and(|last| offset > last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numeric_offset_is_left_out_in_a_group_with_text() {
        let at = |offset: &str| Position::new(9, offset);
        for (seen, offset, recorded) in [
            (None, "90", "90"),
            (Some("80"), "90", "90"),
            (Some("-1"), "90", "90"),
            (Some("1:80"), "90", ""),
            (Some("1:80"), "1:90", "1:90"),
            (Some("1:80"), "-1", "-1"),
            (Some("1:80"), "", ""),
        ] {
            let format = OffsetFormat::default();
            format.record_offset(seen);
            assert_eq!(format.to_recordable(at(offset)), at(recorded), "{offset} in a group with {seen:?}");
        }
    }
}
