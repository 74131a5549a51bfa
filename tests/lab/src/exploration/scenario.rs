//! What is explored: the participants, the possible faults, and the disabled rule.

use super::listing::TERMS;
use super::notes::{Event, Invariant};
use super::search::Aim;
use super::state::{
    Checkpoint, Foreign, Instance, Left, MOST_GIVEN, MOST_INSTANCES, MOST_LATE, Pinner, RunState, State,
};
use super::storage::up_to;

/// An instance of this crate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) owner: &'static str,
    /// Of two incarnations of one owner, the greater number is the later one.
    pub(super) incarnation: u8,
    pub(super) starts_later: bool,
    /// It runs the official processor: its store does not know where that starts without a checkpoint.
    pub(super) on_adapter: bool,
    /// It is an operator, which makes this change.
    pub(super) order: Option<Order>,
    /// The lease duration in its records, in seconds; `None` if the value is malformed.
    pub(super) lease_duration: Option<u64>,
}

/// What an operator changes in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// It moves the position.
    Reset(u8),
    Pause,
    Resume,
}

impl Order {
    /// Returns the checkpoint with this change.
    pub(super) fn applied_to(self, checkpoint: Checkpoint) -> Checkpoint {
        match self {
            Self::Reset(position) => Checkpoint { position: Some(position), pinned: false, ..checkpoint },
            Self::Pause => Checkpoint { paused: true, ..checkpoint },
            Self::Resume => Checkpoint { paused: false, ..checkpoint },
        }
    }

    /// Returns whether the checkpoint shows the change.
    pub(super) fn is_in(self, checkpoint: Option<Checkpoint>) -> bool {
        checkpoint.is_some_and(|checkpoint| match self {
            Self::Reset(position) => checkpoint.position == Some(position),
            Self::Pause => checkpoint.paused,
            Self::Resume => !checkpoint.paused,
        })
    }
}

/// When a record may be considered expired although its owner renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// Never.
    Synchronous,
    /// At any time, as often as there are steals: an owner may be paused for any time.
    Asynchronous,
}

/// A rule that can be disabled, to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// An adoption reads the ownership after the checkpoint.
    AdoptReadsOwnership,
    /// After an ambiguous checkpoint write, the ownership is read after the checkpoint, not before.
    OwnershipAfterCheckpoint,
    /// A later position that was found stored becomes the last written one.
    SupersededIsWritten,
    /// An ambiguous release is done only if the record no longer names this instance.
    ReleaseIsVerified,
    /// A partition of this owner's earlier incarnation is adopted like any other.
    ReclaimedIsAdopted,
    /// An earlier incarnation of this owner never stops this instance.
    LaterIncarnationStays,
    /// A failed read after an ambiguous write decides nothing.
    FailedReadDecidesNothing,
    /// A record of this instance that it does not run is claimed.
    OwnRecordsAreReclaimed,
    /// A claim that a read finds to be this instance's own is written again before it counts.
    WonIsWrittenAgain,
    /// A stopping owner settles the checkpoint before the release.
    CheckpointBeforeRelease,
    /// A renewal that finds another instance's handoff request keeps it.
    RenewalKeepsRequest,
    /// A pinned start compares with nothing.
    PinComparesWithNothing,
    /// A record is this instance's own only with the epoch of its ownership.
    OwnByEpoch,
    /// An epoch is greater than that of the record that the claim replaces.
    EpochChain,
    /// An epoch is greater than the server's time.
    EpochTime,
    /// There is room for a chain of epochs within a second.
    EpochRoom,
    /// A record without an epoch is claimed only when it is no longer fresh.
    EpochWaits,
    /// And that is after two seconds, not after one.
    EpochWaitsLong,
    /// The time in an epoch is that of the response in which the record is old enough.
    EpochOneResponse,
    /// A renewal that creates the record begins an ownership with its own epoch.
    EpochCreate,
    /// An operator, too, reads the ownership after the checkpoint that it adopts.
    ResetIsVerified,
    /// A reset is written under the version of its adoption.
    ResetIsConditional,
    /// It is written even if the position is already stored.
    ResetIsWritten,
    /// An operator that lost the partition while a write of the position was ambiguous reports that the outcome is
    /// indeterminate.
    ResetAmbiguityIsReported,
    /// The same, even if that position is stored when it reads the checkpoint.
    ResetAmbiguityIsNotLookedUp,
    /// An operator reports after the release.
    ResetReportedLast,
    /// An operator whose partition was taken before the release reports that the outcome is indeterminate.
    ResetOvertaken,
    /// An operator returns the partition to the owner to which the previous operator would have returned it.
    ResetInherits,
    /// An operator that displaces another SDK waits before it writes.
    ResetSettles,
    /// It also waits if another SDK is in the group.
    ResetSettlesWithForeign,
    /// It waits until the last handler has ended.
    ResetSettlesHandlers,
    /// An owner that adopts a paused checkpoint delivers nothing.
    PauseIsObeyed,
    /// A checkpoint and a reset keep the pause.
    PauseIsKept,
}

/// The server's time, in seconds. Each of its two machines may show the second before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) end: u8,
    pub(super) skew: bool,
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a freedom of its own")]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) members: &'static [Member],
    pub(super) foreign: bool,
    /// The other SDK's first claim overwrites any record.
    pub(super) foreign_creates_over: bool,
    /// It continues to write checkpoints after it lost the partition.
    pub(super) foreign_never_notices: bool,
    /// It may release the partition, and stop.
    pub(super) foreign_releases: bool,
    /// The checkpoint blob at the start, if there is one.
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) last_event: u8,
    /// The start is known, so that an adoption writes it if there is no position.
    pub(super) pins: bool,
    /// That start. The events before it were in the hub when the group began.
    pub(super) starts_at: u8,
    /// An instance pins it as the group begins, whether the partition is owned or not.
    pub(super) pins_ahead: bool,
    pub(super) timing: Timing,
    pub(super) left: Left,
    /// Reads may fail, too.
    pub(super) reads_fail: bool,
    /// Claims and renewals may overlap with work on the checkpoint.
    pub(super) overlaps: bool,
    /// No owner ever responds to a handoff request.
    pub(super) ignores_requests: bool,
    pub(super) clock: Option<Clock>,
    /// The ownership is deleted no sooner than this many seconds after the last claim, and not while a claim that found
    /// none is in progress.
    pub(super) deletes_after: Option<u8>,
    pub(super) without: Option<Rule>,
    pub(super) aim: Aim,
    /// Events that must have happened, or the scenario explores less than intended.
    pub(super) reaches: &'static [Event],
}

pub(super) const AB: &[Member] = &[member("A", "A", 0), member("B", "B", 0)];
pub(super) const ABC: &[Member] = &[member("A", "A", 0), member("B", "B", 0), member("C", "C", 0)];
/// Two incarnations of one owner, and another owner.
pub(super) const A1_A2_B: &[Member] =
    &[member("A1", "A", 1), Member { starts_later: true, ..member("A2", "A", 2) }, member("B", "B", 0)];
/// Owners whose leases last shorter and longer than usual.
pub(super) const SHORT_AND_LONG: &[Member] = &[
    Member { lease_duration: Some(14), ..member("A", "A", 0) },
    Member { lease_duration: Some(300), ..member("B", "B", 0) },
];
/// An owner whose lease duration changes when it restarts, and one whose records do not say how long they last.
pub(super) const CHANGED_AND_MALFORMED: &[Member] = &[
    Member { lease_duration: Some(300), ..member("A1", "A", 1) },
    Member { lease_duration: Some(14), starts_later: true, ..member("A2", "A", 2) },
    Member { lease_duration: None, ..member("B", "B", 0) },
];
/// One owner on the official processor, and one on this crate's.
pub(super) const ADAPTER_AND_B: &[Member] = &[Member { on_adapter: true, ..member("A", "A", 0) }, member("B", "B", 0)];
/// Two owners on the official processor.
pub(super) const ADAPTERS: &[Member] =
    &[Member { on_adapter: true, ..member("A", "A", 0) }, Member { on_adapter: true, ..member("B", "B", 0) }];

pub(super) const fn member(name: &'static str, owner: &'static str, incarnation: u8) -> Member {
    let lease_duration = Some(TERMS.own.as_secs());
    Member { name, owner, incarnation, starts_later: false, on_adapter: false, order: None, lease_duration }
}

pub(super) const fn operator(name: &'static str, position: u8) -> Member {
    ordered(name, Order::Reset(position))
}

/// An operator with this order.
pub(super) const fn ordered(name: &'static str, order: Order) -> Member {
    Member { order: Some(order), ..member(name, name, 0) }
}

pub(super) const NOWHERE: Checkpoint = Checkpoint { position: None, pinned: false, paused: false };
pub(super) const AT_START: Option<Checkpoint> = Some(Checkpoint { position: Some(0), ..NOWHERE });

/// The invariants of every scenario, then those that only an operator can break.
pub(super) const WITH_RESETS: &[Invariant] = &[
    Invariant::Fenced,
    Invariant::Monotonic,
    Invariant::Processed,
    Invariant::Kept,
    Invariant::LaterIncarnation,
    Invariant::Released,
    Invariant::Durable,
    Invariant::Skipped,
    Invariant::ResetFollowed,
    Invariant::ReportTrue,
    Invariant::ReportReleased,
    Invariant::ReturnedToOwner,
    Invariant::ForeignSilent,
    Invariant::Paused,
    Invariant::PauseKept,
];
/// The invariants that hold with any faults.
pub(super) const ALWAYS: &[Invariant] = WITH_RESETS.split_at(8).0;

pub(super) const SAFE: Aim = Aim { invariants: ALWAYS, live: false };
pub(super) const LIVE: Aim = Aim { invariants: ALWAYS, live: true };

pub(super) const NOTHING: Left = Left {
    faults: 0,
    steals: 0,
    crashes: 0,
    releases: 0,
    freezes: 0,
    deletes: 0,
    requests: 0,
    timeouts: 0,
    unsettled: 0,
};

pub(super) const BASE: Scenario = Scenario {
    name: "",
    members: AB,
    foreign: false,
    foreign_creates_over: false,
    foreign_never_notices: false,
    foreign_releases: false,
    checkpoint: AT_START,
    last_event: 2,
    pins: true,
    starts_at: 0,
    pins_ahead: false,
    timing: Timing::Asynchronous,
    left: NOTHING,
    reads_fail: false,
    overlaps: false,
    ignores_requests: false,
    clock: None,
    deletes_after: None,
    without: None,
    aim: SAFE,
    reaches: &[],
};

impl Scenario {
    pub(super) fn start(&self) -> State {
        let mut instances = [Instance { run_state: RunState::Over, ..Instance::default() }; MOST_INSTANCES];
        for (instance, member) in instances.iter_mut().zip(self.members) {
            instance.run_state = if member.starts_later { RunState::Before } else { RunState::Up };
            instance.is_operator = member.order.is_some();
        }
        State {
            ownership: None,
            checkpoint: self.checkpoint,
            instances,
            foreign: Foreign::Idle,
            pinner: if self.pins_ahead { Pinner::Away } else { Pinner::Done },
            late: [None; MOST_LATE],
            left: self.left,
            // Events at or before the start count as processed.
            processed: up_to(self.checkpoint.and_then(|there| there.position).unwrap_or_default()),
            passed: 0,
            reported: 0,
            fence: 0,
            now: self.clock.map(|_| 1),
            claimed: 0,
            given: [None; MOST_GIVEN],
            due: None,
            foreign_from_before: false,
        }
    }
}
