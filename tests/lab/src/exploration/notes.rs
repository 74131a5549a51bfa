//! Observations about one step.

use std::ops::BitOrAssign;

use super::state::{Checkpoint, Write};

/// Holds on every step, or, for the last one, from every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invariant {
    /// I1: once a new owner has adopted the partition, or processes it, no checkpoint of a previous one is accepted.
    Fenced,
    /// I2: writes of this crate never move the stored position back.
    Monotonic,
    /// I3: every event at or below the stored position was processed.
    Processed,
    /// I4: no instance gives up a partition whose record still names it.
    Kept,
    /// I6: no event is processed twice, unless that was reported.
    Once,
    /// I7: of two incarnations of one owner the later one remains.
    LaterIncarnation,
    /// I8: a release that is reported as done was done.
    Released,
    /// I10: a position that is reported as durable, or a later one, was stored when the checkpoint was read.
    Durable,
    /// I12: no owner starts after unprocessed events if there is a checkpoint before them.
    Skipped,
    /// I11: while an owner knows that its heartbeat is valid, no lease that the heartbeat keeps alive is taken over,
    /// and every lease that it does not doubt is its own.
    KeptAlive,
    /// I5: after the last fault, an owner makes progress, or waits in a paused partition.
    Live,
    /// E1: of two ownerships that processed events, the later one has the greater epoch.
    EpochGrows,
    /// E2: no two of them have the same epoch.
    EpochIsUnique,
    /// J1: the owner after a reset starts exactly at its position.
    ResetFollowed,
    /// J3: what an operator reports is true and stays true.
    ReportTrue,
    /// J8: an operator reports a reset as done only after its release is settled.
    ReportReleased,
    /// J9: an operator does not return a partition to an operator.
    ReturnedToOwner,
    /// J5: when a reset is reported as done, no other SDK continues from before it.
    ForeignSilent,
    /// P1: no owner of this crate advances the checkpoint of a paused partition.
    Paused,
    /// P2: only an operator that resumes the partition removes the pause.
    PauseKept,
}

/// An event that a scenario must have explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    ClaimLost,
    ClaimFoundOwn,
    ClaimOverNothing,
    ClaimOverUnchanged,
    RenewalStands,
    RenewalFoundOld,
    RenewalCreates,
    RenewalLost,
    Replaced,
    ReleaseTriedAgain,
    ReleaseStands,
    OwnRecordReclaimed,
    EarlierIncarnationReclaimed,
    LeaseDropped,
    ReadFailed,
    AdoptLost,
    AdoptRepeated,
    AdoptedWithoutWrite,
    StartPinnedOverBlob,
    StartPinnedAhead,
    PinAdopted,
    PinReplaced,
    PinAmbiguous,
    CheckpointCreated,
    CheckpointLanded,
    CheckpointSuperseded,
    CheckpointTriedAgain,
    CheckpointFenced,
    LateWriteLanded,
    OwnershipOutlived,
    Requested,
    RequestStands,
    RequestAmbiguous,
    MarkLost,
    RequestTooLate,
    RequestedAgain,
    HandoffSeen,
    AcknowledgementStands,
    AcknowledgementTriedAgain,
    HandoffTaken,
    HandoffStolen,
    HandoffOver,
    ReservationLapsed,
    ReleasedUnsettled,
    DeclaredDead,
    Rewritten,
    RewriteLost,
    HeartbeatInvalidated,
    DeclaredTooLate,
    RepeatRefused,
    FirstCopyAnswered,
    Ended,
    FellBack,
    CameBack,
    ResetDone,
    ResetNotDone,
    ResetIndeterminate,
    ResetAgain,
    ResetInherited,
    PauseAdopted,
}

impl Event {
    /// The events of partitions; see [`heartbeat`](super::heartbeat) for the others.
    pub(super) const ALL: &[Self] = &[
        Self::ClaimLost,
        Self::ClaimFoundOwn,
        Self::ClaimOverNothing,
        Self::ClaimOverUnchanged,
        Self::RenewalStands,
        Self::RenewalFoundOld,
        Self::RenewalCreates,
        Self::RenewalLost,
        Self::Replaced,
        Self::ReleaseTriedAgain,
        Self::ReleaseStands,
        Self::OwnRecordReclaimed,
        Self::EarlierIncarnationReclaimed,
        Self::LeaseDropped,
        Self::ReadFailed,
        Self::AdoptLost,
        Self::AdoptRepeated,
        Self::AdoptedWithoutWrite,
        Self::StartPinnedOverBlob,
        Self::StartPinnedAhead,
        Self::PinAdopted,
        Self::PinReplaced,
        Self::PinAmbiguous,
        Self::CheckpointCreated,
        Self::CheckpointLanded,
        Self::CheckpointSuperseded,
        Self::CheckpointTriedAgain,
        Self::CheckpointFenced,
        Self::LateWriteLanded,
        Self::OwnershipOutlived,
        Self::Requested,
        Self::RequestStands,
        Self::RequestAmbiguous,
        Self::MarkLost,
        Self::RequestTooLate,
        Self::RequestedAgain,
        Self::HandoffSeen,
        Self::AcknowledgementStands,
        Self::AcknowledgementTriedAgain,
        Self::HandoffTaken,
        Self::HandoffStolen,
        Self::HandoffOver,
        Self::ReservationLapsed,
        Self::ReleasedUnsettled,
        Self::ResetDone,
        Self::ResetNotDone,
        Self::ResetIndeterminate,
        Self::ResetAgain,
        Self::ResetInherited,
        Self::PauseAdopted,
    ];
}

/// The invariants that a step violates, its events, and what others can see of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    broken: u32,
    events: u64,
    written: Option<Write>,
    started: Option<Start>,
}

/// An instance starts the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The checkpoint with which it adopted the partition; `None` if there was none.
    pub(super) adopted: Option<Checkpoint>,
}

impl Notes {
    pub(super) fn breaking(mut self, invariant: Invariant, broken: bool) -> Self {
        self.broken |= u32::from(broken) << invariant as u16;
        self
    }

    pub(super) fn with(mut self, event: Event) -> Self {
        self.events |= 1 << event as u64;
        self
    }

    pub(super) fn with_if(self, event: Event, happened: bool) -> Self {
        if happened { self.with(event) } else { self }
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        self |= other;
        self
    }

    pub(super) fn breaks(self, invariant: Invariant) -> bool {
        self.broken & 1 << invariant as u16 != 0
    }

    pub(super) fn contains(self, event: Event) -> bool {
        self.events & 1 << event as u64 != 0
    }

    /// The storage has applied this write.
    pub(super) fn writing(self, write: Write) -> Self {
        Self { written: Some(write), ..self }
    }

    pub(super) fn written(self) -> Option<Write> {
        self.written
    }

    pub(super) fn starting(self, start: Start) -> Self {
        Self { started: Some(start), ..self }
    }

    pub(super) fn started(self) -> Option<Start> {
        self.started
    }
}

impl BitOrAssign for Notes {
    fn bitor_assign(&mut self, other: Self) {
        self.broken |= other.broken;
        self.events |= other.events;
        self.written = self.written.or(other.written);
        self.started = self.started.or(other.started);
    }
}
