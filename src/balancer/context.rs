//! What all parts of the state share during a step, and where they collect the actions of the step.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

use super::config::LoopSettings;
use super::events::{Note, OwnershipEvent};
use super::liveness::Stalled;
use super::step::{Action, StorageRequest};
use crate::model::{Incarnation, Moment, OwnerId, PartitionId};
use crate::planner::PartitionOwner;

/// How far the loop is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopPhase {
    Running,
    /// The instance claims nothing more.
    Draining,
    /// The instance releases everything, until this moment.
    Ending(Moment),
}

#[derive(Debug)]
pub(super) struct Context {
    pub(super) settings: LoopSettings,
    pub(super) now: Moment,
    pub(super) phase: LoopPhase,
    pub(super) stalled: Stalled,
    /// Whether a partition that was won has not been started for too long.
    pub(super) start_overdue: bool,
    /// Whether another instance may own the same partitions in the other blob-name casing.
    pub(super) case_unknown: bool,
    /// When the last outage of the storage ended.
    pub(super) outage_ended: Option<Moment>,
    /// Whether an owner of another SDK is alive in the group.
    pub(super) foreign_owner: bool,
    /// How many instances the group has, as far as this one knows.
    pub(super) members: u32,
    pub(super) rng: StdRng,
    /// What the current step leaves for its end.
    pub(super) effects: StepEffects,
}

/// What a step changed about a partition, as the snapshot shows it.
#[derive(Debug)]
pub(super) enum Change {
    Owner(PartitionOwner),
    /// This owner requested a handoff.
    HandoffReceived(OwnerId),
}

/// Whether the storage did what a claim requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimResult {
    Won,
    Failed,
}

/// What a step leaves for its end.
#[derive(Debug, Default)]
pub(super) struct StepEffects {
    pub(super) actions: Vec<Action>,
    /// What this step changed about partitions.
    pub(super) changes: Vec<(PartitionId, Change)>,
    /// Whether the next cycle must not be postponed.
    pub(super) disturbed: bool,
    /// Whether the snapshot is out of date.
    pub(super) changed: bool,
    /// Whether a claim was won, or failed because of the storage.
    pub(super) claim: Option<ClaimResult>,
    /// Whether other instances should look at what happened.
    pub(super) news: bool,
}

impl Context {
    pub(super) fn new(settings: LoopSettings, rng: StdRng) -> Self {
        Self {
            settings,
            now: Moment::ZERO,
            phase: LoopPhase::Running,
            stalled: Stalled::default(),
            start_overdue: false,
            case_unknown: false,
            outage_ended: None,
            foreign_owner: false,
            members: 1,
            rng,
            effects: StepEffects::default(),
        }
    }

    pub(super) fn push_action(&mut self, action: Action) {
        self.effects.actions.push(action);
    }

    pub(super) fn push_request(&mut self, request: StorageRequest) {
        self.push_action(Action::Request(request));
    }

    pub(super) fn push_event(&mut self, event: OwnershipEvent) {
        self.push_action(Action::Emit(event));
    }

    pub(super) fn push_note(&mut self, note: Note) {
        self.push_action(Action::Note(note));
    }

    /// Brings the next cycle forward.
    pub(super) fn bring_cycle_forward(&mut self) {
        self.effects.disturbed = true;
    }

    /// Tells the other instances to list: the beacon is lit.
    pub(super) fn call_others(&mut self) {
        self.effects.news = true;
    }

    /// Records that a claim failed because of the storage.
    pub(super) fn record_failed_claim(&mut self) {
        self.effects.claim = Some(ClaimResult::Failed);
    }

    pub(super) fn record_won_claim(&mut self) {
        self.effects.claim = Some(ClaimResult::Won);
    }

    /// Requests a new snapshot.
    pub(super) fn request_snapshot(&mut self) {
        self.effects.changed = true;
    }

    /// Records that a partition has another owner.
    pub(super) fn record_owner(&mut self, partition: &PartitionId, owner: PartitionOwner) {
        self.effects.changes.push((partition.clone(), Change::Owner(owner)));
        self.effects.disturbed = true;
        self.effects.changed = true;
    }

    /// Records that another instance requested a partition of this one.
    pub(super) fn record_handoff_request(&mut self, partition: &PartitionId, by: &OwnerId) {
        self.effects.changes.push((partition.clone(), Change::HandoffReceived(by.clone())));
        self.effects.changed = true;
    }

    /// Ends the loop because a later incarnation of this owner is running. Has no effect during shutdown.
    pub(super) fn end_as_replaced(&mut self, by: Incarnation) {
        if !self.is_ending() {
            self.push_action(Action::Replaced(by));
        }
    }

    /// Begins the shutdown.
    pub(super) fn begin_shutdown(&mut self) {
        self.phase = LoopPhase::Ending(self.now + self.settings.release_limit());
    }

    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, LoopPhase::Ending(_))
    }

    /// Whether this instance claims its share, apart from moments in which it waits.
    pub(super) fn takes_part(&self) -> bool {
        self.phase == LoopPhase::Running && !self.stalled.runtime
    }

    /// Whether this instance claims nothing now. While the runtime does not run, a claimed partition would not be read.
    /// While an instance may own the same partitions in the other blob-name casing, neither must claim more.
    pub(super) fn claims_nothing(&self) -> bool {
        !self.takes_part() || self.start_overdue || self.case_unknown
    }

    /// Returns the age at which a lease is renewed. Owners of other SDKs compare ages with their own wall clocks and
    /// their own lease durations: while there is one, leases are renewed every interval.
    pub(super) fn renewal_age(&self) -> Duration {
        let usual = self.settings.renewal_age();
        if self.foreign_owner {
            usual.min(self.settings.interval().max(self.settings.lease_duration() / 6))
        } else {
            usual
        }
    }

    /// Returns a random number from 0 to 1.
    pub(super) fn random_chance(&mut self) -> f64 {
        self.rng.random_range(0.0..1.0)
    }
}
