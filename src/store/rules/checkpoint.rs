//! Checkpoints: one write under the version of the last one, and the meaning of a conflict or a missing response.

use std::cmp::Ordering;

use super::adopt::Place;
use super::{Next, WriteCondition};

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
pub fn checkpointing<E>(found: Option<(E, Place)>, owned: bool, number: i64) -> Next<E, Checkpointed> {
    match found {
        _ if !owned => Next::Done(Checkpointed::Fenced),
        None => Next::Write(WriteCondition::Create),
        Some((version, place)) => match place.compared_with(number) {
            Some(Ordering::Equal) => Next::Done(Checkpointed::Written),
            Some(Ordering::Greater) => Next::Done(Checkpointed::Superseded),
            Some(Ordering::Less) | None => Next::Write(WriteCondition::IfMatch(version)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_position_decides_by_its_sequence_number() {
        let next = |place| checkpointing(Some((7, place)), true, 5);
        assert_eq!(next(Place::At(5)), Next::Done(Checkpointed::Written));
        assert_eq!(next(Place::At(6)), Next::Done(Checkpointed::Superseded));
        for behind in [Place::At(4), Place::Nowhere, Place::Pinned, Place::Unnumbered] {
            assert_eq!(next(behind), Next::Write(WriteCondition::IfMatch(7)), "{behind:?}");
        }
    }

    #[test]
    fn a_missing_blob_is_created() {
        assert_eq!(checkpointing::<u8>(None, true, 5), Next::Write(WriteCondition::Create));
    }

    #[test]
    fn an_instance_without_the_ownership_is_fenced() {
        for found in [None, Some((7, Place::At(4))), Some((7, Place::At(5)))] {
            assert_eq!(checkpointing(found, false, 5), Next::Done(Checkpointed::Fenced));
        }
    }
}
