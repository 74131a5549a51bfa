//! Sharing by numbers: everybody holds `floor(P/N)` partitions, and `P mod N` owners one more.

use rand::Rng;
use rand::seq::SliceRandom;

use super::census::{Census, ME};
use super::plan::{Wanted, in_other_hands, unowned};
use super::policy::Policy;
use super::view::View;

/// What brings me to my target.
pub(super) fn wanted(view: &View, policy: &Policy, at_once: usize, rng: &mut impl Rng) -> Wanted {
    let census = Census::of(view);
    let held = census.counts();
    let shares = Shares::of(view.partitions.len(), held.len());
    let lacking = shares.target(&held).saturating_sub(held[ME]);
    if lacking == 0 {
        return Wanted { unowned: Vec::new(), stolen: Vec::new(), at_once };
    }
    let mut unowned = unowned(view, policy, rng);
    unowned.truncate(lacking);
    let missing = lacking - unowned.len();
    let stolen = if missing == 0 {
        Vec::new()
    } else {
        stolen(in_other_hands(view, policy, rng), &census, held, shares, missing, rng)
    };
    Wanted { unowned, stolen, at_once }
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

    /// What the fullest owner may keep when I, below my target, take from it. With `floor + 1` it has more than its share
    /// only if more than `remainder` others hold as much; my target is the floor then.
    fn kept_by_victim(self, held: &[usize]) -> usize {
        self.floor + usize::from(self.others_above_floor(held) <= self.remainder)
    }

    fn others_above_floor(self, held: &[usize]) -> usize {
        held.iter().skip(ME + 1).filter(|held| **held > self.floor).count()
    }
}

/// One by one from the owner that then holds the most; of several, from a random one, so that instances that join
/// together seldom rob the same.
fn stolen(
    candidates: Vec<usize>,
    census: &Census<'_>,
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
