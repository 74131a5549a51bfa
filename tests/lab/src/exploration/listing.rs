//! What a listing means to an instance, by the real balance, worked out once for every record that there can be.

use std::collections::BTreeSet;
use std::time::Duration;

use time::OffsetDateTime;

use eventhubs_checkpoint::balancer::Holder;
use eventhubs_checkpoint::internal::planner::{ETag, Observer, Ownership, Policy, observe, plan};
use eventhubs_checkpoint::internal::recorded;
use eventhubs_checkpoint::{Identity, LeaseTerms, OwnershipRecord, PartitionId, Relation};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::scenario::{Member, Rule};
use super::state::Owner;

pub(super) const TERMS: LeaseTerms = LeaseTerms::new(Duration::from_secs(60), Duration::from_secs(180));

/// Past every expiry.
pub(super) const AGES: Duration = Duration::from_secs(1000);

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Nothing,
    Claim,
    /// What it runs is not its own any more.
    Gone,
    /// A later life of it is at work.
    Replaced,
}

/// All that listings may mean to one instance.
struct Table {
    relations: Vec<Relation>,
    /// By record, then whether it is live, whether the instance runs the partition, and whether an owner in the other
    /// tree is live.
    readings: Vec<[[[Reading; 2]; 2]; 2]>,
}

pub(super) struct Listings(Vec<Table>);

impl Listings {
    pub(super) fn of(members: &[Member], without: Option<Rule>) -> Self {
        Self(members.iter().map(|member| Table::of(&member.identity(), members, without)).collect())
    }

    pub(super) fn relation(&self, number: usize, owner: Owner) -> Relation {
        self.0[number].relations[row(Some(owner))]
    }

    pub(super) fn reading(&self, number: usize, owner: Option<Owner>, how: [bool; 3]) -> Reading {
        let [live, runs, elsewhere] = how.map(usize::from);
        self.0[number].readings[row(owner)][live][runs][elsewhere]
    }

    /// Whether it makes no difference how old the record is.
    pub(super) fn ignores_age(&self, number: usize, owner: Owner, elsewhere: bool) -> bool {
        let [expired, live] = self.0[number].readings[row(Some(owner))];
        let elsewhere = usize::from(elsewhere);
        [0, 1].iter().all(|runs| expired[*runs][elsewhere] == live[*runs][elsewhere])
    }
}

impl Table {
    fn of(me: &Identity, members: &[Member], without: Option<Rule>) -> Self {
        let foreign = OwnershipRecord::owned_by(recorded::owner("foreign"), None);
        let known = [None, Some(OwnershipRecord::default()), Some(foreign)];
        let ours = members.iter().map(|member| {
            let Identity { owner, incarnation, .. } = member.identity();
            let mut record = OwnershipRecord::owned_by(owner.clone(), Some(incarnation));
            record.operator = member.resets_to.map(|_| owner);
            Some(record)
        });
        let records: Vec<_> = known.into_iter().chain(ours).collect();
        let relation = |record: &Option<OwnershipRecord>| match record {
            Some(record) => record.relation_to(me),
            None => Relation::Nobody,
        };
        let reading = |record: &Option<OwnershipRecord>| {
            let runs_what_is_mine = without == Some(Rule::OrphansAreClaimed) && relation(record) == Relation::Mine;
            [AGES, Duration::ZERO].map(|age| {
                [false, true].map(|runs| {
                    [false, true]
                        .map(|elsewhere| reading(record.as_ref(), age, runs || runs_what_is_mine, elsewhere, me))
                })
            })
        };
        Self { relations: records.iter().map(relation).collect(), readings: records.iter().map(reading).collect() }
    }
}

fn row(owner: Option<Owner>) -> usize {
    match owner {
        None => 0,
        Some(Owner::Nobody) => 1,
        Some(Owner::Foreign) => 2,
        Some(Owner::Ours(number)) => 3 + number as usize,
    }
}

/// What the balance makes of one record, as the balancer goes by it.
fn reading(record: Option<&OwnershipRecord>, age: Duration, runs: bool, elsewhere: bool, me: &Identity) -> Reading {
    let partition = PartitionId::from(0);
    let seen = |record: &OwnershipRecord, age| {
        Ownership::new(
            partition.clone(),
            record.clone(),
            ETag::new("seen"),
            age,
            (OffsetDateTime::UNIX_EPOCH, Duration::ZERO),
        )
    };
    let owner_elsewhere = OwnershipRecord::owned_by(recorded::owner("elsewhere"), None);
    let there = elsewhere.then(|| seen(&owner_elsewhere, Duration::ZERO));
    let (here, other_tree) = (record.map(|record| seen(record, age)), there.as_slice());
    let running = if runs { BTreeSet::from([partition.clone()]) } else { BTreeSet::new() };
    let (presences, interval) = (&[][..], Duration::from_secs(10));
    let observer =
        Observer { me, terms: TERMS, running: &running, other_tree, presences, interval, outage_ended: None };
    let view = observe(here.as_slice(), std::slice::from_ref(&partition), &observer, Duration::ZERO);
    if view.replaced_by.is_some() {
        return Reading::Replaced;
    }
    if runs {
        return if view.holder(&partition) == Some(&Holder::Me) { Reading::Nothing } else { Reading::Gone };
    }
    let planned = plan(&view, &Policy::default(), &mut StdRng::seed_from_u64(0));
    if planned.claim.is_empty() { Reading::Nothing } else { Reading::Claim }
}

impl Member {
    pub(super) fn identity(&self) -> Identity {
        let incarnation = recorded::incarnation(&self.life.to_string());
        Identity::new(recorded::owner(self.owner), incarnation)
    }
}
