//! What other owners kept alive by their presence, and have not for too long: whoever claims it declares them dead first.

use std::collections::HashMap;

use crate::model::PartitionId;
use crate::store::{Claim, GroupStore, Ownership, Presence};

/// By the last listing.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned(HashMap<PartitionId, (Ownership, Option<Presence>)>);

impl Abandoned {
    pub(super) fn of(store: &GroupStore, listed: &[Ownership], presences: &[Presence]) -> Self {
        let is_abandoned = |seen: &&Ownership| {
            seen.lives_by_presence(store) && seen.silent_for(presences) >= store.terms().lifetime(&seen.record)
        };
        let with_presence = |seen: &Ownership| {
            let presence = presences.iter().find(|presence| Some(&presence.record.owner) == seen.record.owner.as_ref());
            (seen.partition.clone(), (seen.clone(), presence.cloned()))
        };
        Self(listed.iter().filter(is_abandoned).map(with_presence).collect())
    }

    /// What is to be declared dead before this is claimed.
    pub(super) fn behind(&self, claim: &Claim) -> Option<&(Ownership, Option<Presence>)> {
        self.0.get(claim.partition()).filter(|(seen, _)| claim.over_version() == Some(&seen.etag))
    }
}
