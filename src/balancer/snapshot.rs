//! What one instance knows of its group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::watch;

use super::vitals::Stalled;
use crate::model::{LeaseScope, OwnerId, PartitionId};
use crate::planner::{PartitionOwner, PartitionView};

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
    /// The partitions that this instance holds, with the [epoch](crate::store::Lease::epoch) of each: another epoch is
    /// another time of holding it.
    pub owned: BTreeMap<PartitionId, i64>,
    /// Partitions that are given back: their processing has to stop, and their last checkpoints may still be written.
    pub releasing: BTreeSet<PartitionId>,
    /// Partitions that this instance has asked for, and their owners, who are to hand them over.
    pub requested_handoffs: BTreeMap<PartitionId, OwnerId>,
    /// Since when each ownership has been held, and how old its record was, by the last listing.
    pub leases: BTreeMap<PartitionId, LeaseAge>,
    /// How many partitions stay unowned because of `max_partitions`.
    pub unclaimed_due_to_limit: usize,
    /// What keeps the ownerships of this instance alive: as it was set, or [`LeaseScope::Partition`] because an owner
    /// of another SDK has been seen.
    pub lease_scope: LeaseScope,
    /// What is not well in the application.
    pub stalled: Stalled,
}

/// The times of an ownership record, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeaseAge {
    /// When it was claimed. Only owners of this crate say so.
    #[serde(with = "time::serde::rfc3339::option")]
    pub claimed_at: Option<OffsetDateTime>,
    /// Time since it was last written, when it was listed.
    #[serde(serialize_with = "crate::seconds::serialize")]
    pub age: Duration,
}

impl Snapshot {
    pub(super) fn unknown(owner: OwnerId, lease_scope: LeaseScope) -> Self {
        Self {
            owner,
            cycles: 0,
            partitions: Vec::new(),
            owned: BTreeMap::new(),
            releasing: BTreeSet::new(),
            requested_handoffs: BTreeMap::new(),
            leases: BTreeMap::new(),
            unclaimed_due_to_limit: 0,
            lease_scope,
            stalled: Stalled::default(),
        }
    }

    /// How many partitions each live owner holds. Owners that hold none are not in it.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<OwnerId, usize> {
        let mut counts = BTreeMap::new();
        for view in &self.partitions {
            let owner = match &view.owner {
                PartitionOwner::This => &self.owner,
                PartitionOwner::Other(owner) | PartitionOwner::OtherNameCase(owner) => owner,
                _ => continue,
            };
            *counts.entry(owner.clone()).or_default() += 1;
        }
        counts
    }

    /// The owners that have shut down and left partitions for their own restart, and how many each.
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

    /// The holder of a partition, as far as this instance knows.
    #[must_use]
    pub fn owner(&self, partition: &PartitionId) -> Option<&PartitionOwner> {
        self.partitions.iter().find(|view| view.partition == *partition).map(|view| &view.owner)
    }

    /// The other live owner of a partition, as far as this instance knows.
    #[must_use]
    pub fn other_owner(&self, partition: &PartitionId) -> Option<&OwnerId> {
        match self.owner(partition)? {
            PartitionOwner::Other(owner) | PartitionOwner::OtherNameCase(owner) => Some(owner),
            _ => None,
        }
    }
}

/// The latest [`Snapshot`], and a way to wait for the next.
///
/// Used as a [`watch::Receiver`], but each snapshot is shared instead of lent: it can be kept for as long as needed,
/// also in a section that blocks, without holding up the balancing loop.
#[derive(Clone, Debug)]
pub struct Snapshots(watch::Receiver<Arc<Snapshot>>);

impl Snapshots {
    pub(super) fn new(latest: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self(latest)
    }

    /// The latest snapshot. It stays as it is; later ones are others.
    #[must_use]
    pub fn borrow(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.borrow())
    }

    /// The same, after which [`changed`](Self::changed) waits for a later one.
    pub fn borrow_and_update(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.0.borrow_and_update())
    }

    /// Waits for a snapshot that was not seen yet. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the loop has ended: there will be no other.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }

    /// Waits until a snapshot, the latest one included, meets the condition, and returns it. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the loop has ended before.
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
