//! Sharing by numbers: everybody holds `floor(P/N)` partitions, and `P mod N` owners one more.

use rand::Rng;
use rand::seq::SliceRandom;

use super::candidates::{Wanted, in_other_hands, unowned};
use super::census::{OwnershipCounts, THIS};
use super::policy::Policy;
use super::view::View;
use crate::model::OwnerId;

/// What brings me to my target.
pub(super) fn wanted(view: &View<'_>, policy: &Policy, at_once: usize, rng: &mut impl Rng) -> Wanted {
    let census = OwnershipCounts::of(view);
    let held = census.counts();
    let shares = Shares::of(view.partitions.len(), held.len());
    let lacking = shares.target(&held).saturating_sub(held[THIS]);
    let (of_unowned, active) = without_idle(&census, &held, policy);
    let claimable = lacking.max(of_unowned.target(&active).saturating_sub(held[THIS]));
    if claimable == 0 {
        return Wanted { unowned: Vec::new(), stolen: Vec::new(), at_once };
    }
    let mut unowned = unowned(view, policy, rng);
    unowned.truncate(claimable);
    let missing = lacking.saturating_sub(unowned.len());
    let stolen = if missing == 0 {
        Vec::new()
    } else {
        stolen(in_other_hands(view, policy, rng), &census, held, shares, missing, rng)
    };
    Wanted { unowned, stolen, at_once }
}

/// The owners that may hold one more than they do, if the idle ones take nothing.
pub(super) fn below_target<'a>(view: &'a View<'_>, policy: &Policy) -> Vec<&'a OwnerId> {
    let census = OwnershipCounts::of(view);
    let held = census.counts();
    let (Shares { floor, remainder }, active) = without_idle(&census, &held, policy);
    let above = active.iter().filter(|held| **held > floor).count();
    // One above the floor is too many for an owner if as many others have that much as may.
    let is_below = |held: usize| held < floor || (held == floor && above < remainder);
    census.owners.into_iter().zip(held).filter(|(_, held)| is_below(*held)).map(|(owner, _)| owner).collect()
}

/// The shares of the owners that are not idle, if the idle ones keep what they hold; and what each of the former holds.
fn without_idle(census: &OwnershipCounts<'_>, held: &[usize], policy: &Policy) -> (Shares, Vec<usize>) {
    let owners = census.owners.iter().zip(held);
    let (idle, active): (Vec<_>, Vec<_>) = owners.partition(|(owner, _)| policy.idle.contains(*owner));
    let kept: usize = idle.into_iter().map(|(_, held)| held).sum();
    let active: Vec<_> = active.into_iter().map(|(_, held)| *held).collect();
    (Shares::of(census.holders.len() - kept, active.len()), active)
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
    fn target(self, held: &[usize]) -> usize {
        self.floor + usize::from(self.others_above_floor(held) < self.remainder)
    }

    /// What the fullest owner may keep when I, below my target, take from it. With `floor + 1` it has more than its
    /// share only if more than `remainder` others hold as much; my target is the floor then.
    fn kept_by_victim(self, held: &[usize]) -> usize {
        self.floor + usize::from(self.others_above_floor(held) <= self.remainder)
    }

    fn others_above_floor(self, held: &[usize]) -> usize {
        held.iter().skip(THIS + 1).filter(|held| **held > self.floor).count()
    }
}

/// One by one from the owner that then holds the most; of several, from a random one, so that instances that join
/// together seldom rob the same.
fn stolen(
    candidates: Vec<usize>,
    census: &OwnershipCounts<'_>,
    mut held: Vec<usize>,
    shares: Shares,
    wanted: usize,
    rng: &mut impl Rng,
) -> Vec<usize> {
    let mut partitions_of = vec![Vec::new(); held.len()];
    for place in candidates {
        if let Some(owner) = census.holders[place] {
            partitions_of[owner].push(place);
        }
    }
    // Whose partitions are all to be avoided is left alone.
    let mut victims: Vec<_> = (0..held.len()).filter(|owner| !partitions_of[*owner].is_empty()).collect();
    victims.shuffle(rng);
    let mut stolen = Vec::new();
    while stolen.len() < wanted {
        let robbable = victims.iter().copied().filter(|owner| !partitions_of[*owner].is_empty());
        let Some(victim) = robbable.max_by_key(|owner| held[*owner]) else { break };
        if held[victim] <= shares.kept_by_victim(&held) {
            break;
        }
        stolen.extend(partitions_of[victim].pop());
        held[victim] -= 1;
    }
    stolen
}
