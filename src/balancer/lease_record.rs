//! What keeps the record of a lease alive, and whether a renewal must rewrite the record.

use crate::model::{LeaseScope, Moment};
use crate::store::Lease;

/// What keeps the leases of this instance alive, in addition to their own renewals.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptAliveBy {
    /// The scope that the records must have.
    pub(super) scope: LeaseScope,
    pub(super) heartbeat: Option<HeartbeatSince>,
}

/// When two successful heartbeats were sent: the first one since this instance started or was declared dead, and the
/// last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeartbeatSince {
    pub(super) first: Moment,
    pub(super) last: Moment,
}

/// What the storage contains about one lease, as far as this instance knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRecord {
    scope: LeaseScope,
    rewrite: Rewrite,
    /// Whether another instance may have taken the partition over while this instance had no heartbeat. Until the
    /// record is rewritten, only its own age counts.
    ambiguous: bool,
    /// The last heartbeat that counts, once a write was sent after which none counts. Its outcome may be unknown.
    last_heartbeat: Option<Moment>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rewrite {
    #[default]
    No,
    Due,
    UnderWay,
}

impl LeaseRecord {
    /// Creates the record of a lease that was won or renewed. `before` is the record of the same lease until now.
    pub(super) fn new(lease: &Lease, before: Option<Self>, kept_alive_by: KeptAliveBy) -> Self {
        let scope = lease.record().scope;
        let rewrite = before.map(|record| record.rewrite).unwrap_or_default();
        // A record that an earlier write left unchanged is as ambiguous as before.
        let unchanged = before.filter(|_| rewrite != Rewrite::UnderWay);
        let is_covered = kept_alive_by.heartbeat.is_some_and(|heartbeat| heartbeat.first <= lease.valid_from());
        Self {
            scope,
            rewrite: if rewrite == Rewrite::Due { Rewrite::Due } else { Rewrite::No },
            ambiguous: scope == LeaseScope::Instance && unchanged.map_or(!is_covered, |record| record.ambiguous),
            last_heartbeat: unchanged.and_then(|record| record.last_heartbeat),
        }
    }

    /// Returns whether it says that the heartbeat of this instance keeps it alive.
    pub(super) fn is_kept_alive_by_heartbeat(&self) -> bool {
        self.scope == LeaseScope::Instance
    }

    /// Returns when the last heartbeat that keeps it alive was sent, if one does.
    pub(super) fn last_heartbeat(&self, kept_alive_by: KeptAliveBy) -> Option<Moment> {
        let counts = self.is_kept_alive_by_heartbeat() && !self.ambiguous;
        let sent = kept_alive_by.heartbeat.filter(|_| counts)?;
        Some(self.last_heartbeat.unwrap_or(sent.last))
    }

    /// Returns whether another instance may have taken the partition over.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// Records that this instance was declared dead.
    pub(super) fn set_ambiguous(&mut self) {
        self.ambiguous |= self.is_kept_alive_by_heartbeat();
    }

    /// Returns whether the next renewal must rewrite it, at once.
    pub(super) fn is_rewrite_due(&self) -> bool {
        self.rewrite == Rewrite::Due
    }

    /// Returns whether a rewrite is due, or must become due. An ambiguous record is rewritten only while this instance
    /// has a heartbeat: without one, another instance could take the partition over again.
    pub(super) fn must_be_rewritten(&self, kept_alive_by: KeptAliveBy) -> bool {
        self.is_rewrite_due()
            || (self.ambiguous && kept_alive_by.heartbeat.is_some())
            || self.scope != kept_alive_by.scope
    }

    pub(super) fn require_rewrite(&mut self) {
        self.rewrite = Rewrite::Due;
    }

    /// Records that a write begins, with which the record gets this scope.
    pub(super) fn start_write(&mut self, scope: LeaseScope, kept_alive_by: KeptAliveBy) {
        if self.rewrite == Rewrite::Due {
            self.rewrite = Rewrite::UnderWay;
        }
        if self.is_kept_alive_by_heartbeat() && scope == LeaseScope::Partition {
            self.last_heartbeat = self.last_heartbeat.or(kept_alive_by.heartbeat.map(|heartbeat| heartbeat.last));
        }
    }

    /// Records that the write has failed.
    pub(super) fn fail_write(&mut self) {
        if self.rewrite == Rewrite::UnderWay {
            self.rewrite = Rewrite::Due;
        }
    }
}
