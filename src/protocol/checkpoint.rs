//! Checkpoint: one write under the ETag of the last one, and what a conflict or a missing answer means.

use std::cmp::Ordering;

use super::adopt::Place;

/// A checkpoint blob as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stored<E> {
    pub etag: E,
    pub place: Place,
}

/// Where the writing of a checkpoint stands: the request to make, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checkpointing<E> {
    Write(Option<E>),
    /// [`Checkpointing::ReadOwnership`] follows.
    ReadCheckpoint,
    /// To be asked after the checkpoint was read; nothing if it does not exist.
    ReadOwnership(Option<Stored<E>>),
    /// The position is stored, in this version.
    Written(E),
    /// A later position is stored. It becomes the last written one, with its version.
    Superseded(Stored<E>),
    Fenced,
}

impl<E> Checkpointing<E> {
    /// From the version last written or adopted. Without one nothing fences me yet, so the ownership is verified before
    /// the blob is created.
    pub fn begin(etag: Option<E>) -> Self {
        etag.map_or(Self::ReadOwnership(None), |etag| Self::Write(Some(etag)))
    }

    /// After [`Checkpointing::Write`]: its ETag, or nothing after a conflict, a missing blob or without an answer.
    pub fn written(etag: Option<E>) -> Self {
        etag.map_or(Self::ReadCheckpoint, Self::Written)
    }

    /// After [`Checkpointing::ReadOwnership`]. `owned`: by the tenure that writes. A stored position without a sequence number is neither ahead nor behind,
    /// nor is a pinned start: mine replaces it.
    pub fn ownership_read(found: Option<Stored<E>>, owned: bool, mine: i64) -> Self {
        if !owned {
            return Self::Fenced;
        }
        let Some(stored) = found else { return Self::Write(None) };
        match stored.place.compared_with(mine) {
            Some(Ordering::Equal) => Self::Written(stored.etag),
            Some(Ordering::Greater) => Self::Superseded(stored),
            Some(Ordering::Less) | None => Self::Write(Some(stored.etag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(place: Place) -> Stored<u8> {
        Stored { etag: 7, place }
    }

    #[test]
    fn the_first_checkpoint_is_created_only_after_the_ownership_was_verified() {
        assert_eq!(Checkpointing::<u8>::begin(None), Checkpointing::ReadOwnership(None));
        assert_eq!(Checkpointing::<u8>::ownership_read(None, true, 5), Checkpointing::Write(None));
        assert_eq!(Checkpointing::begin(Some(7)), Checkpointing::Write(Some(7)));
    }

    #[test]
    fn a_stored_position_decides_by_its_sequence_number() {
        let next = |place| Checkpointing::ownership_read(Some(stored(place)), true, 5);
        assert_eq!(next(Place::At(5)), Checkpointing::Written(7));
        assert_eq!(next(Place::At(6)), Checkpointing::Superseded(stored(Place::At(6))));
        for behind in [Place::At(4), Place::Nowhere, Place::Pinned, Place::Unnumbered] {
            assert_eq!(next(behind), Checkpointing::Write(Some(7)), "{behind:?}");
        }
    }

    #[test]
    fn whoever_does_not_own_the_partition_is_fenced_whatever_is_stored() {
        for found in [None, Some(stored(Place::At(5)))] {
            assert_eq!(Checkpointing::ownership_read(found, false, 5), Checkpointing::Fenced);
        }
    }

    #[test]
    fn a_doubtful_write_is_looked_into() {
        assert_eq!(Checkpointing::<u8>::written(None), Checkpointing::ReadCheckpoint);
        assert_eq!(Checkpointing::written(Some(8)), Checkpointing::Written(8));
    }
}
