//! What all parts of the balancer's state know during a step, and where they leave what is to be done.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

use super::action::{Action, Request};
use super::config::OnStall;
use super::events::OwnershipEvent;
use super::note::Note;
use super::retries::{asked_for, back_off, last_chance};
use super::settings::Settings;
use super::vitals::Stalled;
use crate::error::Error;
use crate::model::{Incarnation, Moment, OwnerId, PartitionId};
use crate::planner::PartitionOwner;

/// How far the loop is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// It claims nothing more.
    Draining,
    /// It releases everything, until this moment.
    Ending(Moment),
}

#[derive(Debug)]
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) now: Moment,
    pub(super) phase: Phase,
    pub(super) stalled: Stalled,
    /// When the last outage of the storage ended.
    pub(super) outage_ended: Option<Moment>,
    /// An owner of another SDK is alive in the group.
    pub(super) foreign_owner: bool,
    pub(super) rng: StdRng,
    actions: Vec<Action>,
    /// What changed about partitions in this step.
    changes: Vec<(PartitionId, Change)>,
    /// The next cycle is not to come late.
    disturbed: bool,
    /// The snapshot is out of date.
    changed: bool,
}

/// What a step changed about a partition, as the snapshot shows it.
#[derive(Debug)]
pub(super) enum Change {
    Owner(PartitionOwner),
    /// By this owner.
    HandoffReceived(OwnerId),
}

/// What a step leaves for its end.
pub(super) struct Pending {
    pub(super) actions: Vec<Action>,
    pub(super) changes: Vec<(PartitionId, Change)>,
    pub(super) disturbed: bool,
    pub(super) changed: bool,
}

impl Context {
    pub(super) fn new(settings: Settings, rng: StdRng) -> Self {
        Self {
            settings,
            now: Moment::ZERO,
            phase: Phase::Running,
            stalled: Stalled::default(),
            outage_ended: None,
            foreign_owner: false,
            rng,
            actions: Vec::new(),
            changes: Vec::new(),
            disturbed: false,
            changed: false,
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
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

    /// The next cycle is not to come late.
    pub(super) fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// The snapshot is out of date.
    pub(super) fn change(&mut self) {
        self.changed = true;
    }

    /// A partition has another holder.
    pub(super) fn owner_is(&mut self, partition: &PartitionId, holder: PartitionOwner) {
        self.changes.push((partition.clone(), Change::Owner(holder)));
        (self.disturbed, self.changed) = (true, true);
    }

    /// Another instance asked for a partition of this one.
    pub(super) fn handoff_requested_by(&mut self, partition: &PartitionId, by: &OwnerId) {
        self.changes.push((partition.clone(), Change::HandoffReceived(by.clone())));
        self.changed = true;
    }

    /// A later incarnation of this owner is at work. At the end that changes nothing.
    pub(super) fn replaced(&mut self, by: Incarnation) {
        if !self.is_ending() {
            self.act(Action::Replaced(by));
        }
    }

    pub(super) fn take(&mut self) -> Pending {
        Pending {
            actions: std::mem::take(&mut self.actions),
            changes: std::mem::take(&mut self.changes),
            disturbed: std::mem::take(&mut self.disturbed),
            changed: std::mem::take(&mut self.changed),
        }
    }

    /// Everything is released, or left.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ending(self.now + self.settings.release_limit());
    }

    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(_))
    }

    /// While a runtime is stalled, a claimed partition would not be read.
    pub(super) fn claims_nothing(&self) -> bool {
        self.phase != Phase::Running || self.stalled.runtime
    }

    /// Whether a partition that was just won is to be given to another instance.
    pub(super) fn is_released_when_stalled(&self, partition: &PartitionId) -> bool {
        self.settings.config.on_stall == OnStall::Release && self.stalled.affects(partition)
    }

    pub(super) fn had_outage_within(&self, time: Duration) -> bool {
        self.outage_ended.is_some_and(|ended| self.now < ended + time)
    }

    /// The age at which a lease is renewed. Owners of other SDKs compare ages with their own wall clocks and their own
    /// expiry: while one is seen, every interval.
    pub(super) fn renewal_age(&self) -> Duration {
        let expiry = self.settings.lease_duration();
        if self.foreign_owner { self.settings.interval().max(expiry / 6) } else { expiry / 2 }
    }

    /// A number from 0 to 1.
    pub(super) fn chance(&mut self) -> f64 {
        self.rng.random_range(0.0..1.0)
    }

    /// When a renewal, or an announcement, is tried again that failed after so many failures, with a little jitter.
    /// What it keeps alive counts from `valid_from`, and must not run out while the server's wish is granted.
    pub(super) fn try_again_at(&mut self, failures: u32, valid_from: Moment, error: &Error) -> Moment {
        let (settings, now) = (&self.settings, self.now);
        let expiry = settings.lease_duration();
        let jitter = self.rng.random_range(1.0..1.25);
        let wait = back_off(failures, settings.retry_pause(), expiry / 8).mul_f64(jitter);
        let lifetime = settings.lifetime().unwrap_or(expiry);
        let last_chance = last_chance(self.renewal_age(), lifetime, settings.request_timeout);
        asked_for(settings.asked_to_wait(error), now + wait, now, valid_from + last_chance)
    }
}
