//! Checkpoint: one write under the version of the last one, and what a conflict or a missing answer means.

use std::cmp::Ordering;

use super::adopt::Place;
use super::{Next, WriteCondition};

/// How a checkpoint ends by what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checkpointed {
    /// The position is stored.
    Written,
    /// A later position is stored. It becomes the last written one.
    Superseded,
    /// The partition is not mine, in the tenure that writes.
    Fenced,
}

/// After a conflict, a missing blob or a missing answer; and before the blob is created, which nothing fences yet. By the
/// checkpoint that was found, and by the ownership, which is to be read after it.
///
/// A stored position without a sequence number is neither ahead nor behind, nor is a pinned start: mine replaces it.
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
    fn who_does_not_own_the_partition_is_fenced() {
        for found in [None, Some((7, Place::At(4))), Some((7, Place::At(5)))] {
            assert_eq!(checkpointing(found, false, 5), Next::Done(Checkpointed::Fenced));
        }
    }
}
