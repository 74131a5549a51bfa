//! What all parts of the state share during a step, and where they collect the actions of the step.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

use super::action::{Action, Request};
use super::events::OwnershipEvent;
use super::liveness::Stalled;
use super::note::Note;
use super::retries::{back_off, last_chance, retry_time};
use super::settings::Settings;
use crate::error::Error;
use crate::model::{Incarnation, Moment, OwnerId, PartitionId};
use crate::planner::PartitionOwner;

/// How far the loop is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// The instance claims nothing more.
    Draining,
    /// The instance releases everything, until this moment.
    Ending(Moment),
}

#[derive(Debug)]
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) now: Moment,
    pub(super) phase: Phase,
    pub(super) stalled: Stalled,
    /// Whether a partition that was won has not been started for too long.
    pub(super) start_overdue: bool,
    /// Whether another instance may own the same partitions in the other name case.
    pub(super) case_unknown: bool,
    /// When the last outage of the storage ended.
    pub(super) outage_ended: Option<Moment>,
    /// Whether an owner of another SDK is alive in the group.
    pub(super) foreign_owner: bool,
    pub(super) rng: StdRng,
    /// What the current step leaves for its end.
    pending: Pending,
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
pub(super) struct Pending {
    pub(super) actions: Vec<Action>,
    /// What this step changed about partitions.
    pub(super) changes: Vec<(PartitionId, Change)>,
    /// Whether the next cycle must not be postponed.
    pub(super) disturbed: bool,
    /// Whether the snapshot is out of date.
    pub(super) changed: bool,
    /// Whether a claim was won, or failed because of the storage.
    pub(super) claim: Option<ClaimResult>,
}

impl Context {
    pub(super) fn new(settings: Settings, rng: StdRng) -> Self {
        Self {
            settings,
            now: Moment::ZERO,
            phase: Phase::Running,
            stalled: Stalled::default(),
            start_overdue: false,
            case_unknown: false,
            outage_ended: None,
            foreign_owner: false,
            rng,
            pending: Pending::default(),
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.pending.actions.push(action);
    }

    pub(super) fn request(&mut self, request: Request) {
        self.act(Action::Request(request));
    }

    pub(super) fn emit(&mut self, event: OwnershipEvent) {
        self.act(Action::Emit(event));
    }

    pub(super) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    /// Brings the next cycle forward.
    pub(super) fn disturb(&mut self) {
        self.pending.disturbed = true;
    }

    /// Records that a claim failed because of the storage.
    pub(super) fn claim_failed(&mut self) {
        self.pending.claim = Some(ClaimResult::Failed);
    }

    pub(super) fn claim_won(&mut self) {
        self.pending.claim = Some(ClaimResult::Won);
    }

    /// Requests a new snapshot.
    pub(super) fn change(&mut self) {
        self.pending.changed = true;
    }

    /// Records that a partition has another owner.
    pub(super) fn owner_is(&mut self, partition: &PartitionId, owner: PartitionOwner) {
        self.pending.changes.push((partition.clone(), Change::Owner(owner)));
        (self.pending.disturbed, self.pending.changed) = (true, true);
    }

    /// Records that another instance requested a partition of this one.
    pub(super) fn handoff_requested_by(&mut self, partition: &PartitionId, by: &OwnerId) {
        self.pending.changes.push((partition.clone(), Change::HandoffReceived(by.clone())));
        self.pending.changed = true;
    }

    /// Ends the loop because a later incarnation of this owner is running. Has no effect during shutdown.
    pub(super) fn replaced(&mut self, by: Incarnation) {
        if !self.is_ending() {
            self.act(Action::Replaced(by));
        }
    }

    pub(super) fn take(&mut self) -> Pending {
        std::mem::take(&mut self.pending)
    }

    /// Begins the shutdown.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ending(self.now + self.settings.release_limit());
    }

    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(_))
    }

    /// Whether this instance claims its share, apart from moments in which it waits.
    pub(super) fn takes_part(&self) -> bool {
        self.phase == Phase::Running && !self.stalled.runtime
    }

    /// Whether this instance claims nothing now. While the runtime does not run, a claimed partition would not be read.
    /// While an instance may own the same partitions in the other name case, neither must claim more.
    pub(super) fn claims_nothing(&self) -> bool {
        !self.takes_part() || self.start_overdue || self.case_unknown
    }

    pub(super) fn had_outage_within(&self, time: Duration) -> bool {
        self.outage_ended.is_some_and(|ended| self.now < ended + time)
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
    pub(super) fn chance(&mut self) -> f64 {
        self.rng.random_range(0.0..1.0)
    }

    /// Returns when to retry a renewal after this many failures, with some jitter. The lease counts from `valid_from`, and
    /// must not expire because the server asked for a longer wait.
    pub(super) fn retry_at(&mut self, failures: u32, valid_from: Moment, error: &Error) -> Moment {
        self.retry_within(self.settings.lease_duration() / 8, failures, valid_from, error)
    }

    /// Returns the same for the heartbeat. It is retried more often, because all leases may depend on it.
    pub(super) fn retry_heartbeat_at(&mut self, failures: u32, valid_from: Moment, error: &Error) -> Moment {
        self.retry_within(self.settings.lease_duration() / 16, failures, valid_from, error)
    }

    fn retry_within(&mut self, longest: Duration, failures: u32, valid_from: Moment, error: &Error) -> Moment {
        let (settings, now) = (&self.settings, self.now);
        let lease_duration = settings.lease_duration();
        let jitter = self.rng.random_range(1.0..1.25);
        let wait = back_off(failures, settings.retry_pause(), longest).mul_f64(jitter);
        let lifetime = settings.lifetime().unwrap_or(lease_duration);
        let last_chance = last_chance(self.renewal_age(), lifetime, settings.request_timeout);
        retry_time(settings.retry_after(error), now + wait, now, valid_from + last_chance)
    }
}
