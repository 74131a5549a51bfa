//! The checkpoint of a partition: the new owner takes it over (*adoption*), and then writes each checkpoint under the
//! version of the last one. So in the steady state a checkpoint is one request.
//!
//! An adoption rewrites the blob. That changes the ETag under which the previous owner would write, and so fences that
//! owner. The order of the requests follows from one rule: an ETag of the checkpoint that was obtained by reading may
//! be used for a write only if a later read shows that this instance owns the partition.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::WriteCondition;
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
    pub const AFTER_AMBIGUOUS_WRITE: Self = Self::ReadCheckpoint;

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

/// The next request of a checkpoint. `V` is a version of its blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointStep<V> {
    /// If the outcome is ambiguous, the checkpoint is read.
    Write {
        under: WriteCondition<V>,
    },
    ReadCheckpoint,
    /// After the checkpoint, never before that and never at the same time.
    ReadOwnership,
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

impl<V> CheckpointStep<V> {
    pub const AFTER_AMBIGUOUS_WRITE: Self = Self::ReadCheckpoint;
    pub const AFTER_CHECKPOINT: Self = Self::ReadOwnership;

    /// Returns the first request, by the version that was written last. Without one, nothing fences this owner yet.
    pub fn first_step(last: Option<V>) -> Self {
        last.map_or(Self::ReadCheckpoint, |last| Self::Write { under: WriteCondition::IfMatch(last) })
    }

    /// Returns the next request when the ownership was read after the checkpoint was `found`. `number` is the sequence
    /// number to write.
    ///
    /// A stored position without a sequence number cannot be compared, nor can an initial checkpoint: the new position
    /// replaces it.
    pub fn after_ownership(
        found: Option<(V, CheckpointPlace)>,
        owned: bool,
        number: i64,
    ) -> ControlFlow<Checkpointed, Self> {
        match found {
            _ if !owned => ControlFlow::Break(Checkpointed::Fenced),
            None => ControlFlow::Continue(Self::Write { under: WriteCondition::Create }),
            Some((version, place)) => match place.compare_with(number) {
                Some(Ordering::Equal) => ControlFlow::Break(Checkpointed::Written),
                Some(Ordering::Greater) => ControlFlow::Break(Checkpointed::Superseded),
                Some(Ordering::Less) | None => {
                    ControlFlow::Continue(Self::Write { under: WriteCondition::IfMatch(version) })
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVER_7: ControlFlow<Checkpointed, CheckpointStep<u8>> =
        ControlFlow::Continue(CheckpointStep::Write { under: WriteCondition::IfMatch(7) });

    #[test]
    fn the_place_of_a_checkpoint_is_what_it_contains() {
        let place = |number, offset: Option<&str>, initial| {
            let offset = offset.map(str::to_owned);
            CheckpointPlace::from_record(&CheckpointRecord {
                sequence_number: number,
                offset,
                initial,
                ..CheckpointRecord::default()
            })
        };
        assert_eq!(place(Some(7), None, false), CheckpointPlace::At(7));
        assert_eq!(place(None, Some("70"), false), CheckpointPlace::Unnumbered);
        assert_eq!(place(None, None, false), CheckpointPlace::Nowhere);
        assert_eq!(place(Some(7), None, true), CheckpointPlace::Pinned);
        assert_eq!(place(None, Some("70"), true), CheckpointPlace::Pinned);
        assert_eq!(place(None, None, true), CheckpointPlace::Nowhere, "a start that is not known yet");
    }

    #[test]
    fn without_a_version_the_checkpoint_is_read_first() {
        assert_eq!(CheckpointStep::first_step(None::<u8>), CheckpointStep::ReadCheckpoint);
        assert_eq!(ControlFlow::Continue(CheckpointStep::first_step(Some(7))), OVER_7);
    }

    #[test]
    fn a_stored_position_decides_by_its_sequence_number() {
        let next = |place| CheckpointStep::after_ownership(Some((7, place)), true, 5);
        assert_eq!(next(CheckpointPlace::At(5)), ControlFlow::Break(Checkpointed::Written));
        assert_eq!(next(CheckpointPlace::At(6)), ControlFlow::Break(Checkpointed::Superseded));
        for behind in
            [CheckpointPlace::At(4), CheckpointPlace::Nowhere, CheckpointPlace::Pinned, CheckpointPlace::Unnumbered]
        {
            assert_eq!(next(behind), OVER_7, "{behind:?}");
        }
    }

    #[test]
    fn a_missing_blob_is_created() {
        let next = CheckpointStep::<u8>::after_ownership(None, true, 5);
        assert_eq!(next, ControlFlow::Continue(CheckpointStep::Write { under: WriteCondition::Create }));
    }

    #[test]
    fn an_instance_without_the_ownership_is_fenced() {
        for found in [None, Some((7, CheckpointPlace::At(4))), Some((7, CheckpointPlace::At(5)))] {
            let next = CheckpointStep::after_ownership(found, false, 5);
            assert_eq!(next, ControlFlow::Break(Checkpointed::Fenced));
        }
    }

    mod adoptions {
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
}
