//! Claim and lease: the wish to own a partition, and the proof of owning it.

use std::time::Duration;

use super::Ownership;
use crate::blob::ETag;
use crate::model::{LeaseScope, OwnerId, OwnershipRecord, PartitionId};

/// A wish to own a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(super) partition: PartitionId,
    pub(super) over: Option<Box<Ownership>>,
    pub(super) load: Option<u64>,
    pub(super) handoff_to: Option<OwnerId>,
}

impl Claim {
    /// Claims a partition that has no record yet.
    #[must_use]
    pub fn unowned(partition: PartitionId) -> Self {
        Self { partition, over: None, load: None, handoff_to: None }
    }

    /// The same claim, which says how much work the partition is, as its last owner measured it.
    #[must_use]
    pub fn with_load(mut self, load: Option<u64>) -> Self {
        self.load = load;
        self
    }

    /// The same claim of an operator, which will return the partition to this owner.
    pub(crate) fn with_handoff_to(mut self, owner: Option<OwnerId>) -> Self {
        self.handoff_to = owner;
        self
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// Claims a partition over the record that was seen: released, expired, or to be stolen. It says as much as that
    /// record of the work that the partition is.
    #[must_use]
    pub fn over(seen: &Ownership) -> Self {
        Self {
            partition: seen.partition.clone(),
            over: Some(Box::new(seen.clone())),
            load: seen.record.load,
            handoff_to: None,
        }
    }
}

/// Proof that this owner won a partition. It is spent by time: unless renewed, others may claim the partition once it
/// is older than the expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub(super) partition: PartitionId,
    pub(super) record: OwnershipRecord,
    pub(super) etag: ETag,
    pub(super) valid_from: Duration,
    pub(super) epoch: i64,
    /// Its next renewal counts only once it is written.
    pub(super) rewrite: bool,
}

impl Lease {
    /// A lease with this record, as if it had been won, for tests of what decides about leases.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of(partition: PartitionId, record: OwnershipRecord, etag: ETag, valid_from: Duration, epoch: i64) -> Self {
        Self { partition, record, etag, valid_from, epoch, rewrite: false }
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// What the record says.
    #[must_use]
    pub fn record(&self) -> &OwnershipRecord {
        &self.record
    }

    /// The same lease, which will say at its next renewal how much work the partition is, if that is known.
    #[must_use]
    pub fn with_load(mut self, load: Option<u64>) -> Self {
        self.record.load = load.or(self.record.load);
        self
    }

    /// Returns the owner that requested the partition, as of the last renewal that ended in a conflict. A request changes
    /// the record, so the next renewal conflicts with it and reads it. `None` after this owner has won the partition
    /// again.
    #[must_use]
    pub fn asked_for_by(&self) -> Option<&OwnerId> {
        self.record.handoff_to.as_ref().filter(|asking| self.record.owner.as_ref() != Some(asking))
    }

    /// Returns the same lease, whose renewals write that the partition drains. Such a renewal succeeds only when it has
    /// written that, because the requesting owner waits for it.
    #[must_use]
    pub fn with_draining(mut self) -> Self {
        self.record.draining = true;
        self
    }

    /// Returns the same lease, whose next renewal removes the handoff request of an owner that has crashed.
    #[must_use]
    pub fn without_mark(mut self) -> Self {
        (self.record.handoff_to, self.record.operator) = (None, None);
        self
    }

    /// The same lease, whose next renewal writes that its owner has shut down and will process the partition again
    /// after its restart.
    #[must_use]
    pub fn kept(mut self) -> Self {
        (self.record.away, self.rewrite) = (true, true);
        self
    }

    /// Returns the same lease, whose next renewal succeeds only when it has written the record, with this scope. Call it
    /// to change the scope, and for each lease of scope [`Instance`](LeaseScope::Instance) after the first announcement
    /// that succeeds since this owner was [declared dead](super::Announced::DeclaredDead): another instance may be about
    /// to claim the partition over the record as it is.
    #[must_use]
    pub fn rewritten(mut self, scope: LeaseScope) -> Self {
        (self.record.scope, self.rewrite) = (scope, true);
        self
    }

    /// The version of the record.
    #[must_use]
    pub fn etag(&self) -> &ETag {
        &self.etag
    }

    /// The moment from which the expiry counts, on the store's [lease clock](super::GroupStore::lease_time): before the
    /// write was sent; or, where only a read showed that it was applied, before that by the age of the record, in whole
    /// seconds of the server's clock.
    #[must_use]
    pub fn valid_from(&self) -> Duration {
        self.valid_from
    }

    /// The number of the tenure that the claim began. It is strictly greater than that of every earlier tenure of the
    /// partition in which events were processed, whichever instance had it. Renewals keep it, unless the record had
    /// vanished: then another tenure begins, and the partition has to be adopted again.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.epoch
    }
}
