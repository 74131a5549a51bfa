//! What holds of every plan and of every group. Seeded: a failure names the seed that repeats it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Assignment, ClaimReason, LoadBalancingStrategy, PartitionOwner, PartitionView};
use eventhubs_checkpoint::internal::planner::{Idleness, Plan, Policy, View, plan};
use eventhubs_checkpoint::{OwnerId, PartitionId};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::table::id;
use crate::invariants::{self, Violation};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Released,
    Expired,
    Held(usize),
    /// Recorded as this owner's, but not run by it.
    Orphan(usize),
    Elsewhere,
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
    /// Whether each owner writes its presence.
    present: Vec<bool>,
    rng: StdRng,
}

/// What one round did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    claims: usize,
    /// Stolen or asked for.
    moves: usize,
    releases: usize,
    handed_over: usize,
}

impl World {
    fn new(owners: usize, slots: Vec<Slot>, rng: StdRng) -> Self {
        let (cooperative, present) = (vec![false; owners], vec![false; owners]);
        let owners = (0..owners).map(|number| OwnerId::new(format!("owner-{number:03}")).unwrap()).collect();
        Self { owners, partitions: (0..slots.len()).map(id).collect(), slots, cooperative, present, rng }
    }

    /// Any state whatsoever.
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
            (world.cooperative[owner], world.present[owner]) = (rng.random(), rng.random());
        }
        world
    }

    fn any_slot_but_held(owners: usize, rng: &mut StdRng) -> Slot {
        let (from, to) = (rng.random_range(0..owners), rng.random_range(0..owners));
        match rng.random_range(0..7) {
            0 => Slot::Released,
            1 => Slot::Expired,
            2 => Slot::Orphan(from),
            3 => Slot::Elsewhere,
            4 if from != to => Slot::Handing { from, to },
            5 => Slot::Reserved(to),
            _ => Slot::Free,
        }
    }

    /// As if the hub had no other tree.
    fn free_elsewhere(&mut self) {
        self.slots.iter_mut().filter(|slot| **slot == Slot::Elsewhere).for_each(|slot| *slot = Slot::Free);
    }

    /// Everybody holds something, and some of the rest is unowned.
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

    fn entry(&self, partition: &PartitionId, slot: Slot, me: usize) -> PartitionView {
        let held = |owner: usize| {
            if owner == me { PartitionOwner::This } else { PartitionOwner::Other(self.owners[owner].clone()) }
        };
        let holder = match slot {
            Slot::Free => PartitionOwner::Unowned,
            Slot::Released | Slot::Reserved(_) => PartitionOwner::Released,
            Slot::Expired => PartitionOwner::Expired(OwnerId::new("late").unwrap()),
            Slot::Orphan(owner) if owner == me => PartitionOwner::Reclaimable,
            Slot::Held(owner) | Slot::Orphan(owner) | Slot::Handing { from: owner, .. } => held(owner),
            Slot::Elsewhere => PartitionOwner::OtherNameCase(OwnerId::new("twin").unwrap()),
        };
        let mut entry = PartitionView::new(partition.clone(), holder);
        if let Slot::Held(owner) | Slot::Orphan(owner) | Slot::Handing { from: owner, .. } = slot {
            entry.cooperative = owner != me && self.cooperative[owner];
        }
        if let Slot::Handing { to, .. } | Slot::Reserved(to) = slot {
            entry.handoff_to = Some(self.owners[to].clone());
        }
        entry
    }

    fn view(&self, me: usize) -> View<'static> {
        let entries = self.partitions.iter().zip(&self.slots);
        let others = (0..self.owners.len()).filter(|owner| *owner != me && self.present[*owner]);
        View {
            partitions: entries.map(|(partition, slot)| self.entry(partition, *slot, me)).collect(),
            records: HashMap::new(),
            removed: Vec::new(),
            present: others.map(|owner| self.owners[owner].clone()).collect(),
            not_requestable: BTreeSet::new(),
            me: self.owners[me].clone(),
            replaced_by: None,
            foreign_owner: false,
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

    /// Hands over what one is asked for, plans for it, checks the plan, and carries it out.
    fn act(&mut self, me: usize, policy: &Policy) -> Result<Changes, Violation> {
        let handed_over = self.hand_over(me);
        let view = self.view(me);
        let plan = plan(&view, policy, &mut self.rng);
        invariants::check(&view, policy, &plan)?;
        Ok(Changes { handed_over, ..self.apply(me, &plan) })
    }

    fn hand_over(&mut self, me: usize) -> usize {
        let mut handed_over = 0;
        for slot in &mut self.slots {
            if let Slot::Handing { from, to } = *slot
                && from == me
            {
                *slot = Slot::Reserved(to);
                handed_over += 1;
            }
        }
        handed_over
    }

    fn apply(&mut self, me: usize, plan: &Plan) -> Changes {
        let place = |partition: &PartitionId| partition.as_str().parse::<usize>().unwrap();
        for release in &plan.release {
            self.slots[place(&release.partition)] = Slot::Released;
        }
        for claim in &plan.claim {
            self.slots[place(&claim.partition)] = Slot::Held(me);
        }
        for handoff in &plan.handoff {
            let slot = &mut self.slots[place(&handoff.partition)];
            if let Slot::Held(from) | Slot::Orphan(from) = *slot {
                *slot = Slot::Handing { from, to: me };
            }
        }
        let stolen = plan.claim.iter().filter(|claim| matches!(claim.reason, ClaimReason::Stolen(_))).count();
        let moves = stolen + plan.handoff.len();
        Changes { claims: plan.claim.len(), moves, releases: plan.release.len(), handed_over: 0 }
    }

    /// Every owner in turn, each by its own policy.
    fn round(&mut self, policy_of: &impl Fn(usize) -> Policy) -> Result<Changes, Violation> {
        let mut sum = Changes::default();
        for me in 0..self.owners.len() {
            let changes = self.act(me, &policy_of(me))?;
            sum.claims += changes.claims;
            sum.moves += changes.moves;
            sum.releases += changes.releases;
            sum.handed_over += changes.handed_over;
        }
        Ok(sum)
    }

    /// Every owner looks before any of them acts. Of those that want the same partition the first one wins.
    fn round_at_once(&mut self, policy: &Policy) -> usize {
        let owners = 0..self.owners.len();
        let mut plans: Vec<_> = owners.map(|me| (me, plan(&self.view(me), policy, &mut self.rng))).collect();
        plans.shuffle(&mut self.rng);
        let handed_over: usize = (0..self.owners.len()).map(|me| self.hand_over(me)).sum();
        let mut taken = BTreeSet::new();
        for (me, mut plan) in plans {
            plan.claim.retain(|claim| taken.insert(claim.partition.clone()));
            plan.handoff.retain(|handoff| taken.insert(handoff.partition.clone()));
            self.apply(me, &plan);
        }
        taken.len() + handed_over
    }

    /// Rounds until nothing changes, at most so many; answers how many changed something, and the moves.
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

fn by(strategy: &LoadBalancingStrategy) -> Policy {
    Policy { strategy: strategy.clone(), ..Policy::default() }
}

/// The same with and without handoff, and how many rounds more a handoff takes: one until it is released, one until it
/// is claimed.
fn with_and_without_handoff(strategy: &LoadBalancingStrategy) -> [(Policy, usize); 2] {
    [(by(strategy), 0), (Policy { handoff: true, ..by(strategy) }, 2)]
}

/// Mostly small, now and then as large as it gets.
fn size(rng: &mut StdRng) -> (usize, usize) {
    match rng.random_range(0..20) {
        0 => (rng.random_range(0..=2048), rng.random_range(1..=300)),
        1..5 => (rng.random_range(0..=256), rng.random_range(1..=40)),
        _ => (rng.random_range(0..=24), rng.random_range(1..=8)),
    }
}

fn for_each_seed(seeds: u64, check: impl Fn(StdRng) -> Result<(), Violation>) {
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(StdRng::seed_from_u64(seed))));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(violation)) => panic!("seed {seed}: {violation}"),
            Err(panic) => {
                eprintln!("seed {seed}:");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn random_loads(partitions: usize, rng: &mut StdRng) -> BTreeMap<PartitionId, u64> {
    let spread = [1, 10, 1_000_000][rng.random_range(0..3)];
    let known = [0, 50, 100][rng.random_range(0..3)];
    let places = (0..partitions).filter(|_| rng.random_range(0..100) < known).collect::<Vec<_>>();
    places.into_iter().map(|place| (id(place), rng.random_range(0..=spread))).collect()
}

fn random_strategy(partitions: usize, owners: usize, rng: &mut StdRng) -> LoadBalancingStrategy {
    match rng.random_range(0..5) {
        0 => LoadBalancingStrategy::Balanced,
        1 => LoadBalancingStrategy::Greedy,
        2 => LoadBalancingStrategy::Static(Assignment::index(rng.random_range(0..owners), owners).unwrap()),
        3 => LoadBalancingStrategy::Static(Assignment::partitions(
            (0..partitions).filter(|_| rng.random_bool(0.3)).map(id),
        )),
        _ => LoadBalancingStrategy::Weighted { threshold_percent: rng.random_range(0..50) },
    }
}

#[test]
fn any_plan_for_any_view_is_safe_and_stable() {
    for_each_seed(1500, |mut rng| {
        let (partitions, owners) = size(&mut rng);
        let strategy = random_strategy(partitions, owners, &mut rng);
        let avoided = [0.0, 0.1, 0.9][rng.random_range(0..3)];
        let policy = Policy {
            strategy,
            max_partitions: rng.random_bool(0.5).then(|| rng.random_range(0..=2 * partitions / owners + 1)),
            avoid: (0..partitions).filter(|_| rng.random_bool(avoided)).map(id).collect(),
            loads: random_loads(partitions, &mut rng),
            handoff: rng.random(),
            idle: BTreeSet::new(),
        };
        let unmarkable = [0.0, 0.3, 1.0][rng.random_range(0..3)];
        let unmarkable: BTreeSet<_> = (0..partitions).filter(|_| rng.random_bool(unmarkable)).map(id).collect();
        let world = World::any(partitions, owners, rng);
        let mut view = world.view(0);
        view.not_requestable = unmarkable;
        view.removed = (partitions..partitions + view.partitions.len() % 3).map(id).collect();
        let policy = Policy { idle: some_below_share(&view, &policy, partitions), ..policy };
        let planned = || plan(&view, &policy, &mut StdRng::seed_from_u64(7));
        assert_eq!(planned(), planned(), "the same input gives the same plan");
        invariants::check(&view, &policy, &planned())
    });
}

/// Owners that may count as idle, of which every second one does for every other number.
fn some_below_share(view: &View<'_>, policy: &Policy, number: usize) -> BTreeSet<OwnerId> {
    let (mut idleness, second) = (Idleness::default(), Duration::from_secs(1));
    idleness.note(view, policy, None, Duration::ZERO, second);
    let below = idleness.note(view, policy, None, 2 * second, second);
    below
        .into_iter()
        .enumerate()
        .filter(|(place, _)| (place + number).is_multiple_of(2))
        .map(|(_, owner)| owner)
        .collect()
}

#[test]
fn the_share_of_idle_owners_in_what_nobody_owns_goes_to_the_others() {
    for_each_seed(40, |mut rng| {
        let owners = rng.random_range(2..=8);
        let partitions = owners + rng.random_range(0..=20);
        let idle = rng.random_range(1..owners);
        for strategy in
            [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy, LoadBalancingStrategy::weighted()]
        {
            let mut world = World::seen_by_all(partitions, owners, StdRng::seed_from_u64(rng.random()));
            let loads = random_loads(partitions, &mut rng);
            let policy = |idle: BTreeSet<OwnerId>| Policy { idle, loads: loads.clone(), ..by(&strategy) };
            // The first owners plan, the last ones never do.
            let mut idleness = vec![Idleness::default(); owners - idle];
            // Each time that some count as idle, others may be below the greater share of the rest, and have their
            // time.
            for round in 0..partitions as u64 + 8 * owners as u64 {
                for (me, idleness) in idleness.iter_mut().enumerate() {
                    let view = world.view(me);
                    let now = Duration::from_secs(10 * round);
                    let idle = idleness.note(&view, &policy(BTreeSet::new()), None, now, Duration::from_secs(60));
                    let policy = policy(idle);
                    let plan = plan(&view, &policy, &mut world.rng);
                    invariants::check(&view, &policy, &plan)?;
                    world.apply(me, &plan);
                }
            }
            let owned = world.slots.iter().all(|slot| matches!(slot, Slot::Held(_)));
            assert!(owned, "{strategy:?}, {idle} idle: {:?}", world.counts());
        }
        Ok(())
    });
}

#[test]
fn by_number_every_group_settles_fairly_with_the_fewest_moves_within_the_bound() {
    for_each_seed(150, |mut rng| {
        let owners = rng.random_range(1..=12);
        let partitions = owners + rng.random_range(0..=60);
        for (policy, more) in
            [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy].iter().flat_map(with_and_without_handoff)
        {
            let mut world = World::seen_by_all(partitions, owners, StdRng::seed_from_u64(rng.random()));
            world.cooperative = (0..owners).map(|_| rng.random()).collect();
            let fewest = invariants::fewest_moves(partitions, &world.counts());
            let bound = invariants::rounds_to_settle(&policy.strategy, partitions, owners).unwrap() + more;
            let (_, moves) = world.settle(bound, |_| policy.clone())?;
            invariants::fair(partitions, &world.counts())?;
            assert_eq!(moves, fewest, "{policy:?}");
            assert!(world.slots.iter().all(|slot| matches!(slot, Slot::Held(_))));
            // For ever: whatever the random numbers.
            for _ in 0..5 {
                assert_eq!(world.round(&|_| policy.clone())?, Changes::default());
            }
        }
        Ok(())
    });
}

#[test]
fn by_number_any_group_settles_fairly_within_the_bound_also_if_some_are_not_seen_at_first() {
    for_each_seed(150, |mut rng| {
        let (owners, partitions) = (rng.random_range(1..=12), rng.random_range(0..=60));
        for (policy, more) in
            [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy].iter().flat_map(with_and_without_handoff)
        {
            let mut world = World::any(partitions, owners, StdRng::seed_from_u64(rng.random()));
            world.free_elsewhere();
            // What is under way at the start comes first.
            let bound = 2 + invariants::rounds_to_settle(&policy.strategy, partitions, owners).unwrap() + more;
            world.settle(bound, |_| policy.clone())?;
            invariants::fair(partitions, &world.counts())?;
        }
        Ok(())
    });
}

#[test]
fn instances_that_join_a_balanced_group_cause_the_fewest_moves() {
    for_each_seed(100, |mut rng| {
        let (before, joining) = (rng.random_range(1..=10), rng.random_range(1..=10));
        let partitions = before + rng.random_range(0..=60);
        let slots = (0..partitions).map(|place| Slot::Held(place % before)).collect();
        let mut world = World::new(before + joining, slots, rng);
        let fewest = invariants::fewest_moves(partitions, &world.counts());
        let bound =
            invariants::rounds_to_settle(&LoadBalancingStrategy::Balanced, partitions, before + joining).unwrap();
        let (_, moves) = world.settle(bound, |_| Policy::default())?;
        invariants::fair(partitions, &world.counts())?;
        assert_eq!(moves, fewest);
        Ok(())
    });
}

#[test]
fn whatever_everybody_holds_those_that_are_present_cause_the_fewest_moves_and_none_twice() {
    for_each_seed(150, |mut rng| {
        let (crowd, joining) = (rng.random_range(1..=6), rng.random_range(0..=10));
        let partitions = rng.random_range(0..=60);
        for (policy, more) in
            [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy].iter().flat_map(with_and_without_handoff)
        {
            let slots: Vec<_> = (0..partitions).map(|_| Slot::Held(rng.random_range(0..crowd))).collect();
            let mut world = World::new(crowd + joining, slots.clone(), StdRng::seed_from_u64(rng.random()));
            world.cooperative = (0..crowd + joining).map(|_| rng.random()).collect();
            world.present = vec![true; crowd + joining];
            let fewest = invariants::fewest_moves(partitions, &world.counts());
            let bound = invariants::rounds_to_settle(&policy.strategy, partitions, crowd + joining).unwrap() + more;
            let (_, moves) = world.settle(bound, |_| policy.clone())?;
            invariants::fair(partitions, &world.counts())?;
            let changed = world.slots.iter().zip(&slots).filter(|(after, before)| after != before).count();
            assert_eq!((moves, changed), (fewest, fewest), "{policy:?}");
        }
        Ok(())
    });
}

/// No bound holds for sure where all act at the same moment for ever: two thieves may rob one victim of one partition
/// too many. Chance ends it; jitter makes it rare.
#[test]
fn groups_that_all_act_at_the_same_moment_settle_too() {
    for_each_seed(100, |mut rng| {
        let (owners, partitions) = (rng.random_range(1..=12), rng.random_range(0..=60));
        let strategy =
            [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy, LoadBalancingStrategy::weighted()]
                [rng.random_range(0..3)]
            .clone();
        let policy = Policy { handoff: rng.random(), ..by(&strategy) };
        let mut world = World::any(partitions, owners, rng);
        world.free_elsewhere();
        let rounds = (0..100).take_while(|_| world.round_at_once(&policy) > 0).count();
        assert!(rounds < 100, "{strategy:?}: {:?}", world.counts());
        if matches!(strategy, LoadBalancingStrategy::Balanced | LoadBalancingStrategy::Greedy) {
            invariants::fair(partitions, &world.counts())?;
        }
        Ok(())
    });
}

#[test]
fn the_largest_group_settles() {
    for_each_seed(1, |rng| {
        let mut world = World::any(2048, 300, rng);
        world.free_elsewhere();
        let bound = 2 + invariants::rounds_to_settle(&LoadBalancingStrategy::Greedy, 2048, 300).unwrap();
        world.settle(bound, |_| by(&LoadBalancingStrategy::Greedy))?;
        invariants::fair(2048, &world.counts())
    });
}

#[test]
fn the_lower_bound_of_moves_is_that_of_trying_everything() {
    for_each_seed(200, |mut rng| {
        let owners = rng.random_range(1..=6);
        let counts: Vec<usize> = (0..owners).map(|_| rng.random_range(0..=6)).collect();
        let partitions = counts.iter().sum::<usize>() + rng.random_range(0..=4);
        let (floor, remainder) = (partitions / owners, partitions % owners);
        // Every choice of those that get the larger shares.
        let choices = (0u32..1 << owners).filter(|choice| choice.count_ones() as usize == remainder);
        let moves = choices.map(|choice| {
            let share = |owner: usize| floor + usize::from(choice >> owner & 1 == 1);
            counts.iter().enumerate().map(|(owner, held)| held.saturating_sub(share(owner))).sum::<usize>()
        });
        assert_eq!(moves.min().unwrap(), invariants::fewest_moves(partitions, &counts), "{counts:?} of {partitions}");
        Ok(())
    });
}

#[test]
fn by_assignment_every_group_settles_within_two_rounds_and_nobody_is_robbed() {
    for_each_seed(100, |mut rng| {
        let (owners, partitions) = (rng.random_range(1..=12), rng.random_range(0..=60));
        let mut world = World::any(partitions, owners, rng);
        // An orphan that is not assigned to its owner waits for its expiry, one elsewhere for its release; and by
        // assignment nobody asks for anything.
        for slot in &mut world.slots {
            if matches!(slot, Slot::Orphan(_) | Slot::Elsewhere | Slot::Handing { .. } | Slot::Reserved(_)) {
                *slot = Slot::Expired;
            }
        }
        let strategy = |me| LoadBalancingStrategy::Static(Assignment::index(me, owners).unwrap());
        let bound = invariants::rounds_to_settle(&strategy(0), partitions, owners).unwrap();
        let (_, moves) = world.settle(bound, |me| by(&strategy(me)))?;
        assert_eq!(moves, 0);
        assert!(world.slots.iter().enumerate().all(|(place, slot)| *slot == Slot::Held(place % owners)));
        Ok(())
    });
}

/// The loads of all owners.
fn loads(world: &World, policy: &Policy) -> Vec<u64> {
    let mut loads = vec![0; world.owners.len()];
    for (place, slot) in world.slots.iter().enumerate() {
        if let Slot::Held(owner) = slot {
            loads[*owner] += policy.loads[&id(place)];
        }
    }
    loads
}

#[test]
fn by_load_every_group_settles_evenly_within_the_bound() {
    for_each_seed(100, |mut rng| {
        let owners = rng.random_range(1..=8);
        let partitions = owners + rng.random_range(0..=40);
        let threshold_percent = rng.random_range(0..=30);
        let policy = Policy {
            loads: random_loads(partitions, &mut rng),
            ..by(&LoadBalancingStrategy::Weighted { threshold_percent })
        };
        let mut world = World::seen_by_all(partitions, owners, rng);
        for _ in 0..world.unowned() {
            if world.unowned() > 0 {
                assert!(world.round(&|_| policy.clone())?.claims > 0);
            }
        }
        assert_eq!(world.unowned(), 0);
        let bound = invariants::steals_to_settle(&world.view(0), &policy, threshold_percent);
        let (rounds, moves) = world.settle(usize::try_from(bound).unwrap().min(10_000), |_| policy.clone())?;
        assert!(moves as u128 <= bound && rounds <= moves, "{rounds} rounds, {moves} moves of {bound}");
        invariants::even(&world.view(0), &policy, threshold_percent)?;
        assert_eq!(world.round(&|_| policy.clone())?, Changes::default());
        Ok(())
    });
}

#[test]
fn by_load_a_steal_never_raises_the_greatest_load_nor_lowers_the_least() {
    for_each_seed(100, |mut rng| {
        let owners = rng.random_range(2..=8);
        let partitions = owners + rng.random_range(0..=40);
        // Never far below the mean, so that every load counts as it is.
        let loads_given = (0..partitions).map(|place| (id(place), rng.random_range(20..=100))).collect();
        let policy = Policy { loads: loads_given, ..by(&LoadBalancingStrategy::weighted()) };
        let mut world = World::seen_by_all(partitions, owners, rng);
        for _ in 0..20 {
            for me in 0..owners {
                let before = loads(&world, &policy);
                if world.act(me, &policy)?.moves > 0 {
                    let after = loads(&world, &policy);
                    assert!(after.iter().max() <= before.iter().max(), "{before:?} {after:?}");
                    assert!(after.iter().min() >= before.iter().min(), "{before:?} {after:?}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn by_equal_loads_without_hysteresis_the_moves_are_the_fewest_and_the_numbers_fair() {
    for_each_seed(100, |mut rng| {
        let owners = rng.random_range(1..=10);
        let partitions = owners + rng.random_range(0..=60);
        let mut world = World::seen_by_all(partitions, owners, rng);
        world.slots.iter_mut().enumerate().for_each(|(place, slot)| {
            if !matches!(slot, Slot::Held(_)) {
                *slot = Slot::Held(place * place % owners);
            }
        });
        let fewest = invariants::fewest_moves(partitions, &world.counts());
        let policy = by(&LoadBalancingStrategy::Weighted { threshold_percent: 0 });
        let (_, moves) = world.settle(fewest, |_| policy.clone())?;
        invariants::fair(partitions, &world.counts())?;
        assert_eq!(moves, fewest);
        Ok(())
    });
}

#[test]
fn by_load_what_changes_by_less_than_the_difference_left_moves_nothing() {
    let policy = |heavier: u64| Policy {
        loads: (0..8).map(|place| (id(place), if place == 0 { heavier } else { 100 })).collect(),
        ..by(&LoadBalancingStrategy::weighted())
    };
    let slots = (0..8).map(|place| Slot::Held(place % 2)).collect();
    let mut world = World::new(2, slots, StdRng::seed_from_u64(0));
    for heavier in [50, 100, 140, 200, 240] {
        assert_eq!(world.round(&|_| policy(heavier)).unwrap(), Changes::default(), "{heavier}");
    }
    // Fair are 415, the threshold 41: with 100 of 530 for my 400 I would hold 30 less. With 560 it is 60.
    assert_eq!(world.round(&|_| policy(260)).unwrap().moves, 1);
}

#[test]
fn capped_owners_never_hold_more_and_tell_what_stays_unowned() {
    for_each_seed(100, |mut rng| {
        let owners = rng.random_range(1..=8);
        let partitions = owners + rng.random_range(0..=40);
        let strategy = [LoadBalancingStrategy::Balanced, LoadBalancingStrategy::Greedy][rng.random_range(0..2)].clone();
        let caps: Vec<usize> = (0..owners).map(|_| rng.random_range(0..=2 * partitions / owners)).collect();
        let mut world = World::seen_by_all(partitions, owners, rng);
        let policy_of = |me: usize| Policy { max_partitions: Some(caps[me]), ..by(&strategy) };
        for _ in 0..partitions {
            world.round(&policy_of)?;
        }
        assert!(world.counts().iter().zip(&caps).all(|(held, cap)| held <= cap));
        let alarms: Vec<_> = (0..owners)
            .map(|me| plan(&world.view(me), &policy_of(me), &mut StdRng::seed_from_u64(0)).unclaimed_due_to_limit)
            .collect();
        assert_eq!(alarms.iter().any(|missing| *missing > 0), world.unowned() > 0, "{alarms:?} {caps:?}");
        Ok(())
    });
}
