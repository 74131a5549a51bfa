//! What an instance says of itself, beside the partitions it owns.

use std::collections::BTreeMap;

use super::owner::{Identity, Incarnation, OwnerId};
use super::ownership::{Relation, relation};

/// What a presence blob says: this owner is there, though it may own nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeartbeatRecord {
    /// The owner that is there.
    pub owner: OwnerId,
    /// The life of that owner. Absent only in a record that cannot be read in full.
    pub incarnation: Option<Incarnation>,
    /// Who declared this owner dead. Under [`LeaseScope::Instance`](super::LeaseScope::Instance) its ownerships may be
    /// stolen from then on.
    pub declared_dead_by: Option<OwnerId>,
    /// Keys that this version does not read. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl HeartbeatRecord {
    /// The record of an owner that is present and that no other instance has declared dead.
    #[must_use]
    pub fn new(owner: OwnerId, incarnation: Incarnation) -> Self {
        Self { owner, incarnation: Some(incarnation), declared_dead_by: None, other: BTreeMap::new() }
    }

    /// How this record relates to me.
    #[must_use]
    pub(crate) fn relation_to(&self, me: &Identity) -> Relation {
        relation(&self.owner, self.incarnation.as_ref(), me)
    }
}
