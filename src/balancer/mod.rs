//! The load-balancing loop of one instance. It renews the leases that the instance owns, claims the instance's share,
//! and releases everything at shutdown.
//!
//! # Guarantees
//!
//! - The loop claims at most what its [strategy](LoadBalancingStrategy) allows, and never leaves a live owner with less
//!   than its share.
//! - While a partition that it won has not been started for 2 s, a processor's loop claims nothing, because what runs the
//!   partitions may be blocked. A loop without a processor does not know whether its application has started a partition.
//! - A storage that fails or hangs does not end the loop. A request that hangs does not delay other partitions:
//!   operations on different partitions run concurrently, and those on one partition run one after another. The loop
//!   ends at shutdown, if a later incarnation of this owner is running
//!   ([`ErrorKind::Replaced`](crate::ErrorKind::Replaced)), or if another application owns partitions in the other [name
//!   case](crate::store::BlobNameCase) ([`ErrorKind::Config`](crate::ErrorKind::Config)).
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
//! The loop polls a requested handoff every half interval, until the owner releases the partition or the timeout
//! expires and this instance steals it. An owner detects a request in a listing or in a renewal. It then stops the
//! handler, waits for the last checkpoint, and releases the partition.
//!
//! Renewals do not depend on the cycles. Each lease is renewed when it is due, under its cached ETag, without a
//! listing. With the [lease scope](BalancerConfig::lease_scope) `Instance`, one heartbeat keeps all leases alive
//! instead.

#[allow(missing_docs, reason = "private, but for tests")]
mod action;
mod case_check;
mod claims;
mod config;
mod context;
mod cycle;
mod driver;
mod events;
mod handle;
mod handoffs;
#[allow(missing_docs, reason = "private, but for tests")]
mod happened;
mod heartbeat;
mod lease;
mod liveness;
mod loads;
mod note;
mod pacing;
mod partitions;
mod release;
mod renewals;
mod requests;
mod retries;
#[allow(missing_docs, reason = "private, but for tests")]
mod settings;
mod snapshot;
mod state;
mod storage_health;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::Instrument;

use crate::error::Result;
use crate::model::PartitionId;
pub use crate::planner::{
    Assignment, ClaimReason, LoadBalancingStrategy, PartitionOwner, PartitionView, ReleaseReason,
};
use crate::random::seeded;
use crate::store::{GroupStore, LoopPermit};
use crate::telemetry::OwnedMetrics;

pub use config::{BalancerConfig, OnLeaseExpiry};
use driver::{Driver, Ports};
use events::Events;
pub use events::{DuplicateCause, OwnershipEvent};
pub use handle::{BalancerHandle, LeftOwned};
pub use liveness::{BatchGuard, LivenessTracker, Stalled};
pub use loads::LoadTracker;
use settings::Settings;
pub use snapshot::{LeaseAge, Snapshot, Snapshots};
use state::State;
use storage_health::StorageHealth;

/// The state of a loop, its inputs and its outputs.
#[cfg(feature = "testing")]
#[allow(unused_imports, reason = "for the tests of this crate")]
pub(crate) mod internal {
    pub use super::action::{Action, Request};
    pub use super::happened::{Command, Done, Happened};
    pub use super::note::Note;
    pub use super::settings::Settings;
    pub use super::state::State;

    /// Sets how long the handlers of an application may take to stop, as a processor does, so that partitions are handed
    /// over. The application releases each partition when it reads
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

/// The load-balancing loop of one instance.
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
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if settings contradict each other, or if another loop or
    /// processor uses this store or a clone of it. The message names the setting and the rule.
    pub fn new(
        store: GroupStore,
        config: BalancerConfig,
        partitions: watch::Receiver<Arc<[PartitionId]>>,
    ) -> Result<(Self, BalancerHandle)> {
        config.check(&store)?;
        let permit = store.loop_permit()?;
        let (orders, receiver) = mpsc::unbounded_channel();
        let unknown = Snapshot::unknown(store.identity().owner.clone(), config.lease_scope);
        let (snapshot, watched) = watch::channel(Arc::new(unknown));
        let store = store.with_own_outages();
        let metrics = store.telemetry().metrics().clone();
        let ports = Ports {
            permit,
            hub: partitions,
            orders: receiver,
            snapshot,
            liveness: LivenessTracker::new(config.stall_timeout),
            loads: LoadTracker::default(),
            events: Events::new(metrics.clone()),
            storage_health: StorageHealth::new(store.clone()),
            metrics: OwnedMetrics(metrics),
            store,
        };
        let handle = BalancerHandle {
            orders,
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
    pub(crate) fn permit(&self) -> LoopPermit {
        self.ports.permit.clone()
    }

    /// Sets how long handlers may take to stop. With [`OnLeaseExpiry::Stop`] they stop that much earlier.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if that leaves no time to renew.
    pub(crate) fn with_drain(mut self, drain: Duration) -> Result<Self> {
        self.config.check_drain_timeout(&self.ports.store, drain)?;
        self.drain = drain;
        Ok(self)
    }

    /// Waits with further claims while a partition that was won has not been
    /// [started](BalancerHandle::started): the caller reports each start.
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
    /// [`ErrorKind::Replaced`](crate::ErrorKind::Replaced) if a later incarnation of this owner is running: stop
    /// processing. [`ErrorKind::Config`](crate::ErrorKind::Config) if another application owns partitions in the other
    /// [name case](crate::store::BlobNameCase): everything is released, and the message says what to do.
    /// [`ErrorKind::Internal`](crate::ErrorKind::Internal) if an operation of the loop panicked.
    pub async fn run(self) -> Result<()> {
        let span = self.ports.store.telemetry().span().clone();
        self.run_in_span().instrument(span).await
    }

    async fn run_in_span(self) -> Result<()> {
        self.ports.storage_health.cycle_succeeded();
        let settings = self.settings();
        let writes_loads = matches!(settings.config.load_balancing_strategy, LoadBalancingStrategy::Weighted { .. });
        let state = State::new(settings, seeded(self.config.seed)?);
        Driver::new(self.ports, state, writes_loads).run().await
    }

    fn settings(&self) -> Settings {
        let (store, config) = (&self.ports.store, self.config.clone());
        Settings {
            this: store.identity().clone(),
            lease_durations: store.lease_durations(),
            request_timeout: store.request_timeout(),
            drain_timeout: self.drain,
            reports_starts: self.reports_starts,
            has_other_name_case: store.has_other_name_case(),
            config,
        }
    }
}
