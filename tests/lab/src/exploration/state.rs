//! The state at one moment.
//!
//! States that differ only in irrelevant details must be equal, or they would be explored twice. So details that are
//! never read again are forgotten, ownerships are [renumbered](super::canonical) after every step, and a version of a
//! blob is either the current one or a past one: no version ever returns.

use eventhubs_checkpoint::internal::admin::{Purpose, ResetProgress, ResetReport};
use eventhubs_checkpoint::internal::rules::{AdoptionStep, CheckpointStep, OwnershipOperation};

pub(super) const MOST_INSTANCES: usize = 3;
pub(super) const MOST_LATE: usize = 3;
pub(super) const MOST_GIVEN: usize = 4;

/// A version of a blob, as an instance remembers it.
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

/// The keys of an ownership other than its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Keys {
    /// The instance of this number has requested it.
    pub(super) handoff_to: Option<u8>,
    pub(super) draining: bool,
    /// Absent in records of another SDK.
    pub(super) epoch: Option<u8>,
    /// An operator wrote it.
    pub(super) operator: bool,
}

impl Keys {
    /// Returns the keys that a release keeps.
    pub(super) fn released(self) -> Self {
        Self { draining: false, ..self }
    }
}

/// The ownership blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ownership {
    pub(super) owner: Owner,
    pub(super) keys: Keys,
    /// The second in which it was written, if that matters.
    pub(super) written: u8,
    /// Which ownership it is: counts up with every claim that wins. Only the invariants use it.
    pub(super) claim_number: u8,
}

/// The checkpoint blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Checkpoint {
    /// The last processed event; 0 is the first start. It may have no position at all.
    pub(super) position: Option<u8>,
    /// It is a pinned start.
    pub(super) pinned: bool,
    /// The partition is paused.
    pub(super) paused: bool,
}

impl Checkpoint {
    /// Returns a checkpoint at this position: nothing of a pinned start remains, nor of a pause.
    pub(super) fn at(position: u8) -> Self {
        Self { position: Some(position), ..Self::default() }
    }
}

/// A checkpoint blob as it was read, possibly long ago.
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
    /// Suspended, for any time.
    Frozen,
    /// It crashed, or detected a later incarnation of its owner.
    Over,
}

/// An instance of this crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Instance {
    pub(super) run_state: RunState,
    pub(super) lease: Option<Lease>,
    pub(super) operation: Option<Operation>,
    pub(super) work: Work,
    /// It was requested to stop, or its partition was requested: it settles its checkpoint, then it releases.
    pub(super) leaving: bool,
    pub(super) handoff: Option<Handoff>,
    pub(super) is_operator: bool,
    pub(super) reset: Reset,
}

/// The work of an operator; unused for other instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reset {
    pub(super) progress: Progress,
    /// It encountered a failure or another writer, so it may give up.
    pub(super) has_failed: bool,
    /// A write of the change had no response. Only the invariants use it.
    pub(super) unanswered: bool,
    /// The change was written. Only the invariants use it.
    pub(super) hit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Progress {
    Working(ResetProgress),
    Reported(ResetReport),
}

impl Default for Reset {
    fn default() -> Self {
        let progress = Progress::Working(ResetProgress::new(Purpose::Reset));
        Self { progress, has_failed: false, unanswered: false, hit: false }
    }
}

/// The position that the next owner must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Due {
    pub(super) position: u8,
    /// There was a checkpoint before, so every earlier owner was fenced.
    pub(super) fenced: bool,
}

impl Instance {
    /// Returns the same after its end.
    pub(super) fn over(self) -> Self {
        Self { run_state: RunState::Over, is_operator: self.is_operator, ..Self::default() }
    }
}

/// It wants the partition of another instance, and requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Handoff {
    /// The number of the owner from which it requests.
    pub(super) victim: u8,
    pub(super) step: HandoffStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HandoffStep {
    /// To write the request, after this number of erased requests.
    Reading(u8),
    Requesting(Version, u8),
    /// The request was written this many times.
    Polling(u8),
}

/// The lease that it considers valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) version: Version,
    pub(super) keys: Keys,
    pub(super) claim_number: u8,
}

/// A claim, renewal or release in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    /// Its goal, and its next request.
    pub(super) next: OwnershipOperation<Version>,
    pub(super) keys: Keys,
    /// It claims what an earlier incarnation owned.
    pub(super) reclaims: bool,
    /// It began as a renewal, regardless of its current goal.
    pub(super) renews: bool,
}

/// The task of the partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Work {
    pub(super) task: Task,
    /// The checkpoint as it was last read, while that matters.
    pub(super) seen: Option<Seen>,
    /// The last written or adopted checkpoint, and its version.
    pub(super) last: Checkpoint,
    pub(super) version: Option<Version>,
    /// The last processed event.
    pub(super) at: u8,
    /// The position that is being written.
    pub(super) writing: u8,
    /// The checkpoint that it adopted is paused, so it waits.
    pub(super) paused: bool,
    /// The ownership has begun again meanwhile.
    pub(super) outlived: bool,
    /// The epoch of its ownership.
    pub(super) epoch: Option<u8>,
    /// The ownership in which the record was last found to be this instance's own. Only the invariants use it.
    pub(super) authority: u8,
}

impl Work {
    pub(super) fn adopting(epoch: Option<u8>, authority: u8) -> Self {
        Self { task: Task::Adopting(AdoptionStep::ReadCheckpoint), epoch, authority, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Task {
    #[default]
    Stopped,
    /// With this request next. The last read is in [`Work::seen`].
    Adopting(AdoptionStep<Version>),
    Running,
    /// The same for a checkpoint.
    Checkpointing(CheckpointStep<Version>),
}

/// An instance that begins the group, and pins its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pinner {
    Away,
    Writing,
    /// The write was ambiguous.
    Reading,
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
    /// It has detected its loss, and its last handler still runs.
    Ending {
        at: u8,
    },
}

/// A conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Write {
    pub(super) by: Writer,
    /// `None`: the blob is to be created.
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
    /// To store how far the partition was processed, or where it starts.
    Position,
    Adoption,
    Reset,
    /// To pause the partition, or to resume it. The position stays.
    Pause,
}

/// The faults and choices that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) faults: u8,
    pub(super) steals: u8,
    pub(super) crashes: u8,
    pub(super) releases: u8,
    pub(super) freezes: u8,
    pub(super) deletes: u8,
    /// How many handoff requests may begin.
    pub(super) requests: u8,
    /// How many requests may time out although the owner is active.
    pub(super) timeouts: u8,
    /// How many owners may release their partition without having settled the checkpoint.
    pub(super) unsettled: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) ownership: Option<Ownership>,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) instances: [Instance; MOST_INSTANCES],
    pub(super) foreign: Foreign,
    pub(super) pinner: Pinner,
    /// Writes without a response that may still reach the storage.
    pub(super) late: [Option<Write>; MOST_LATE],
    pub(super) left: Left,
    /// The processed events, one bit each.
    pub(super) processed: u8,
    /// Events before a pinned start from which an owner continued.
    pub(super) passed: u8,
    /// Events that were reported as possibly repeated.
    pub(super) reported: u8,
    /// The last adopted ownership. Checkpoints of earlier ones must not be accepted anymore.
    pub(super) fence: u8,
    /// The second of the server's time. `None` if time is irrelevant: each epoch is then a new one.
    pub(super) now: Option<u8>,
    /// The second in which the last claim won, while that matters.
    pub(super) claimed: u8,
    /// Ownerships that processed, the earliest first, with their epochs. Only the invariants use them.
    pub(super) given: [Option<(u8, u8)>; MOST_GIVEN],
    /// What the last reset wrote, until an owner has adopted it. Only the invariants use it.
    pub(super) due: Option<Due>,
    /// The foreign instance has run since before the last reset. Only the invariants use it.
    pub(super) foreign_from_before: bool,
}

impl State {
    pub(super) fn seen(&self) -> Option<Seen> {
        self.checkpoint.map(|checkpoint| Seen { version: Version::Current, checkpoint })
    }

    /// Returns whether an operator has reported this.
    pub(super) fn has_reported(&self, report: ResetReport) -> bool {
        self.instances.iter().any(|instance| instance.reset.progress == Progress::Reported(report))
    }

    pub(super) fn is_owned_by(&self, owner: Owner) -> bool {
        self.ownership.is_some_and(|record| record.owner == owner)
    }

    /// Returns the same state with one instance changed.
    pub(super) fn with(&self, number: usize, change: impl FnOnce(&mut Instance)) -> Self {
        let mut state = *self;
        change(&mut state.instances[number]);
        state
    }
}

/// Returns the short form of an instance's number.
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
