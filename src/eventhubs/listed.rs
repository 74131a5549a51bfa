//! The last listing of a group. The processor gets of a record its version alone, and claims by that; what else a claim
//! needs of the record is remembered here.
//!
//! Records that no live owner holds are not shown to the processor: it takes every partition in a listing for one of the
//! hub, also one that the hub does not have. Those that the hub has it adds by itself, without a version. A claim of one
//! is aimed at the version that was listed here.

use std::collections::HashMap;

use crate::blob::ETag;
use crate::model::PartitionId;
use crate::store::{Claim, GroupStore, Heartbeat, Ownership};

/// The records of the last listing.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed(HashMap<PartitionId, Record>);

#[derive(Clone, Debug)]
struct Record {
    seen: Ownership,
    /// Released, expired, or no record of any owner.
    is_unowned: bool,
    abandoned: Option<Box<Expired>>,
}

/// An ownership that its owner kept alive by its presence, and has not for too long: that owner is to be declared dead
/// before the partition is claimed.
#[derive(Clone, Debug)]
pub(super) struct Expired {
    pub(super) seen: Ownership,
    /// The presence of that owner, as it was listed.
    pub(super) presence: Option<Heartbeat>,
}

/// What the processor wants: a partition, over the version that it was shown.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) partition: PartitionId,
    pub(super) version: Option<ETag>,
}

/// What to do in order to get it.
pub(super) enum Aim {
    Claim(Claim, Option<Box<Expired>>),
    /// The version is not that of the last listing: read the record, and claim it if it has this version.
    Read(ETag),
}

impl Listed {
    pub(super) fn of(store: &GroupStore, listed: &[Ownership], presences: &[Heartbeat]) -> Self {
        let (terms, now) = (store.lease_durations(), store.lease_clock_now());
        let record = |seen: &Ownership| {
            let is_unowned = !terms.counts_as_live(&seen.record, seen.time_since_renewal(presences, now));
            let abandoned = is_unowned && seen.is_kept_alive_by_heartbeat(store.identity());
            let abandoned = abandoned.then(|| Box::new(Expired::of(seen, presences)));
            (seen.partition.clone(), Record { seen: seen.clone(), is_unowned, abandoned })
        };
        Self(listed.iter().map(record).collect())
    }

    pub(super) fn is_unowned(&self, partition: &PartitionId) -> bool {
        self.0.get(partition).is_some_and(|record| record.is_unowned)
    }

    /// What is wanted without a version is claimed over the record that was left out, if there is one.
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
        Aim::Claim(Claim::over(&self.seen), self.abandoned.clone())
    }
}

impl Expired {
    fn of(seen: &Ownership, presences: &[Heartbeat]) -> Self {
        let presence = presences.iter().find(|presence| Some(&presence.record.owner) == seen.record.owner.as_ref());
        Self { seen: seen.clone(), presence: presence.cloned() }
    }
}
