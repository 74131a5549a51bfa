//! Which partitions an owner of another SDK claims.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::blob::ETag;
use rand::RngExt;
use rand::rngs::StdRng;

use super::rules::{Rules, Sdk};

/// An ownership as a listing shows it.
pub(super) struct Seen {
    pub(super) owner: String,
    /// By the wall clock of the owner that lists.
    pub(super) age: time::Duration,
    pub(super) live: bool,
    pub(super) etag: ETag,
}

/// The partitions that the owner holds, and those that it tries to claim.
pub(super) struct Choice {
    pub(super) owned: Vec<PartitionId>,
    pub(super) wanted: Vec<PartitionId>,
}

/// Returns what an owner of this SDK does after a listing.
pub(super) fn choose(
    rules: &Rules,
    this_owner: &str,
    partitions: &[PartitionId],
    seen: &BTreeMap<PartitionId, Seen>,
    rng: &mut StdRng,
) -> Choice {
    let mut owned = Vec::new();
    let mut free = Vec::new();
    let mut others: BTreeMap<&str, Vec<&PartitionId>> = BTreeMap::new();
    for partition in partitions {
        let live = seen.get(partition).filter(|seen| seen.live && (rules.counts_released || !seen.owner.is_empty()));
        match live {
            Some(seen) if seen.owner == this_owner => owned.push(partition.clone()),
            Some(seen) => others.entry(seen.owner.as_str()).or_default().push(partition),
            None => free.push(partition),
        }
    }
    let owners = others.len() + 1;
    let group = Group {
        own: owned.len(),
        others: others.into_values().collect(),
        free,
        share: partitions.len() / owners,
        uneven: partitions.len() % owners,
    };
    let (from, count) = group.wanted(rules.sdk, rng);
    Choice { owned, wanted: drawn(from, count, rng) }
}

/// The partitions that each owner holds.
struct Group<'a> {
    own: usize,
    others: Vec<Vec<&'a PartitionId>>,
    free: Vec<&'a PartitionId>,
    /// Rounded down.
    share: usize,
    /// How many owners are due one partition more.
    uneven: usize,
}

/// Candidates, and how many of them to claim.
type Wanted<'a> = (Vec<&'a PartitionId>, usize);

impl<'a> Group<'a> {
    fn wanted(self, sdk: Sdk, rng: &mut StdRng) -> Wanted<'a> {
        match sdk {
            Sdk::DotNet => self.like_dot_net(),
            Sdk::Java => self.like_java(),
            Sdk::JavaScript => self.like_java_script(),
            Sdk::Python => self.like_python(),
            Sdk::Go => self.like_go(1, rng),
            Sdk::Rust => self.like_go(usize::MAX, rng),
        }
    }

    fn like_dot_net(self) -> Wanted<'a> {
        let (own, share) = (self.own, self.share);
        let no_one_lacks = self.others.iter().all(|held| held.len() >= share);
        if own > share || (own == share && !no_one_lacks) {
            return (Vec::new(), 0);
        }
        if !self.free.is_empty() {
            return (self.free, 1);
        }
        match self.of_owners_above(share + 1) {
            above if above.is_empty() && own < share => (self.of_owners_above(share), 1),
            above => (above, 1),
        }
    }

    fn like_java(self) -> Wanted<'a> {
        let counts = || self.others.iter().map(Vec::len).chain([self.own]);
        let fair = counts().all(|count| count == self.share || count == self.share + 1)
            && counts().filter(|count| *count == self.share + 1).count() == self.uneven;
        let least = counts().min() == Some(self.own);
        if fair || !(least || self.own < self.share) {
            return (Vec::new(), 0);
        }
        if self.free.is_empty() { (self.of_the_fullest(), 1) } else { (self.free, 1) }
    }

    fn like_java_script(mut self) -> Wanted<'a> {
        let above = self.others.iter().map(Vec::len).chain([self.own]).filter(|count| *count > self.share).count();
        let due = self.share + usize::from(above < self.uneven);
        let lacking = due.saturating_sub(self.own);
        if lacking == 0 {
            return (Vec::new(), 0);
        }
        self.others.sort_by_key(|held| Reverse(held.len()));
        let beyond_their_due = self.others.iter().enumerate().flat_map(|(rank, held)| {
            let allowed = self.share + usize::from(rank < self.uneven);
            held.iter().skip(allowed).copied()
        });
        let wanted = self.free.iter().copied().chain(beyond_their_due).take(lacking);
        (wanted.collect(), 1)
    }

    fn like_python(self) -> Wanted<'a> {
        let lacking = (self.share + usize::from(self.uneven > 0)).saturating_sub(self.own);
        if !self.free.is_empty() {
            return (self.free, lacking);
        }
        if self.own < self.share { (self.of_the_fullest(), 1) } else { (Vec::new(), 0) }
    }

    fn like_go(self, at_once: usize, rng: &mut StdRng) -> Wanted<'a> {
        let allowed = self.share + usize::from(self.uneven > 0 && self.own >= self.share);
        let count = allowed.saturating_sub(self.own).min(at_once);
        if self.free.len() >= count {
            return (self.free, count);
        }
        let above = self.of_owners_above(allowed);
        let stolen: Vec<_> = shuffled(above, rng).into_iter().take(count - self.free.len()).collect();
        ([self.free, stolen].concat(), count)
    }

    fn of_owners_above(&self, count: usize) -> Vec<&'a PartitionId> {
        self.others.iter().filter(|held| held.len() > count).flatten().copied().collect()
    }

    fn of_the_fullest(&self) -> Vec<&'a PartitionId> {
        self.others
            .iter()
            .max_by_key(|held| held.len())
            .filter(|held| held.len() > self.own)
            .cloned()
            .unwrap_or_default()
    }
}

/// Returns `count` randomly drawn partitions.
fn drawn(from: Vec<&PartitionId>, count: usize, rng: &mut StdRng) -> Vec<PartitionId> {
    shuffled(from, rng).into_iter().take(count).cloned().collect()
}

fn shuffled<'a>(mut from: Vec<&'a PartitionId>, rng: &mut StdRng) -> Vec<&'a PartitionId> {
    (0..from.len()).map(|_| from.swap_remove(rng.random_range(0..from.len()))).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::rules::Sdk;
    use super::*;

    /// Returns how many partitions an owner takes from each other owner, by index, if it and the others hold `held` and
    /// `free` are unowned. Index 0 stands for the unowned ones.
    fn taken(sdk: Sdk, held: &[usize], free: usize) -> BTreeMap<usize, usize> {
        let total = held.iter().sum::<usize>() + free;
        let partitions: Vec<PartitionId> = (0..total).map(|id| PartitionId::from(u32::try_from(id).unwrap())).collect();
        let owner_of: Vec<usize> = held.iter().enumerate().flat_map(|(owner, count)| vec![owner + 1; *count]).collect();
        let seen = partitions.iter().zip(&owner_of).map(|(partition, owner)| {
            let seen = Seen { owner: owner.to_string(), age: time::Duration::ZERO, live: true, etag: ETag::new("x") };
            (partition.clone(), seen)
        });
        let seen = seen.collect();
        let choice = choose(&Rules::of(sdk), "1", &partitions, &seen, &mut StdRng::seed_from_u64(1));
        assert_eq!(choice.owned.len(), held[0]);
        let mut taken = BTreeMap::new();
        for partition in choice.wanted {
            let index: usize = partition.as_str().parse().unwrap();
            *taken.entry(owner_of.get(index).copied().unwrap_or(0)).or_default() += 1;
        }
        taken
    }

    #[test]
    fn a_balanced_group_claims_nothing() {
        for sdk in Sdk::ALL {
            for held in [&[4, 4, 4][..], &[4, 5, 4], &[5, 4, 4], &[5, 4, 5], &[1]] {
                assert_eq!(taken(sdk, held, 0), BTreeMap::new(), "{sdk:?} {held:?}");
            }
        }
    }

    #[test]
    fn unowned_partitions_per_cycle() {
        for (sdk, count) in [(Sdk::DotNet, 1), (Sdk::Java, 1), (Sdk::JavaScript, 1), (Sdk::Go, 1)] {
            assert_eq!(taken(sdk, &[0, 4], 8), BTreeMap::from([(0, count)]), "{sdk:?}");
        }
        assert_eq!(taken(Sdk::Python, &[0, 4], 9), BTreeMap::from([(0, 7)]), "rounded up");
        assert_eq!(taken(Sdk::Rust, &[0, 4], 9), BTreeMap::from([(0, 6)]), "rounded down");
    }

    #[test]
    fn a_new_owner_steals() {
        for sdk in [Sdk::DotNet, Sdk::Java, Sdk::JavaScript, Sdk::Python, Sdk::Go] {
            assert_eq!(taken(sdk, &[0, 8, 4], 0), BTreeMap::from([(2, 1)]), "{sdk:?}");
        }
        assert_eq!(taken(Sdk::Rust, &[0, 8, 4], 0), BTreeMap::from([(2, 4)]), "all at once");
    }

    #[test]
    fn an_owner_one_above_the_share_is_a_victim() {
        for sdk in Sdk::ALL {
            let taken = taken(sdk, &[3, 5, 5, 4], 0);
            assert!(taken.values().eq([&1]) && taken.keys().all(|owner| [2, 3].contains(owner)), "{sdk:?} {taken:?}");
        }
    }

    #[test]
    fn go_and_rust_take_a_victim_below_its_share() {
        assert_eq!(taken(Sdk::Rust, &[0, 5, 5], 0).values().sum::<usize>(), 3);
        assert_eq!(taken(Sdk::Go, &[0, 5, 5], 0).values().sum::<usize>(), 1);
    }
}
