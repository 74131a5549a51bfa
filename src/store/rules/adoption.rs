//! The adoption: the owner that wins a partition takes its checkpoint over, before it processes anything.
//!
//! An adoption rewrites the blob. That changes the ETag under which the previous owner would write, and so fences that
//! owner. The order of the requests follows from one rule: an ETag of the checkpoint that was obtained by reading may be
//! used for a write only if a later read shows that this instance owns the partition.

use std::ops::ControlFlow;

use super::{CheckpointPlace, WriteCondition};

/// The next request of an adoption, which begins by reading the checkpoint. `V` is a version of that blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdoptionStep<V> {
    ReadCheckpoint,
    /// After the checkpoint, never before that and never at the same time.
    ReadOwnership {
        from: Option<PositionFrom>,
    },
    /// If the outcome is ambiguous, the adoption begins again.
    Write {
        under: WriteCondition<V>,
        from: PositionFrom,
    },
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

impl<V> AdoptionStep<V> {
    /// Returns the next request when the checkpoint was read.
    pub fn after_checkpoint(found: Option<CheckpointPlace>, start_is_known: bool) -> Self {
        Self::ReadOwnership {
            from: match found {
                None | Some(CheckpointPlace::Nowhere) if start_is_known => Some(PositionFrom::Start),
                found => found.map(|_| PositionFrom::Found),
            },
        }
    }

    /// Returns the next request when the ownership was read after the checkpoint, of which this version was `found`.
    pub fn after_ownership(found: Option<V>, from: Option<PositionFrom>, owned: bool) -> ControlFlow<Unwritten, Self> {
        match from {
            _ if !owned => ControlFlow::Break(Unwritten::Lost),
            Some(from) => ControlFlow::Continue(Self::Write { under: found.into(), from }),
            None => ControlFlow::Break(Unwritten::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(found: Option<CheckpointPlace>, start_is_known: bool) -> Option<PositionFrom> {
        match AdoptionStep::<u8>::after_checkpoint(found, start_is_known) {
            AdoptionStep::ReadOwnership { from } => from,
            next => panic!("{next:?}"),
        }
    }

    #[test]
    fn a_found_position_is_written_back() {
        for place in [CheckpointPlace::At(3), CheckpointPlace::Unnumbered, CheckpointPlace::Pinned] {
            assert_eq!(source(Some(place), true), Some(PositionFrom::Found), "{place:?}");
        }
    }

    #[test]
    fn a_known_start_is_written_without_a_position() {
        assert_eq!(source(None, true), Some(PositionFrom::Start));
        assert_eq!(source(Some(CheckpointPlace::Nowhere), true), Some(PositionFrom::Start));
        assert_eq!(source(Some(CheckpointPlace::Nowhere), false), Some(PositionFrom::Found));
        assert_eq!(source(None, false), None);
    }

    #[test]
    fn nothing_is_written_without_the_ownership() {
        let from = PositionFrom::Found;
        let write = |under| ControlFlow::Continue(AdoptionStep::Write { under, from });
        assert_eq!(AdoptionStep::after_ownership(Some(7), Some(from), true), write(WriteCondition::IfMatch(7)));
        assert_eq!(AdoptionStep::after_ownership(None, Some(from), true), write(WriteCondition::<u8>::Create));
        assert_eq!(AdoptionStep::<u8>::after_ownership(None, None, true), ControlFlow::Break(Unwritten::Nothing));
        for (found, from) in [(Some(7), Some(from)), (None, Some(from)), (None, None)] {
            assert_eq!(AdoptionStep::after_ownership(found, from, false), ControlFlow::Break(Unwritten::Lost));
        }
    }
}
