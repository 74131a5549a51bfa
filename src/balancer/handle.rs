//! What others see of a running loop, and what they can tell it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::{broadcast, mpsc, oneshot};

use super::events::{Event, Events};
use super::loads::Loads;
use super::outage::Reach;
use super::snapshots::Snapshots;
use super::vitals::{Stalled, Vitals};
use crate::balance::{Holder, PartitionView};
use crate::model::{LeaseScope, OwnerId, PartitionId};

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
    /// Partitions that are given back: their processing has to stop, and their last checkpoints may still be written.
    pub releasing: BTreeSet<PartitionId>,
    /// Partitions that this instance has asked for, and their owners, who are to hand them over.
    pub asked: BTreeMap<PartitionId, OwnerId>,
    /// Since when each ownership has been held, and how old its record was, by the last listing.
    pub records: BTreeMap<PartitionId, RecordAge>,
    /// How many partitions stay unowned because of `max_partitions`.
    pub unclaimed_for_cap: usize,
    /// What keeps the ownerships of this instance alive: as it was set, or [`LeaseScope::Partition`] because an owner of another
    /// SDK has been seen.
    pub lease_scope: LeaseScope,
    /// What is not well in the application.
    pub stalled: Stalled,
}

/// The times of an ownership record, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecordAge {
    /// When it was claimed. Only owners of this crate say so.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// Time since it was last written, when it was listed.
    pub age: Duration,
}

impl Snapshot {
    pub(super) fn unknown(owner: OwnerId, lease_scope: LeaseScope) -> Self {
        Self {
            owner,
            cycles: 0,
            partitions: Vec::new(),
            held: BTreeMap::new(),
            releasing: BTreeSet::new(),
            asked: BTreeMap::new(),
            records: BTreeMap::new(),
            unclaimed_for_cap: 0,
            lease_scope,
            stalled: Stalled::default(),
        }
    }

    /// How many partitions each live owner holds. Owners that hold none are not in it.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let mut counts = BTreeMap::new();
        for view in &self.partitions {
            let owner = match &view.holder {
                Holder::Me => &self.owner,
                Holder::Live(owner) | Holder::Elsewhere(owner) => owner,
                _ => continue,
            };
            *counts.entry(owner.clone()).or_default() += 1;
        }
        counts
    }

    /// The holder of a partition, as far as this instance knows.
    #[must_use]
    pub fn holder(&self, partition: &PartitionId) -> Option<&Holder> {
        self.partitions.iter().find(|view| view.partition == *partition).map(|view| &view.holder)
    }

    /// The other live owner of a partition, as far as this instance knows.
    #[must_use]
    pub fn other_owner(&self, partition: &PartitionId) -> Option<&OwnerId> {
        match self.holder(partition)? {
            Holder::Live(owner) | Holder::Elsewhere(owner) => Some(owner),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum Command {
    StopClaiming,
    Forget { partition: PartitionId, tenure: u64, by: Option<OwnerId> },
    Release { partition: PartitionId, tenure: u64, cool_down: Duration, settled: bool },
    Unprocessed { partition: PartitionId },
    Shutdown { done: oneshot::Sender<usize> },
}

/// Watches and steers a running [`Balancer`](super::Balancer). When all handles are gone the balancer ends without
/// releasing anything.
#[derive(Clone, Debug)]
pub struct BalancerHandle {
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) snapshots: Snapshots,
    pub(super) vitals: Vitals,
    pub(super) loads: Loads,
    pub(super) events: Events,
    pub(super) reach: Reach,
}

impl BalancerHandle {
    /// The latest snapshot, and a way to wait for the next.
    #[must_use]
    pub fn watch(&self) -> Snapshots {
        self.snapshots.clone()
    }

    /// Where the application gives its signs of life. Without any, it counts as well.
    #[must_use]
    pub fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    /// Where the application says how much work its partitions are.
    #[must_use]
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// Claims nothing more, not even what is released from then on. What is held is still renewed. The first step of an
    /// orderly end.
    pub fn stop_claiming(&self) {
        self.send(Command::StopClaiming);
    }

    /// Says that a partition turned out to belong to somebody else. Nothing is written.
    pub fn forget(&self, partition: PartitionId, tenure: u64) {
        self.lost(partition, tenure, None);
    }

    /// The same, to this owner, where it is known.
    pub(crate) fn lost(&self, partition: PartitionId, tenure: u64, by: Option<OwnerId>) {
        self.send(Command::Forget { partition, tenure, by });
    }

    /// Gives one partition back, and does not take it again before the cool-down is over, nor within the next interval.
    /// Others may claim it at once.
    pub fn release(&self, partition: PartitionId, tenure: u64, cool_down: Duration) {
        self.send(Command::Release { partition, tenure, cool_down, settled: true });
    }

    /// The same, though what was processed last may not be checkpointed.
    pub(crate) fn release_unsettled(&self, partition: PartitionId, tenure: u64, cool_down: Duration) {
        self.send(Command::Release { partition, tenure, cool_down, settled: false });
    }

    /// Says that nothing processes a partition that is not [held](Snapshot::held) any more: if it is to be given back, nothing
    /// is left to wait for.
    pub(crate) fn unprocessed(&self, partition: PartitionId) {
        self.send(Command::Unprocessed { partition });
    }

    /// Everything that happens from now on, with its reason. Who listens too slowly misses the oldest of the last thousand.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Releases everything and ends the loop. A release that fails is tried again. Returns when all is done, after four
    /// request deadlines at the latest, or when the loop has ended otherwise. Returns how many partitions could not be
    /// released: they expire.
    pub async fn shutdown(&self) -> usize {
        let (done, ended) = oneshot::channel();
        self.send(Command::Shutdown { done });
        // An error means that the loop has ended already: nothing is left to wait for.
        ended.await.unwrap_or_default()
    }

    /// How long the storage has not answered as it should, if that is longer than half the expiry and a request.
    #[must_use]
    pub fn storage_silent(&self) -> Option<Duration> {
        self.reach.silence()
    }

    /// How long this instance has not seen who owns what, although it tried, if that is longer than the expiry. Meanwhile
    /// it renews what it holds, and takes over nothing.
    #[must_use]
    pub fn blind(&self) -> Option<Duration> {
        self.reach.blind()
    }

    fn send(&self, command: Command) {
        // An error means that the loop has ended, and with it all that a command could change.
        let _ = self.commands.send(command);
    }
}
