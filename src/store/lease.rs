//! Claims and leases: the request to own a partition, and the proof of owning it.

use std::time::Duration;

use super::Ownership;
use crate::blob::ETag;
use crate::model::{LeaseScope, OwnerId, OwnershipRecord, PartitionId};

/// A request to own a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(super) partition: PartitionId,
    pub(super) over: Option<Box<Ownership>>,
    pub(super) load: Option<u64>,
    pub(super) handoff_to: Option<OwnerId>,
    pub(super) cooperative: bool,
    pub(super) scope: LeaseScope,
}

impl Claim {
    /// Claims a partition that has no record yet.
    #[must_use]
    pub fn unowned(partition: PartitionId) -> Self {
        Self { partition, over: None, load: None, handoff_to: None, cooperative: false, scope: LeaseScope::default() }
    }

    /// Claims a partition over the record that was seen: released, expired, or to be stolen. The claim keeps the load
    /// in the record.
    #[must_use]
    pub fn over(seen: &Ownership) -> Self {
        Self { over: Some(Box::new(seen.clone())), load: seen.record.load, ..Self::unowned(seen.partition.clone()) }
    }

    /// Returns the same claim with the load of the partition, as its last owner measured it.
    #[must_use]
    pub fn with_load(mut self, load: Option<u64>) -> Self {
        self.load = load;
        self
    }

    /// Returns the same claim, which writes whether the owner hands the partition over on
    /// [request](super::GroupStore::request_handoff). Default: it does not.
    ///
    /// The owner must then check [`Lease::handoff_requested_by`] after every renewal and acknowledge the request. Every
    /// request that it ignores costs the requesting instance half a lease duration before it steals.
    #[must_use]
    pub fn with_cooperative(mut self, cooperative: bool) -> Self {
        self.cooperative = cooperative;
        self
    }

    /// Returns the same claim, which writes what keeps the lease alive. Default [`LeaseScope::Partition`].
    ///
    /// With [`LeaseScope::Instance`] the owner must [send a heartbeat](super::GroupStore::send_heartbeat) before its
    /// first claim and in every quarter of the lease duration, and [rewrite](Lease::forcing_rewrite) all its leases
    /// after another instance [declared it dead](super::membership::HeartbeatOutcome::DeclaredDead).
    #[must_use]
    pub fn with_lease_scope(mut self, scope: LeaseScope) -> Self {
        self.scope = scope;
        self
    }

    /// Returns the same claim, for an operator that will return the partition to this owner.
    pub(crate) fn with_handoff_to(mut self, owner: Option<OwnerId>) -> Self {
        self.handoff_to = owner;
        self
    }

    /// Returns the partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }
}

/// Proof that this owner has won a partition. It expires unless renewed: other instances may claim the partition once
/// the lease is older than the lease duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub(super) partition: PartitionId,
    pub(super) record: OwnershipRecord,
    pub(super) etag: ETag,
    pub(super) valid_from: Duration,
    pub(super) epoch: i64,
    /// Whether its next renewal counts only if the record is written.
    pub(super) rewrite: bool,
}

impl Lease {
    /// Creates a lease with this record, as if it had been won, for tests of decisions about leases.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of(partition: PartitionId, record: OwnershipRecord, etag: ETag, valid_from: Duration, epoch: i64) -> Self {
        Self { partition, record, etag, valid_from, epoch, rewrite: false }
    }

    /// Returns the partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// Returns the content of the record.
    #[must_use]
    pub fn record(&self) -> &OwnershipRecord {
        &self.record
    }

    /// Returns the same lease, whose next renewal writes this load, if it is known.
    #[must_use]
    pub fn with_load(mut self, load: Option<u64>) -> Self {
        self.record.load = load.or(self.record.load);
        self
    }

    /// Returns the instance that requested a handoff, as of the last renewal. A request changes the record, so the next
    /// renewal detects it. `None` after the partition was won again.
    #[must_use]
    pub fn handoff_requested_by(&self) -> Option<&OwnerId> {
        self.record.handoff_to.as_ref().filter(|by| self.record.owner.as_ref() != Some(by))
    }

    /// Returns the same lease, whose renewals acknowledge the handoff request: they write that the owner drains the
    /// partition. Unlike other renewals they count only once the record says so, because the requesting instance waits
    /// for that.
    #[must_use]
    pub fn acknowledging_handoff(mut self) -> Self {
        self.record.draining = true;
        self
    }

    /// Returns the same lease, whose next renewal removes the handoff request, because the requesting instance has
    /// expired.
    #[must_use]
    pub fn without_handoff_request(mut self) -> Self {
        self.record.handoff_to = None;
        self.record.operator = None;
        self
    }

    /// Returns the same lease, whose next renewal writes that its owner has shut down and will process the partition
    /// again after its restart.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.record.away = true;
        self.rewrite = true;
        self
    }

    /// Returns the same lease, whose next renewal counts only if the record is written, with this scope. Use it to
    /// change the scope. Also use it for each lease of scope [`Instance`](LeaseScope::Instance) after the first
    /// successful heartbeat since this owner was [declared dead](super::membership::HeartbeatOutcome::DeclaredDead),
    /// because another instance may be about to take the partition over by the record as it is.
    #[must_use]
    pub fn forcing_rewrite(mut self, scope: LeaseScope) -> Self {
        self.record.scope = scope;
        self.rewrite = true;
        self
    }

    /// Returns the version of the record.
    #[must_use]
    pub fn etag(&self) -> &ETag {
        &self.etag
    }

    /// Returns the moment from which the lease duration counts, on the store's [lease
    /// clock](super::GroupStore::lease_clock_now): the moment before the write was sent. If only a read showed that the
    /// write was applied, it is the moment before that read, minus the age of the record in whole seconds of the
    /// server's clock.
    #[must_use]
    pub fn valid_from(&self) -> Duration {
        self.valid_from
    }

    /// Returns the epoch that the claim began. It is strictly greater than all earlier epochs of the partition in which
    /// events were processed, by any instance. Renewals keep it, unless the record had vanished: then a new epoch
    /// begins, and the partition must be adopted again.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }
}
