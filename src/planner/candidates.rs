//! The partitions that may be taken.

use rand::Rng;
use rand::seq::SliceRandom;

use super::policy::Policy;
use super::view::{PartitionOwner, PartitionView, View};

/// What a strategy would take, were it not for the cap: partitions by their place in the view, the first ones first.
pub(super) struct Wanted {
    /// Of what nobody owns, everything that is for me to take, now or in the next intervals.
    pub(super) unowned: Vec<usize>,
    /// From live owners, after that: stolen or asked for.
    pub(super) stolen: Vec<usize>,
    /// How many of them all at once.
    pub(super) at_once: usize,
}

/// Free and released partitions, then expired ones. The order of one kind is random, so that two instances seldom
/// collide.
pub(super) fn unowned(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Vec<usize> {
    let mut free = claimable(view, policy, is_free);
    let mut expired = claimable(view, policy, is_expired);
    free.shuffle(rng);
    expired.shuffle(rng);
    free.append(&mut expired);
    free
}

/// The partitions that can be had from other live owners, in random order.
pub(super) fn in_other_hands(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Vec<usize> {
    let mut found = claimable(view, policy, |entry| {
        let theirs = matches!(&entry.owner, PartitionOwner::Other(owner) if *owner != view.me);
        let unmarkable = policy.handoff && view.not_requestable.contains(&entry.partition);
        theirs && !entry.away && entry.handoff_to.is_none() && !entry.is_held_by_operator() && !unmarkable
    });
    found.shuffle(rng);
    found
}

/// Whether it is for anybody to claim.
pub(super) fn is_unowned(entry: &PartitionView) -> bool {
    is_free(entry) || is_expired(entry)
}

impl View<'_> {
    /// Whether any partition is for anybody to claim.
    #[must_use]
    pub fn has_unowned(&self) -> bool {
        self.partitions.iter().any(is_unowned)
    }
}

fn is_free(entry: &PartitionView) -> bool {
    matches!(entry.owner, PartitionOwner::Unowned | PartitionOwner::Released) && entry.handoff_to.is_none()
}

fn is_expired(entry: &PartitionView) -> bool {
    matches!(entry.owner, PartitionOwner::Expired(_))
}

/// The partitions like this that may be mine and are not to be avoided, by their places.
pub(super) fn claimable(view: &View<'_>, policy: &Policy, like_this: impl Fn(&PartitionView) -> bool) -> Vec<usize> {
    let entries = view.partitions.iter().enumerate();
    let found = entries.filter(|(ordinal, entry)| {
        like_this(entry)
            && !policy.avoid.contains(&entry.partition)
            && policy.strategy.admits(*ordinal, &entry.partition)
    });
    found.map(|(place, _)| place).collect()
}
