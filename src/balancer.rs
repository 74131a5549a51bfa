//! The balancing loop of one instance: keeps what it owns, takes its share, gives everything back at the end.
//!
//! # Guarantees
//!
//! - It takes at most what [`balance::plan`](crate::balance::plan) allows, and never what a live owner needs.
//! - A failing storage does not end it: errors are reported, and the next cycle tries again. It ends when told to, or
//!   when a later incarnation of this owner is at work ([`ErrorKind::Replaced`]).
//! - Dropping the future of [`Balancer::run`] is a crash: nothing is released, and others wait for the expiry.
//!
//! # One cycle
//!
//! 1. List the ownerships. 2. Notice what was lost. 3. Decide what to claim. 4. Claim it. 5. Publish a [`Snapshot`].
//!
//! Renewals are apart from the cycles: each lease when it is due, from its cached ETag, without a listing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::balance::{
    ClaimReason, Holder, Moment, Observation, PartitionView, PlannedClaim, Strategy, View, observe, plan,
};
use crate::clock::at;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{OwnerId, PartitionId};
use crate::store::{Claim, ClaimOutcome, GroupStore, Lease, Listing, Ownership, ReleaseOutcome, seeded};
use crate::telemetry::{self, Operation};

/// How the loop works. The lease terms belong to the [`GroupStore`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BalancerConfig {
    /// Time between two cycles. Default 10 s: a sixth of the default expiry, so that several cycles may fail.
    pub interval: Duration,
    /// How fast to take what is lacking. Default [`Strategy::Balanced`].
    pub strategy: Strategy,
    /// Seeds all random choices, for tests that must be repeatable. By default the operating system gives a seed.
    pub seed: Option<u64>,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), strategy: Strategy::default(), seed: None }
    }
}

impl BalancerConfig {
    /// Sets the [`interval`](Self::interval).
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the [`strategy`](Self::strategy).
    #[must_use]
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the [`seed`](Self::seed).
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    fn check(&self, expiry: Duration) -> Result<()> {
        let interval = self.interval;
        if interval.is_zero() {
            return Err(Error::config("the interval is zero, but there must be time between two cycles"));
        }
        if expiry < 3 * interval {
            return Err(Error::config(format!(
                "the expiry is {expiry:?}, but must be at least three intervals of {interval:?}: \
                 with less, one slow cycle makes a live owner look dead"
            )));
        }
        Ok(())
    }
}

/// What one instance knows of the group after a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Who is looking.
    pub owner: OwnerId,
    /// How many cycles have succeeded. Zero: nothing is known yet.
    pub cycles: u64,
    /// Every partition and its holder.
    pub partitions: Vec<PartitionView>,
    /// The partitions that this instance holds, with the tenure of each: another tenure is another time of holding it.
    pub held: BTreeMap<PartitionId, u64>,
}

impl Snapshot {
    /// How many partitions each live owner holds.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let mut counts = BTreeMap::new();
        for view in &self.partitions {
            let owner = match &view.holder {
                Holder::Me => &self.owner,
                Holder::Live(owner) => owner,
                _ => continue,
            };
            *counts.entry(owner.clone()).or_default() += 1;
        }
        counts
    }

    /// The other live owner of a partition, as far as this instance knows.
    #[must_use]
    pub fn other_owner(&self, partition: &PartitionId) -> Option<&OwnerId> {
        let view = self.partitions.iter().find(|view| view.partition == *partition)?;
        match &view.holder {
            Holder::Live(owner) => Some(owner),
            _ => None,
        }
    }
}

#[derive(Debug)]
enum Command {
    StopClaiming,
    Forget { partition: PartitionId, tenure: u64 },
    Release { partition: PartitionId, tenure: u64 },
    Shutdown { done: oneshot::Sender<()> },
}

/// Watches and steers a running [`Balancer`]. When all handles are gone the balancer ends without releasing anything.
#[derive(Clone, Debug)]
pub struct BalancerHandle {
    commands: mpsc::UnboundedSender<Command>,
    snapshot: watch::Receiver<Snapshot>,
}

impl BalancerHandle {
    /// The latest snapshot, and a way to wait for the next.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Snapshot> {
        self.snapshot.clone()
    }

    /// Claims nothing more. What is held is still renewed. The first step of an orderly end.
    pub fn stop_claiming(&self) {
        self.send(Command::StopClaiming);
    }

    /// Says that a partition turned out to belong to somebody else. Nothing is written.
    pub fn forget(&self, partition: PartitionId, tenure: u64) {
        self.send(Command::Forget { partition, tenure });
    }

    /// Gives one partition back.
    pub fn release(&self, partition: PartitionId, tenure: u64) {
        self.send(Command::Release { partition, tenure });
    }

    /// Releases everything and ends the loop. Returns when that is done, or the loop has ended otherwise.
    pub async fn shutdown(&self) {
        let (done, ended) = oneshot::channel();
        self.send(Command::Shutdown { done });
        // An error means that the loop has ended already: nothing is left to wait for.
        let _ = ended.await;
    }

    fn send(&self, command: Command) {
        // An error means that the loop has ended, and with it all that a command could change.
        let _ = self.commands.send(command);
    }
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    renew_at: Instant,
}

/// The balancing loop of one instance.
#[derive(Debug)]
pub struct Balancer {
    store: GroupStore,
    config: BalancerConfig,
    partitions: watch::Receiver<Arc<[PartitionId]>>,
    commands: mpsc::UnboundedReceiver<Command>,
    snapshot: watch::Sender<Snapshot>,
    rng: StdRng,
    started: Instant,
    held: BTreeMap<PartitionId, Held>,
    foreign_owner: bool,
    claiming: bool,
}

impl Balancer {
    /// Prepares a loop over the partitions that the channel names: those of the hub now, sent anew when they change.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if the interval does not go with the store's expiry.
    pub fn new(
        store: GroupStore,
        config: BalancerConfig,
        partitions: watch::Receiver<Arc<[PartitionId]>>,
    ) -> Result<(Self, BalancerHandle)> {
        config.check(store.terms().expiry)?;
        let rng = seeded(config.seed)?;
        let (commands, receiver) = mpsc::unbounded_channel();
        let owner = store.identity().owner.clone();
        let (snapshot, watched) =
            watch::channel(Snapshot { owner, cycles: 0, partitions: Vec::new(), held: BTreeMap::new() });
        let balancer = Self {
            store,
            config,
            partitions,
            commands: receiver,
            snapshot,
            rng,
            started: Instant::now(),
            held: BTreeMap::new(),
            foreign_owner: false,
            claiming: true,
        };
        Ok((balancer, BalancerHandle { commands, snapshot: watched }))
    }

    /// Runs until [`BalancerHandle::shutdown`], or until all handles are gone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Replaced`] if a later incarnation of this owner is at work. Stop processing.
    pub async fn run(mut self) -> Result<()> {
        let mut next_cycle = Instant::now();
        loop {
            let next_renewal = self.held.values().map(|held| held.renew_at).min();
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown { done }) => {
                        self.release_all().await;
                        let _ = done.send(());
                        return Ok(());
                    }
                    Some(command) => self.obey(command).await,
                    None => return Ok(()),
                },
                () = at(next_renewal) => self.renew_due().await,
                () = sleep_until(next_cycle), if self.claiming => {
                    let pause = self.cycle().await?;
                    next_cycle = Instant::now() + pause;
                }
                Ok(()) = self.partitions.changed() => next_cycle = Instant::now(),
            }
        }
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::StopClaiming => self.claiming = false,
            Command::Forget { partition, tenure } => {
                if self.take(&partition, tenure).is_some() {
                    telemetry::ownership_lost(&partition, None);
                    self.publish_holder(&partition, Holder::Released);
                }
            }
            Command::Release { partition, tenure } => {
                if let Some(lease) = self.take(&partition, tenure) {
                    self.release(vec![lease]).await;
                }
            }
            Command::Shutdown { .. } => {}
        }
    }

    /// One cycle; answers how long to wait before the next.
    async fn cycle(&mut self) -> Result<Duration> {
        let listing = match self.store.list_ownerships().await {
            Ok(listing) => listing,
            Err(error) => return Ok(self.pause_after(&error)),
        };
        let view = self.observe(&listing);
        if let Some(by) = view.replaced_by {
            return Err(Error::new(
                ErrorKind::Replaced,
                format!(
                    "owner {} runs a second time, as incarnation {by}: give every instance an id of its own",
                    view.me
                ),
            ));
        }
        self.drop_lost(&view);
        self.foreign_owner = view.foreign_owner;
        let plan = plan(&view, self.config.strategy, &mut self.rng);
        self.publish(|snapshot| {
            snapshot.cycles += 1;
            snapshot.partitions = view.partitions;
        });
        self.claim(plan.claim, &listing).await;
        Ok(self.lengthened(self.config.interval))
    }

    fn observe(&self, listing: &Listing<Ownership>) -> View {
        let observations: Vec<_> = listing.records.iter().map(|record| self.observation(record)).collect();
        let partitions = Arc::clone(&self.partitions.borrow());
        let running: BTreeSet<_> = self.held.keys().cloned().collect();
        let now = self.moment(Instant::now());
        observe(&observations, &partitions, &running, self.store.identity(), self.store.terms(), now)
    }

    /// An ownership as the pure part wants it.
    fn observation(&self, ownership: &Ownership) -> Observation {
        Observation {
            partition: ownership.partition.clone(),
            record: ownership.record.clone(),
            age: ownership.age,
            received: self.moment(ownership.received),
        }
    }

    fn moment(&self, instant: Instant) -> Moment {
        instant.saturating_duration_since(self.started)
    }

    /// What the listing shows in other hands, or in none, is not mine any more.
    fn drop_lost(&mut self, view: &View) {
        self.held.retain(|partition, _| {
            let holder = view.holder(partition);
            if holder == Some(&Holder::Me) {
                return true;
            }
            let by = match holder {
                Some(Holder::Live(owner) | Holder::Expired(owner)) => Some(owner),
                _ => None,
            };
            telemetry::ownership_lost(partition, by);
            false
        });
    }

    async fn claim(&mut self, planned: Vec<PlannedClaim>, listing: &Listing<Ownership>) {
        if planned.is_empty() {
            return;
        }
        let etags: BTreeMap<_, _> = listing.records.iter().map(|record| (&record.partition, &record.etag)).collect();
        let claims = planned.iter().map(|claim| match etags.get(&claim.partition) {
            Some(etag) => Claim::over(claim.partition.clone(), (*etag).clone()),
            None => Claim::unowned(claim.partition.clone()),
        });
        let reasons: BTreeMap<_, _> = planned.iter().map(|claim| (&claim.partition, &claim.reason)).collect();
        for (partition, outcome) in self.store.claim(claims.collect()).await {
            self.apply(Operation::Claim, &partition, outcome, reasons.get(&partition).copied());
        }
    }

    async fn renew_due(&mut self) {
        let now = Instant::now();
        let due = self.held.values().filter(|held| held.renew_at <= now).map(|held| held.lease.clone()).collect();
        for (partition, outcome) in self.store.renew(due).await {
            self.apply(Operation::Renew, &partition, outcome, None);
        }
    }

    /// Takes note of what became of a claim or a renewal.
    fn apply(
        &mut self,
        operation: Operation,
        partition: &PartitionId,
        outcome: ClaimOutcome,
        reason: Option<&ClaimReason>,
    ) {
        match outcome {
            ClaimOutcome::Won(lease) => {
                if let Some(reason) = reason {
                    telemetry::claim_won(partition, reason);
                }
                self.hold(lease);
            }
            ClaimOutcome::Lost { by } => {
                if self.held.remove(partition).is_some() {
                    telemetry::ownership_lost(partition, by.as_ref());
                } else {
                    telemetry::claim_lost(partition, by.as_ref());
                }
                self.publish_holder(partition, by.map_or(Holder::Released, Holder::Live));
            }
            ClaimOutcome::Undecided(error) => {
                telemetry::ownership_undecided(operation, partition, &error);
                let retry_at = Instant::now() + self.retry_pause();
                if let Some(held) = self.held.get_mut(partition) {
                    held.renew_at = retry_at;
                }
            }
        }
    }

    fn hold(&mut self, lease: Lease) {
        let renew_at = lease.valid_from() + self.renewal_age();
        let partition = lease.partition().clone();
        let tenure = lease.tenure();
        self.held.insert(partition.clone(), Held { lease, renew_at });
        if self.snapshot.borrow().held.get(&partition) != Some(&tenure) {
            self.publish_holder(&partition, Holder::Me);
        }
    }

    fn take(&mut self, partition: &PartitionId, tenure: u64) -> Option<Lease> {
        if self.held.get(partition)?.lease.tenure() != tenure {
            return None;
        }
        self.held.remove(partition).map(|held| held.lease)
    }

    async fn release_all(&mut self) {
        let leases = std::mem::take(&mut self.held).into_values().map(|held| held.lease).collect();
        self.release(leases).await;
    }

    async fn release(&mut self, leases: Vec<Lease>) {
        for (partition, outcome) in self.store.release(leases).await {
            match outcome {
                ReleaseOutcome::Released => telemetry::released(&partition),
                ReleaseOutcome::Undecided(error) => {
                    telemetry::ownership_undecided(Operation::Release, &partition, &error);
                }
            }
            self.publish_holder(&partition, Holder::Released);
        }
    }

    fn publish_holder(&self, partition: &PartitionId, holder: Holder) {
        self.publish(|snapshot| {
            if let Some(view) = snapshot.partitions.iter_mut().find(|view| view.partition == *partition) {
                view.holder = holder;
            }
        });
    }

    fn publish(&self, change: impl FnOnce(&mut Snapshot)) {
        self.snapshot.send_modify(|snapshot| {
            change(snapshot);
            snapshot.held =
                self.held.iter().map(|(partition, held)| (partition.clone(), held.lease.tenure())).collect();
        });
    }

    /// Owners of other SDKs compare ages with their own wall clocks and their own expiry: while one is seen, every
    /// interval. Spread a little, so that leases won together are not renewed together for ever.
    fn renewal_age(&mut self) -> Duration {
        let expiry = self.store.terms().expiry;
        let age = if self.foreign_owner { self.config.interval.max(expiry / 6) } else { expiry / 2 };
        age.mul_f64(self.rng.random_range(0.9..1.0))
    }

    fn retry_pause(&self) -> Duration {
        (self.store.terms().expiry / 16).min(Duration::from_secs(1))
    }

    fn pause_after(&mut self, error: &Error) -> Duration {
        let asked = match error.kind() {
            ErrorKind::Throttled { retry_after } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let pause = self.lengthened(self.config.interval.max(asked));
        telemetry::cycle_failed(error, pause);
        pause
    }

    /// Jitter, so that instances started together do not list together for ever. It only lengthens.
    fn lengthened(&mut self, interval: Duration) -> Duration {
        interval.mul_f64(self.rng.random_range(1.0..1.1))
    }
}
