//! The content of records: how they relate to an instance, and what a listing shows.

use std::time::Duration;

use time::OffsetDateTime;

use eventhubs_checkpoint::internal::planner::{ETag, Ownership};
use eventhubs_checkpoint::internal::recorded as names;
use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::LeaseDurations;
use eventhubs_checkpoint::{Identity, OwnerId, PartitionId};

use super::scenario::Member;
use super::state::{Keys, Owner};

pub(super) const TERMS: LeaseDurations = LeaseDurations::new(Duration::from_secs(60), Duration::from_secs(180));

/// The relation of each record to each instance, computed once.
pub(super) struct Relations(Vec<Vec<Relation>>);

impl Relations {
    pub(super) fn of_all(members: &[Member]) -> Self {
        let owners = || [Owner::Unowned, Owner::Foreign].into_iter().chain((0..members.len()).map(Owner::ours));
        let relations = |this: &Identity| {
            owners()
                .map(|owner| {
                    eventhubs_checkpoint::internal::relation::of_record(
                        &recorded(members, owner, Keys::default()),
                        this,
                    )
                })
                .collect()
        };
        Self(members.iter().map(|member| relations(&member.identity())).collect())
    }

    pub(super) fn of(&self, number: usize, owner: Owner) -> Relation {
        self.0[number][match owner {
            Owner::Unowned => 0,
            Owner::Foreign => 1,
            Owner::Member(number) => 2 + number as usize,
        }]
    }
}

/// Returns the record with this owner, which is cooperative if it is an instance of this crate.
pub(super) fn recorded(members: &[Member], owner: Owner, keys: Keys) -> OwnershipRecord {
    let mut record = match owner {
        Owner::Unowned => OwnershipRecord::default(),
        Owner::Foreign => OwnershipRecord::owned_by(names::owner("foreign"), None),
        Owner::Member(number) => members[number as usize].recorded(),
    };
    record.handoff_to = keys.handoff_to.map(|requester| members[requester as usize].identity().owner);
    record.draining = keys.draining;
    record.operator = operator_of(members, owner, keys);
    record
}

/// Returns the operator that wrote the record. Which one does not matter after the release.
fn operator_of(members: &[Member], owner: Owner, keys: Keys) -> Option<OwnerId> {
    let operators = || members.iter().filter(|member| member.order.is_some());
    let operator = match owner {
        Owner::Member(number) => operators().find(|operator| operator.name == members[number as usize].name),
        Owner::Unowned => operators().next().filter(|_| keys.operator),
        Owner::Foreign => None,
    };
    operator.map(|operator| operator.identity().owner)
}

/// Returns the record of a cooperative instance.
pub(super) fn owned_by(Identity { owner, incarnation, .. }: Identity) -> OwnershipRecord {
    let mut record = OwnershipRecord::owned_by(owner, Some(incarnation));
    record.cooperative = true;
    record.lease_duration = Some(TERMS.own);
    record
}

/// Returns the age at which what this owner wrote is too old to be requested or confirmed, but not expired.
pub(super) fn old(record: &OwnershipRecord) -> Duration {
    TERMS.of(record) / 2 + Duration::from_secs(1)
}

/// Returns a record of a listing whose response arrives at this moment.
pub(super) fn seen(partition: PartitionId, record: OwnershipRecord, age: Duration, received: Duration) -> Ownership {
    Ownership::new(partition, record, ETag::new("seen"), age, (OffsetDateTime::UNIX_EPOCH, received))
}

impl Member {
    /// Returns a record of this member, as an owner.
    fn recorded(&self) -> OwnershipRecord {
        let mut record = owned_by(self.identity());
        record.lease_duration = self.lease_duration.map(Duration::from_secs);
        record
    }

    /// Returns the lease durations of this member as an instance. What it records may be malformed nevertheless.
    pub(super) fn lease_durations(&self) -> LeaseDurations {
        let own = self.lease_duration.map_or(TERMS.own, Duration::from_secs);
        LeaseDurations::new(own, TERMS.foreign)
    }

    pub(super) fn identity(&self) -> Identity {
        let incarnation = names::incarnation(&self.incarnation.to_string());
        Identity::new(names::owner(self.owner), incarnation)
    }
}
