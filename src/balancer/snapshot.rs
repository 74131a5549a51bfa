//! What one instance knows about its group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::watch;

use super::liveness::Stalled;
use crate::model::{LeaseScope, OwnerId, PartitionId};
use crate::planner::{LoadBalancingStrategy, PartitionOwner, PartitionView, ReleaseReason};

/// What one instance knows about the group after a load-balancing cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The instance.
    pub owner: OwnerId,
    /// How many cycles have succeeded. With zero, nothing is known: yet, or anymore, because the loop was dropped or
    /// has failed.
    pub cycles: u64,
    /// Every partition and its owner.
    pub partitions: Vec<PartitionView>,
    /// The partitions that this instance owns, with the [epoch](crate::store::Lease::epoch) of each. If a partition is
    /// lost and won again, its epoch changes.
    pub owned: BTreeMap<PartitionId, i64>,
    /// Partitions that this instance is releasing, with the reason of each. Their processing must stop; their last
    /// checkpoints may still be written.
    pub releasing: BTreeMap<PartitionId, ReleaseReason>,
    /// Partitions whose handoff this instance has requested, with their owners.
    pub requested_handoffs: BTreeMap<PartitionId, OwnerId>,
    /// When each partition was claimed, and how old its record was in the last listing.
    pub leases: BTreeMap<PartitionId, LeaseAge>,
    /// How many partitions stay unowned because of `max_partitions`.
    pub unclaimed_due_to_limit: usize,
    /// What keeps the leases of this instance alive: the configured scope, or [`LeaseScope::Partition`] because an
    /// owner of another SDK was found, or while the heartbeat of this instance cannot be written.
    pub lease_scope: LeaseScope,
    /// The stalled components of the application.
    pub stalled: Stalled,
}

/// The times of an ownership record, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeaseAge {
    /// When it was claimed. Other SDKs do not record this.
    #[serde(with = "time::serde::rfc3339::option")]
    pub claimed_at: Option<OffsetDateTime>,
    /// Time since it was last written, at the time of the listing.
    #[serde(serialize_with = "crate::util::serialize_seconds")]
    pub age: Duration,
}

impl Snapshot {
    pub(crate) fn with_nothing_known(owner: OwnerId, lease_scope: LeaseScope) -> Self {
        Self {
            owner,
            cycles: 0,
            partitions: Vec::new(),
            owned: BTreeMap::new(),
            releasing: BTreeMap::new(),
            requested_handoffs: BTreeMap::new(),
            leases: BTreeMap::new(),
            unclaimed_due_to_limit: 0,
            lease_scope,
            stalled: Stalled::default(),
        }
    }

    /// Returns how many partitions each live owner owns. Owners without partitions are missing.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let mut counts = BTreeMap::new();
        for view in &self.partitions {
            let owner = match &view.owner {
                PartitionOwner::This => &self.owner,
                PartitionOwner::Other(owner) => owner,
                _ => continue,
            };
            *counts.entry(owner.clone()).or_default() += 1;
        }
        counts
    }

    /// Returns whether a partition has no live owner that an instance with this strategy may own.
    pub(crate) fn has_unowned(&self, strategy: &LoadBalancingStrategy) -> bool {
        self.partitions.iter().enumerate().any(|(ordinal, view)| {
            !matches!(view.owner, PartitionOwner::This | PartitionOwner::Other(_))
                && strategy.may_own(ordinal, &view.partition)
        })
    }

    /// Returns whether this instance owns every partition that it may own at all.
    pub(crate) fn owns_all(&self, strategy: &LoadBalancingStrategy) -> bool {
        self.partitions
            .iter()
            .enumerate()
            .all(|(ordinal, view)| view.owner == PartitionOwner::This || !strategy.may_own(ordinal, &view.partition))
    }

    /// Returns whether this instance is the one that reports about partitions without an owner: its id is the least one
    /// among the owners that hand over on request. Owners of other SDKs, operators, and owners that have shut down
    /// report nothing, so they do not count. Without handoffs, and while no instance owns a partition, several may
    /// report.
    #[cfg(feature = "metrics")]
    pub(crate) fn reports_unowned(&self) -> bool {
        let members = self.partitions.iter().filter_map(|view| match &view.owner {
            PartitionOwner::Other(owner) if view.cooperative && !view.away && !view.is_owned_by_operator() => {
                Some(owner)
            }
            _ => None,
        });
        members.min().is_none_or(|least| !self.owned.is_empty() && self.owner < *least)
    }

    /// Returns the partitions without a live owner.
    pub fn unowned(&self) -> impl Iterator<Item = &PartitionId> {
        let unowned = self.partitions.iter().filter(|view| {
            matches!(view.owner, PartitionOwner::Unowned | PartitionOwner::Released | PartitionOwner::Expired(_))
        });
        unowned.map(|view| &view.partition)
    }

    /// Returns the owners that have shut down and kept partitions for their restart, and how many partitions each.
    #[must_use]
    pub fn away(&self) -> BTreeMap<OwnerId, usize> {
        let mut away = BTreeMap::new();
        for view in self.partitions.iter().filter(|view| view.away) {
            if let PartitionOwner::Other(owner) = &view.owner {
                *away.entry(owner.clone()).or_default() += 1;
            }
        }
        away
    }

    /// Returns the owner of a partition, if this instance knows the partition.
    #[must_use]
    pub fn owner(&self, partition: &PartitionId) -> Option<&PartitionOwner> {
        self.partitions.iter().find(|view| view.partition == *partition).map(|view| &view.owner)
    }

    /// Returns the other live owner of a partition, if this instance knows one.
    #[must_use]
    pub fn other_owner(&self, partition: &PartitionId) -> Option<&OwnerId> {
        match self.owner(partition)? {
            PartitionOwner::Other(owner) => Some(owner),
            _ => None,
        }
    }
}

/// The latest [`Snapshot`], and a way to wait for the next one.
///
/// Used like a [`watch::Receiver`], but a snapshot is shared instead of borrowed: it can be kept for as long as needed,
/// also across blocking code, without delaying the load-balancing loop.
#[derive(Clone, Debug)]
pub struct Snapshots(watch::Receiver<Arc<Snapshot>>);

impl Snapshots {
    pub(super) fn new(latest: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self(latest)
    }

    /// Returns the latest snapshot. It never changes; later snapshots are new values.
    #[must_use]
    pub fn borrow(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.borrow())
    }

    /// Like [`borrow`](Self::borrow), and marks the snapshot as seen: [`changed`](Self::changed) then waits for a later
    /// one.
    pub fn borrow_and_update(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.0.borrow_and_update())
    }

    /// Waits for a snapshot that was not seen yet. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the loop has ended, so that there will be no other snapshot.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }

    /// Waits until a snapshot, including the latest one, matches the condition, and returns it. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the loop has ended before that.
    pub async fn wait_for(
        &mut self,
        mut condition: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Arc<Snapshot>, watch::error::RecvError> {
        loop {
            let latest = self.borrow_and_update();
            if condition(&latest) {
                return Ok(latest);
            }
            self.changed().await?;
        }
    }
}
