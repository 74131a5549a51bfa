//! Many balancing loops over one container in memory, in paused time: hours of a group within seconds.
//!
//! # Guarantees
//!
//! - On a current-thread runtime with paused time the same seed and the same calls give the same
//!   [trace](Simulation::trace). One seed decides everything: incarnations, choices, latencies, faults.
//! - [`owners`](Simulation::owners) and [`moves`](Simulation::moves) are derived from the writes that the container
//!   accepted, not from the state of the instances.
//!
//! # Non-guarantees
//!
//! There are no processors and no checkpoints.

mod handlers;
mod ledger;
mod meter;
mod runtime;
mod trace;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use self::ledger::Ledger;
pub use self::meter::{Meter, Metered};
pub use self::trace::{Entry, LoopEventKind, Move};
use self::trace::{Trace, listen};
use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig, BalancerHandle, ClaimReason, OwnershipEvent};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::internal::balancer;
use eventhubs_checkpoint::internal::clock::WallClock;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::internal::postconditions::check_fairness;
use eventhubs_checkpoint::store::{GroupStore, StorageOperation, StorageOutcome, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, PartitionId, Result};

/// How often a condition is checked.
const STEP: Duration = Duration::from_millis(100);

/// The longest time until an instance detects new partitions of the hub.
const DETECTED_WITHIN: Duration = Duration::from_secs(10);

/// A group of instances, its storage, and everything that happens to them.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// # tokio::task::yield_now().await;
/// use std::time::Duration;
/// use eventhubs_checkpoint::balancer::BalancerConfig;
/// use eventhubs_checkpoint_lab::sim::Simulation;
///
/// // In a test: `#[tokio::test(start_paused = true)]`.
/// let config = BalancerConfig::default();
/// let mut group = Simulation::new(7, 2).with_latency(Duration::from_millis(1));
/// group.start("a", config.clone()).await?;
/// group.start("b", config).await?;
/// let took = group.run_until(Duration::from_secs(60), Simulation::is_balanced).await;
/// assert!(took.is_some(), "{group:?}");
/// group.stop("a").await?;
/// group.run_until(Duration::from_secs(60), Simulation::is_balanced).await;
/// assert!(group.owners().values().all(|owner| owner.as_str() == "b"));
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Simulation {
    seed: u64,
    rng: StdRng,
    started: Instant,
    ledger: Ledger,
    container: Arc<dyn BlobContainer>,
    meter: Meter,
    expiry: Duration,
    /// The longest time that a handler takes to stop; `None` without handlers.
    handlers: Option<Duration>,
    usual: FaultPlan,
    /// The partitions of the hub.
    hub: watch::Sender<Arc<[PartitionId]>>,
    members: BTreeMap<OwnerId, Member>,
    /// The conflicts of the claims of instances that have ended.
    earlier_conflicts: u64,
    trace: Trace,
}

/// A running instance.
struct Member {
    store: GroupStore,
    handle: BalancerHandle,
    faulty: FaultyContainer,
    /// The partitions that it has detected.
    partitions: watch::Sender<Arc<[PartitionId]>>,
    running: JoinHandle<()>,
    listening: JoinHandle<()>,
    handlers: Option<JoinHandle<()>>,
    /// Set while its runtime is blocked.
    blocked: watch::Sender<bool>,
    ticking: JoinHandle<()>,
}

impl Simulation {
    /// Creates a hub with this many partitions, an empty container and no instances. Requests take up to 100 ms, and
    /// leases expire after 60 s.
    #[must_use]
    pub fn new(seed: u64, partitions: u32) -> Self {
        let (ledger, meter) = (Ledger::new(), Meter::new());
        Self {
            seed,
            rng: StdRng::seed_from_u64(seed),
            started: Instant::now(),
            container: meter.around(ledger.around(Arc::new(MemoryContainer::new()))),
            ledger,
            meter,
            expiry: Duration::from_secs(60),
            handlers: None,
            usual: FaultPlan::always(Fault::Latency(Duration::from_millis(100))),
            hub: watch::Sender::new((0..partitions).map(PartitionId::from).collect()),
            members: BTreeMap::new(),
            earlier_conflicts: 0,
            trace: Arc::default(),
        }
    }

    /// Sets the longest time that a request takes.
    #[must_use]
    pub fn with_latency(mut self, longest: Duration) -> Self {
        self.usual = FaultPlan::always(Fault::Latency(longest));
        self
    }

    /// Gives all instances that start from now on handlers that take up to this long to stop, so that partitions are
    /// handed over, as between processors.
    #[must_use]
    pub fn with_handlers(mut self, stop: Duration) -> Self {
        self.handlers = Some(stop);
        self
    }

    /// Sets the lease duration of all instances that start from now on.
    #[must_use]
    pub fn with_expiry(mut self, expiry: Duration) -> Self {
        self.expiry = expiry;
        self
    }

    /// Starts an instance. Its seed is drawn from that of the simulation and replaces the one in the settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for an invalid setting, or if that owner is already running.
    pub async fn start(&mut self, owner: &str, config: BalancerConfig) -> Result<()> {
        self.start_member(owner, config, None).await
    }

    /// Starts an instance with a local clock that is ahead of the server's by this much. At its start the instance
    /// compares the two clocks.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_ahead(&mut self, owner: &str, config: BalancerConfig, ahead: time::Duration) -> Result<()> {
        let shown = self.container.list("").await?.response.server_time + ahead;
        let clock = Ahead { shown, since: Instant::now() };
        self.start_member(owner, config, Some(Arc::new(clock))).await
    }

    async fn start_member(
        &mut self,
        owner: &str,
        config: BalancerConfig,
        clock: Option<Arc<dyn WallClock>>,
    ) -> Result<()> {
        let owner = named(owner)?;
        if self.members.contains_key(&owner) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("the instance {owner} is already running: stop it first"),
            ));
        }
        let faulty = FaultyContainer::new(self.container.clone(), self.rng.next_u64());
        let group = ConsumerGroup::new("ns", "hub", "group")?;
        let builder = GroupStore::builder(Arc::new(faulty.clone()), group, owner.clone());
        let store_config = StoreConfig::default()
            .with_lease_duration(self.expiry)
            .with_foreign_lease_duration(self.expiry.max(Duration::from_secs(180)))
            .with_verify_storage(clock.is_some());
        let mut builder = builder.with_config(store_config).with_seed(self.rng.next_u64());
        if let Some(clock) = clock {
            builder = builder.with_wall_clock(clock);
        }
        let store = builder.connect().await?;
        faulty.set_plan(self.usual.clone());
        let config = config.with_seed(self.rng.next_u64());
        let (partitions, known) = watch::channel(self.hub.borrow().clone());
        let (mut balancer, handle) = Balancer::new(store.clone(), config, known)?;
        let mut handlers = None;
        if let Some(stop) = self.handlers {
            balancer = balancer::with_handlers(balancer, handlers::DRAIN_TIMEOUT)?;
            handlers = Some(tokio::spawn(handlers::run(handle.clone(), stop, self.rng.next_u64())));
        }
        let blocked = watch::Sender::new(false);
        let ticking = tokio::spawn(runtime::tick(handle.clone(), blocked.subscribe()));
        let listening =
            tokio::spawn(listen(owner.clone(), handle.ownership_events(), self.started, self.trace.clone()));
        self.note(&owner, LoopEventKind::Started);
        self.ledger.begins(store.identity());
        let running = tokio::spawn(self.run(balancer, store.clone()));
        self.members.insert(
            owner,
            Member { store, handle, faulty, partitions, running, listening, handlers, blocked, ticking },
        );
        Ok(())
    }

    /// Runs an instance until it ends by itself or is stopped.
    fn run(&self, balancer: Balancer, store: GroupStore) -> impl Future<Output = ()> + use<> {
        let (ledger, trace, started) = (self.ledger.clone(), self.trace.clone(), self.started);
        async move {
            let error = balancer.run().await.err().map(|error| error.kind());
            ledger.ends(store.identity());
            let owner = store.identity().owner.clone();
            trace::push(&trace, Entry { at: started.elapsed(), owner, kind: LoopEventKind::Ended(error) });
        }
    }

    /// Shuts an instance down gracefully: it releases all its partitions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] if no instance of that name is running.
    pub async fn stop(&mut self, owner: &str) -> Result<()> {
        let member = self.take(owner)?;
        member.handle.shutdown().await;
        member.gone().await;
        Ok(())
    }

    /// Crashes an instance, without any clean-up.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] if no instance of that name is running.
    pub async fn crash(&mut self, owner: &str) -> Result<()> {
        let member = self.take(owner)?;
        member.running.abort();
        let identity = member.store.identity().clone();
        self.ledger.ends(&identity);
        member.gone().await;
        self.note(&identity.owner, LoopEventKind::Crashed);
        Ok(())
    }

    /// Changes the partitions of the hub: a hub that grows to 25 has `0..25`. Every instance queries the hub from time
    /// to time, so each detects the change within ten seconds, at a different time.
    pub fn set_partitions(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.hub.send_replace(ids.into_iter().map(PartitionId::from).collect());
        for member in self.members.values() {
            let (known, hub) = (member.partitions.clone(), self.hub.clone());
            let delay = DETECTED_WITHIN.mul_f64(self.rng.random_range(0.0..1.0));
            tokio::spawn(async move {
                sleep(delay).await;
                known.send_replace(hub.borrow().clone());
            });
        }
    }

    /// Sets the faults of the requests of one instance, or of all running instances.
    pub fn set_faults(&self, owner: Option<&str>, plan: &FaultPlan) {
        let meant = |name: &OwnerId| owner.is_none_or(|owner| owner == name.as_str());
        for (_, member) in self.members.iter().filter(|(name, _)| meant(name)) {
            member.faulty.set_plan(plan.clone());
        }
    }

    /// From now on every request of one instance, or of all running instances, is lost.
    pub fn outage(&self, owner: Option<&str>) {
        self.set_faults(owner, &FaultPlan::always(Fault::RequestLost));
    }

    /// Ends an outage: from now on requests take their usual time and have no other faults.
    pub fn outage_over(&self, owner: Option<&str>) {
        self.set_faults(owner, &self.usual);
    }

    /// Blocks the runtime of an instance, or unblocks it. Its loop goes on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] if no instance of that name is running.
    pub fn block(&self, owner: &str, blocked: bool) -> Result<()> {
        self.member(owner)?.blocked.send_replace(blocked);
        Ok(())
    }

    /// Lets this much time pass.
    pub async fn run_for(&self, time: Duration) {
        sleep(time).await;
    }

    /// Lets time pass until the condition holds. Returns how long that took, to a tenth of a second, or `None` if the
    /// condition does not hold within the limit.
    #[must_use = "the condition may not hold"]
    pub async fn run_until(&self, limit: Duration, condition: impl Fn(&Self) -> bool) -> Option<Duration> {
        let since = Instant::now();
        while !condition(self) {
            if since.elapsed() >= limit {
                return None;
            }
            sleep(STEP).await;
        }
        Some(since.elapsed())
    }

    /// Returns the time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the partitions that running instances hold, according to the writes that the container accepted.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<PartitionId, OwnerId> {
        self.ledger.owners()
    }

    /// Returns how many partitions each running instance holds, according to the same writes. It includes instances
    /// that hold none.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let mut counts: BTreeMap<_, _> = self.members.keys().map(|owner| (owner.clone(), 0)).collect();
        for owner in self.owners().into_values() {
            *counts.entry(owner).or_default() += 1;
        }
        counts
    }

    /// Returns whether every partition of the hub, and no other, has a running owner, and all owners have fair shares.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let counts: Vec<_> = self.counts().into_values().collect();
        let hub = self.hub.borrow();
        self.owners().keys().eq(hub.iter()) && check_fairness(hub.len(), &counts).is_ok()
    }

    /// Returns the partitions that were taken from a running instance. Released partitions are not included.
    #[must_use]
    pub fn moves(&self) -> Vec<Move> {
        self.ledger.moves()
    }

    /// Returns everything that has happened until now, in order.
    #[must_use]
    pub fn trace(&self) -> Vec<Entry> {
        lock(&self.trace).clone()
    }

    /// Returns the counts of the requests that have reached the container.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns how many partitions have been handed over or stolen.
    #[must_use]
    pub fn moved(&self) -> usize {
        let is_move = |entry: &Entry| {
            let LoopEventKind::Emitted(OwnershipEvent::Claimed { reason, .. }) = &entry.kind else { return false };
            matches!(reason, ClaimReason::Stolen(_) | ClaimReason::HandedOver)
        };
        lock(&self.trace).iter().filter(|entry| is_move(entry)).count()
    }

    /// Returns how many claims another instance was faster than.
    #[must_use]
    pub fn claim_conflicts(&self) -> u64 {
        self.earlier_conflicts + self.members.values().map(Member::claim_conflicts).sum::<u64>()
    }

    /// Returns the handle of a running instance.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] if no instance of that name is running.
    pub fn handle(&self, owner: &str) -> Result<&BalancerHandle> {
        self.member(owner).map(|member| &member.handle)
    }

    /// Returns the store of a running instance, which counts its requests.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] if no instance of that name is running.
    pub fn store(&self, owner: &str) -> Result<&GroupStore> {
        self.member(owner).map(|member| &member.store)
    }

    fn member(&self, owner: &str) -> Result<&Member> {
        self.members.get(&named(owner)?).ok_or_else(|| unknown(owner))
    }

    fn take(&mut self, owner: &str) -> Result<Member> {
        let member = self.members.remove(&named(owner)?).ok_or_else(|| unknown(owner))?;
        self.earlier_conflicts += member.claim_conflicts();
        Ok(member)
    }

    fn note(&self, owner: &OwnerId, kind: LoopEventKind) {
        trace::push(&self.trace, Entry { at: self.elapsed(), owner: owner.clone(), kind });
    }
}

impl Member {
    fn claim_conflicts(&self) -> u64 {
        self.store.request_counts().of(StorageOperation::Claim, StorageOutcome::Conflict)
    }

    /// Waits until the instance has ended and all of its events are in the trace.
    async fn gone(self) {
        // An error means that the instance was crashed.
        let _ = self.running.await;
        drop(self.handle);
        self.ticking.abort();
        if let Some(handlers) = self.handlers {
            handlers.abort();
        }
        let _ = self.listening.await;
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("seed", &self.seed)
            .field("elapsed", &self.elapsed())
            .field("counts", &self.counts())
            .field("trace", &self.trace())
            .finish_non_exhaustive()
    }
}

/// A clock that runs at the right speed, but was set ahead.
#[derive(Debug)]
struct Ahead {
    shown: OffsetDateTime,
    since: Instant,
}

impl WallClock for Ahead {
    fn now(&self) -> OffsetDateTime {
        self.shown + self.since.elapsed()
    }
}

fn named(owner: &str) -> Result<OwnerId> {
    OwnerId::new(owner).map_err(Error::from)
}

fn unknown(owner: &str) -> Error {
    Error::new(ErrorKind::Closed, format!("no instance {owner:?} is running: start it first"))
}
