//! A group of planners over a shared list of records, without a store: each observes, plans and applies, in turn or all
//! at the same time. Every plan is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use time::OffsetDateTime;

use eventhubs_checkpoint::balancer::{ClaimReason, LoadBalancingStrategy};
use eventhubs_checkpoint::internal::planner::{
    ETag, Heartbeat, Moment, Observer, Ownership, Plan, Policy, View, observe, plan,
};
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::membership::HeartbeatRecord;
use eventhubs_checkpoint::{Identity, OwnerId, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::table::{INTERVAL, TERMS, id, incarnation};
use eventhubs_checkpoint::internal::postconditions;

struct Written {
    record: OwnershipRecord,
    at: Moment,
}

pub struct Member {
    pub identity: Identity,
    pub policy: Policy,
    pub running: BTreeSet<PartitionId>,
    /// Whether it sends heartbeats.
    pub sends_heartbeats: bool,
    /// When it last planned and renewed.
    last_cycle: Moment,
    /// It no longer plans or renews.
    pub crashed: bool,
}

/// The changes of one round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Claimed partitions, each with the member that claimed it.
    pub claims: Vec<(usize, PartitionId, ClaimReason)>,
    pub releases: usize,
    /// Partitions whose handoff was requested.
    pub requested: usize,
}

impl Round {
    /// Returns the partitions that were taken from live owners, or handed over by them.
    pub fn moved(&self) -> impl Iterator<Item = &PartitionId> {
        let moved = |reason: &ClaimReason| matches!(reason, ClaimReason::Stolen(_) | ClaimReason::HandedOver);
        self.claims.iter().filter(move |(.., reason)| moved(reason)).map(|(_, partition, _)| partition)
    }

    pub fn moves(&self) -> usize {
        self.moved().count()
    }

    pub fn claims_of(&self, member: usize) -> usize {
        self.claims.iter().filter(|(by, ..)| *by == member).count()
    }

    pub fn is_quiet(&self) -> bool {
        self.claims.is_empty() && self.releases == 0 && self.requested == 0
    }
}

pub struct Group {
    partitions: Vec<PartitionId>,
    records: BTreeMap<PartitionId, Written>,
    pub members: Vec<Member>,
    now: Moment,
    rng: StdRng,
}

impl Group {
    /// Creates a group for a hub whose partitions are all unowned.
    pub fn new(partitions: usize, seed: u64) -> Self {
        Self {
            partitions: (0..partitions).map(id).collect(),
            records: BTreeMap::new(),
            members: Vec::new(),
            now: Duration::from_secs(1000),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Creates a group of this many members that share all partitions fairly.
    pub fn balanced(partitions: usize, members: usize, strategy: &LoadBalancingStrategy, seed: u64) -> Self {
        let mut group = Self::new(partitions, seed);
        for _ in 0..members {
            group.join(Policy { strategy: strategy.clone(), ..Policy::default() });
        }
        group.settle();
        postconditions::check_fairness(partitions, &group.counts()).unwrap();
        group
    }

    pub fn join(&mut self, policy: Policy) -> usize {
        let owner = OwnerId::new(format!("owner-{}", self.members.len())).unwrap();
        let identity = Identity::new(owner, incarnation());
        let (running, last_cycle) = (BTreeSet::new(), self.now);
        self.members.push(Member { identity, policy, running, sends_heartbeats: false, last_cycle, crashed: false });
        self.members.len() - 1
    }

    pub fn resize(&mut self, partitions: usize) {
        self.partitions = (0..partitions).map(id).collect();
    }

    pub fn alive(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|member| !self.members[*member].crashed).collect()
    }

    /// Returns how many partitions each running member processes.
    pub fn counts(&self) -> Vec<usize> {
        self.alive().into_iter().map(|member| self.members[member].running.len()).collect()
    }

    pub fn counts_sorted(&self) -> Vec<usize> {
        let mut counts = self.counts();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    /// One interval: every running member in turn. A claim takes effect before the next member plans.
    pub fn round(&mut self) -> Round {
        let mut round = Round::default();
        self.pass_interval();
        for member in self.alive() {
            let plan = self.plan(member);
            self.hand_over(member, &mut round);
            self.apply(member, plan, &mut round);
        }
        round
    }

    /// One interval in which all running members observe before any of them acts. Of those that want the same partition
    /// the first one wins, as with the ETags of a store.
    pub fn round_at_once(&mut self) -> Round {
        let mut round = Round::default();
        self.pass_interval();
        let mut plans: Vec<_> = self.alive().into_iter().map(|member| (member, self.plan(member))).collect();
        plans.shuffle(&mut self.rng);
        self.alive().into_iter().for_each(|member| self.hand_over(member, &mut round));
        for (member, mut plan) in plans {
            plan.claim.retain(|claim| round.claims.iter().all(|(_, taken, _)| *taken != claim.partition));
            self.apply(member, plan, &mut round);
        }
        round
    }

    /// Runs rounds until one is quiet, and returns the rounds before it.
    pub fn settle(&mut self) -> Vec<Round> {
        let rounds: Vec<_> = (0..1000).map(|_| self.round()).take_while(|round| !round.is_quiet()).collect();
        assert!(rounds.len() < 1000, "does not settle: {:?}", self.counts());
        rounds
    }

    fn pass_interval(&mut self) {
        self.now += INTERVAL;
        for member in self.members.iter_mut().filter(|member| !member.crashed) {
            member.last_cycle = self.now;
            for partition in &member.running {
                if let Some(written) = self.records.get_mut(partition) {
                    written.at = self.now;
                }
            }
        }
    }

    pub fn view(&self, member: usize) -> View<'static> {
        let listing: Vec<_> =
            self.records.iter().map(|(partition, written)| self.observation(partition, written)).collect();
        let Member { identity, running, .. } = &self.members[member];
        let heartbeats: Vec<_> = self.members.iter().filter_map(|member| self.heartbeat_of(member)).collect();
        let heartbeats = &heartbeats[..];
        let observer = Observer { this: identity, lease_durations: TERMS, running, heartbeats, outage_ended: None };
        observe(&listing, &self.partitions, &observer, self.now).without_records()
    }

    fn observation(&self, partition: &PartitionId, written: &Written) -> Ownership {
        let age = self.now.saturating_sub(written.at);
        Ownership::new(
            partition.clone(),
            written.record.clone(),
            ETag::new("seen"),
            age,
            (OffsetDateTime::UNIX_EPOCH, self.now),
        )
    }

    fn heartbeat_of(&self, member: &Member) -> Option<Heartbeat> {
        let Identity { owner, incarnation, .. } = member.identity.clone();
        let record = HeartbeatRecord::new(owner, incarnation, TERMS.own);
        let age = self.now.saturating_sub(member.last_cycle);
        member.sends_heartbeats.then(|| Heartbeat::new(record, ETag::new("present"), age, self.now))
    }

    fn plan(&mut self, member: usize) -> Plan {
        let view = self.view(member);
        let policy = &self.members[member].policy;
        let plan = plan(&view, policy, &mut self.rng);
        postconditions::check_plan(&view, policy, &plan).unwrap();
        plan
    }

    /// Hands over every requested partition at once, according to the records before the plan.
    fn hand_over(&mut self, member: usize, round: &mut Round) {
        let Member { identity, running, .. } = &self.members[member];
        let requested: Vec<_> =
            running.iter().filter(|partition| self.is_requested(partition, identity)).cloned().collect();
        for partition in requested {
            self.members[member].running.remove(&partition);
            let written = self.records.get_mut(&partition).unwrap();
            *written = Written { record: written.record.released(), at: self.now };
            round.releases += 1;
        }
    }

    fn is_requested(&self, partition: &PartitionId, owner: &Identity) -> bool {
        let record = self.records.get(partition).map(|written| &written.record);
        record.is_some_and(|record| record.owner.as_ref() == Some(&owner.owner) && record.handoff_to.is_some())
    }

    fn apply(&mut self, member: usize, plan: Plan, round: &mut Round) {
        for handoff in plan.handoff {
            // Of several handoff requests the first one remains, and one that comes after the release finds another
            // record.
            let written = self.records.get_mut(&handoff.partition).unwrap();
            if written.record.owner == Some(handoff.from) && written.record.handoff_to.is_none() {
                written.record.handoff_to = Some(self.members[member].identity.owner.clone());
                written.at = self.now;
                round.requested += 1;
            }
        }
        for claim in plan.claim {
            let Identity { owner, incarnation, .. } = self.members[member].identity.clone();
            for other in &mut self.members {
                other.running.remove(&claim.partition);
            }
            self.members[member].running.insert(claim.partition.clone());
            let cooperative = self.members[member].policy.handoff;
            let mut record = OwnershipRecord::owned_by(owner, Some(incarnation));
            record.lease_duration = Some(TERMS.own);
            record.cooperative = cooperative;
            self.records.insert(claim.partition.clone(), Written { record, at: self.now });
            round.claims.push((member, claim.partition, claim.reason));
        }
        for release in plan.release {
            if !self.members[member].running.remove(&release.partition) {
                continue;
            }
            self.records.insert(release.partition, Written { record: OwnershipRecord::default(), at: self.now });
            round.releases += 1;
        }
    }
}
