//! Access to a running loop: snapshots, events and commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, oneshot};

use super::events::{Events, OwnershipEvent};
use super::happened::Command;
use super::liveness::LivenessTracker;
use super::loads::LoadTracker;
use super::snapshot::Snapshots;
use super::storage_health::StorageHealth;
use crate::error::Error;
use crate::model::{OwnerId, PartitionId};

/// What a handle sends to its loop.
#[derive(Debug)]
pub(super) enum Order {
    Command(Command),
    /// [`Command::Shutdown`] or [`Command::Keep`]. The loop reports which partitions it left owned.
    End(Command, oneshot::Sender<LeftOwned>),
}

/// Which partitions a loop left owned when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOwned {
    /// How many partitions were kept for the restart of this owner.
    pub kept: usize,
    /// How many partitions could neither be released nor kept. They stay owned until their leases expire.
    pub unreleased: usize,
}

/// Observes and controls a running [`Balancer`](super::Balancer). When all handles are dropped, the balancer ends
/// without releasing anything.
#[derive(Clone, Debug)]
pub struct BalancerHandle {
    pub(super) orders: mpsc::UnboundedSender<Order>,
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
        self.send(Order::Command(Command::StopClaiming));
    }

    /// Reports that another instance owns a partition. Nothing is written.
    pub fn mark_lost(&self, partition: PartitionId, epoch: i64) {
        self.lost(partition, epoch, None);
    }

    /// Like [`mark_lost`](Self::mark_lost), with the current owner, if it is known.
    pub(crate) fn lost(&self, partition: PartitionId, epoch: i64, by: Option<OwnerId>) {
        self.send(Order::Command(Command::MarkLost { partition, epoch, by }));
    }

    /// Releases one partition, after its processing has stopped. This instance does not claim the partition again
    /// before the cooldown is over, nor within the next interval. Other instances may claim it at once.
    pub fn release(&self, partition: PartitionId, epoch: i64, cooldown: Duration) {
        self.send(Order::Command(Command::Release { partition, epoch, cooldown, settled: true }));
    }

    /// Like [`release`](Self::release), for a partition whose last checkpoint may be missing.
    pub(crate) fn release_unsettled(&self, partition: PartitionId, epoch: i64, cooldown: Duration) {
        self.send(Order::Command(Command::Release { partition, epoch, cooldown, settled: false }));
    }

    /// Reports that the processing of a partition has started, to a loop [with such
    /// reports](super::Balancer::with_start_reports).
    pub(crate) fn started(&self, partition: PartitionId, epoch: i64) {
        self.send(Order::Command(Command::Started { partition, epoch }));
    }

    /// Reports that nothing processes a partition that is not [owned](super::Snapshot::owned) anymore. If the partition
    /// is to be released, the loop does not wait any longer.
    pub(crate) fn unprocessed(&self, partition: PartitionId) {
        self.send(Order::Command(Command::Unprocessed { partition }));
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
        self.end(Command::Shutdown).await
    }

    /// Keeps all partitions for the restart of this owner and ends the loop: renews each lease once more and writes
    /// that its owner is away. No other instance claims such a partition before its lease expires. A later incarnation
    /// of this owner claims it in its first cycle. Partitions that are already being released are released. Takes at
    /// most as long as [`shutdown`](Self::shutdown).
    pub async fn shutdown_and_keep(&self) -> LeftOwned {
        self.end(Command::Keep).await
    }

    async fn end(&self, command: Command) -> LeftOwned {
        let (done, ended) = oneshot::channel();
        self.send(Order::End(command, done));
        // An error means that the loop has ended already.
        ended.await.unwrap_or_default()
    }

    /// Returns how long the storage has been unavailable, if that is longer than half the lease duration and one
    /// request timeout.
    #[must_use]
    pub fn storage_unavailable_for(&self) -> Option<Duration> {
        self.storage_health.storage_unavailable_for()
    }

    /// Returns how long all load-balancing cycles have failed, if that is longer than the lease duration. In the
    /// meantime this instance renews its leases, and takes over nothing.
    #[must_use]
    pub fn cycles_failing_for(&self) -> Option<Duration> {
        self.storage_health.cycles_failing_for()
    }

    /// Returns how long the heartbeat of this instance could not be written, and the last error, if that is longer than
    /// the lease duration. Meanwhile each lease is renewed individually, and an instance that owns nothing does not count.
    #[must_use]
    pub fn heartbeat_failing_for(&self) -> Option<(Duration, Arc<Error>)> {
        self.storage_health.heartbeat_failing_for()
    }

    /// Returns how long this instance, whose leases are live, could not look for live owners in the other case of the blob
    /// names, and the last error, if that is longer than the lease duration. Meanwhile it claims nothing.
    #[must_use]
    pub fn case_check_failing_for(&self) -> Option<(Duration, Arc<Error>)> {
        self.storage_health.case_check_failing_for()
    }

    /// Returns the partitions without a live owner that this instance could not claim because the storage failed at
    /// least twice in a row, with the last error of each.
    #[must_use]
    pub fn unclaimable(&self) -> BTreeMap<PartitionId, Arc<Error>> {
        self.storage_health.unclaimable()
    }

    fn send(&self, order: Order) {
        // An error means that the loop has ended, so that the order has no effect.
        let _ = self.orders.send(order);
    }
}
