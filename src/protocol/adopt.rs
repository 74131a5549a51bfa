//! Adopt: taking over the checkpoint of a partition that was just won.
//!
//! Rewriting the blob changes the ETag under which the previous owner would write: from then on it is fenced. The rule
//! behind the order of the steps: an ETag of the checkpoint that was obtained by reading may be used for a write only
//! if the ownership was seen to be mine *after* that read.

use std::cmp::Ordering;

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
            _ if record.pinned && record.has_position() => Self::Pinned,
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

/// The write that adopts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdoptionWrite<E> {
    pub under: Option<E>,
    pub from: PositionFrom,
}

/// Where an adoption stands: the request to make, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adopt<E> {
    ReadCheckpoint,
    /// To be asked after the checkpoint was read, never before and never at the same time. Then this write follows;
    /// none if there is neither a blob nor a known start, so that nothing can be fenced yet.
    ReadOwnership(Option<AdoptionWrite<E>>),
    Write(AdoptionWrite<E>),
    /// The blob has this version now, if there is one.
    Adopted(Option<E>),
    Lost,
}

impl<E> Adopt<E> {
    /// After [`Adopt::ReadCheckpoint`]. `other` is what the other tree says, if that counts.
    pub fn checkpoint_read(found: Option<(E, Place)>, other: Place, start_is_known: bool) -> Self {
        let place = found.as_ref().map_or(Place::Nowhere, |(_, place)| *place);
        let from = if place.gives_way_to(other) {
            PositionFrom::OtherTree
        } else if place == Place::Nowhere && start_is_known {
            PositionFrom::Start
        } else if found.is_some() {
            PositionFrom::Found
        } else {
            return Self::ReadOwnership(None);
        };
        Self::ReadOwnership(Some(AdoptionWrite { under: found.map(|(etag, _)| etag), from }))
    }

    /// After [`Adopt::ReadOwnership`]. `mine`: in the tenure that adopts.
    pub fn ownership_read(write: Option<AdoptionWrite<E>>, mine: bool) -> Self {
        match write {
            _ if !mine => Self::Lost,
            Some(write) => Self::Write(write),
            None => Self::Adopted(None),
        }
    }

    /// After [`Adopt::Write`]: its ETag, or nothing after a conflict or without an answer. Then only a fresh look
    /// helps.
    pub fn written(etag: Option<E>) -> Self {
        etag.map_or(Self::ReadCheckpoint, |etag| Self::Adopted(Some(etag)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(place: Place) -> (u8, Place) {
        (7, place)
    }

    fn write(under: Option<u8>, from: PositionFrom) -> Adopt<u8> {
        Adopt::ReadOwnership(Some(AdoptionWrite { under, from }))
    }

    #[test]
    fn what_was_found_is_written_back_under_its_version() {
        for place in [Place::At(3), Place::Unnumbered, Place::Pinned] {
            let next = Adopt::checkpoint_read(Some(stored(place)), Place::Nowhere, true);
            assert_eq!(next, write(Some(7), PositionFrom::Found), "{place:?}");
        }
    }

    #[test]
    fn without_a_position_the_start_is_pinned_if_it_is_known() {
        let next = |found, known| Adopt::checkpoint_read(found, Place::Nowhere, known);
        assert_eq!(next(None, true), write(None, PositionFrom::Start));
        assert_eq!(next(Some(stored(Place::Nowhere)), true), write(Some(7), PositionFrom::Start));
        assert_eq!(next(Some(stored(Place::Nowhere)), false), write(Some(7), PositionFrom::Found));
        assert_eq!(next(None, false), Adopt::ReadOwnership(None));
    }

    #[test]
    fn the_other_tree_counts_only_where_it_is_known_to_be_further() {
        let from = |ours, other| Adopt::checkpoint_read(Some(stored(ours)), other, true);
        let imported = write(Some(7), PositionFrom::OtherTree);
        let kept = write(Some(7), PositionFrom::Found);
        assert_eq!(from(Place::At(3), Place::At(4)), imported);
        assert_eq!(from(Place::Nowhere, Place::Unnumbered), imported);
        assert_eq!(from(Place::At(3), Place::At(3)), kept);
        assert_eq!(from(Place::At(3), Place::Unnumbered), kept);
        assert_eq!(from(Place::Unnumbered, Place::At(4)), kept);
        assert_eq!(from(Place::At(3), Place::Pinned), kept);
        assert_eq!(Adopt::checkpoint_read(None, Place::At(0), true), write(None, PositionFrom::OtherTree));
    }

    #[test]
    fn a_pinned_start_gives_way_to_any_checkpoint_there() {
        let from = |other| Adopt::checkpoint_read(Some(stored(Place::Pinned)), other, true);
        for other in [Place::At(i64::MIN), Place::At(3), Place::Unnumbered] {
            assert_eq!(from(other), write(Some(7), PositionFrom::OtherTree), "{other:?}");
        }
        for other in [Place::Nowhere, Place::Pinned] {
            assert_eq!(from(other), write(Some(7), PositionFrom::Found), "{other:?}");
        }
        let taken = Adopt::checkpoint_read(None, Place::Pinned, true);
        assert_eq!(taken, write(None, PositionFrom::OtherTree), "an earlier start");
    }

    #[test]
    fn nothing_is_written_unless_the_ownership_is_mine() {
        let wanted = AdoptionWrite { under: Some(7), from: PositionFrom::Found };
        assert_eq!(Adopt::ownership_read(Some(wanted), false), Adopt::Lost);
        assert_eq!(Adopt::<u8>::ownership_read(None, false), Adopt::Lost);
        assert_eq!(Adopt::ownership_read(Some(wanted), true), Adopt::Write(wanted));
        assert_eq!(Adopt::<u8>::ownership_read(None, true), Adopt::Adopted(None));
    }

    #[test]
    fn a_doubtful_write_begins_anew() {
        assert_eq!(Adopt::<u8>::written(None), Adopt::ReadCheckpoint);
        assert_eq!(Adopt::written(Some(8)), Adopt::Adopted(Some(8)));
    }
}
