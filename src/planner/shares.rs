//! Sharing by numbers: every owner owns `floor(P/N)` partitions, and `P mod N` owners one more.

use rand::Rng;
use rand::seq::SliceRandom;

use super::candidates::{ClaimTurn, UnownedPlaces, WantedPartitions, places_of_others, unowned_places};
use super::policy::{ClaimPace, LoadBalancingStrategy, Policy};
use super::view::{OwnershipCounts, THIS, View};
use crate::model::OwnerId;

/// How many of the instances without a turn claim one partition anyway, on average.
const OUT_OF_TURN: f64 = 8.0;

/// Returns what brings this instance to its target.
pub(super) fn choose_by_number(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> WantedPartitions {
    let counts = OwnershipCounts::new(view);
    let owned = counts.by_owner();
    let shares = Shares::new(view.partitions.len(), owned.len());
    let lacking = shares.target_of_this(&owned).saturating_sub(owned[THIS]);
    let (of_unowned, active) = shares_without_idle(&counts, &owned, policy);
    let claimable = lacking.max(of_unowned.target_of_this(&active).saturating_sub(owned[THIS]));
    if claimable == 0 {
        return WantedPartitions::default();
    }
    // The place of this instance among the owners that claim unowned partitions, in the order of their ids.
    let mut claiming = owners_below_target(view, policy);
    // An owner with overdue leases may have crashed.
    claiming.retain(|owner| {
        !policy.idle.contains(*owner) && view.owners.get(*owner).is_none_or(|live| live.overdue_expiry.is_none())
    });
    claiming.sort_unstable();
    let place = claiming.iter().position(|owner| **owner == view.me);
    let turn = place.map_or(ClaimTurn::ALONE, |place| ClaimTurn { place, of: claiming.len() });
    let UnownedPlaces { places: mut unowned, part } = unowned_places(view, policy, turn, rng);
    unowned.truncate(claimable);
    let missing = lacking.saturating_sub(unowned.len());
    let stolen = if missing == 0 {
        Vec::new()
    } else {
        choose_to_steal(places_of_others(view, policy, rng), &counts, owned, shares, missing, rng)
    };
    let at_once = match (&policy.strategy, policy.pace) {
        (LoadBalancingStrategy::Greedy, _) => usize::MAX,
        (_, ClaimPace::One) => 1,
        // The instances whose turn it is may have listed other partitions, or have ended. If all other instances of a
        // large group claimed one, most would lose. So only some do, and the rest look again later.
        (_, ClaimPace::Part) if part == 0 && !unowned.is_empty() => {
            let claiming = u32::try_from(claiming.len()).unwrap_or(u32::MAX);
            usize::from(policy.chance * f64::from(claiming) <= OUT_OF_TURN)
        }
        // At most one partition is taken from a live owner, and only if none is unowned.
        (_, ClaimPace::Part) => part.clamp(1, unowned.len().max(1)),
        (_, ClaimPace::All) => unowned.len().max(1),
    };
    WantedPartitions { unowned, stolen, at_once }
}

/// Returns the owners that may own one more than they do, if the idle ones claim nothing.
pub(super) fn owners_below_target<'a>(view: &'a View<'_>, policy: &Policy) -> Vec<&'a OwnerId> {
    let counts = OwnershipCounts::new(view);
    let owned = counts.by_owner();
    let (Shares { floor, remainder }, active) = shares_without_idle(&counts, &owned, policy);
    let above = active.iter().filter(|owned| **owned > floor).count();
    // An owner at the floor may not exceed it if as many owners as allowed do so already.
    let target = if above < remainder { floor + 1 } else { floor };
    counts.owners.into_iter().zip(owned).filter(|(_, owned)| *owned < target).map(|(owner, _)| owner).collect()
}

/// Returns the shares of the owners that are not idle, if the idle ones keep what they own, and how many partitions
/// each of the former owns.
fn shares_without_idle(counts: &OwnershipCounts<'_>, owned: &[usize], policy: &Policy) -> (Shares, Vec<usize>) {
    let (idle, active): (Vec<_>, Vec<_>) =
        counts.owners.iter().zip(owned).partition(|(owner, _)| policy.idle.contains(*owner));
    let kept: usize = idle.into_iter().map(|(_, owned)| owned).sum();
    let active: Vec<_> = active.into_iter().map(|(_, owned)| *owned).collect();
    (Shares::new(counts.counts_for.len() - kept, active.len()), active)
}

/// How P partitions divide among N owners.
#[derive(Clone, Copy, Debug)]
struct Shares {
    floor: usize,
    remainder: usize,
}

impl Shares {
    /// `owners` is never zero, because this instance is one of them.
    fn new(partitions: usize, owners: usize) -> Self {
        Self { floor: partitions / owners, remainder: partitions % owners }
    }

    /// Returns how many partitions this instance should own: one more than the floor if fewer than `remainder` others
    /// own that many already.
    fn target_of_this(self, owned: &[usize]) -> usize {
        self.floor + usize::from(self.others_above_floor(owned) < self.remainder)
    }

    /// Returns how many partitions the owner with the most may keep if this instance, which is below its target, takes
    /// from it. With `floor + 1` that owner has more than its share only if more than `remainder` others own as many;
    /// the target of this instance is the floor then.
    fn kept_by_fullest(self, owned: &[usize]) -> usize {
        self.floor + usize::from(self.others_above_floor(owned) <= self.remainder)
    }

    fn others_above_floor(self, owned: &[usize]) -> usize {
        owned.iter().skip(THIS + 1).filter(|owned| **owned > self.floor).count()
    }
}

/// Takes one partition after another from the owner that owns the most at that point. Of several, it takes from a
/// random one, so that instances that join together rarely take from the same.
fn choose_to_steal(
    candidates: Vec<usize>,
    counts: &OwnershipCounts<'_>,
    mut owned: Vec<usize>,
    shares: Shares,
    wanted: usize,
    rng: &mut impl Rng,
) -> Vec<usize> {
    let mut partitions_of = vec![Vec::new(); owned.len()];
    for place in candidates {
        if let Some(owner) = counts.counts_for[place] {
            partitions_of[owner].push(place);
        }
    }
    // Owners whose partitions are all to be avoided keep them.
    let mut owners: Vec<_> = (0..owned.len()).filter(|owner| !partitions_of[*owner].is_empty()).collect();
    owners.shuffle(rng);
    let mut stolen = Vec::new();
    while stolen.len() < wanted {
        let available = owners.iter().copied().filter(|owner| !partitions_of[*owner].is_empty());
        let Some(fullest) = available.max_by_key(|owner| owned[*owner]) else { break };
        if owned[fullest] <= shares.kept_by_fullest(&owned) {
            break;
        }
        stolen.extend(partitions_of[fullest].pop());
        owned[fullest] -= 1;
    }
    stolen
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::model::Moment;
    use crate::planner::idle::tests::view_of;
    use crate::planner::view::LiveOwnership;

    /// Returns how many partitions an instance with this random number claims.
    fn claims(view: &View<'_>, chance: f64) -> usize {
        let policy = Policy { pace: ClaimPace::Part, chance, ..Policy::default() };
        let wanted = choose_by_number(view, &policy, &mut StdRng::seed_from_u64(1));
        wanted.unowned.len().min(wanted.at_once)
    }

    #[test]
    fn of_a_large_group_few_claim_out_of_turn() {
        assert_eq!(claims(&view_of("abcm.."), 1.0), 1, "in a small group a conflict costs less than a wait");
        let claiming = (0..11).filter(|tenth| claims(&view_of("abcdefghijklm."), f64::from(*tenth) / 10.0) > 0);
        assert_eq!(claiming.count(), 7, "8 of 13");
    }

    #[test]
    fn an_owner_at_the_floor_may_own_one_more_at_times() {
        let below_target = |layout| -> String {
            let view = view_of(layout);
            owners_below_target(&view, &Policy::default()).into_iter().map(OwnerId::as_str).collect()
        };
        assert_eq!(below_target("aabbm.."), "mab", "one of the three may own 3");
        assert_eq!(below_target("aaabbm."), "m", "one does already");
        assert_eq!(below_target("aabb..m."), "mab", "two may");
    }

    #[test]
    fn a_dead_owner_has_no_turn() {
        let mut view = view_of("amnopqrstuv.");
        assert_eq!(claims(&view, 1.0), 0, "it is the turn of `a`");
        let dead = LiveOwnership {
            partition: 0.into(),
            silent_at: Moment::ZERO,
            overdue_expiry: Some(Moment::ZERO),
            takes_part: true,
        };
        view.owners.insert(OwnerId::from_record("a"), dead);
        assert_eq!(claims(&view, 1.0), 1);
    }
}
