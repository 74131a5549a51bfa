//! The balancing loop of one instance: keeps what it owns, takes its share, gives everything back at the end.
//!
//! # Guarantees
//!
//! - It takes at most what its [strategy](Strategy) allows, and never what a live owner needs.
//! - A failing or hanging storage does not end it, and a request that hangs delays no other partition: every operation
//!   runs by itself, one at a time per partition. The loop ends when told to, or when a later incarnation of this owner
//!   is at work ([`ErrorKind::Replaced`](crate::ErrorKind::Replaced)).
//! - Dropping the future of [`Balancer::run`] is a crash: nothing is released, and others wait for the expiry.
//!
//! # One cycle
//!
//! 1. List the ownerships.
//! 2. Notice what was lost.
//! 3. Decide what to claim, and what to ask for; if anything, look first at who else [is there](GroupStore::send_heartbeat)
//!    and at the [other tree of names](crate::store::OnCaseMismatch), and decide again.
//! 4. Publish a [`Snapshot`].
//! 5. Give back what is not to be kept, claim, and [ask](GroupStore::request_handoff).
//!
//! What was asked for is looked at every half interval, until it is released or has to be stolen. Who is asked, by the
//! listing or by a renewal that finds the mark, has the handler stop and the last checkpoint written, and releases.
//!
//! Renewals are apart from the cycles: each lease when it is due, from its cached ETag, without a listing; or all
//! together, by the presence of the instance, if that is its [lease scope](BalancerConfig::lease_scope).

#[allow(missing_docs, reason = "private, but for tests")]
mod action;
mod asking;
mod claims;
mod config;
mod context;
mod cycle;
mod driver;
mod events;
mod handle;
#[allow(missing_docs, reason = "private, but for tests")]
mod happened;
mod lease;
mod loads;
mod note;
mod pacing;
mod partitions;
mod presence;
mod reach;
mod release;
mod renewals;
mod requests;
mod retries;
#[allow(missing_docs, reason = "private, but for tests")]
mod settings;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod thread;
mod vitals;

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
use crate::store::{GroupStore, HandoffTimeouts, LoopPermit};
use crate::telemetry::OwnedMetrics;

pub use config::{BalancerConfig, OnLeaseExpiry, OnStall};
use driver::{Driver, Ports};
use events::Events;
pub use events::{DuplicateCause, OwnershipEvent};
pub use handle::{BalancerHandle, LeftOwned};
pub use loads::LoadTracker;
use reach::StorageHealth;
use settings::Settings;
pub use snapshot::{LeaseAge, Snapshot, Snapshots};
use state::State;
pub use vitals::{BatchGuard, LivenessTracker, Stalled};

/// The state of a loop, and what goes into it and comes out of it.
#[cfg(feature = "testing")]
#[allow(unused_imports, reason = "for the tests of this crate")]
pub(crate) mod internal {
    pub use super::action::{Action, Request};
    pub use super::happened::{Command, Done, Happened, Others};
    pub use super::note::Note;
    pub use super::settings::Settings;
    pub use super::state::State;
}

/// The balancing loop of one instance.
#[derive(Debug)]
pub struct Balancer {
    ports: Ports,
    config: BalancerConfig,
    /// How long handlers may take to stop.
    drain: Duration,
}

impl Balancer {
    /// Prepares a loop over the partitions that the channel names: those of the hub now, sent again when they change.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if settings do not go together, or if another loop works with
    /// this store or a clone of it and has not ended. The message names the setting and the rule.
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
            store: store.lease_scope(config.lease_scope),
        };
        let handle = BalancerHandle {
            orders,
            snapshots: Snapshots::new(watched),
            liveness: ports.liveness.clone(),
            loads: ports.loads.clone(),
            events: ports.events.clone(),
            storage_health: ports.storage_health.clone(),
        };
        Ok((Self { ports, config, drain: Duration::ZERO }, handle))
    }

    /// It ends with what holds it: for a caller whose end is the end of the loop, though the loop itself may be dropped
    /// later.
    pub(crate) fn permit(&self) -> LoopPermit {
        self.ports.permit.clone()
    }

    /// Lets handlers take this long to stop. Under [`OnLeaseExpiry::Stop`] they stop so much earlier.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if that leaves no time to renew.
    pub(crate) fn with_drain(mut self, drain: Duration) -> Result<Self> {
        self.config.check_drain_timeout(&self.ports.store, drain)?;
        self.drain = drain;
        Ok(self)
    }

    /// Runs until [`BalancerHandle::shutdown`], or until all handles are gone, on the runtime that polls it. Where
    /// other work may keep that one busy for long, use [`run_on_dedicated_thread`](Self::run_on_dedicated_thread).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Replaced`](crate::ErrorKind::Replaced) if a later incarnation of this owner is at work. Stop
    /// processing.
    pub async fn run(self) -> Result<()> {
        let span = self.ports.store.telemetry().span().clone();
        self.run_in_span().instrument(span).await
    }

    async fn run_in_span(mut self) -> Result<()> {
        self.ports.storage_health.cycle_succeeded();
        let settings = self.settings();
        self.ports.store = self.ports.store.cooperative(settings.hands_over());
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
            handoff_timeouts: HandoffTimeouts { release: config.handoff_timeout(store), ..store.handoff_timeouts() },
            drain_timeout: self.drain,
            has_other_name_case: store.has_other_name_case(),
            config,
        }
    }
}
