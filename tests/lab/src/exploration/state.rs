//! Everything there is at one moment.
//!
//! States that differ in nothing that matters must be equal, or they would be explored twice. So whatever will not be
//! looked at any more is forgotten, tenures are numbered [again](super::canonical) after every step, and a version of a
//! blob is either the current one or a past one: no version ever comes back.

use eventhubs_checkpoint::internal::rules::{Goal, PositionFrom};

pub(super) const MOST_INSTANCES: usize = 3;
pub(super) const MOST_LATE: usize = 3;
pub(super) const MOST_GIVEN: usize = 4;

/// A version of a blob, to whoever remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Version {
    Current,
    Past,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Owner {
    /// It was released.
    Unowned,
    /// The instance of this number.
    Member(u8),
    Foreign,
}

/// What an ownership says beside its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Keys {
    /// The instance of this number has asked for it.
    pub(super) handoff_to: Option<u8>,
    pub(super) draining: bool,
    /// Absent in records of another SDK.
    pub(super) epoch: Option<u8>,
    /// An operator wrote it.
    pub(super) operator: bool,
}

impl Keys {
    /// What a release keeps.
    pub(super) fn released(self) -> Self {
        Self { draining: false, ..self }
    }
}

/// The ownership blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ownership {
    pub(super) owner: Owner,
    pub(super) keys: Keys,
    /// In which second it was written, where that matters.
    pub(super) written: u8,
    /// Which tenure it is: counts up with every claim that wins. Only the invariants look at it.
    pub(super) ownership_id: u8,
}

/// The checkpoint blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Checkpoint {
    /// The last event processed; 0 is the first start. It may name no position at all.
    pub(super) position: Option<u8>,
    /// It is a start that was written down.
    pub(super) pinned: bool,
    pub(super) imported: Imported,
}

impl Checkpoint {
    /// A checkpoint: nothing of a start is left.
    pub(super) fn moved_to(self, position: u8) -> Self {
        let imported = if self.imported == Imported::Nothing { Imported::Never } else { self.imported };
        Self { position: Some(position), pinned: false, imported }
    }
}

/// Which version of the other tree's checkpoint a record says that it has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Imported {
    /// It does not say so, and the other tree does not count.
    #[default]
    Never,
    /// There was none.
    Nothing,
    Past,
    Current,
}

/// A checkpoint blob as it was read, which may be long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) version: Version,
    pub(super) checkpoint: Checkpoint,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum RunState {
    /// It will be started later.
    Before,
    #[default]
    Up,
    /// Suspended, for however long.
    Frozen,
    /// It crashed, or found that a later life of its owner is at work.
    Over,
}

/// One of our instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Instance {
    pub(super) run_state: RunState,
    pub(super) lease: Option<Lease>,
    pub(super) operation: Option<Operation>,
    pub(super) work: Work,
    /// It was told to stop, or asked for its partition: it settles its checkpoint, then it releases.
    pub(super) leaving: bool,
    pub(super) handoff: Option<Handoff>,
    pub(super) is_operator: bool,
    pub(super) reset: Reset,
}

/// How far an operator's reset is; of any other instance nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Reset {
    pub(super) step: ResetStep,
    /// It met a failure or another writer, so that it may give up.
    pub(super) has_failed: bool,
    /// A write of the position had no answer.
    pub(super) in_doubt: bool,
    /// The owner that it displaced was of another SDK.
    pub(super) displaces_foreign: bool,
    /// It has waited for them since it adopted.
    pub(super) has_waited: bool,
    /// The position was written. Only the invariants look at it.
    pub(super) hit: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum ResetStep {
    /// It takes the partition over; when it holds it, it adopts, and writes the position.
    #[default]
    Working,
    /// It releases, once the position is `written` or given up.
    Releasing {
        written: bool,
    },
    Reported(Report),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Report {
    Done,
    NotDone,
    Unsure,
}

/// The position that the next owner is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Due {
    pub(super) position: u8,
    /// There was a checkpoint before, so that every earlier owner was fenced.
    pub(super) fenced: bool,
}

impl Instance {
    /// The same when it is no more.
    pub(super) fn over(self) -> Self {
        Self { run_state: RunState::Over, is_operator: self.is_operator, ..Self::default() }
    }
}

/// It wants the partition of another, and asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Handoff {
    /// The number of the one that it asks.
    pub(super) victim: u8,
    pub(super) step: HandoffStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HandoffStep {
    /// To mark it, after as many marks that were erased.
    Reading(u8),
    Requesting(Version, u8),
    /// The mark stood.
    Pursuing(Pursued),
}

/// What a `rules::Handoff` is at moment zero: when the time is over is a choice here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pursued {
    pub(super) requests: u8,
    pub(super) is_acknowledged: bool,
}

/// What it holds, as it believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) version: Version,
    pub(super) keys: Keys,
    pub(super) ownership_id: u8,
}

/// A claim, renewal or release that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    pub(super) goal: Goal,
    pub(super) under: Option<Version>,
    /// The write was doubtful: the record is to be read.
    pub(super) reading: bool,
    pub(super) keys: Keys,
    /// It is a claim of what an earlier life owned.
    pub(super) reclaims: bool,
    /// It began as a renewal, whatever its goal is now.
    pub(super) renews: bool,
}

/// The task of the partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Work {
    pub(super) task: Task,
    /// The checkpoint as it was last read, while that matters.
    pub(super) seen: Option<Seen>,
    /// What an adoption found in the other tree, while that matters.
    pub(super) other_case: Found,
    /// What was last written or adopted, and in which version.
    pub(super) last: Checkpoint,
    pub(super) version: Option<Version>,
    /// The last event processed.
    pub(super) at: u8,
    /// The position that is being written.
    pub(super) writing: u8,
    /// The ownership has begun a new tenure meanwhile.
    pub(super) outlived: bool,
    /// The epoch of the tenure that it belongs to.
    pub(super) epoch: Option<u8>,
    /// The tenure in which the ownership was last seen to be mine. Only the invariants look at it.
    pub(super) authority: u8,
}

impl Work {
    pub(super) fn adopting(epoch: Option<u8>, authority: u8) -> Self {
        Self { task: Task::Adopting(Adoption::ReadCheckpoint), epoch, authority, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Task {
    #[default]
    Stopped,
    /// To read the checkpoint in the other tree.
    ReadingOtherCase,
    Adopting(Adoption),
    Running,
    Checkpointing(Request),
}

/// The next request of an adoption. What was read is in [`Work::seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Adoption {
    ReadCheckpoint,
    ReadOwnership(Option<PositionFrom>),
    Write(Option<Version>, PositionFrom),
}

/// The next request of a checkpoint. What was read is in [`Work::seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Write(Option<Version>),
    ReadCheckpoint,
    ReadOwnership,
}

/// The other tree's checkpoint, as an adoption found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Found {
    pub(super) position: Option<u8>,
    /// What the record that is written next says of it.
    pub(super) imported: Imported,
    /// There was one when the adoption read the checkpoint here, whether it was looked at or not. Only the invariants
    /// look at it.
    pub(super) there: bool,
}

/// An owner in the other tree of names, of another SDK. It sees none of the records here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OtherCaseOwner {
    /// There is none; or it has released its record, or died.
    Gone,
    Running {
        at: u8,
        written: u8,
    },
}

/// An instance that begins the group, and pins its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pinner {
    Away,
    Writing(Imported),
    /// The write was doubtful.
    Reading(Imported),
    Done,
}

/// The instance of another SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Foreign {
    Idle,
    Claiming(Option<Version>),
    Starting(Version),
    Running {
        version: Version,
        at: u8,
        written: u8,
    },
    /// It has noticed its loss, and its last handler still runs.
    Ending {
        at: u8,
    },
}

/// A conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Write {
    pub(super) by: Writer,
    /// Nothing: the blob is to be created.
    pub(super) under: Option<Version>,
    pub(super) content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Writer {
    Member(u8),
    Pinner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Content {
    Ownership {
        owner: Owner,
        keys: Keys,
    },
    Checkpoint {
        record: Checkpoint,
        kind: Kind,
        /// See [`Work`].
        authority: u8,
    },
}

/// Why a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// It says how far the partition was processed, or where it starts.
    Position,
    Adoption,
    Reset,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) faults: u8,
    pub(super) steals: u8,
    pub(super) crashes: u8,
    pub(super) releases: u8,
    pub(super) freezes: u8,
    pub(super) deletes: u8,
    /// How often somebody may ask for a partition.
    pub(super) requests: u8,
    /// How often one that asks may lose patience although the other is at work on it.
    pub(super) timeouts: u8,
    /// How often an owner may give its partition back without having settled its checkpoint.
    pub(super) unsettled: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) ownership: Option<Ownership>,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) instances: [Instance; MOST_INSTANCES],
    pub(super) foreign: Foreign,
    pub(super) pinner: Pinner,
    pub(super) other_case: OtherCaseOwner,
    /// The position of the checkpoint in the other tree.
    pub(super) other_case_checkpoint: Option<u8>,
    /// Writes without an answer that may still reach the storage.
    pub(super) late: [Option<Write>; MOST_LATE],
    pub(super) left: Left,
    /// The events that were processed, one bit each.
    pub(super) processed: u8,
    /// Those that lay before a pinned start from which an owner went on.
    pub(super) passed: u8,
    /// Those of which it was reported that they may be processed again.
    pub(super) reported: u8,
    /// The last tenure that was adopted. Checkpoints of earlier ones must not be accepted any more.
    pub(super) fence: u8,
    /// The second of the server's time. `None` where time plays no part: then each epoch is one that there was not yet.
    pub(super) now: Option<u8>,
    /// In which second the last claim won, as long as that matters.
    pub(super) claimed: u8,
    /// Tenures that processed, the earliest first, with their epochs. Only the invariants look at them.
    pub(super) given: [Option<(u8, u8)>; MOST_GIVEN],
    /// What the last reset wrote, until an owner has adopted it. Only the invariants look at it.
    pub(super) due: Option<Due>,
    /// The foreign instance runs since before the last reset. Only the invariants look at it.
    pub(super) foreign_from_before: bool,
}

impl State {
    pub(super) fn seen(&self) -> Option<Seen> {
        self.checkpoint.map(|checkpoint| Seen { version: Version::Current, checkpoint })
    }

    /// Whether an operator has reported this.
    pub(super) fn has_reported(&self, report: Report) -> bool {
        self.instances.iter().any(|instance| instance.reset.step == ResetStep::Reported(report))
    }

    pub(super) fn is_owned_by(&self, owner: Owner) -> bool {
        self.ownership.is_some_and(|record| record.owner == owner)
    }

    /// The same with one instance changed.
    pub(super) fn with(&self, number: usize, change: impl FnOnce(&mut Instance)) -> Self {
        let mut state = *self;
        change(&mut state.instances[number]);
        state
    }
}

/// The short form of an instance's number.
#[expect(clippy::cast_possible_truncation, reason = "there are three")]
pub(super) fn short(number: usize) -> u8 {
    number as u8
}

impl Owner {
    pub(super) fn ours(number: usize) -> Self {
        Self::Member(short(number))
    }
}

impl Writer {
    pub(super) fn ours(number: usize) -> Self {
        Self::Member(short(number))
    }
}
