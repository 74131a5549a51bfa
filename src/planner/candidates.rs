//! The partitions that may be claimed.

use rand::Rng;
use rand::seq::SliceRandom;

use super::policy::Policy;
use super::view::{PartitionOwner, PartitionView, View};

/// What a strategy would claim without the limit: partitions by their place in the view, in the order in which they are
/// claimed.
pub(super) struct Wanted {
    /// The unowned partitions that this instance should claim, now or in the next intervals.
    pub(super) unowned: Vec<usize>,
    /// Partitions of live owners, to steal or to request after that.
    pub(super) stolen: Vec<usize>,
    /// How many of all these to claim at once.
    pub(super) at_once: usize,
}

/// Returns the free and released partitions, then the expired ones. The order within each kind is random, so that two
/// instances seldom collide.
pub(super) fn unowned(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Vec<usize> {
    let mut free = claimable(view, policy, is_free);
    let mut expired = claimable(view, policy, is_expired);
    free.shuffle(rng);
    expired.shuffle(rng);
    free.append(&mut expired);
    free
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
