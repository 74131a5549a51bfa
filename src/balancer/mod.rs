//! The balancing loop of one instance: keeps what it owns, takes its share, gives everything back at the end.
//!
//! # Guarantees
//!
//! - It takes at most what its [strategy](Strategy) allows, and never what a live owner needs.
//! - A failing or hanging storage does not end it, and a request that hangs delays no other partition: every operation
//!   runs by itself, one at a time per partition. The loop ends when told to, or when a later incarnation of this owner
//!   is at work ([`ErrorKind::Replaced`]).
//! - Dropping the future of [`Balancer::run`] is a crash: nothing is released, and others wait for the expiry.
//!
//! # One cycle
//!
//! 1. List the ownerships.
//! 2. Notice what was lost.
//! 3. Decide what to claim, and what to ask for; if anything, look first at who else [is there](GroupStore::announce)
//!    and at the [other tree of names](crate::store::Split), and decide again.
//! 4. Publish a [`Snapshot`].
//! 5. Give back what is not to be kept, claim, and [ask](GroupStore::mark).
//!
//! What was asked for is looked at every half interval, until it is released or has to be stolen. Who is asked, by the
//! listing or by a renewal that finds the mark, has the handler stop and the last checkpoint written, and releases.
//!
//! Renewals are apart from the cycles: each lease when it is due, from its cached ETag, without a listing; or all
//! together, by the presence of the instance, if that is its [lease scope](BalancerConfig::lease_scope).

mod asked;
mod claims;
mod config;
mod cycle;
mod events;
mod handle;
mod handoff;
mod leases;
mod listed;
mod loads;
mod pacing;
mod presence;
mod presences;
mod reach;
mod release;
mod renewals;
mod retries;
mod snapshot;
mod thread;
mod vitals;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use crate::balance::{Assignment, ClaimReason, Holder, PartitionView, Strategy};
use crate::balance::{Idleness, Moment};
use crate::clock::at;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, OwnerId, PartitionId};
use crate::random::seeded;
use crate::store::{
    Announced, Claim, ClaimOutcome, GroupStore, Handoff, Listing, LoopPermit, MarkOutcome, Ownership, Pursuit,
    ReleaseOutcome, Verdict,
};
use crate::telemetry::HeldMetrics;

use asked::Asked;
pub use config::{BalancerConfig, LeasePolicy, OnStall};
use events::Events;
pub use events::{DuplicateCause, Event, Releasing};
pub use handle::BalancerHandle;
use handle::Command;
use leases::Leases;
use listed::{Cycle, Others};
pub use loads::Loads;
use pacing::Pacing;
use presences::Presences;
use reach::Reach;
pub use snapshot::{RecordAge, Snapshot, Snapshots};
pub use vitals::{Stalled, Vitals, Working};

/// Longer ones make no difference, and sums of them must not overflow.
const LONGEST_COOL_DOWN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// An operation on the storage that has ended.
enum Ended {
    Listed { asked: Moment, listing: Result<Listing<Ownership>> },
    OthersListed { cycle: Cycle, listing: Result<Others> },
    Judged { claims: Vec<(Claim, ClaimReason)>, outcome: Result<Verdict> },
    Claimed { partition: PartitionId, reason: ClaimReason, outcome: ClaimOutcome },
    Renewed { partition: PartitionId, epoch: i64, outcome: ClaimOutcome },
    Released { partition: PartitionId, outcome: ReleaseOutcome },
    Marked { partition: PartitionId, outcome: Result<MarkOutcome<Handoff>> },
    Pursued { handoff: Handoff, outcome: Result<Pursuit<Claim>> },
    Announced { sent: Moment, outcome: Result<Announced> },
    Withdrawn(Result<()>),
    Cleared(Result<Vec<OwnerId>>),
}

/// A partition whose claim could not be decided, and when to try again. Without this wait, one blob that cannot be
/// written would take the claim of every cycle.
#[derive(Debug)]
struct Setback {
    failures: u32,
    until: Instant,
}

/// The balancing loop of one instance.
#[derive(Debug)]
pub struct Balancer {
    store: GroupStore,
    permit: LoopPermit,
    config: BalancerConfig,
    partitions: watch::Receiver<Arc<[PartitionId]>>,
    commands: mpsc::UnboundedReceiver<Command>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    rng: StdRng,
    /// How long handlers may take to stop.
    drain: Duration,
    leases: Leases,
    operations: JoinSet<Ended>,
    claiming: BTreeSet<PartitionId>,
    releasing: BTreeSet<PartitionId>,
    asked: Asked,
    presences: Presences,
    setbacks: BTreeMap<PartitionId, Setback>,
    foreign_owner: bool,
    idleness: Idleness,
    /// Owners that were found idle by the last cycle.
    idle: BTreeSet<OwnerId>,
    /// Partitions whose owner in the other tree of names has been told of.
    elsewhere: BTreeSet<PartitionId>,
    next_cycle: Option<Instant>,
    pacing: Pacing,
    reach: Reach,
    events: Events,
    metrics: HeldMetrics,
    vitals: Vitals,
    loads: Loads,
    /// Nothing more is claimed.
    draining: bool,
    /// Everything is being released.
    ending: bool,
    /// How many could not be at the end, as far as is known.
    unreleased: usize,
}

impl Balancer {
    /// Prepares a loop over the partitions that the channel names: those of the hub now, sent anew when they change.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if settings do not go together, or if another loop works with this store or a clone of it
    /// and has not ended. The message names the setting and the rule.
    pub fn new(
        store: GroupStore,
        config: BalancerConfig,
        partitions: watch::Receiver<Arc<[PartitionId]>>,
    ) -> Result<(Self, BalancerHandle)> {
        config.check(&store)?;
        let rng = seeded(config.seed)?;
        let permit = store.loop_permit()?;
        let (commands, receiver) = mpsc::unbounded_channel();
        let unknown = Snapshot::unknown(store.identity().owner.clone(), config.lease_scope);
        let (snapshot, watched) = watch::channel(Arc::new(unknown));
        let expiry = store.terms().expiry;
        let store = store.with_own_outages();
        let vitals = Vitals::new(config.stall_after);
        let balancer = Self {
            pacing: Pacing::new(config.interval, expiry),
            reach: Reach::new(store.clone()),
            events: Events::new(store.telemetry().metrics().clone()),
            metrics: HeldMetrics(store.telemetry().metrics().clone()),
            permit,
            store: store.lease_scope(config.lease_scope),
            leases: Leases::new(config.lease_scope),
            config,
            partitions,
            commands: receiver,
            snapshot,
            rng,
            drain: Duration::ZERO,
            operations: JoinSet::new(),
            claiming: BTreeSet::new(),
            releasing: BTreeSet::new(),
            asked: Asked::default(),
            presences: Presences::default(),
            setbacks: BTreeMap::new(),
            foreign_owner: false,
            idleness: Idleness::default(),
            idle: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            next_cycle: None,
            vitals,
            loads: Loads::default(),
            draining: false,
            ending: false,
            unreleased: 0,
        };
        let handle = BalancerHandle {
            commands,
            snapshots: Snapshots::new(watched),
            vitals: balancer.vitals.clone(),
            loads: balancer.loads.clone(),
            events: balancer.events.clone(),
            reach: balancer.reach.clone(),
        };
        Ok((balancer, handle))
    }

    /// It ends with what holds it: for a caller whose end is the end of the loop, though the loop itself may be dropped
    /// later.
    pub(crate) fn permit(&self) -> LoopPermit {
        self.permit.clone()
    }

    /// Lets handlers take this long to stop: under [`LeasePolicy::Strict`] they are told to, so much earlier.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if that leaves no time to renew.
    pub(crate) fn with_drain(mut self, drain: Duration) -> Result<Self> {
        self.config.check_drain(&self.store, drain)?;
        self.drain = drain;
        self.store = self.store.clone().cooperative(self.hands_over());
        Ok(self)
    }

    /// Runs until [`BalancerHandle::shutdown`], or until all handles are gone, on the runtime that polls it. Where
    /// other work may keep that one busy for long, use [`run_apart`](Self::run_apart).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Replaced`] if a later incarnation of this owner is at work. Stop processing.
    pub async fn run(mut self) -> Result<()> {
        self.reach.cycle_succeeded();
        if self.next_announcement().is_some() {
            self.announce();
        } else {
            self.next_cycle = Some(Instant::now());
        }
        // The first cycle reads them in any case.
        self.partitions.mark_unchanged();
        loop {
            let wake = self.next_wake();
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown { done }) => {
                        let unreleased = self.shut_down().await;
                        self.permit.end();
                        // An error means that nobody waits for it.
                        let _ = done.send(unreleased);
                        return Ok(());
                    }
                    Some(command) => self.obey(command),
                    None => return Ok(()),
                },
                Some(ended) = self.operations.join_next() => self.ended(ended)?,
                () = at(wake) => {
                    self.tell_renewal_age();
                    self.check_vitals();
                    self.release_overdue();
                    self.drop_outlived();
                    self.start_renewals();
                    self.start_pursuits();
                    self.keep_presence();
                }
                () = at(self.next_cycle), if !self.draining => self.start_listing(),
                // Not at once: a hub that changes often would let it take more than one partition per interval.
                Ok(()) = self.partitions.changed() => self.look_soon(),
            }
        }
    }

    /// When a lease is due next. Looked at now and then in any case: while the machine was suspended leases have aged,
    /// but tokio's timers have not.
    fn next_wake(&self) -> Option<Instant> {
        let lifetime = self.lifetime();
        let outlived = lifetime.and_then(|lifetime| self.leases.next_outlived(lifetime));
        let due = self.leases.next_due(self.renewal_age()).into_iter().chain(self.next_announcement());
        let next = due.chain(outlived).min();
        let wait = next.map(|next| next.saturating_sub(self.store.lease_time()).min(self.store.terms().expiry / 16));
        let next = wait.map(|wait| Instant::now() + wait).into_iter().chain(self.leases.next_overdue());
        next.chain(self.asked.next_look()).min()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::StopClaiming => self.draining = true,
            Command::Forget { partition, epoch, by } => {
                if self.leases.forget(&partition, epoch).is_some() {
                    match &by {
                        Some(owner) => self.publish_holder(&partition, Holder::Live(owner.clone())),
                        None => self.publish(|_| {}),
                    }
                    self.look_soon();
                    self.events.tell(Event::Lost { partition, by });
                }
            }
            // It was asked to stop, and has.
            Command::Release { partition, epoch, cool_down, settled } => {
                self.given_back(&partition, epoch, cool_down, settled);
            }
            Command::Unprocessed { partition } => self.unprocessed(&partition),
            Command::Shutdown { .. } => {}
        }
    }

    fn ended(&mut self, ended: Result<Ended, tokio::task::JoinError>) -> Result<()> {
        let ended = ended.map_err(|error| {
            Error::new(ErrorKind::Closed, "an operation of the balancing loop panicked").with_source(error)
        })?;
        self.notice_end_of_outage();
        match ended {
            Ended::Listed { asked, listing } => self.listed(asked, listing),
            Ended::OthersListed { cycle, listing } => {
                self.others_listed(&cycle, listing);
                Ok(())
            }
            Ended::Judged { claims, outcome } => {
                self.judged(claims, &outcome);
                Ok(())
            }
            Ended::Claimed { partition, reason, outcome } => self.claimed(&partition, &reason, outcome),
            Ended::Renewed { partition, epoch, outcome } => self.renewed(&partition, epoch, outcome),
            Ended::Released { partition, outcome } => {
                self.released(&partition, outcome);
                Ok(())
            }
            Ended::Marked { partition, outcome } => {
                self.marked(&partition, outcome);
                Ok(())
            }
            Ended::Pursued { handoff, outcome } => {
                self.pursued(handoff, outcome);
                Ok(())
            }
            Ended::Announced { sent, outcome } => self.announced(sent, outcome),
            Ended::Withdrawn(outcome) => {
                self.withdrawn(outcome);
                Ok(())
            }
            Ended::Cleared(outcome) => {
                self.cleared(outcome);
                Ok(())
            }
        }
    }

    /// Something has changed, so that the next cycle is not to come late. While a listing is under way, its answer will
    /// be read with the change.
    fn look_soon(&mut self) {
        self.pacing.disturb();
        let soon = Instant::now() + self.pause();
        self.next_cycle = self.next_cycle.map(|next| next.min(soon));
    }

    fn publish_holder(&mut self, partition: &PartitionId, holder: Holder) {
        self.look_soon();
        self.publish(|snapshot| {
            if let Some(view) = snapshot.partitions.iter_mut().find(|view| view.partition == *partition) {
                // Whoever asked for it still does, and has it reserved once it is released.
                let same = holder == view.holder || holder == Holder::Released;
                let handoff_to = view.handoff_to.take().filter(|_| same);
                *view = PartitionView { handoff_to, ..PartitionView::new(partition.clone(), holder) };
            }
        });
    }

    fn publish(&self, change: impl FnOnce(&mut Snapshot)) {
        self.snapshot.send_modify(|snapshot| {
            let snapshot = Arc::make_mut(snapshot);
            change(snapshot);
            snapshot.held = self.leases.kept();
            snapshot.asked = self.asked.owners();
            snapshot.lease_scope = self.leases.scope();
            snapshot.releasing = self.leases.given_back().chain(&self.releasing).cloned().collect();
            self.metrics.0.held(snapshot.held.len());
        });
        self.tell_renewal_age();
    }

    fn tell_renewal_age(&self) {
        self.metrics.0.renewal_age(|| self.leases.greatest_age(self.store.lease_time()));
    }

    /// As long as the server asks for, within reason: somebody must look for the dead.
    fn asked_to_wait(&self, error: &Error) -> Duration {
        error.retry_after().unwrap_or_default().min(self.store.terms().expiry)
    }

    fn retry_pause(&self) -> Duration {
        (self.store.terms().expiry / 16).min(Duration::from_secs(1))
    }

    /// The wait before the next cycle.
    fn pause(&mut self) -> Duration {
        self.pacing.pause(self.rng.random_range(0.0..1.0))
    }
}

fn replaced(me: &OwnerId, by: &Incarnation) -> Error {
    let message = format!("owner {me} runs a second time, as incarnation {by}: give every instance an id of its own");
    Error::new(ErrorKind::Replaced, message)
}
