//! The load-balancing loop of one instance. It renews the leases that the instance owns, claims the instance's share,
//! and releases everything at shutdown.
//!
//! # Guarantees
//!
//! - The loop claims at most what its [strategy](LoadBalancingStrategy) allows, and never leaves a live owner with less
//!   than its share.
//! - While a partition that it won has not been started for 2 s, a processor's loop claims nothing, because what runs
//!   the partitions may be blocked. A loop without a processor does not know whether its application has started a
//!   partition.
//! - A backend that fails or hangs does not end the loop. A request that hangs does not delay other partitions:
//!   operations on different partitions run concurrently, and those on one partition run one after another. The loop
//!   ends at shutdown, if a later incarnation of this owner is running ([`ErrorKind::Replaced`]), or if another
//!   application owns partitions in the other [blob-name casing](crate::store::BlobNameCase) ([`ErrorKind::Config`]).
//! - Dropping the future of [`Balancer::run`] has the effect of a crash: nothing is released, and other instances wait
//!   until the leases expire.
//!
//! # One cycle
//!
//! 1. List the ownerships.
//! 2. Detect which partitions this instance lost.
//! 3. Decide what to claim, and which handoffs to request. If there is anything to claim or to request, list the
//!    [heartbeats](GroupStore::send_heartbeat) first, and decide again.
//! 4. Publish a [`Snapshot`].
//! 5. Release what this instance must not keep, claim, and [request handoffs](GroupStore::request_handoff).
//!
//! A cycle begins when the beacon of the group shows a change, when a watched owner may be dead, and otherwise rarely.
//!
//! The loop polls a requested handoff every second, until the owner releases the partition or the timeout
//! expires and this instance steals it. An owner detects a request in a listing or in a renewal. It then stops the
//! handler, waits for the last checkpoint, and releases the partition.
//!
//! Renewals do not depend on the cycles. Each lease is renewed when it is due, under its cached ETag, without a
//! listing. With the [lease scope](BalancerConfig::lease_scope) `Instance`, one heartbeat keeps all leases alive
//! instead.

mod beacon;
mod case_check;
mod claims;
mod config;
mod context;
mod cycle;
mod driver;
mod events;
mod handle;
mod handoffs;
mod heartbeat;
mod lease;
mod lease_record;
mod listing;
mod liveness;
mod loads;
mod owner_watch;
mod pacing;
mod partitions;
mod release;
mod renewals;
mod snapshot;
mod state;
#[allow(missing_docs, reason = "private, but for tests")]
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Instrument;

use crate::clock::is_paused;
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
pub use crate::planner::{
    Assignment, ClaimReason, LoadBalancingStrategy, PartitionOwner, PartitionView, ReleaseReason,
};
use crate::store::{GroupStore, LoopPermit};
use crate::telemetry::OwnedMetrics;
use crate::util::rng_from_seed;

use config::LoopSettings;
pub(crate) use config::MOST_LISTED_TOGETHER;
pub use config::{BalancerConfig, OnLeaseExpiry};
use driver::{Driver, Ports};
use events::Events;
pub use events::{DuplicateCause, OwnershipEvent};
pub use handle::BalancerHandle;
use handle::StorageHealth;
pub(crate) use liveness::LivenessTracker;
pub(crate) use loads::LoadTracker;
pub(crate) use owner_watch::WATCHED;
pub use snapshot::{LeaseAge, Snapshot, Snapshots};
use state::BalancerState;
pub use step::LeftOwned;
pub(crate) use step::ProcessingEnd;

/// What an application with a reader of its own reports to the loop: that it runs, and how busy its partitions are.
pub mod reports {
    pub use super::liveness::{BatchGuard, LivenessTracker, Stalled};
    pub use super::loads::LoadTracker;
}

/// The state of a loop, its inputs and its outputs.
#[cfg(feature = "testing")]
#[allow(unused_imports, reason = "for the tests of this crate")]
pub(crate) mod internal {
    pub use super::config::LoopSettings;
    pub use super::events::Note;
    pub use super::state::BalancerState;
    pub use super::step::{Action, Done, Happened, LoopCommand, ProcessingEnd, StorageRequest};
    pub use crate::store::beacon::{Beacon, Lit};

    /// Sets how long the handlers of an application may take to stop, as a processor does, so that partitions are
    /// handed over. The application releases each partition when it reads
    /// [`OwnershipEvent::Releasing`](super::OwnershipEvent::Releasing).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if that leaves no time to renew.
    pub fn with_handlers(
        balancer: super::Balancer,
        drain_timeout: std::time::Duration,
    ) -> crate::error::Result<super::Balancer> {
        balancer.with_drain(drain_timeout)
    }
}

/// The name of the thread of a loop.
const THREAD_NAME: &str = "partition-balancer";

/// The load-balancing loop of one instance.
///
/// ```
/// use std::sync::Arc;
/// use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig};
/// use eventhubs_checkpoint::{GroupStore, PartitionId, Result};
/// use tokio::sync::watch;
///
/// /// Shares four partitions for a reader of your own, until `shutdown` completes.
/// async fn share(store: GroupStore, shutdown: impl Future<Output = ()>) -> Result<()> {
///     let ids: Arc<[PartitionId]> = (0..4_u32).map(PartitionId::from).collect();
///     let (_partitions, known) = watch::channel(ids);
///     let (balancer, handle) = Balancer::new(store, BalancerConfig::default(), known)?;
///     let mut snapshots = handle.snapshots();
///     let running = tokio::spawn(balancer.run());
///     let reading = async {
///         while snapshots.changed().await.is_ok() {
///             println!("{:?}", snapshots.borrow_and_update().counts());
///         }
///     };
///     tokio::select! {
///         () = reading => {}
///         () = shutdown => { handle.shutdown().await; }
///     }
///     running.await.expect("no panic")
/// }
/// ```
#[derive(Debug)]
pub struct Balancer {
    ports: Ports,
    config: BalancerConfig,
    /// How long handlers may take to stop.
    drain: Duration,
    reports_starts: bool,
}

impl Balancer {
    /// Creates a loop over the partitions in the channel: the current partitions of the event hub. Send a new list when
    /// they change.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if settings contradict each other, or if another loop or processor uses this store or a
    /// clone of it. The message names the setting and the rule.
    pub fn new(
        store: GroupStore,
        config: BalancerConfig,
        partitions: watch::Receiver<Arc<[PartitionId]>>,
    ) -> Result<(Self, BalancerHandle)> {
        config.check_settings(store.lease_times())?;
        let permit = store.loop_permit()?;
        let (messages, receiver) = mpsc::unbounded_channel();
        let unknown = Snapshot::with_nothing_known(store.identity().owner.clone(), config.lease_scope);
        let (snapshot, watched) = watch::channel(Arc::new(unknown));
        let store = store.with_own_outages();
        let metrics = store.telemetry().metrics().clone();
        let ports = Ports {
            permit,
            hub: partitions,
            messages: receiver,
            snapshot,
            liveness: LivenessTracker::new(config.stall_timeout),
            loads: LoadTracker::default(),
            events: Events::new(metrics.clone()),
            storage_health: StorageHealth::new(store.clone()),
            metrics: OwnedMetrics(metrics),
            store,
        };
        let handle = BalancerHandle {
            messages,
            snapshots: Snapshots::new(watched),
            liveness: ports.liveness.clone(),
            loads: ports.loads.clone(),
            events: ports.events.clone(),
            storage_health: ports.storage_health.clone(),
        };
        Ok((Self { ports, config, drain: Duration::ZERO, reports_starts: false }, handle))
    }

    /// Returns the permit. It also ends if the caller drops this clone: use it if the end of the caller is the end of
    /// the loop, although the loop itself may be dropped later.
    pub(crate) fn loop_permit(&self) -> LoopPermit {
        self.ports.permit.clone()
    }

    /// Sets how long handlers may take to stop. With [`OnLeaseExpiry::Stop`] they stop that much earlier.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if that leaves no time to renew.
    pub(crate) fn with_drain(mut self, drain: Duration) -> Result<Self> {
        self.config.check_drain_timeout(self.ports.store.lease_times(), drain)?;
        self.drain = drain;
        Ok(self)
    }

    /// Waits with further claims while a partition that was won has not been [started](BalancerHandle::report_started):
    /// the caller reports each start.
    pub(crate) fn with_start_reports(mut self) -> Self {
        self.reports_starts = true;
        self
    }

    /// Runs the loop on the runtime that polls this future, until [`BalancerHandle::shutdown`], or until all handles
    /// are dropped. If other work may block that runtime for long, use
    /// [`run_on_dedicated_thread`](Self::run_on_dedicated_thread).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Replaced`] if a later incarnation of this owner is running: stop processing. [`ErrorKind::Config`]
    /// if another application owns partitions in the other [blob-name casing](crate::store::BlobNameCase): everything
    /// is released, and the message says what to do. [`ErrorKind::Internal`] if an operation of the loop panicked.
    pub async fn run(self) -> Result<()> {
        let span = self.ports.store.telemetry().span().clone();
        self.run_in_span().instrument(span).await
    }

    async fn run_in_span(self) -> Result<()> {
        let store = &self.ports.store;
        let settings = LoopSettings {
            this: store.identity().clone(),
            lease_durations: store.lease_durations(),
            request_timeout: store.request_timeout(),
            drain_timeout: self.drain,
            reports_starts: self.reports_starts,
            has_other_name_case: store.has_other_name_case(),
            config: self.config.clone(),
        };
        let writes_loads = matches!(settings.config.load_balancing_strategy, LoadBalancingStrategy::Weighted { .. });
        let state = BalancerState::new(settings, rng_from_seed(self.config.seed)?);
        Driver::new(self.ports, state, writes_loads).run().await
    }

    /// Like [`run`](Self::run), on a dedicated thread with its own runtime and its own connections, so that handlers
    /// that block their runtime cannot prevent the loop from renewing leases. If this future or its runtime is dropped,
    /// the loop ends without releasing anything.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run). [`ErrorKind::Config`] if the system cannot spawn a thread, or the backend
    /// cannot open new connections: use [`run`](Self::run).
    pub async fn run_on_dedicated_thread(self) -> Result<()> {
        let store = self.ports.store.with_new_connections()?;
        self.run_on_thread_with(store).await
    }

    /// Runs the loop on a dedicated thread, where handlers that block their runtime do not delay it. Runs it on this
    /// runtime if that is not possible: a paused clock applies to one runtime only, and a backend may have no
    /// connections for another one.
    pub(crate) async fn run_beside_handlers(self) -> Result<()> {
        if is_paused() {
            return self.run().await;
        }
        match self.ports.store.with_new_connections() {
            Ok(store) => self.run_on_thread_with(store).await,
            Err(error) => {
                self.ports.store.telemetry().loop_not_on_thread(&error);
                self.run().await
            }
        }
    }

    async fn run_on_thread_with(mut self, store: GroupStore) -> Result<()> {
        self.ports.store = store;
        // Ends with this future; the loop ends soon after.
        let _permit = self.loop_permit();
        let (report, ended) = oneshot::channel();
        // Dropped with this future. The thread waits for that.
        let (_alive, abandoned) = oneshot::channel::<()>();
        let spawned = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
            let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(report.send(Err(thread_error(error)))),
            };
            let ended = runtime.block_on(async {
                tokio::select! {
                    ended = self.run() => Some(ended),
                    _ = abandoned => None,
                }
            });
            // The receiver is gone if the future was dropped.
            let _ = ended.map(|ended| report.send(ended));
            runtime.shutdown_background();
        });
        spawned.map_err(thread_error)?;
        ended.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "internal error: the thread of the load-balancing loop panicked"))
        })
    }
}

fn thread_error(error: std::io::Error) -> Error {
    Error::config("cannot spawn the thread of the load-balancing loop").with_source(error)
}
