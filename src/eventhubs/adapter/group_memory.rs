//! What the adapter remembers of one consumer group between the calls of the processor, which keeps no state: the
//! leases and adoptions of the owned partitions, the partitions that must restart, the last listing, and when to look
//! for owners in the other blob-name casing.
//!
//! The processor gets only the version of a listed record and claims by it; this module keeps the rest of the record
//! that a claim needs. Records without a live owner are not shown to the processor: it takes every partition in a
//! listing for one of the event hub, even one that the event hub does not have. The processor itself adds the
//! partitions of the event hub, without a version. A claim of such a partition replaces the version that was listed
//! here.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use crate::blob::ETag;
use crate::model::{Moment, OwnerId, PartitionId};
use crate::store::membership::Heartbeat;
use crate::store::{Adoption, CaseConflict, Claim, GroupStore, Lease, Ownership, time_to_next_look};
use crate::telemetry;
use crate::util::lock;

/// One partition in one epoch of its ownership.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) lease: Mutex<TimedLease>,
    pub(super) stage: Mutex<Stage>,
    /// Present if the stage is [`Stage::Adopted`]. Locked during a checkpoint, which may take long, so renewals read
    /// the stage instead.
    pub(super) adoption: AsyncMutex<Option<Adoption>>,
}

/// A lease, and when it was obtained.
#[derive(Clone, Debug)]
pub(super) struct TimedLease {
    pub(super) lease: Lease,
    pub(super) since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The partition must be adopted. The processor does not read it, or reads it from an earlier start.
    Won,
    /// The processor may read the partition and write checkpoints.
    Adopted,
}

impl Owned {
    pub(super) fn new(lease: Lease) -> Arc<Self> {
        Arc::new(Self {
            lease: Mutex::new(TimedLease { lease, since: Instant::now() }),
            stage: Mutex::new(Stage::Won),
            adoption: AsyncMutex::new(None),
        })
    }

    pub(super) fn lock_lease(&self) -> MutexGuard<'_, TimedLease> {
        lock(&self.lease)
    }

    pub(super) fn lease(&self) -> Lease {
        self.lock_lease().lease.clone()
    }

    pub(super) fn stage(&self) -> Stage {
        *lock(&self.stage)
    }
}

/// What is remembered of one consumer group.
#[derive(Debug, Default)]
pub(super) struct GroupMemory {
    pub(super) owned: HashMap<PartitionId, Arc<Owned>>,
    /// Partitions that were lost since the last response to the processor. The processor may still read them from an
    /// earlier start.
    pub(super) unreported: HashSet<PartitionId>,
    pub(super) case_check: NameCaseCheck,
    pub(super) listed: Listed,
}

impl GroupMemory {
    /// Removes the partition, unless it is in another epoch by now.
    pub(super) fn remove_epoch(&mut self, partition: &PartitionId, owned: &Arc<Owned>) -> bool {
        let is_there = self.owned.get(partition).is_some_and(|known| Arc::ptr_eq(known, owned));
        if is_there {
            self.owned.remove(partition);
        }
        is_there
    }

    /// Removes the partition and logs the loss. Returns whether it was present in this epoch.
    pub(super) fn record_loss(&mut self, partition: &PartitionId, owned: &Arc<Owned>, to: Option<&OwnerId>) -> bool {
        let was_there = self.remove_epoch(partition, owned);
        if was_there {
            telemetry::ownership_lost(partition, to);
        }
        was_there
    }
}

/// The records of the last listing.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed(HashMap<PartitionId, ListedRecord>);

#[derive(Clone, Debug)]
struct ListedRecord {
    seen: Ownership,
    /// Released, expired, or without an owner.
    is_unowned: bool,
    expired: Option<Box<Expired>>,
}

/// An ownership whose owner kept it alive by its heartbeat, and whose heartbeat has expired. The owner must be declared
/// dead before the partition is claimed.
#[derive(Clone, Debug)]
pub(super) struct Expired {
    pub(super) seen: Ownership,
    /// The heartbeat of that owner, as listed.
    pub(super) heartbeat: Option<Heartbeat>,
}

/// A partition that the processor claims, over the version that it was shown.
#[derive(Clone, Debug)]
pub(super) struct WantedPartition {
    pub(super) partition: PartitionId,
    pub(super) version: Option<ETag>,
}

/// How to claim the partition.
pub(super) enum Aim {
    Claim(Claim, Option<Box<Expired>>),
    /// The version is not the listed one: read the record, and claim it if it has this version.
    Read(ETag),
}

impl Listed {
    pub(super) fn from_records(store: &GroupStore, listed: &[Ownership], heartbeats: &[Heartbeat]) -> Self {
        let durations = store.lease_durations();
        let now = store.lease_clock_now();
        let mut records = HashMap::with_capacity(listed.len());
        for seen in listed {
            let is_unowned = !durations.counts_as_live(&seen.record, seen.time_since_renewal(heartbeats, now));
            let mut expired = None;
            if is_unowned && seen.is_kept_alive_by_heartbeat(store.identity()) {
                let owner = seen.record.owner.as_ref();
                expired = Some(Box::new(Expired {
                    seen: seen.clone(),
                    heartbeat: heartbeats.iter().find(|heartbeat| Some(&heartbeat.record.owner) == owner).cloned(),
                }));
            }
            records.insert(seen.partition.clone(), ListedRecord { seen: seen.clone(), is_unowned, expired });
        }
        Self(records)
    }

    pub(super) fn is_unowned(&self, partition: &PartitionId) -> bool {
        self.0.get(partition).is_some_and(|record| record.is_unowned)
    }

    /// Returns how to claim a partition. A claim without a version replaces the record that was not shown, if there is
    /// one.
    pub(super) fn aim_at(&self, wanted: &WantedPartition) -> Aim {
        match (&wanted.version, self.0.get(&wanted.partition)) {
            (None, Some(record)) if record.is_unowned => record.claim_aim(),
            (None, _) => Aim::Claim(Claim::unowned(wanted.partition.clone()), None),
            (Some(version), Some(record)) if *version == record.seen.etag => record.claim_aim(),
            (Some(version), _) => Aim::Read(version.clone()),
        }
    }
}

impl ListedRecord {
    fn claim_aim(&self) -> Aim {
        Aim::Claim(Claim::over(&self.seen), self.expired.clone())
    }
}

/// When this owner looks for live owners in the other blob-name casing: by the same rules as the balancer of this
/// crate, but only while the processor claims.
#[derive(Debug, Default)]
pub(super) struct NameCaseCheck {
    /// Whether a conflict is possible.
    is_unknown: bool,
    /// Whether the next look is the second one.
    is_second_due: bool,
    /// When to look although none is known to be possible.
    next: Option<Moment>,
    /// Since when there is a conflict that the other instance should end.
    conflict_since: Option<Moment>,
}

impl NameCaseCheck {
    /// Records that the ownerships are live, and were not before, or that another instance may have missed them.
    pub(super) fn record_live_lease(&mut self) {
        self.is_unknown = true;
        self.is_second_due = true;
    }

    /// Returns whether a conflict is possible, so that this owner must claim nothing.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Returns whether to look now.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.is_unknown || self.next.is_some_and(|next| next <= now)
    }

    /// Records that there is no conflict.
    pub(super) fn record_no_conflict(&mut self, now: Moment, lease_duration: Duration) {
        *self = Self { next: Some(now + time_to_next_look(self.is_second_due, lease_duration)), ..Self::default() };
    }

    /// Returns whether the other instance may still give way: until its lease would have expired if it had crashed now.
    pub(super) fn waits_for_the_other(
        &mut self,
        conflict: &CaseConflict,
        now: Moment,
        lease_duration: Duration,
    ) -> bool {
        self.is_unknown = true;
        let since = *self.conflict_since.get_or_insert(now);
        conflict.other_should_give_way() && now < since + lease_duration
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NameCase, OwnerId};
    use crate::store::rules::LiveOwner;

    const LEASE: Duration = Duration::from_secs(60);

    const fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn live(is_of_this_crate: bool) -> CaseConflict {
        let live = LiveOwner { owner: OwnerId::new("x").unwrap(), partition: 0.into(), is_of_this_crate };
        CaseConflict::Other { used: NameCase::Lower, live }
    }

    #[test]
    fn it_looks_at_once_and_soon_and_every_ten_leases() {
        let mut check = NameCaseCheck::default();
        assert!(!check.is_due(at(1000)));
        check.record_live_lease();
        assert!(check.is_due(at(0)) && check.is_unknown());
        check.record_no_conflict(at(0), LEASE);
        assert!(!check.is_unknown() && !check.is_due(at(14)) && check.is_due(at(15)));
        check.record_no_conflict(at(15), LEASE);
        assert!(!check.is_due(at(614)) && check.is_due(at(615)));
        assert!(!check.is_unknown(), "it continues to claim");
    }

    #[test]
    fn only_an_instance_of_this_crate_is_waited_for() {
        for (is_of_this_crate, waits) in [(true, [true, true, false]), (false, [false; 3])] {
            let mut check = NameCaseCheck::default();
            let conflict = live(is_of_this_crate);
            assert_eq!([0, 59, 60].map(|now| check.waits_for_the_other(&conflict, at(now), LEASE)), waits);
            assert!(check.is_unknown(), "it claims nothing meanwhile");
        }
    }
}
