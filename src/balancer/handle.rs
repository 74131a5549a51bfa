//! Access to a running loop: snapshots, events, commands, and the health of the storage.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, oneshot};

use super::events::{Events, OwnershipEvent};
use super::liveness::LivenessTracker;
use super::loads::LoadTracker;
use super::snapshot::Snapshots;
use super::step::{LeftOwned, LoopCommand, ProcessingEnd, StorageFailures};
use crate::error::Error;
use crate::model::{Moment, PartitionId};
use crate::store::GroupStore;
use crate::util::lock;

/// What a handle sends to its loop.
#[derive(Debug)]
pub(super) enum LoopMessage {
    Command(LoopCommand),
    /// [`LoopCommand::Shutdown`] or [`LoopCommand::Keep`]. The loop reports which partitions it left owned.
    End(LoopCommand, oneshot::Sender<LeftOwned>),
}

/// Observes and controls a running [`Balancer`](super::Balancer). When all handles are dropped, the balancer ends
/// without releasing anything.
#[derive(Clone, Debug)]
pub struct BalancerHandle {
    pub(super) messages: mpsc::UnboundedSender<LoopMessage>,
    pub(super) snapshots: Snapshots,
    pub(super) liveness: LivenessTracker,
    pub(super) loads: LoadTracker,
    pub(super) events: Events,
    pub(super) storage_health: StorageHealth,
}

impl BalancerHandle {
    /// Returns the latest snapshot, and a way to wait for the next one.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        self.snapshots.clone()
    }

    /// Returns the tracker with which the application reports that it is alive. Without reports the application counts
    /// as healthy.
    #[must_use]
    pub fn liveness(&self) -> &LivenessTracker {
        &self.liveness
    }

    /// Returns the tracker with which the application reports how much work its partitions are.
    #[must_use]
    pub fn loads(&self) -> &LoadTracker {
        &self.loads
    }

    /// Stops claiming partitions, also those that are released from now on. Owned partitions are still renewed. The
    /// first step of a graceful shutdown.
    pub fn stop_claiming(&self) {
        self.send_command(LoopCommand::StopClaiming);
    }

    /// Reports that another instance owns a partition. Nothing is written.
    pub fn mark_lost(&self, partition: PartitionId, epoch: i64) {
        self.report_ended(partition, epoch, ProcessingEnd::Lost { by: None });
    }

    /// Releases one partition, after its processing has stopped. This instance does not claim the partition again
    /// before the cooldown is over, nor within the next interval. Other instances may claim it at once.
    pub fn release(&self, partition: PartitionId, epoch: i64, cooldown: Duration) {
        self.report_ended(partition, epoch, ProcessingEnd::Stopped { settled: true, cooldown });
    }

    /// Reports that the processing of a partition has started, to a loop [with such
    /// reports](super::Balancer::with_start_reports).
    pub(crate) fn report_started(&self, partition: PartitionId, epoch: i64) {
        self.send_command(LoopCommand::ProcessingStarted { partition, epoch });
    }

    /// Reports how the processing of a partition has ended.
    pub(crate) fn report_ended(&self, partition: PartitionId, epoch: i64, end: ProcessingEnd) {
        self.send_command(LoopCommand::ProcessingEnded { partition, epoch, end });
    }

    /// Reports that nothing processes a partition that is not [owned](super::Snapshot::owned) anymore. If the partition
    /// is to be released, the loop does not wait any longer.
    pub(crate) fn report_unprocessed(&self, partition: PartitionId) {
        self.send_command(LoopCommand::Unprocessed { partition });
    }

    /// Returns a receiver of all events from now on. A receiver that is too slow misses the oldest events: the channel
    /// keeps 1024 of them.
    #[must_use]
    pub fn ownership_events(&self) -> broadcast::Receiver<OwnershipEvent> {
        self.events.subscribe()
    }

    /// Releases all partitions and ends the loop. A release that fails is repeated. Returns when everything is
    /// released, after four request timeouts at the latest, or when the loop has ended for another reason.
    pub async fn shutdown(&self) -> LeftOwned {
        self.end_and_wait(LoopCommand::Shutdown).await
    }

    /// Keeps all partitions for the restart of this owner and ends the loop: renews each lease once more and writes
    /// that its owner is away. No other instance claims such a partition before its lease expires. A later incarnation
    /// of this owner claims it in its first cycle. Partitions that are already being released are released. Takes at
    /// most as long as [`shutdown`](Self::shutdown).
    pub async fn shutdown_and_keep(&self) -> LeftOwned {
        self.end_and_wait(LoopCommand::Keep).await
    }

    async fn end_and_wait(&self, command: LoopCommand) -> LeftOwned {
        let (done, ended) = oneshot::channel();
        // An error means that the loop has ended already.
        let _ = self.messages.send(LoopMessage::End(command, done));
        ended.await.unwrap_or_default()
    }

    /// Returns how long the storage has been unavailable, if that is longer than half the lease duration and one
    /// request timeout.
    #[must_use]
    pub fn storage_unavailable_for(&self) -> Option<Duration> {
        let store = &self.storage_health.store;
        store.outages().unavailable_for(store.lease_clock_now())
    }

    /// Returns how long all load-balancing cycles have failed, if that is longer than the lease duration. In the
    /// meantime this instance renews its leases, and takes over nothing.
    #[must_use]
    pub fn cycles_failing_for(&self) -> Option<Duration> {
        let since = lock(&self.storage_health.failures).cycles;
        self.storage_health.longer_than_a_lease(since?)
    }

    /// Returns how long the heartbeat of this instance could not be written, and the last error, if that is longer than
    /// the lease duration. Meanwhile each lease is renewed individually, and an instance that owns nothing does not
    /// count.
    #[must_use]
    pub fn heartbeat_failing_for(&self) -> Option<(Duration, Arc<Error>)> {
        let failure = lock(&self.storage_health.failures).heartbeat.clone();
        self.storage_health.failing_for(failure)
    }

    /// Returns how long this instance, whose leases are live, could not look for live owners in the other casing of the
    /// blob names, and the last error, if that is longer than the lease duration. Meanwhile it claims nothing.
    #[must_use]
    pub fn case_check_failing_for(&self) -> Option<(Duration, Arc<Error>)> {
        let failure = lock(&self.storage_health.failures).case_check.clone();
        self.storage_health.failing_for(failure)
    }

    /// Returns the partitions without a live owner that this instance could not claim because the storage failed at
    /// least twice in a row, with the last error of each.
    #[must_use]
    pub fn unclaimable(&self) -> BTreeMap<PartitionId, Arc<Error>> {
        lock(&self.storage_health.failures).claims.clone()
    }

    fn send_command(&self, command: LoopCommand) {
        // An error means that the loop has ended, so that the command has no effect.
        let _ = self.messages.send(LoopMessage::Command(command));
    }
}

/// The health of the storage, as the handles of a loop read it. All clones share one state.
#[derive(Clone, Debug)]
pub(super) struct StorageHealth {
    failures: Arc<Mutex<StorageFailures>>,
    store: GroupStore,
}

impl StorageHealth {
    /// Creates the health of a loop over this store.
    pub(super) fn new(store: GroupStore) -> Self {
        Self { failures: Arc::default(), store }
    }

    /// Records what fails for the loop.
    pub(super) fn set_failures(&self, failures: StorageFailures) {
        *lock(&self.failures) = failures;
    }

    /// Returns the time since this moment, if it is longer than the lease duration.
    fn longer_than_a_lease(&self, since: Moment) -> Option<Duration> {
        let elapsed = self.store.lease_clock_now().saturating_sub(since);
        (elapsed > self.store.lease_durations().own).then_some(elapsed)
    }

    fn failing_for(&self, failure: Option<(Moment, Arc<Error>)>) -> Option<(Duration, Arc<Error>)> {
        let (since, error) = failure?;
        Some((self.longer_than_a_lease(since)?, error))
    }
}
