//! What one instance should do about what it sees.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::Rng;
use rand::seq::SliceRandom;

use super::view::{Holder, PartitionView, View};
use crate::model::{OwnerId, PartitionId};

/// How fast an instance takes what it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// At most one new partition per interval. The default: when many instances start at once, each sees the others
    /// before it has taken more than its share, so that nothing moves twice.
    #[default]
    Balanced,
    /// Everything that is lacking at once: quick to start, at the price of moves when others join just then.
    Greedy,
}

/// By what rules to decide.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// How fast to take what is lacking.
    pub strategy: Strategy,
    /// Partitions not to be claimed now: an attempt has just failed.
    pub avoid: BTreeSet<PartitionId>,
}

/// Why a partition is claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimReason {
    /// It is recorded as mine, but I do not run it.
    Reclaimed,
    /// Nobody has ever owned it.
    Unowned,
    /// Its last owner gave it back.
    Released,
    /// Its owner has not renewed in time.
    Expired(OwnerId),
    /// Its owner holds more than its share.
    Stolen(OwnerId),
}

/// A partition to be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedClaim {
    /// The partition.
    pub partition: PartitionId,
    /// Why.
    pub reason: ClaimReason,
}

/// What one instance should do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The partitions to be claimed.
    pub claim: Vec<PlannedClaim>,
}

/// Decides what to do about a view.
///
/// Post-conditions: what I hold and what I claim anew together never exceed my target (what is recorded as mine already
/// comes back in any case: it moves nothing); a claim never leaves its victim with less than its share; a group in which
/// everybody holds its share plans nothing; what is to be avoided is not claimed.
pub fn plan(view: &View, policy: &Policy, rng: &mut impl Rng) -> Plan {
    // Phase 1: what is recorded as mine comes back at once. It is counted as mine already, so nothing moves by it.
    let mut claim: Vec<_> = select(view, policy, |holder| match holder {
        Holder::Orphan => Some(ClaimReason::Reclaimed),
        _ => None,
    });

    // Phase 2: how much more I may take.
    let mut counts = view.counts();
    let shares = Shares::of(view.partitions.len(), counts.len());
    let mine = counts.remove(&view.me).unwrap_or_default();
    let lacking = shares.target(&counts).saturating_sub(mine);
    let limit = match policy.strategy {
        Strategy::Balanced => lacking.min(1),
        Strategy::Greedy => lacking,
    };

    // Phase 3: from those who do not mind. The order of one kind is random, so that two instances seldom collide.
    let mut wanted = unowned(view, policy, rng);
    wanted.truncate(limit);

    // Phase 4: from those who hold too much.
    let missing = limit - wanted.len();
    let candidates = partitions_by_owner(view, policy, rng);
    wanted.extend(stolen(candidates, counts, mine + wanted.len(), shares, missing));
    claim.extend(wanted);
    Plan { claim }
}

/// How P partitions divide among N owners.
#[derive(Clone, Copy, Debug)]
struct Shares {
    floor: usize,
    remainder: usize,
}

impl Shares {
    /// `owners` is never zero: the one who asks is among them.
    fn of(partitions: usize, owners: usize) -> Self {
        Self { floor: partitions / owners, remainder: partitions % owners }
    }

    /// What I should hold: one above the floor if fewer than `remainder` others hold that many already.
    fn target(self, others: &BTreeMap<OwnerId, usize>) -> usize {
        let above = others.values().filter(|held| **held > self.floor).count();
        self.floor + usize::from(above < self.remainder)
    }

    /// What the fullest owner may keep when I, holding `mine`, take from it. While I lack even the floor, more owners
    /// than `remainder` are above it, so one of them holds more than its share with `floor + 1`. Once I have the
    /// floor, only more than `floor + 1` is too much.
    fn kept_by_victim(self, mine: usize) -> usize {
        if mine < self.floor { self.floor } else { self.floor + 1 }
    }
}

/// Free partitions, then released ones, then expired ones.
fn unowned(view: &View, policy: &Policy, rng: &mut impl Rng) -> Vec<PlannedClaim> {
    let mut free = select(view, policy, |holder| match holder {
        Holder::Nobody => Some(ClaimReason::Unowned),
        Holder::Released => Some(ClaimReason::Released),
        _ => None,
    });
    let mut expired = select(view, policy, |holder| match holder {
        Holder::Expired(owner) => Some(ClaimReason::Expired(owner.clone())),
        _ => None,
    });
    free.shuffle(rng);
    expired.shuffle(rng);
    free.append(&mut expired);
    free
}

fn stolen(
    mut candidates: BTreeMap<OwnerId, VecDeque<PartitionId>>,
    mut held_by_others: BTreeMap<OwnerId, usize>,
    mut mine: usize,
    shares: Shares,
    wanted: usize,
) -> Vec<PlannedClaim> {
    let mut claims = Vec::with_capacity(wanted);
    while claims.len() < wanted {
        // Whose partitions are all to be avoided is left alone.
        let robbable = held_by_others.iter_mut().filter(|(owner, _)| candidates.contains_key(*owner));
        let Some((victim, held)) = robbable.max_by_key(|(_, held)| **held) else { break };
        if *held <= shares.kept_by_victim(mine) {
            break;
        }
        let Some(partition) = candidates.get_mut(victim).and_then(VecDeque::pop_front) else {
            candidates.remove(victim);
            continue;
        };
        claims.push(PlannedClaim { partition, reason: ClaimReason::Stolen(victim.clone()) });
        *held -= 1;
        mine += 1;
    }
    claims
}

fn partitions_by_owner(view: &View, policy: &Policy, rng: &mut impl Rng) -> BTreeMap<OwnerId, VecDeque<PartitionId>> {
    let wanted = |entry: &&PartitionView| !policy.avoid.contains(&entry.partition);
    let mut shuffled: Vec<_> = view.partitions.iter().filter(wanted).collect();
    shuffled.shuffle(rng);
    let mut by_owner: BTreeMap<OwnerId, VecDeque<PartitionId>> = BTreeMap::new();
    for entry in shuffled {
        if let Holder::Live(owner) = &entry.holder {
            by_owner.entry(owner.clone()).or_default().push_back(entry.partition.clone());
        }
    }
    by_owner
}

fn select(view: &View, policy: &Policy, reason: impl Fn(&Holder) -> Option<ClaimReason>) -> Vec<PlannedClaim> {
    let claim = |entry: &PartitionView| {
        reason(&entry.holder).map(|reason| PlannedClaim { partition: entry.partition.clone(), reason })
    };
    let wanted = view.partitions.iter().filter(|entry| !policy.avoid.contains(&entry.partition));
    wanted.filter_map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn by(strategy: Strategy) -> Policy {
        Policy { strategy, avoid: BTreeSet::new() }
    }

    fn owner(name: usize) -> OwnerId {
        OwnerId::new(format!("owner-{name}")).unwrap()
    }

    /// Owner 0 is me; a holder number beyond the owners stands for a free, released or expired partition.
    fn view_of(holders: &[usize], owners: usize) -> View {
        let holder = |index: usize| match index {
            0 => Holder::Me,
            index if index < owners => Holder::Live(owner(index)),
            index if index == owners => Holder::Nobody,
            index if index == owners + 1 => Holder::Released,
            _ => Holder::Expired(owner(999)),
        };
        let partitions = (0u32..)
            .zip(holders)
            .map(|(id, index)| PartitionView { partition: id.into(), holder: holder(*index) })
            .collect();
        View { partitions, me: owner(0), replaced_by: None, foreign_owner: false }
    }

    fn held(view: &View) -> BTreeMap<OwnerId, usize> {
        view.counts()
    }

    /// The theorem: what a plan may and may not do, for any view.
    fn assert_sound(view: &View, plan: &Plan) {
        let counts = held(view);
        let (floor, remainder) = (view.partitions.len() / counts.len(), view.partitions.len() % counts.len());
        let after = counts[&view.me] + plan.claim.len();
        if !plan.claim.is_empty() {
            assert!(after <= floor + usize::from(remainder > 0), "more than my share: {after} of floor {floor}");
        }
        let mut left = counts;
        for claim in &plan.claim {
            if let ClaimReason::Stolen(victim) = &claim.reason {
                *left.get_mut(victim).unwrap() -= 1;
                assert!(left[victim] >= floor, "{victim} was left with {}", left[victim]);
            }
        }
        let unowned = view.partitions.iter().any(|p| !matches!(p.holder, Holder::Me | Holder::Live(_)));
        let steals = plan.claim.iter().any(|claim| matches!(claim.reason, ClaimReason::Stolen(_)));
        let from_free = plan.claim.iter().any(|claim| !matches!(claim.reason, ClaimReason::Stolen(_)));
        assert!(!steals || from_free || !unowned, "stole although something was free");
    }

    /// Lets every owner plan in turn until nobody wants anything, and returns the number of partitions moved.
    fn settle(holders: &mut [usize], owners: usize, strategy: Strategy, rng: &mut StdRng) -> usize {
        let mut moves = 0;
        for _ in 0..2 * holders.len() + 2 {
            let mut changed = false;
            for me in 0..owners {
                // Seen by `me`: swap the names of `me` and owner 0.
                let swap = |index: usize| {
                    if index == me {
                        0
                    } else if index == 0 {
                        me
                    } else {
                        index
                    }
                };
                let seen: Vec<_> = holders.iter().map(|index| swap(*index)).collect();
                let view = view_of(&seen, owners);
                for claim in plan(&view, &by(strategy), rng).claim {
                    let index: usize = claim.partition.as_str().parse().unwrap();
                    moves += usize::from(matches!(claim.reason, ClaimReason::Stolen(_)));
                    holders[index] = me;
                    changed = true;
                }
            }
            if !changed {
                return moves;
            }
        }
        panic!("does not settle: {holders:?}");
    }

    proptest! {
        #[test]
        fn a_plan_takes_no_more_than_the_share_and_leaves_every_victim_its_own(
            owners in 1usize..8, holders in proptest::collection::vec(0usize..11, 0..64), seed: u64
        ) {
            let view = view_of(&holders, owners);
            for strategy in [Strategy::Balanced, Strategy::Greedy] {
                let plan = plan(&view, &by(strategy), &mut StdRng::seed_from_u64(seed));
                assert_sound(&view, &plan);
                prop_assert!(strategy == Strategy::Greedy || plan.claim.len() <= 1);
            }
        }

        /// An owner with no partition is not seen by the others, so each starts with at least one here.
        #[test]
        fn a_group_settles_at_floor_and_ceiling_with_the_fewest_moves(
            owners in 1usize..8, extra in proptest::collection::vec(0usize..11, 0..64), seed: u64
        ) {
            let mut holders: Vec<_> = (0..owners).chain(extra).collect();
            let before: Vec<_> = (0..owners).map(|me| holders.iter().filter(|h| **h == me).count()).collect();
            let (floor, remainder) = (holders.len() / owners, holders.len() % owners);
            let mut rng = StdRng::seed_from_u64(seed);
            let moves = settle(&mut holders, owners, Strategy::Balanced, &mut rng);
            let mut fewest: Vec<_> = before.clone();
            fewest.sort_unstable_by(|a, b| b.cmp(a));
            let fewest: usize = fewest
                .iter()
                .enumerate()
                .map(|(rank, held)| held.saturating_sub(floor + usize::from(rank < remainder)))
                .sum();
            for me in 0..owners {
                let held = holders.iter().filter(|h| **h == me).count();
                prop_assert!(held == floor || (remainder > 0 && held == floor + 1), "{held} of floor {floor}");
            }
            prop_assert_eq!(moves, fewest);
        }
    }

    #[test]
    fn what_is_recorded_as_mine_comes_back_at_once_whatever_the_strategy() {
        let mut view = view_of(&[1, 1, 0, 0, 0], 2);
        for entry in &mut view.partitions[2..] {
            entry.holder = Holder::Orphan;
        }
        let plan = plan(&view, &by(Strategy::Balanced), &mut StdRng::seed_from_u64(1));
        assert_eq!(plan.claim.len(), 3);
        assert!(plan.claim.iter().all(|claim| claim.reason == ClaimReason::Reclaimed));
    }

    #[test]
    fn what_is_to_be_avoided_leaves_the_claim_to_another_partition() {
        let policy = |avoid: &[u32]| Policy {
            strategy: Strategy::Balanced,
            avoid: avoid.iter().map(|id| PartitionId::from(*id)).collect(),
        };
        // A free one, an expired one, and two to steal.
        let view = view_of(&[2, 9, 1, 1], 2);
        let claimed = |avoid| plan(&view, &policy(avoid), &mut StdRng::seed_from_u64(1)).claim[0].partition.to_string();
        assert_eq!(claimed(&[]), "0");
        assert_eq!(claimed(&[0]), "1");
        let all: Vec<u32> = (0..4).collect();
        assert_eq!(plan(&view, &policy(&all), &mut StdRng::seed_from_u64(1)), Plan::default());
        let robbed = view_of(&[1, 1, 1, 1, 0], 3);
        let claimed = plan(&robbed, &policy(&[0, 1, 2]), &mut StdRng::seed_from_u64(1)).claim;
        assert!(claimed.is_empty() || claimed[0].partition == 3.into());
    }

    #[test]
    fn a_hub_without_partitions_needs_no_plan() {
        assert_eq!(plan(&view_of(&[], 1), &by(Strategy::Greedy), &mut StdRng::seed_from_u64(1)), Plan::default());
    }
}
