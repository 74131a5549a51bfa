//! The checkpoint of a partition: the new owner takes it over (*adoption*), and then writes each checkpoint under the
//! version of the last one. Decides what to do before the first write, and after a conflict or a missing response.
//!
//! An adoption rewrites the blob. That changes the ETag under which the previous owner would write, and so fences that
//! owner. The order of the steps follows from one rule: an ETag of the checkpoint that was obtained by reading may be
//! used for a write only if a later read shows that this instance owns the partition.

use std::cmp::Ordering;

use super::{SettleStep, WriteCondition};
use crate::model::CheckpointRecord;

/// How far a partition was processed, by its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointPlace {
    /// It contains no position.
    Nowhere,
    /// An initial checkpoint, written before any event up to it was processed. It cannot be compared with anything.
    Pinned,
    /// It contains only an offset, which cannot be compared.
    Unnumbered,
    /// It contains this sequence number.
    At(i64),
}

impl CheckpointPlace {
    pub fn from_record(record: &CheckpointRecord) -> Self {
        match record.sequence_number {
            _ if record.initial && record.has_position() => Self::Pinned,
            Some(number) => Self::At(number),
            None if record.has_position() => Self::Unnumbered,
            None => Self::Nowhere,
        }
    }

    /// Compares it with a sequence number. Returns `None` if it is not a checkpoint with a sequence number.
    pub fn compare_with(self, number: i64) -> Option<Ordering> {
        match self {
            Self::At(this) => Some(this.cmp(&number)),
            Self::Nowhere | Self::Pinned | Self::Unnumbered => None,
        }
    }
}

/// The source of the position that an adoption writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PositionFrom {
    /// The blob itself, written back as it was read.
    Found,
    /// The configured start position. It is written so that a group that starts at the latest event and crashes before
    /// its first checkpoint loses nothing.
    Start,
}

/// How an adoption ends without a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unwritten {
    /// This instance does not own the partition in the epoch of the adoption.
    Lost,
    /// There is neither a blob nor a known start, so that nothing can be fenced yet.
    Nothing,
}

/// Decides by the checkpoint that was found. Returns `None` if there is no position to write.
pub fn position_from(found: Option<CheckpointPlace>, start_is_known: bool) -> Option<PositionFrom> {
    match found {
        None | Some(CheckpointPlace::Nowhere) if start_is_known => Some(PositionFrom::Start),
        found => found.map(|_| PositionFrom::Found),
    }
}

/// Decides by the ownership, which must be read after the checkpoint was `found`, never before that and never at the
/// same time. After an ambiguous write, both must be read again.
pub fn decide_adoption<E>(found: Option<E>, from: Option<PositionFrom>, owned: bool) -> SettleStep<E, Unwritten> {
    match from {
        _ if !owned => SettleStep::Done(Unwritten::Lost),
        Some(_) => SettleStep::Write(found.into()),
        None => SettleStep::Done(Unwritten::Nothing),
    }
}

/// How a checkpoint ends by what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checkpointed {
    /// The position is stored.
    Written,
    /// A later position is stored. It becomes the last one written.
    Superseded,
    /// This instance does not own the partition in the epoch of the writer.
    Fenced,
}

/// Decides after a conflict, a missing blob or a missing response, and before the blob is created, which nothing fences
/// yet. It decides by the checkpoint that was found, and by the ownership, which must be read after it.
///
/// A stored position without a sequence number cannot be compared, nor can an initial checkpoint: the new position
/// replaces it.
pub fn decide_checkpoint<E>(
    found: Option<(E, CheckpointPlace)>,
    owned: bool,
    number: i64,
) -> SettleStep<E, Checkpointed> {
    match found {
        _ if !owned => SettleStep::Done(Checkpointed::Fenced),
        None => SettleStep::Write(WriteCondition::Create),
        Some((version, place)) => match place.compare_with(number) {
            Some(Ordering::Equal) => SettleStep::Done(Checkpointed::Written),
            Some(Ordering::Greater) => SettleStep::Done(Checkpointed::Superseded),
            Some(Ordering::Less) | None => SettleStep::Write(WriteCondition::IfMatch(version)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: Option<CheckpointPlace> = Some(CheckpointPlace::At(3));

    #[test]
    fn a_found_position_is_written_back() {
        for place in [CheckpointPlace::At(3), CheckpointPlace::Unnumbered, CheckpointPlace::Pinned] {
            assert_eq!(position_from(Some(place), true), Some(PositionFrom::Found), "{place:?}");
        }
    }

    #[test]
    fn a_known_start_is_written_without_a_position() {
        assert_eq!(position_from(None, true), Some(PositionFrom::Start));
        assert_eq!(position_from(Some(CheckpointPlace::Nowhere), true), Some(PositionFrom::Start));
        assert_eq!(position_from(Some(CheckpointPlace::Nowhere), false), Some(PositionFrom::Found));
        assert_eq!(position_from(None, false), None);
    }

    #[test]
    fn nothing_is_written_without_the_ownership() {
        let from = position_from(FOUND, true);
        assert_eq!(decide_adoption(Some(7), from, true), SettleStep::Write(WriteCondition::IfMatch(7)));
        assert_eq!(decide_adoption::<u8>(None, from, true), SettleStep::Write(WriteCondition::Create));
        assert_eq!(decide_adoption::<u8>(None, None, true), SettleStep::Done(Unwritten::Nothing));
        for (found, from) in [(Some(7), from), (None, from), (None, None)] {
            assert_eq!(decide_adoption(found, from, false), SettleStep::Done(Unwritten::Lost));
        }
    }

    #[test]
    fn a_stored_position_decides_by_its_sequence_number() {
        let next = |place| decide_checkpoint(Some((7, place)), true, 5);
        assert_eq!(next(CheckpointPlace::At(5)), SettleStep::Done(Checkpointed::Written));
        assert_eq!(next(CheckpointPlace::At(6)), SettleStep::Done(Checkpointed::Superseded));
        for behind in
            [CheckpointPlace::At(4), CheckpointPlace::Nowhere, CheckpointPlace::Pinned, CheckpointPlace::Unnumbered]
        {
            assert_eq!(next(behind), SettleStep::Write(WriteCondition::IfMatch(7)), "{behind:?}");
        }
    }

    #[test]
    fn a_missing_blob_is_created() {
        assert_eq!(decide_checkpoint::<u8>(None, true, 5), SettleStep::Write(WriteCondition::Create));
    }

    #[test]
    fn an_instance_without_the_ownership_is_fenced() {
        for found in [None, Some((7, CheckpointPlace::At(4))), Some((7, CheckpointPlace::At(5)))] {
            assert_eq!(decide_checkpoint(found, false, 5), SettleStep::Done(Checkpointed::Fenced));
        }
    }
}
