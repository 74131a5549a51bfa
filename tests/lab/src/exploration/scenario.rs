//! What is explored: who takes part, what may go wrong, and which rule is left out.

use super::notes::{Event, Invariant};
use super::search::Aim;
use super::state::{
    Checkpoint, Elsewhere, Foreign, Imported, Instance, Left, Life, MOST_GIVEN, MOST_INSTANCES, MOST_LATE, Pinner,
    State,
};
use super::storage::up_to;

/// One of our instances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) owner: &'static str,
    /// Of two lives of one owner, the greater is the later one.
    pub(super) life: u8,
    pub(super) starts_later: bool,
    /// It runs the official processor: where that starts without a checkpoint, its store does not know.
    pub(super) on_adapter: bool,
    /// It is an operator, which resets the partition to this position.
    pub(super) resets_to: Option<u8>,
}

/// When a record may be taken for expired although its owner renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// Never.
    Synchronous,
    /// At any time, as often as there are steals: an owner may be paused for however long.
    Asynchronous,
}

/// A rule that can be left out, to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// To adopt, read the ownership after the checkpoint.
    AdoptReadsOwnership,
    /// After a doubtful checkpoint, read the ownership after the checkpoint, not before.
    OwnershipAfterCheckpoint,
    /// A later position that was found stored becomes the last written one.
    SupersededIsWritten,
    /// A doubtful release is done only if the record is not mine any more.
    ReleaseIsLookedInto,
    /// What an earlier life of mine owned is adopted as everything else.
    ReclaimedIsAdopted,
    /// An earlier life of mine never makes me stop.
    LaterLifeStays,
    /// A failed read after a doubtful write decides nothing.
    FailedReadDecidesNothing,
    /// A record of mine that I do not run is claimed.
    OrphansAreClaimed,
    /// A claim that is found to be mine is written again before it counts.
    WonIsWrittenAnew,
    /// Who leaves settles the checkpoint before the release.
    CheckpointBeforeRelease,
    /// A renewal that meets the mark of somebody who asks for the partition keeps it.
    RenewalKeepsMark,
    /// A pinned start compares with nothing.
    PinComparesWithNothing,
    /// A start that is written down says which checkpoint of the other tree was looked at, or that there is none.
    StartNamesOtherTree,
    /// A record is mine only with the epoch of my tenure.
    MineByEpoch,
    /// An epoch is greater than that of the record that the claim is over.
    EpochChain,
    /// An epoch is greater than the server's time.
    EpochTime,
    /// There is room for a chain of epochs within a second.
    EpochRoom,
    /// A record without an epoch is claimed over only when it is no longer young.
    EpochWaits,
    /// And that is after two seconds, not after one.
    EpochWaitsLong,
    /// The time in an epoch is that of the answer by which the record is old enough.
    EpochOneAnswer,
    /// A renewal that creates the record begins a tenure with an epoch of its own.
    EpochCreate,
    /// An operator, too, reads the ownership after the checkpoint that it adopts.
    ResetIsVerified,
    /// A reset is written under the version of its adoption.
    ResetIsConditional,
    /// It is written although the position stands there already.
    ResetIsWritten,
    /// An operator that lost the partition while a write of the position was in doubt says that it does not know.
    ResetDoubtIsReported,
    /// The same, although that position stands there when it looks.
    ResetDoubtIsNotLookedUp,
    /// An operator reports after the release.
    ResetReportedLast,
    /// An operator whose partition was taken before the release says that it does not know.
    ResetOvertaken,
    /// An operator returns the partition to whom an operator before it would have returned it.
    ResetInherits,
    /// An operator that displaces another SDK waits before it writes.
    ResetSettles,
    /// And so it does where another SDK is in the group.
    ResetSettlesBesideForeign,
    /// And until the last handler has ended.
    ResetSettlesHandlers,
}

/// The server's time, in seconds. Each of its two machines may show the second before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) end: u8,
    pub(super) skew: bool,
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a liberty of its own")]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) members: &'static [Member],
    pub(super) foreign: bool,
    /// The other SDK's first claim overwrites whatever there is.
    pub(super) foreign_creates_over: bool,
    /// It goes on writing checkpoints after it lost the partition.
    pub(super) foreign_never_notices: bool,
    /// The checkpoint blob at the start, if there is one.
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) last_event: u8,
    /// The start is known, so that an adoption writes it down where there is no position.
    pub(super) pins: bool,
    /// That start. What lies before it was in the hub already when the group began.
    pub(super) starts_at: u8,
    /// An instance pins it as the group begins, whether the partition is owned or not.
    pub(super) pins_ahead: bool,
    /// An owner in the other tree began with the first event, before anything else.
    pub(super) elsewhere: bool,
    pub(super) timing: Timing,
    pub(super) left: Left,
    /// Faults befall reads, too.
    pub(super) reads_fail: bool,
    /// Claims and renewals are under way at the same time as work on the checkpoint.
    pub(super) overlaps: bool,
    /// No owner ever answers one that asks for its partition.
    pub(super) deaf: bool,
    pub(super) clock: Option<Clock>,
    /// The ownership is deleted no sooner than so many seconds after the last claim, and not while a claim is under way
    /// that found none.
    pub(super) deletes_after: Option<u8>,
    pub(super) without: Option<Rule>,
    pub(super) aim: Aim,
    /// What must have happened somewhere, or the scenario explores less than it seems to.
    pub(super) reaches: &'static [Event],
}

pub(super) const AB: &[Member] = &[member("A", "A", 0), member("B", "B", 0)];
pub(super) const ABC: &[Member] = &[member("A", "A", 0), member("B", "B", 0), member("C", "C", 0)];
/// Two lives of one owner, and another owner.
pub(super) const A1_A2_B: &[Member] =
    &[member("A1", "A", 1), Member { starts_later: true, ..member("A2", "A", 2) }, member("B", "B", 0)];
/// One on the official processor, and one on ours.
pub(super) const ADAPTER_AND_B: &[Member] = &[Member { on_adapter: true, ..member("A", "A", 0) }, member("B", "B", 0)];
/// Two on the official processor.
pub(super) const ADAPTERS: &[Member] =
    &[Member { on_adapter: true, ..member("A", "A", 0) }, Member { on_adapter: true, ..member("B", "B", 0) }];

pub(super) const fn member(name: &'static str, owner: &'static str, life: u8) -> Member {
    Member { name, owner, life, starts_later: false, on_adapter: false, resets_to: None }
}

pub(super) const fn operator(name: &'static str, position: u8) -> Member {
    Member { resets_to: Some(position), ..member(name, name, 0) }
}

pub(super) const NOWHERE: Checkpoint = Checkpoint { position: None, pinned: false, imported: Imported::Never };
pub(super) const AT_START: Option<Checkpoint> = Some(Checkpoint { position: Some(0), ..NOWHERE });

/// The invariants of every scenario, then those that only an operator can break.
pub(super) const WITH_RESETS: &[Invariant] = &[
    Invariant::Fenced,
    Invariant::Monotonic,
    Invariant::Processed,
    Invariant::Kept,
    Invariant::LaterLife,
    Invariant::Released,
    Invariant::Durable,
    Invariant::Skipped,
    Invariant::ResetFollowed,
    Invariant::ReportTrue,
    Invariant::ReportReleased,
    Invariant::ReturnedToOwner,
    Invariant::ForeignSilent,
];
pub(super) const ALWAYS: &[Invariant] = WITH_RESETS.split_at(8).0;

pub(super) const SAFE: Aim = Aim { invariants: ALWAYS, live: false };
pub(super) const LIVE: Aim = Aim { invariants: ALWAYS, live: true };

pub(super) const NOTHING: Left =
    Left { faults: 0, steals: 0, crashes: 0, releases: 0, freezes: 0, deletes: 0, marks: 0, timeouts: 0, unsettled: 0 };

pub(super) const BASE: Scenario = Scenario {
    name: "",
    members: AB,
    foreign: false,
    foreign_creates_over: false,
    foreign_never_notices: false,
    checkpoint: AT_START,
    last_event: 2,
    pins: true,
    starts_at: 0,
    pins_ahead: false,
    elsewhere: false,
    timing: Timing::Asynchronous,
    left: NOTHING,
    reads_fail: false,
    overlaps: false,
    deaf: false,
    clock: None,
    deletes_after: None,
    without: None,
    aim: SAFE,
    reaches: &[],
};

impl Scenario {
    pub(super) fn start(&self) -> State {
        let mut instances = [Instance { life: Life::Over, ..Instance::default() }; MOST_INSTANCES];
        for (instance, member) in instances.iter_mut().zip(self.members) {
            instance.life = if member.starts_later { Life::Before } else { Life::Up };
            instance.is_operator = member.resets_to.is_some();
        }
        State {
            ownership: None,
            checkpoint: self.checkpoint,
            instances,
            foreign: Foreign::Idle,
            pinner: if self.pins_ahead { Pinner::Away } else { Pinner::Done },
            elsewhere: if self.elsewhere { Elsewhere::Running { at: 0, written: 0 } } else { Elsewhere::Gone },
            checkpoint_elsewhere: None,
            late: [None; MOST_LATE],
            left: self.left,
            // What lies at or before the start counts as processed.
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
