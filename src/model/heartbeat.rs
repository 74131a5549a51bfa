//! What an instance writes about itself, in addition to its ownership records.

use std::collections::BTreeMap;
use std::time::Duration;

use super::owner::{Identity, Incarnation, OwnerId};
use super::ownership::{Relation, relation};

/// The content of a heartbeat blob: its owner is alive, even if it owns nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeartbeatRecord {
    /// The owner that is alive.
    pub owner: OwnerId,
    /// The incarnation of that owner. Missing only in a malformed record.
    pub incarnation: Option<Incarnation>,
    /// The owner that declared this one dead; this owner itself if it has shut down. With
    /// [`LeaseScope::Instance`](super::LeaseScope::Instance), other owners may claim its partitions from then on.
    pub declared_dead_by: Option<OwnerId>,
    /// How long the heartbeat is valid, in whole seconds, as its owner says. Missing only in a malformed record, or if
    /// another instance declared an owner dead that never sent a heartbeat.
    pub lease_duration: Option<Duration>,
    /// Keys that this version does not know. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl HeartbeatRecord {
    /// Creates the record of an owner that is alive and that no other instance has declared dead.
    #[must_use]
    pub fn new(owner: OwnerId, incarnation: Incarnation, lease_duration: Duration) -> Self {
        Self {
            owner,
            incarnation: Some(incarnation),
            declared_dead_by: None,
            lease_duration: Some(lease_duration),
            other: BTreeMap::new(),
        }
    }

    /// Returns the relation of this record to an instance.
    #[must_use]
    pub(crate) fn relation_to(&self, this: &Identity) -> Relation {
        relation(&self.owner, self.incarnation.as_ref(), this)
    }
}
