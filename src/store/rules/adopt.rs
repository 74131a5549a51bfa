//! Adoption: taking over the checkpoint of a partition that was just won.
//!
//! Rewriting the blob changes the ETag under which the previous owner would write, and so fences that owner. The order
//! of the steps follows from one rule: an ETag of the checkpoint that was obtained by reading may be used for a write
//! only if a later read shows that this instance owns the partition.

use std::cmp::Ordering;

use super::Next;
#[cfg(test)]
use super::WriteCondition;
use crate::model::CheckpointRecord;

/// How far a partition was processed, by its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// It contains no position.
    Nowhere,
    /// An initial checkpoint, written before any event up to it was processed. It cannot be compared with anything.
    Pinned,
    /// It contains only an offset, which cannot be compared.
    Unnumbered,
    /// It contains this sequence number.
    At(i64),
}

impl Place {
    pub fn of(record: &CheckpointRecord) -> Self {
        match record.sequence_number {
            _ if record.initial && record.has_position() => Self::Pinned,
            Some(number) => Self::At(number),
            None if record.has_position() => Self::Unnumbered,
            None => Self::Nowhere,
        }
    }

    /// Compares it with a sequence number. Returns `None` if it is not a checkpoint with a sequence number.
    pub fn compared_with(self, number: i64) -> Option<Ordering> {
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
pub fn position_from(found: Option<Place>, start_is_known: bool) -> Option<PositionFrom> {
    match found {
        None | Some(Place::Nowhere) if start_is_known => Some(PositionFrom::Start),
        found => found.map(|_| PositionFrom::Found),
    }
}

/// Decides by the ownership, which must be read after the checkpoint was `found`, never before that and never at the
/// same time. After an ambiguous write, both must be read again.
pub fn adopting<E>(found: Option<E>, from: Option<PositionFrom>, owned: bool) -> Next<E, Unwritten> {
    match from {
        _ if !owned => Next::Done(Unwritten::Lost),
        Some(_) => Next::Write(found.into()),
        None => Next::Done(Unwritten::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: Option<Place> = Some(Place::At(3));

    #[test]
    fn a_found_position_is_written_back() {
        for place in [Place::At(3), Place::Unnumbered, Place::Pinned] {
            assert_eq!(position_from(Some(place), true), Some(PositionFrom::Found), "{place:?}");
        }
    }

    #[test]
    fn a_known_start_is_written_without_a_position() {
        assert_eq!(position_from(None, true), Some(PositionFrom::Start));
        assert_eq!(position_from(Some(Place::Nowhere), true), Some(PositionFrom::Start));
        assert_eq!(position_from(Some(Place::Nowhere), false), Some(PositionFrom::Found));
        assert_eq!(position_from(None, false), None);
    }

    #[test]
    fn nothing_is_written_without_the_ownership() {
        let from = position_from(FOUND, true);
        assert_eq!(adopting(Some(7), from, true), Next::Write(WriteCondition::IfMatch(7)));
        assert_eq!(adopting::<u8>(None, from, true), Next::Write(WriteCondition::Create));
        assert_eq!(adopting::<u8>(None, None, true), Next::Done(Unwritten::Nothing));
        for (found, from) in [(Some(7), from), (None, from), (None, None)] {
            assert_eq!(adopting(found, from, false), Next::Done(Unwritten::Lost));
        }
    }
}
