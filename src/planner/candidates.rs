//! The partitions that may be claimed.

use rand::Rng;
use rand::seq::SliceRandom;

use super::policy::Policy;
use super::view::{PartitionOwner, PartitionView, View};

/// What a strategy would claim without the limit: partitions by their place in the view, in the order in which they are
/// claimed.
#[derive(Default)]
pub(super) struct WantedPartitions {
    /// The unowned partitions that this instance should claim, now or in the next cycles.
    pub(super) unowned: Vec<usize>,
    /// Partitions of live owners, to steal or to request after that.
    pub(super) stolen: Vec<usize>,
    /// How many of all these to claim at once.
    pub(super) at_once: usize,
}

/// The place of this instance among those that lack partitions, counted from 0, and their number. Of the candidates it
/// claims those first whose number has this remainder.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimTurn {
    pub(super) place: usize,
    pub(super) of: usize,
}

impl ClaimTurn {
    pub(super) const ALONE: Self = Self { place: 0, of: 1 };

    /// Returns whether this instance claims the candidate with this number before the others do.
    fn comes_first(self, number: usize) -> bool {
        number % self.of == self.place
    }
}

/// The unowned partitions that an instance may claim, by their places in the view.
pub(super) struct UnownedPlaces {
    /// In the order in which they are claimed.
    pub(super) places: Vec<usize>,
    /// How many of them no other instance claims first.
    pub(super) part: usize,
}

/// Returns the free and released partitions, then the expired ones. Of each kind, those come first that no other
/// instance claims first: instances that see the same do not collide. The order is otherwise random, so that instances
/// that see different things rarely collide.
pub(super) fn unowned_places(view: &View<'_>, policy: &Policy, turn: ClaimTurn, rng: &mut impl Rng) -> UnownedPlaces {
    let mut unowned = UnownedPlaces { places: Vec::new(), part: 0 };
    for is_of_kind in [PartitionView::is_free, PartitionView::is_expired] {
        let candidates = find_claimable(view, policy, is_of_kind).into_iter().enumerate();
        let (mut first, mut then): (Vec<_>, Vec<_>) = candidates.partition(|(number, _)| turn.comes_first(*number));
        first.shuffle(rng);
        then.shuffle(rng);
        unowned.part += first.len();
        unowned.places.extend(first.into_iter().chain(then).map(|(_, place)| place));
    }
    unowned
}

/// Returns the partitions that other live owners can give up, in random order.
pub(super) fn places_of_others(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Vec<usize> {
    let mut found = find_claimable(view, policy, |entry| {
        let is_other = matches!(&entry.owner, PartitionOwner::Other(owner) if *owner != view.me);
        let not_requestable = policy.handoff && view.not_requestable.contains(&entry.partition);
        is_other && !entry.away && entry.handoff_to.is_none() && !entry.is_owned_by_operator() && !not_requestable
    });
    found.shuffle(rng);
    found
}

/// Returns the matching partitions that the strategy allows and that are not to be avoided, by their places.
pub(super) fn find_claimable(
    view: &View<'_>,
    policy: &Policy,
    like_this: impl Fn(&PartitionView) -> bool,
) -> Vec<usize> {
    let found = view.partitions.iter().enumerate().filter(|(ordinal, entry)| {
        like_this(entry)
            && !policy.avoid.contains(&entry.partition)
            && policy.strategy.may_own(*ordinal, &entry.partition)
    });
    found.map(|(place, _)| place).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::model::OwnerId;
    use crate::planner::idle::tests::view_of;

    /// Returns what others can give up of the partitions of `a`.
    fn places(view: &View<'_>, handoff: bool) -> Vec<usize> {
        places_of_others(view, &Policy { handoff, ..Policy::default() }, &mut StdRng::seed_from_u64(0))
    }

    #[test]
    fn only_partitions_that_run_elsewhere_can_be_taken() {
        assert_eq!(places(&view_of("m.a"), false), [2]);
        let mut kept_for_restart = view_of("aa");
        kept_for_restart.partitions[0].away = true;
        assert_eq!(places(&kept_for_restart, false), [1]);
        let mut requested = view_of("aa");
        requested.partitions[0].handoff_to = Some(OwnerId::from_record("b"));
        assert_eq!(places(&requested, false), [1]);
        let mut operated = view_of("aa");
        operated.partitions[0].operator = Some(OwnerId::from_record("a"));
        assert_eq!(places(&operated, false), [1]);
    }

    #[test]
    fn old_leases_can_be_stolen_but_not_requested() {
        let mut view = view_of("aa");
        view.not_requestable = [0.into()].into();
        assert_eq!(places(&view, true), [1]);
        let mut stolen = places(&view, false);
        stolen.sort_unstable();
        assert_eq!(stolen, [0, 1]);
    }
}
