//! Groups of planners that take turns.

mod properties;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::fairness::Violation;
use super::plan::{ClaimReason, Plan};
use super::planning::plan;
use super::policy::Policy;
use super::postconditions::check_plan;
use super::view::{PartitionOwner, PartitionView, View};
use crate::model::{OwnerId, PartitionId};

fn id(index: usize) -> PartitionId {
    u32::try_from(index).unwrap().into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Released,
    Expired,
    Held(usize),
    /// Recorded as this owner's, but not run by it.
    Reclaimable(usize),
    Handing {
        from: usize,
        to: usize,
    },
    Reserved(usize),
}

/// A group without records and ages.
struct World {
    owners: Vec<OwnerId>,
    partitions: Vec<PartitionId>,
    slots: Vec<Slot>,
    /// Whether each owner hands over on request.
    cooperative: Vec<bool>,
    /// Whether each owner sends heartbeats.
    sends_heartbeats: Vec<bool>,
    rng: StdRng,
}

/// The changes of one round.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    claims: usize,
    /// Stolen or requested.
    moves: usize,
    releases: usize,
    handed_over: usize,
}

impl World {
    fn new(owners: usize, slots: Vec<Slot>, rng: StdRng) -> Self {
        let cooperative = vec![false; owners];
        let sends_heartbeats = vec![false; owners];
        let owners = (0..owners).map(|number| OwnerId::new(format!("owner-{number:03}")).unwrap()).collect();
        Self { owners, partitions: (0..slots.len()).map(id).collect(), slots, cooperative, sends_heartbeats, rng }
    }

    /// Creates a world in any possible state.
    fn any(partitions: usize, owners: usize, mut rng: StdRng) -> Self {
        // From nearly everything held to nearly everything unowned, and from even to lopsided.
        let held_percent = rng.random_range(0..=100);
        let crowd = rng.random_range(1..=owners);
        let slots = (0..partitions).map(|_| match rng.random_range(0..100) {
            roll if roll < held_percent => Slot::Held(rng.random_range(0..crowd)),
            _ => Self::any_slot_but_held(owners, &mut rng),
        });
        let slots = slots.collect();
        let mut world = Self::new(owners, slots, StdRng::seed_from_u64(rng.random()));
        for owner in 0..owners {
            (world.cooperative[owner], world.sends_heartbeats[owner]) = (rng.random(), rng.random());
        }
        world
    }

    fn any_slot_but_held(owners: usize, rng: &mut StdRng) -> Slot {
        let from = rng.random_range(0..owners);
        let to = rng.random_range(0..owners);
        match rng.random_range(0..6) {
            0 => Slot::Released,
            1 => Slot::Expired,
            2 => Slot::Reclaimable(from),
            3 if from != to => Slot::Handing { from, to },
            4 => Slot::Reserved(to),
            _ => Slot::Free,
        }
    }

    /// Creates a world in which every owner holds something, and some of the rest is unowned.
    fn seen_by_all(partitions: usize, owners: usize, mut rng: StdRng) -> Self {
        let unowned_percent = [0, 20, 100][rng.random_range(0..3)];
        let crowd = rng.random_range(1..=owners);
        let slots = (0..partitions).map(|place| match rng.random_range(0..100) {
            _ if place < owners => Slot::Held(place),
            roll if roll < unowned_percent => [Slot::Free, Slot::Released, Slot::Expired][rng.random_range(0..3)],
            _ => Slot::Held(rng.random_range(0..crowd)),
        });
        let slots = slots.collect();
        Self::new(owners, slots, rng)
    }

    fn entry(&self, partition: &PartitionId, slot: Slot, this: usize) -> PartitionView {
        let held = |owner: usize| {
            if owner == this { PartitionOwner::This } else { PartitionOwner::Other(self.owners[owner].clone()) }
        };
        let holder = match slot {
            Slot::Free => PartitionOwner::Unowned,
            Slot::Released | Slot::Reserved(_) => PartitionOwner::Released,
            Slot::Expired => PartitionOwner::Expired(OwnerId::new("late").unwrap()),
            Slot::Reclaimable(owner) if owner == this => PartitionOwner::Reclaimable,
            Slot::Held(owner) | Slot::Reclaimable(owner) | Slot::Handing { from: owner, .. } => held(owner),
        };
        let mut entry = PartitionView::new(partition.clone(), holder);
        if let Slot::Held(owner) | Slot::Reclaimable(owner) | Slot::Handing { from: owner, .. } = slot {
            entry.cooperative = owner != this && self.cooperative[owner];
        }
        if let Slot::Handing { to, .. } | Slot::Reserved(to) = slot {
            entry.handoff_to = Some(self.owners[to].clone());
        }
        entry
    }

    fn view(&self, this: usize) -> View<'static> {
        let entries = self.partitions.iter().zip(&self.slots);
        let others = (0..self.owners.len()).filter(|owner| *owner != this && self.sends_heartbeats[*owner]);
        View {
            partitions: entries.map(|(partition, slot)| self.entry(partition, *slot, this)).collect(),
            records: HashMap::new(),
            removed: Vec::new(),
            present: others.map(|owner| self.owners[owner].clone()).collect(),
            not_requestable: BTreeSet::new(),
            me: self.owners[this].clone(),
            replaced_by: None,
            foreign_owner: false,
            next_expiry: None,
            owners: BTreeMap::new(),
        }
    }

    fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.owners.len()];
        for slot in &self.slots {
            if let Slot::Held(owner) | Slot::Handing { to: owner, .. } | Slot::Reserved(owner) = slot {
                counts[*owner] += 1;
            }
        }
        counts
    }

    fn unowned(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Free | Slot::Released | Slot::Expired)).count()
    }

    /// Hands over the requested partitions of an owner, plans for it, checks the plan, and applies it.
    fn act(&mut self, this: usize, policy: &Policy) -> Result<Changes, Violation> {
        let handed_over = self.hand_over(this);
        let view = self.view(this);
        let plan = plan(&view, policy, &mut self.rng);
        check_plan(&view, policy, &plan)?;
        Ok(Changes { handed_over, ..self.apply(this, &plan) })
    }

    fn hand_over(&mut self, this: usize) -> usize {
        let mut handed_over = 0;
        for slot in &mut self.slots {
            if let Slot::Handing { from, to } = *slot
                && from == this
            {
                *slot = Slot::Reserved(to);
                handed_over += 1;
            }
        }
        handed_over
    }

    fn apply(&mut self, this: usize, plan: &Plan) -> Changes {
        let place = |partition: &PartitionId| partition.as_str().parse::<usize>().unwrap();
        for release in &plan.release {
            self.slots[place(&release.partition)] = Slot::Released;
        }
        for claim in &plan.claim {
            self.slots[place(&claim.partition)] = Slot::Held(this);
        }
        for handoff in &plan.handoff {
            let slot = &mut self.slots[place(&handoff.partition)];
            if let Slot::Held(from) | Slot::Reclaimable(from) = *slot {
                *slot = Slot::Handing { from, to: this };
            }
        }
        let stolen = plan.claim.iter().filter(|claim| matches!(claim.reason, ClaimReason::Stolen(_))).count();
        let moves = stolen + plan.handoff.len();
        Changes { claims: plan.claim.len(), moves, releases: plan.release.len(), handed_over: 0 }
    }

    /// Lets every owner act in turn, each by its own policy.
    fn round(&mut self, policy_of: &impl Fn(usize) -> Policy) -> Result<Changes, Violation> {
        let mut sum = Changes::default();
        for this in 0..self.owners.len() {
            let changes = self.act(this, &policy_of(this))?;
            sum.claims += changes.claims;
            sum.moves += changes.moves;
            sum.releases += changes.releases;
            sum.handed_over += changes.handed_over;
        }
        Ok(sum)
    }

    /// Every owner observes before any of them acts. Of those that want the same partition the first one wins.
    fn round_at_once(&mut self, policy: &Policy) -> usize {
        let owners = 0..self.owners.len();
        let mut plans: Vec<_> = owners.map(|this| (this, plan(&self.view(this), policy, &mut self.rng))).collect();
        plans.shuffle(&mut self.rng);
        let handed_over: usize = (0..self.owners.len()).map(|this| self.hand_over(this)).sum();
        let mut taken = BTreeSet::new();
        for (this, mut plan) in plans {
            plan.claim.retain(|claim| taken.insert(claim.partition.clone()));
            plan.handoff.retain(|handoff| taken.insert(handoff.partition.clone()));
            self.apply(this, &plan);
        }
        taken.len() + handed_over
    }

    /// Runs rounds until nothing changes, at most this many, and returns how many changed something, and the moves.
    fn settle(&mut self, at_most: usize, policy_of: impl Fn(usize) -> Policy) -> Result<(usize, usize), Violation> {
        let mut moves = 0;
        for rounds in 0..=at_most {
            let changes = self.round(&policy_of)?;
            if changes == Changes::default() {
                return Ok((rounds, moves));
            }
            moves += changes.moves;
        }
        panic!("not settled within {at_most} rounds: {:?}", self.counts());
    }
}
