//! The incarnations that the observer knows.

use std::collections::BTreeMap;
use std::time::Duration;

use eventhubs_checkpoint::{Identity, OwnerId};
use tokio::time::Instant;

use super::resets::Progress;
use super::restraint::Refused;
use super::timeline::TimelineEvent;
use super::{Partition, State};
use crate::history::{self, Delivery};
use crate::sim::bounds::Bounds;
use crate::sim::host::ExitStatus;
use crate::sim::invariant::Invariant;

/// One incarnation of a member, or an operator.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct IncarnationState {
    pub(super) member: Option<u32>,
    pub(super) owner: OwnerId,
    pub(super) id: Option<String>,
    pub(super) crate_processor: bool,
    /// The bounds of its own settings.
    pub(super) bounds: Bounds,
    pub(super) alive: bool,
    pub(super) frozen: bool,
    /// Since when its runtime is blocked.
    pub(super) blocked_since: Option<Instant>,
    /// It was frozen, or got an old listing: its wrong view is not its fault.
    pub(super) stale_view: bool,
    /// How many partitions it held when it got a shutdown request, if the group was settled then.
    pub(super) held_at_shutdown: Option<usize>,
    /// When it last wrote its heartbeat, unless another instance has declared it dead since.
    pub(super) heartbeat_at: Option<Instant>,
    /// When another instance last declared it dead.
    pub(super) declared_dead_at: Option<Instant>,
    pub(super) requests: u64,
    /// Set while its requests are rejected.
    pub(super) refused: Option<Refused>,
    pub(super) sessions: BTreeMap<usize, Session>,
    /// The position to which an operator is to reset each partition.
    pub(super) resets: BTreeMap<usize, Progress>,
}

/// From a start of the handler to its stop.
pub(super) struct Session {
    pub(super) since: history::Moment,
    /// The epoch of the ownership that it began in, if this crate runs the handler.
    pub(super) epoch: Option<i64>,
    pub(super) busy: bool,
    pub(super) delivery: Delivery,
    /// The last single event of each key.
    pub(super) keys: BTreeMap<i64, LastOfKey>,
}

/// The last single event of a key that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastOfKey {
    pub(super) number: i64,
    pub(super) runs: bool,
    pub(super) done: bool,
}

/// A new incarnation.
pub(in super::super) struct NewIncarnation {
    pub(in super::super) member: Option<u32>,
    pub(in super::super) owner: OwnerId,
    pub(in super::super) crate_processor: bool,
    pub(in super::super) bounds: Bounds,
}

impl State {
    pub(in super::super) fn register(&mut self, new: NewIncarnation) -> usize {
        let NewIncarnation { member, owner, crate_processor, bounds } = new;
        self.incarnations.push(IncarnationState {
            member,
            owner,
            id: None,
            crate_processor,
            bounds,
            alive: true,
            frozen: false,
            blocked_since: None,
            stale_view: false,
            held_at_shutdown: None,
            heartbeat_at: None,
            declared_dead_at: None,
            requests: 0,
            refused: None,
            sessions: BTreeMap::new(),
            resets: BTreeMap::new(),
        });
        let incarnation = self.incarnations.len() - 1;
        self.trace(incarnation, "starts", 0, 0);
        self.record(incarnation, TimelineEvent::Started);
        incarnation
    }

    pub(super) fn name_of(&self, incarnation: usize) -> String {
        let owner = self.incarnations.get(incarnation).map_or("?", |incarnation| incarnation.owner.as_str());
        format!("{owner}#{incarnation}")
    }

    pub(in super::super) fn identified(&mut self, incarnation: usize, identity: &Identity) {
        self.incarnations[incarnation].id = Some(identity.incarnation.as_str().to_owned());
        self.is_connected(incarnation);
        self.trace(incarnation, "connects", 0, 0);
    }

    pub(in super::super) fn freezes(&mut self, incarnation: usize, frozen: bool) {
        let book = &mut self.incarnations[incarnation];
        (book.frozen, book.stale_view) = (frozen, true);
        self.trace(incarnation, if frozen { "freezes" } else { "wakes" }, 0, 0);
        self.record(incarnation, if frozen { TimelineEvent::Frozen } else { TimelineEvent::Woke });
    }

    pub(in super::super) fn blocks(&mut self, incarnation: usize, blocked: bool) {
        self.incarnations[incarnation].blocked_since = blocked.then(Instant::now);
        self.trace(incarnation, if blocked { "blocks" } else { "unblocks" }, 0, 0);
    }

    pub(in super::super) fn set_stale_view(&mut self, incarnation: usize) {
        self.incarnations[incarnation].stale_view = true;
    }

    pub(in super::super) fn crashes(&mut self, incarnation: usize) {
        self.trace(incarnation, "crashes", 0, 0);
        self.record(incarnation, TimelineEvent::Crashed);
        self.terminates(incarnation);
        self.watch_partitions_of(incarnation);
    }

    pub(super) fn terminates(&mut self, incarnation: usize) {
        let book = &mut self.incarnations[incarnation];
        book.alive = false;
        book.sessions.clear();
        self.partitions_become_unowned(incarnation);
    }

    pub(in super::super) fn ends(&mut self, incarnation: usize, ended: &ExitStatus) {
        if !self.incarnations[incarnation].alive {
            return;
        }
        self.trace(incarnation, "ends", 0, 0);
        self.note(format!("{} ended: {ended:?}", self.name_of(incarnation)));
        let unstopped: Vec<_> = self.incarnations[incarnation].sessions.keys().copied().collect();
        let crate_processor = self.incarnations[incarnation].crate_processor;
        self.record(incarnation, TimelineEvent::Ended);
        self.terminates(incarnation);
        if !crate_processor {
            return;
        }
        match ended {
            ExitStatus::Shutdown { .. } => {
                let name = self.name_of(incarnation);
                self.check(Invariant::OneHandler, unstopped.is_empty(), || {
                    format!("{name} never stopped {unstopped:?}")
                });
            }
            ExitStatus::Replaced => self.was_replaced(incarnation),
            ExitStatus::Failed(error) => {
                let description = format!("{} ended by itself: {error}", self.name_of(incarnation));
                self.check(Invariant::CleanShutdown, false, || description);
            }
        }
    }

    fn was_replaced(&mut self, incarnation: usize) {
        self.count("replaced");
        let this = &self.incarnations[incarnation];
        let later = |other: &IncarnationState| other.owner == this.owner && other.id > this.id;
        let replaced = self.incarnations.iter().any(later);
        let name = self.name_of(incarnation);
        self.check(Invariant::NewestIncarnationWins, replaced, || {
            format!("{name} reports that it was replaced, but there is no later incarnation")
        });
    }

    /// Returns the running incarnations. Of two with one name, only the newer one is included.
    pub(in super::super) fn survivors(&self) -> Vec<usize> {
        let newest = |incarnation: &usize| {
            let this = &self.incarnations[*incarnation];
            !self.incarnations[incarnation + 1..].iter().any(|other| other.alive && other.owner == this.owner)
        };
        let members = |incarnation: &usize| {
            self.incarnations[*incarnation].alive && self.incarnations[*incarnation].member.is_some()
        };
        (0..self.incarnations.len()).filter(members).filter(newest).collect()
    }

    /// Returns whether there is an owner of another SDK, or a record of an ended one. While such records are valid, the
    /// share of that owner is reserved for it.
    pub(super) fn has_foreign_owner(&self) -> bool {
        let foreign = |incarnation: &IncarnationState| !incarnation.crate_processor && incarnation.member.is_some();
        let holds = |book: &Partition| book.holder().is_some_and(|holder| foreign(&self.incarnations[holder]));
        self.incarnations.iter().any(|incarnation| incarnation.alive && foreign(incarnation))
            || self.partitions.iter().any(holds)
    }

    /// Returns the storage requests of each member.
    pub(in super::super) fn requests_by_member(&self) -> BTreeMap<u32, u64> {
        let mut requests = BTreeMap::new();
        for incarnation in &self.incarnations {
            if let Some(member) = incarnation.member {
                *requests.entry(member).or_default() += incarnation.requests;
            }
        }
        requests
    }

    /// Starts to count the unowned time of partitions whose owner has ended.
    fn partitions_become_unowned(&mut self, incarnation: usize) {
        let now = Instant::now();
        for partition in &mut self.partitions {
            if partition.holder() == Some(incarnation) {
                partition.unowned_since.get_or_insert(now);
            }
        }
    }

    pub(in super::super) fn add_unowned_time(&mut self, time: Duration) {
        self.totals.unowned_time += time;
    }
}
