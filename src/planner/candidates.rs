//! The partitions that may be claimed.

use rand::Rng;
use rand::seq::SliceRandom;

use super::policy::Policy;
use super::view::{PartitionOwner, PartitionView, View};

/// What a strategy would claim without the limit: partitions by their place in the view, in the order in which they are
/// claimed.
pub(super) struct Wanted {
    /// The unowned partitions that this instance should claim, now or in the next cycles.
    pub(super) unowned: Vec<usize>,
    /// Partitions of live owners, to steal or to request after that.
    pub(super) stolen: Vec<usize>,
    /// How many of all these to claim at once.
    pub(super) at_once: usize,
}

/// The place of this instance among those that lack partitions, counted from 0, and their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) place: usize,
    pub(super) of: usize,
}

impl Turn {
    pub(super) const ALONE: Self = Self { place: 0, of: 1 };

    /// Returns whether this instance should claim a candidate, counted from 0, before the others do.
    fn is_first_for(self, candidate: usize) -> bool {
        candidate % self.of == self.place
    }
}

/// Returns the free and released partitions, then the expired ones. Of each kind, those come first that no other
/// instance claims first: instances that see the same do not collide. The order is otherwise random, so that instances that
/// see different things seldom collide.
pub(super) fn unowned(view: &View<'_>, policy: &Policy, turn: Turn, rng: &mut impl Rng) -> Vec<usize> {
    let mut ordered = |kind: fn(&PartitionView) -> bool| {
        let candidates = claimable(view, policy, kind).into_iter().enumerate();
        let (mut first, mut then): (Vec<_>, Vec<_>) = candidates.partition(|(number, _)| turn.is_first_for(*number));
        first.shuffle(rng);
        then.shuffle(rng);
        first.into_iter().chain(then).map(|(_, place)| place).collect::<Vec<_>>()
    };
    let mut unowned = ordered(is_free);
    unowned.append(&mut ordered(is_expired));
    unowned
}

/// Returns the partitions that other live owners can give up, in random order.
pub(super) fn owned_by_others(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Vec<usize> {
    let mut found = claimable(view, policy, |entry| {
        let is_other = matches!(&entry.owner, PartitionOwner::Other(owner) if *owner != view.me);
        let not_requestable = policy.handoff && view.not_requestable.contains(&entry.partition);
        is_other && !entry.away && entry.handoff_to.is_none() && !entry.is_owned_by_operator() && !not_requestable
    });
    found.shuffle(rng);
    found
}

/// Returns whether any instance may claim it.
pub(super) fn is_unowned(entry: &PartitionView) -> bool {
    is_free(entry) || is_expired(entry)
}

impl View<'_> {
    /// Returns whether any partition is unowned.
    #[must_use]
    pub fn has_unowned(&self) -> bool {
        self.partitions.iter().any(is_unowned)
    }

    /// Returns whether any released partition is reserved for another instance, as long as that instance is alive.
    #[must_use]
    pub fn has_reserved(&self) -> bool {
        let mut released = self.partitions.iter().filter(|entry| entry.owner == PartitionOwner::Released);
        released.any(|entry| entry.handoff_to.as_ref().is_some_and(|to| *to != self.me))
    }
}

fn is_free(entry: &PartitionView) -> bool {
    matches!(entry.owner, PartitionOwner::Unowned | PartitionOwner::Released) && entry.handoff_to.is_none()
}

fn is_expired(entry: &PartitionView) -> bool {
    matches!(entry.owner, PartitionOwner::Expired(_))
}

/// Returns the matching partitions that the strategy allows and that are not to be avoided, by their places.
pub(super) fn claimable(view: &View<'_>, policy: &Policy, like_this: impl Fn(&PartitionView) -> bool) -> Vec<usize> {
    let entries = view.partitions.iter().enumerate();
    let found = entries.filter(|(ordinal, entry)| {
        like_this(entry)
            && !policy.avoid.contains(&entry.partition)
            && policy.strategy.admits(*ordinal, &entry.partition)
    });
    found.map(|(place, _)| place).collect()
}
