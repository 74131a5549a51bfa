//! An operator takes partitions over and returns them, and no member of the group reacts by taking anything that it
//! would not take otherwise. Covers every group of a few owners and partitions, with each partition in any stage of a
//! reset.

use std::collections::BTreeSet;
use std::time::Duration;

use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::internal::planner::{ETag, Moment, Observer, Ownership, Plan, Policy, observe, plan};
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::LeaseDurations;
use eventhubs_checkpoint::{Identity, Incarnation, OwnerId, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use time::OffsetDateTime;
use time::macros::datetime;

const TERMS: LeaseDurations = LeaseDurations::new(Duration::from_secs(60), Duration::from_secs(180));
const INTERVAL: Duration = Duration::from_secs(10);

/// The stage of a partition's reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Its owner holds it.
    Held,
    /// The operator holds it, and its record names the previous owner.
    Taken,
    /// The operator holds it, and it had no previous owner.
    TakenFromNone,
    /// The operator released it for the previous owner.
    Returned,
    /// The same, longer ago than any member's reservation lasts.
    ReturnedBefore,
    /// It has no owner.
    Unowned,
}

/// A rule that is disabled by altered records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    None,
    /// The records do not name the operator: it is an owner like any other.
    Operator,
    /// The records do not name the previous owner.
    FormerOwner,
    /// A partition that the operator returned is reserved no longer than any other released partition.
    LongReservation,
}

#[derive(Clone, Copy, Debug)]
struct Partition {
    stage: Stage,
    owner: usize,
}

fn member(number: usize) -> Identity {
    let incarnation = Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 1);
    Identity::new(OwnerId::new(format!("owner-{number}")).unwrap(), incarnation)
}

fn record(partition: Partition, without: Without) -> (OwnershipRecord, Duration) {
    let owned_by = |identity: Identity| {
        let mut record = OwnershipRecord::owned_by(identity.owner, Some(identity.incarnation));
        record.lease_duration = Some(TERMS.own);
        record
    };
    let operator = OwnerId::new("operator-1").unwrap();
    let operators = |owner: bool, former: bool| {
        let mut record = OwnershipRecord::default();
        if owner {
            record.owner = Some(operator.clone());
            record.incarnation = Some(member(0).incarnation);
        }
        let is_named = without != Without::Operator && (owner || without != Without::LongReservation);
        record.operator = is_named.then(|| operator.clone());
        let is_known = former && without != Without::FormerOwner;
        record.handoff_to = is_known.then(|| member(partition.owner).owner);
        record
    };
    let long_ago = INTERVAL + LeaseDurations::GRACE;
    match partition.stage {
        Stage::Held => (owned_by(member(partition.owner)), Duration::ZERO),
        Stage::Taken => (operators(true, true), Duration::ZERO),
        Stage::TakenFromNone => (operators(true, false), Duration::ZERO),
        Stage::Returned => (operators(false, true), Duration::ZERO),
        Stage::ReturnedBefore => (operators(false, true), long_ago),
        Stage::Unowned => (OwnershipRecord::default(), long_ago),
    }
}

/// Returns the partitions that a member plans to take, except those reserved for it.
fn taken(group: &[Partition], this: usize, without: Without) -> BTreeSet<PartitionId> {
    let listing: Vec<_> = (0u32..)
        .zip(group)
        .map(|(id, partition)| {
            let (record, age) = record(*partition, without);
            Ownership::new(id.into(), record, ETag::new("seen"), age, (OffsetDateTime::UNIX_EPOCH, Moment::ZERO))
        })
        .collect();
    let hub: Vec<_> = listing.iter().map(|seen| seen.partition.clone()).collect();
    let is_own = |partition: &Partition| partition.stage == Stage::Held && partition.owner == this;
    let running = hub.iter().zip(group).filter(|(_, partition)| is_own(partition)).map(|(id, _)| id.clone());
    let this = member(this);
    let observer = Observer {
        this: &this,
        lease_durations: TERMS,
        running: &running.collect(),
        heartbeats: &[],
        outage_ended: None,
    };
    let view = observe(&listing, &hub, &observer, Moment::ZERO);
    let policy = Policy { strategy: LoadBalancingStrategy::Greedy, ..Policy::default() };
    let Plan { claim, .. } = plan(&view, &policy, &mut StdRng::seed_from_u64(1));
    let reserved =
        |id: &PartitionId| view.record_of(id).is_some_and(|seen| seen.record.handoff_to == Some(this.owner.clone()));
    claim.into_iter().map(|planned| planned.partition).filter(|id| !reserved(id)).collect()
}

/// Returns the first group in which a member takes something that it would not take without the operator, and how many
/// groups were tried.
fn reaction(partitions: usize, stages: &[Stage], without: Without) -> (usize, Option<(Vec<Partition>, usize)>) {
    let mut groups = 0;
    for owners in 1..=3 {
        let kinds: Vec<_> = stages
            .iter()
            .flat_map(|stage| (0..owners).map(|owner| Partition { stage: *stage, owner }))
            .chain([Partition { stage: Stage::Unowned, owner: 0 }])
            .collect();
        for number in 0..kinds.len().pow(u32::try_from(partitions).unwrap()) {
            let digits = (0..partitions).scan(number, |left, _| {
                let digit = *left % kinds.len();
                *left /= kinds.len();
                Some(kinds[digit])
            });
            let group: Vec<_> = digits.collect();
            groups += 1;
            for this in 0..owners {
                if reacts(&group, this, without) {
                    return (groups, Some((group, this)));
                }
            }
        }
    }
    (groups, None)
}

fn reacts(group: &[Partition], this: usize, without: Without) -> bool {
    let before = |partition: &Partition| match partition.stage {
        Stage::TakenFromNone | Stage::Unowned => Partition { stage: Stage::Unowned, ..*partition },
        _ => Partition { stage: Stage::Held, ..*partition },
    };
    let before: Vec<_> = group.iter().map(before).collect();
    let takes = taken(group, this, without);
    let is_untouched = |id: &PartitionId| {
        let number: usize = id.as_str().parse().unwrap();
        matches!(group[number].stage, Stage::Held | Stage::Unowned)
    };
    !takes.iter().all(is_untouched) || (!takes.is_empty() && taken(&before, this, Without::None).is_empty())
}

const STAGES: [Stage; 4] = [Stage::Held, Stage::Taken, Stage::Returned, Stage::ReturnedBefore];

#[test]
fn no_member_reacts_r_shares() {
    for partitions in 1..=4 {
        let (groups, reaction) = reaction(partitions, &STAGES, Without::None);
        assert!(reaction.is_none(), "{reaction:?}");
        println!("{partitions} partitions: {groups} groups");
    }
    let (_, reaction) = reaction(3, &[Stage::Held, Stage::TakenFromNone, Stage::Taken], Without::None);
    assert!(reaction.is_none(), "{reaction:?}");
}

#[test]
fn each_key_is_needed_x_shares() {
    for without in [Without::Operator, Without::FormerOwner, Without::LongReservation] {
        let found = (1..=4).find_map(|partitions| reaction(partitions, &STAGES, without).1);
        println!("{without:?}: {found:?}");
        assert!(found.is_some(), "{without:?}");
    }
}
