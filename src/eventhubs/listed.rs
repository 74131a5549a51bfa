//! The last listing of a group. The processor gets only the version of a record and claims by it; this module keeps the
//! rest of the record that a claim needs.
//!
//! Records without a live owner are not shown to the processor: it takes every partition in a listing for one of the
//! event hub, even one that the event hub does not have. The processor itself adds the partitions of the event hub,
//! without a version. A claim of such a partition replaces the version that was listed here.

use std::collections::HashMap;

use crate::blob::ETag;
use crate::model::PartitionId;
use crate::store::membership::Heartbeat;
use crate::store::{Claim, GroupStore, Ownership};

/// The records of the last listing.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed(HashMap<PartitionId, Record>);

#[derive(Clone, Debug)]
struct Record {
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
pub(super) struct Wanted {
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
    pub(super) fn of(store: &GroupStore, listed: &[Ownership], heartbeats: &[Heartbeat]) -> Self {
        let (durations, now) = (store.lease_durations(), store.lease_clock_now());
        let record = |seen: &Ownership| {
            let is_unowned = !durations.counts_as_live(&seen.record, seen.time_since_renewal(heartbeats, now));
            let expired = is_unowned && seen.is_kept_alive_by_heartbeat(store.identity());
            let expired = expired.then(|| Box::new(Expired::of(seen, heartbeats)));
            (seen.partition.clone(), Record { seen: seen.clone(), is_unowned, expired })
        };
        Self(listed.iter().map(record).collect())
    }

    pub(super) fn is_unowned(&self, partition: &PartitionId) -> bool {
        self.0.get(partition).is_some_and(|record| record.is_unowned)
    }

    /// Returns how to claim a partition. A claim without a version replaces the record that was not shown, if there is
    /// one.
    pub(super) fn aim_at(&self, wanted: &Wanted) -> Aim {
        let record = self.0.get(&wanted.partition);
        match (&wanted.version, record) {
            (None, Some(record)) if record.is_unowned => record.aim(),
            (None, _) => Aim::Claim(Claim::unowned(wanted.partition.clone()), None),
            (Some(version), Some(record)) if *version == record.seen.etag => record.aim(),
            (Some(version), _) => Aim::Read(version.clone()),
        }
    }
}

impl Record {
    fn aim(&self) -> Aim {
        Aim::Claim(Claim::over(&self.seen), self.expired.clone())
    }
}

impl Expired {
    fn of(seen: &Ownership, heartbeats: &[Heartbeat]) -> Self {
        let heartbeat = heartbeats.iter().find(|heartbeat| Some(&heartbeat.record.owner) == seen.record.owner.as_ref());
        Self { seen: seen.clone(), heartbeat: heartbeat.cloned() }
    }
}
