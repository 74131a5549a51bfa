//! Records that no live owner holds. The processor is not shown them: it takes every partition in a listing for one of
//! the hub, also one that the hub does not have. Those that the hub has it adds by itself, without a version; a claim
//! of one is aimed at the version that was listed here.

use std::collections::HashMap;

use crate::blob::ETag;
use crate::model::PartitionId;
use crate::store::{Claim, GroupStore, Ownership, Presence};

/// By the last listing: released, expired, or no record of any owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Unowned(HashMap<PartitionId, Record>);

#[derive(Clone, Debug)]
struct Record {
    version: ETag,
    abandoned: Option<Abandoned>,
}

/// An ownership that its owner kept alive by its presence, and has not for too long: that owner is to be declared dead
/// before the partition is claimed.
#[derive(Clone, Debug)]
pub(super) struct Abandoned {
    pub(super) seen: Ownership,
    /// The presence of that owner, as it was listed.
    pub(super) presence: Option<Presence>,
}

impl Unowned {
    pub(super) fn of(store: &GroupStore, listed: &[Ownership], presences: &[Presence]) -> Self {
        let (terms, now) = (store.terms(), store.lease_time());
        let is_unowned = |seen: &&Ownership| !terms.counts_as_live(&seen.record, seen.silent_for(presences, now));
        let record = |seen: &Ownership| {
            let abandoned = seen.lives_by_presence(store.identity()).then(|| Abandoned::of(seen, presences));
            (seen.partition.clone(), Record { version: seen.etag.clone(), abandoned })
        };
        Self(listed.iter().filter(is_unowned).map(record).collect())
    }

    pub(super) fn contains(&self, partition: &PartitionId) -> bool {
        self.0.contains_key(partition)
    }

    /// The claim as it is to be sent, and what is to be declared dead before: one without a version is over the record
    /// that was left out, if there is one.
    pub(super) fn aimed(&self, claim: Claim) -> (Claim, Option<Abandoned>) {
        let Some(record) = self.0.get(claim.partition()) else { return (claim, None) };
        match claim.over_version() {
            None => (Claim::over(claim.partition().clone(), record.version.clone()), record.abandoned.clone()),
            Some(version) if *version == record.version => (claim, record.abandoned.clone()),
            Some(_) => (claim, None),
        }
    }
}

impl Abandoned {
    fn of(seen: &Ownership, presences: &[Presence]) -> Self {
        let presence = presences.iter().find(|presence| Some(&presence.record.owner) == seen.record.owner.as_ref());
        Self { seen: seen.clone(), presence: presence.cloned() }
    }
}
