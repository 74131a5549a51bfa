//! What others see of a running loop, and what they can tell it.

use std::time::Duration;

use tokio::sync::{broadcast, mpsc, oneshot};

use super::events::{Events, OwnershipEvent};
use super::happened::Command;
use super::loads::LoadTracker;
use super::reach::StorageHealth;
use super::snapshot::Snapshots;
use super::vitals::LivenessTracker;
use crate::model::{OwnerId, PartitionId};

/// What a handle sends to its loop.
#[derive(Debug)]
pub(super) enum Order {
    Command(Command),
    /// [`Command::Shutdown`] or [`Command::Keep`]; the loop reports what it left.
    End(Command, oneshot::Sender<LeftOwned>),
}

/// What a loop left when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOwned {
    /// How many partitions are left for the restart of this owner.
    pub kept: usize,
    /// How many partitions could neither be released nor kept: they expire.
    pub unreleased: usize,
}

/// Watches and steers a running [`Balancer`](super::Balancer). When all handles are gone the balancer ends without
/// releasing anything.
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
    /// The latest snapshot, and a way to wait for the next.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        self.snapshots.clone()
    }

    /// Where the application gives its signs of life. Without any, it counts as well.
    #[must_use]
    pub fn liveness(&self) -> &LivenessTracker {
        &self.liveness
    }

    /// Where the application says how much work its partitions are.
    #[must_use]
    pub fn loads(&self) -> &LoadTracker {
        &self.loads
    }

    /// Claims nothing more, not even what is released from then on. What is held is still renewed. The first step of an
    /// orderly end.
    pub fn stop_claiming(&self) {
        self.send(Order::Command(Command::StopClaiming));
    }

    /// Says that a partition turned out to belong to somebody else. Nothing is written.
    pub fn mark_lost(&self, partition: PartitionId, epoch: i64) {
        self.lost(partition, epoch, None);
    }

    /// The same, to this owner, where it is known.
    pub(crate) fn lost(&self, partition: PartitionId, epoch: i64, by: Option<OwnerId>) {
        self.send(Order::Command(Command::MarkLost { partition, epoch, by }));
    }

    /// Gives one partition back, and does not take it again before the cooldown is over, nor within the next interval.
    /// Others may claim it at once.
    pub fn release(&self, partition: PartitionId, epoch: i64, cooldown: Duration) {
        self.send(Order::Command(Command::Release { partition, epoch, cooldown, settled: true }));
    }

    /// The same, though what was processed last may not be checkpointed.
    pub(crate) fn release_unsettled(&self, partition: PartitionId, epoch: i64, cooldown: Duration) {
        self.send(Order::Command(Command::Release { partition, epoch, cooldown, settled: false }));
    }

    /// Says that nothing processes a partition that is not [held](Snapshot::owned) any more: if it is to be given back,
    /// nothing is left to wait for.
    pub(crate) fn unprocessed(&self, partition: PartitionId) {
        self.send(Order::Command(Command::Unprocessed { partition }));
    }

    /// Everything that happens from now on, with its reason. Who listens too slowly misses the oldest of the last
    /// thousand.
    #[must_use]
    pub fn ownership_events(&self) -> broadcast::Receiver<OwnershipEvent> {
        self.events.subscribe()
    }

    /// Releases everything and ends the loop. A release that fails is tried again. Returns when all is done, after four
    /// request deadlines at the latest, or when the loop has ended otherwise.
    pub async fn shutdown(&self) -> LeftOwned {
        self.end(Command::Shutdown).await
    }

    /// Ends the loop and leaves everything that it holds for the restart of this owner: renews each partition once more,
    /// and writes that its owner is away. No instance takes such a partition before it expires, but for a later
    /// incarnation of this owner, which does so in its first cycle. What is about to be released is released. Takes as
    /// long as [`shutdown`](Self::shutdown) at the most.
    pub async fn shutdown_and_keep(&self) -> LeftOwned {
        self.end(Command::Keep).await
    }

    async fn end(&self, command: Command) -> LeftOwned {
        let (done, ended) = oneshot::channel();
        self.send(Order::End(command, done));
        // An error means that the loop has ended already: nothing is left to wait for.
        ended.await.unwrap_or_default()
    }

    /// How long the storage has not answered as it should, if that is longer than half the expiry and a request.
    #[must_use]
    pub fn storage_unavailable_for(&self) -> Option<Duration> {
        self.storage_health.storage_unavailable_for()
    }

    /// How long this instance has not seen who owns what, although it tried, if that is longer than the expiry.
    /// Meanwhile it renews what it holds, and takes over nothing.
    #[must_use]
    pub fn cycles_failing_for(&self) -> Option<Duration> {
        self.storage_health.cycles_failing_for()
    }

    fn send(&self, order: Order) {
        // An error means that the loop has ended, and with it all that an order could change.
        let _ = self.orders.send(order);
    }
}
