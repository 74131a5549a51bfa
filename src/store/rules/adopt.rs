//! Adopt: taking over the checkpoint of a partition that was just won.
//!
//! Rewriting the blob changes the ETag under which the previous owner would write: from then on it is fenced. The rule
//! behind the order of the steps: an ETag of the checkpoint that was obtained by reading may be used for a write only
//! if the ownership was seen to be mine *after* that read.

use std::cmp::Ordering;

use super::Next;
#[cfg(test)]
use super::WriteCondition;
use crate::model::CheckpointRecord;

/// How far a checkpoint says that a partition was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// It names no position.
    Nowhere,
    /// A start that was written down before any event up to it was processed. It compares with nothing.
    Pinned,
    /// It names an offset only, which cannot be compared.
    Unnumbered,
    /// It names this sequence number.
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

    /// Whether the other tree's position replaces this one. A checkpoint does that only if it is known to be further. A
    /// pinned start says nothing about progress, so any checkpoint replaces it, wherever it is: an owner may have
    /// started before the start was pinned, and be at a smaller position.
    fn gives_way_to(self, other: Self) -> bool {
        match (self, other) {
            (Self::At(this), Self::At(that)) => this < that,
            (Self::Nowhere, other) => other != Self::Nowhere,
            (Self::Pinned, other) => matches!(other, Self::At(_) | Self::Unnumbered),
            _ => false,
        }
    }

    /// How it compares with a sequence number; not at all if it is not a checkpoint with one of its own.
    pub fn compared_with(self, number: i64) -> Option<Ordering> {
        match self {
            Self::At(this) => Some(this.cmp(&number)),
            Self::Nowhere | Self::Pinned | Self::Unnumbered => None,
        }
    }
}

/// Where the position that an adoption writes comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PositionFrom {
    /// The blob itself, written back as it was read.
    Found,
    /// The same partition's checkpoint in the other tree of names.
    OtherTree,
    /// The place where processing is configured to start. Written down, so that a group that starts at the latest event
    /// and dies before its first checkpoint loses nothing.
    Start,
}

/// How an adoption ends without a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unwritten {
    /// The partition is not mine, in the tenure that adopts.
    Lost,
    /// There is neither a blob nor a known start, so that nothing can be fenced yet.
    Nothing,
}

/// By the checkpoint that was found; `other` is what the other tree says, if that counts. `None` if there is no position
/// to write.
pub fn position_from(found: Option<Place>, other: Place, start_is_known: bool) -> Option<PositionFrom> {
    let place = found.unwrap_or(Place::Nowhere);
    if place.gives_way_to(other) {
        Some(PositionFrom::OtherTree)
    } else if place == Place::Nowhere && start_is_known {
        Some(PositionFrom::Start)
    } else {
        found.map(|_| PositionFrom::Found)
    }
}

/// By the ownership, which is to be read after the checkpoint was `found`, never before and never at the same time.
/// After a write in doubt only another look at both helps.
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

    const OURS: Option<Place> = Some(Place::At(3));

    #[test]
    fn what_was_found_is_written_back() {
        for place in [Place::At(3), Place::Unnumbered, Place::Pinned] {
            assert_eq!(position_from(Some(place), Place::Nowhere, true), Some(PositionFrom::Found), "{place:?}");
        }
    }

    #[test]
    fn without_a_position_the_start_is_pinned_if_it_is_known() {
        let from = |found, known| position_from(found, Place::Nowhere, known);
        assert_eq!(from(None, true), Some(PositionFrom::Start));
        assert_eq!(from(Some(Place::Nowhere), true), Some(PositionFrom::Start));
        assert_eq!(from(Some(Place::Nowhere), false), Some(PositionFrom::Found));
        assert_eq!(from(None, false), None);
    }

    #[test]
    fn the_other_tree_counts_only_where_it_is_known_to_be_further() {
        let from = |ours, other| position_from(Some(ours), other, true);
        assert_eq!(from(Place::At(3), Place::At(4)), Some(PositionFrom::OtherTree));
        assert_eq!(from(Place::Nowhere, Place::Unnumbered), Some(PositionFrom::OtherTree));
        assert_eq!(position_from(None, Place::At(0), true), Some(PositionFrom::OtherTree));
        for (ours, other) in [
            (Place::At(3), Place::At(3)),
            (Place::At(3), Place::Unnumbered),
            (Place::Unnumbered, Place::At(4)),
            (Place::At(3), Place::Pinned),
        ] {
            assert_eq!(from(ours, other), Some(PositionFrom::Found), "{ours:?} {other:?}");
        }
    }

    #[test]
    fn a_pinned_start_gives_way_to_any_checkpoint_there() {
        let from = |other| position_from(Some(Place::Pinned), other, true);
        for other in [Place::At(i64::MIN), Place::At(3), Place::Unnumbered] {
            assert_eq!(from(other), Some(PositionFrom::OtherTree), "{other:?}");
        }
        for other in [Place::Nowhere, Place::Pinned] {
            assert_eq!(from(other), Some(PositionFrom::Found), "{other:?}");
        }
        let taken = position_from(None, Place::Pinned, true);
        assert_eq!(taken, Some(PositionFrom::OtherTree), "an earlier start");
    }

    #[test]
    fn nothing_is_written_unless_the_ownership_is_mine() {
        let from = position_from(OURS, Place::Nowhere, true);
        assert_eq!(adopting(Some(7), from, true), Next::Write(WriteCondition::IfMatch(7)));
        assert_eq!(adopting::<u8>(None, from, true), Next::Write(WriteCondition::Create));
        assert_eq!(adopting::<u8>(None, None, true), Next::Done(Unwritten::Nothing));
        for (found, from) in [(Some(7), from), (None, from), (None, None)] {
            assert_eq!(adopting(found, from, false), Next::Done(Unwritten::Lost));
        }
    }
}
