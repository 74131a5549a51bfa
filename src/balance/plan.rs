//! What one instance should do about what it sees.

use rand::Rng;
use rand::seq::SliceRandom;
use serde::Serialize;

use super::policy::{Policy, Strategy};
use super::view::{Holder, PartitionView, View};
use super::{shares, weighted};
use crate::model::{OwnerId, PartitionId};

/// Why a partition is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// Why a partition is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum ReleaseReason {
    /// The hub no longer has it.
    Gone,
    /// It is not assigned to me.
    NotAssigned,
    /// I hold more than I may.
    AboveMax,
}

/// A partition that I run and should give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRelease {
    /// The partition.
    pub partition: PartitionId,
    /// Why.
    pub reason: ReleaseReason,
}

/// What one instance should do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The partitions to be claimed.
    pub claim: Vec<PlannedClaim>,
    /// The partitions to be given back. None of them is claimed by the same plan, nor does any make room in it.
    pub release: Vec<PlannedRelease>,
    /// How many partitions that nobody owns would be for me to take, now or in the next intervals, if
    /// [`Policy::max_partitions`] did not forbid it. Above zero they stay unowned, and nobody reads them: raise the cap or
    /// add instances.
    pub unclaimed_for_cap: usize,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claim.is_empty() && self.release.is_empty()
    }
}

/// What a strategy would take, were it not for the cap: partitions by their place in the view, the first ones first.
pub(super) struct Wanted {
    /// Of what nobody owns, everything that is for me to take, now or in the next intervals.
    pub(super) unowned: Vec<usize>,
    /// From live owners, after that.
    pub(super) stolen: Vec<usize>,
    /// How many of them all at once.
    pub(super) at_once: usize,
}

/// Decides what to do about a view.
///
/// Post-conditions, for any view and policy (`invariants`, with the feature `testing`, has them as functions):
///
/// - What I hold and what I claim together never exceed the cap, nor, by new claims, what the strategy grants me. What is
///   recorded as mine already comes back in any case: it moves nothing.
/// - A claim never leaves its victim with less than its share, and nothing is stolen while there is something unowned to
///   take.
/// - What is to be avoided is not claimed.
/// - A group in which everybody holds its share plans nothing.
pub fn plan(view: &View, policy: &Policy, rng: &mut impl Rng) -> Plan {
    // Phase 1: what I must not keep.
    let release = given_back(view, policy);

    // Phase 2: what is recorded as mine comes back at once, as far as I may hold it. It is counted as mine already, so
    // nothing moves by it.
    let mut room = room(view, policy);
    let mut claim = claimable(view, policy, |holder| *holder == Holder::Orphan);
    claim.truncate(room);
    room -= claim.len();

    // Phase 3: what the strategy would take, from nobody first, then from those who hold too much.
    let wanted = match &policy.strategy {
        Strategy::Balanced => shares::wanted(view, policy, 1, rng),
        Strategy::Greedy => shares::wanted(view, policy, usize::MAX, rng),
        Strategy::Static(_) => assigned(view, policy),
        Strategy::Weighted { threshold_percent } => weighted::wanted(view, policy, *threshold_percent, rng),
    };

    // Phase 4: as much of it as I may.
    let unclaimed_for_cap = wanted.unowned.len().saturating_sub(room);
    let new = wanted.unowned.into_iter().chain(wanted.stolen).take(room.min(wanted.at_once));
    claim.extend(new);
    let claim = claim.into_iter().filter_map(|place| planned_claim(&view.partitions[place])).collect();
    Plan { claim, release, unclaimed_for_cap }
}

/// What the hub no longer has, what is not assigned to me, and the last ones of what is above the cap.
fn given_back(view: &View, policy: &Policy) -> Vec<PlannedRelease> {
    let planned = |partition: &PartitionId, reason| PlannedRelease { partition: partition.clone(), reason };
    let mut release: Vec<_> = view.gone.iter().map(|gone| planned(gone, ReleaseReason::Gone)).collect();
    let mut kept = Vec::new();
    for (ordinal, PartitionView { partition, holder }) in view.partitions.iter().enumerate() {
        if *holder != Holder::Me {
            continue;
        }
        if policy.strategy.admits(ordinal, partition) {
            kept.push(partition);
        } else {
            release.push(planned(partition, ReleaseReason::NotAssigned));
        }
    }
    let above = kept.iter().skip(policy.max_partitions.unwrap_or(usize::MAX));
    release.extend(above.map(|partition| planned(partition, ReleaseReason::AboveMax)));
    release
}

/// How many more I may hold. What I have not given back yet counts, and so does what is recorded as mine but not to be
/// claimed now: a claim of mine may be under way.
fn room(view: &View, policy: &Policy) -> usize {
    let Some(max) = policy.max_partitions else { return usize::MAX };
    let counts = |entry: &&PartitionView| match entry.holder {
        Holder::Me => true,
        Holder::Orphan => policy.avoid.contains(&entry.partition),
        _ => false,
    };
    max.saturating_sub(view.gone.len() + view.partitions.iter().filter(counts).count())
}

/// Everything that is assigned to me and that nobody owns.
fn assigned(view: &View, policy: &Policy) -> Wanted {
    let unowned = claimable(view, policy, |holder| is_free(holder) || is_expired(holder));
    Wanted { unowned, stolen: Vec::new(), at_once: usize::MAX }
}

/// Free and released partitions, then expired ones. The order of one kind is random, so that two instances seldom
/// collide.
pub(super) fn unowned(view: &View, policy: &Policy, rng: &mut impl Rng) -> Vec<usize> {
    let mut free = claimable(view, policy, is_free);
    let mut expired = claimable(view, policy, is_expired);
    free.shuffle(rng);
    expired.shuffle(rng);
    free.append(&mut expired);
    free
}

/// The partitions of other live owners, in random order.
pub(super) fn in_other_hands(view: &View, policy: &Policy, rng: &mut impl Rng) -> Vec<usize> {
    let mut found = claimable(view, policy, |holder| matches!(holder, Holder::Live(owner) if *owner != view.me));
    found.shuffle(rng);
    found
}

fn is_free(holder: &Holder) -> bool {
    matches!(holder, Holder::Nobody | Holder::Released)
}

fn is_expired(holder: &Holder) -> bool {
    matches!(holder, Holder::Expired(_))
}

/// The partitions with such a holder that may be mine and are not to be avoided, by their places.
fn claimable(view: &View, policy: &Policy, held_so: impl Fn(&Holder) -> bool) -> Vec<usize> {
    let entries = view.partitions.iter().enumerate();
    let found = entries.filter(|(ordinal, entry)| {
        held_so(&entry.holder)
            && !policy.avoid.contains(&entry.partition)
            && policy.strategy.admits(*ordinal, &entry.partition)
    });
    found.map(|(place, _)| place).collect()
}

fn planned_claim(entry: &PartitionView) -> Option<PlannedClaim> {
    let reason = match &entry.holder {
        Holder::Orphan => ClaimReason::Reclaimed,
        Holder::Nobody => ClaimReason::Unowned,
        Holder::Released => ClaimReason::Released,
        Holder::Expired(owner) => ClaimReason::Expired(owner.clone()),
        Holder::Live(owner) => ClaimReason::Stolen(owner.clone()),
        Holder::Me | Holder::Elsewhere(_) => return None,
    };
    Some(PlannedClaim { partition: entry.partition.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::super::invariants::check;
    use super::*;
    use crate::balance::Assignment;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    /// One letter per partition. `.` nobody, `_` released, `m` me, `o` an orphan of mine, `X` an expired owner, `E` one in
    /// the other tree; any other letter is a live owner.
    fn view_of(layout: &str) -> View {
        let owner = |letter: char| OwnerId::new(letter.to_string()).unwrap();
        let holder = |letter| match letter {
            '.' => Holder::Nobody,
            '_' => Holder::Released,
            'm' => Holder::Me,
            'o' => Holder::Orphan,
            'X' => Holder::Expired(owner('x')),
            'E' => Holder::Elsewhere(owner('e')),
            live => Holder::Live(owner(live)),
        };
        let entries = (0u32..).zip(layout.chars());
        let partitions = entries.map(|(id, letter)| PartitionView { partition: id.into(), holder: holder(letter) });
        View {
            partitions: partitions.collect(),
            gone: Vec::new(),
            me: owner('m'),
            replaced_by: None,
            foreign_owner: false,
        }
    }

    fn checked(view: &View, policy: &Policy) -> Plan {
        let plan = plan(view, policy, &mut StdRng::seed_from_u64(1));
        check(view, policy, &plan).unwrap();
        plan
    }

    fn greedy() -> Policy {
        Policy { strategy: Strategy::Greedy, ..Policy::default() }
    }

    fn ids(ids: &[u32]) -> impl Iterator<Item = PartitionId> {
        ids.iter().copied().map(PartitionId::from)
    }

    fn claimed(plan: &Plan) -> Vec<&str> {
        plan.claim.iter().map(|claim| claim.partition.as_str()).collect()
    }

    fn given_back(plan: &Plan) -> Vec<(&str, ReleaseReason)> {
        plan.release.iter().map(|release| (release.partition.as_str(), release.reason)).collect()
    }

    #[test]
    fn what_is_recorded_as_mine_comes_back_at_once_whatever_the_strategy() {
        for strategy in [Strategy::Balanced, Strategy::Greedy, Strategy::weighted()] {
            let plan = checked(&view_of("bbooo"), &Policy { strategy, ..Policy::default() });
            assert_eq!(plan.claim.len(), 3);
            assert!(plan.claim.iter().all(|claim| claim.reason == ClaimReason::Reclaimed));
        }
    }

    #[test]
    fn what_is_to_be_avoided_leaves_the_claim_to_another_partition() {
        let avoiding = |avoid: &[u32]| Policy { avoid: ids(avoid).collect(), ..Policy::default() };
        // A free one, an expired one, and two that could be stolen.
        let view = view_of(".Xbb");
        assert_eq!(claimed(&checked(&view, &avoiding(&[]))), ["0"]);
        assert_eq!(claimed(&checked(&view, &avoiding(&[0]))), ["1"]);
        assert_eq!(checked(&view, &avoiding(&[0, 1, 2, 3])), Plan::default());
    }

    #[test]
    fn an_owner_above_the_floor_is_not_robbed_while_that_is_its_share() {
        // Five for two: one may hold three. That the last one is to be avoided makes nobody too full.
        let policy = Policy { avoid: ids(&[4]).collect(), ..greedy() };
        assert_eq!(checked(&view_of("bbbm."), &policy), Plan::default());
    }

    #[test]
    fn a_hub_without_partitions_needs_no_plan() {
        for strategy in [Strategy::Balanced, Strategy::Greedy, Strategy::weighted()] {
            assert_eq!(checked(&view_of(""), &Policy { strategy, ..Policy::default() }), Plan::default());
        }
    }

    #[test]
    fn a_cap_limits_what_is_claimed_and_tells_what_stays_unowned() {
        let capped = |max| Policy { max_partitions: Some(max), ..greedy() };
        let view = view_of("m.....bb");
        let plan = checked(&view, &capped(3));
        assert_eq!((plan.claim.len(), plan.unclaimed_for_cap), (2, 1));
        let plan = checked(&view, &capped(1));
        assert_eq!((plan.claim.len(), plan.unclaimed_for_cap), (0, 3));
        let plan = checked(&view, &capped(4));
        assert_eq!((plan.claim.len(), plan.unclaimed_for_cap), (3, 0));
    }

    #[test]
    fn a_cap_that_only_hinders_a_steal_is_no_alarm() {
        let plan = checked(&view_of("mbbbbb"), &Policy { max_partitions: Some(1), ..greedy() });
        assert_eq!(plan, Plan::default());
    }

    #[test]
    fn a_slow_strategy_sounds_no_alarm_for_what_the_next_intervals_bring() {
        let policy = Policy { max_partitions: Some(4), ..Policy::default() };
        let plan = checked(&view_of("...."), &policy);
        assert_eq!((plan.claim.len(), plan.unclaimed_for_cap), (1, 0));
    }

    #[test]
    fn what_is_above_the_cap_is_given_back_and_nothing_is_claimed_meanwhile() {
        let policy = Policy { max_partitions: Some(2), ..greedy() };
        let plan = checked(&view_of("mmmmoo..bb"), &policy);
        assert_eq!(given_back(&plan), [("2", ReleaseReason::AboveMax), ("3", ReleaseReason::AboveMax)]);
        assert_eq!(plan.claim, []);
    }

    #[test]
    fn under_a_cap_a_claim_under_way_counts_as_held() {
        let policy = Policy { max_partitions: Some(2), avoid: ids(&[1]).collect(), ..greedy() };
        assert_eq!(checked(&view_of("mo..."), &policy).claim, []);
    }

    #[test]
    fn what_the_hub_no_longer_has_is_given_back() {
        let view = View { gone: vec![7.into()], ..view_of("m") };
        assert_eq!(given_back(&checked(&view, &Policy::default())), [("7", ReleaseReason::Gone)]);
    }

    #[test]
    fn by_assignment_what_is_not_mine_is_given_back_and_not_reclaimed() {
        let strategy = Strategy::Static(Assignment::index(0, 2).unwrap());
        let plan = checked(&view_of("mmoo.._XbbEE"), &Policy { strategy, ..Policy::default() });
        assert_eq!(given_back(&plan), [("1", ReleaseReason::NotAssigned)]);
        assert_eq!(claimed(&plan), ["2", "4", "6"]);
    }

    #[test]
    fn an_assignment_above_the_cap_is_an_alarm() {
        let strategy = Strategy::Static(Assignment::partitions(ids(&[0, 1, 2])));
        let plan = checked(&view_of("...."), &Policy { strategy, max_partitions: Some(2), ..Policy::default() });
        assert_eq!((plan.claim.len(), plan.unclaimed_for_cap), (2, 1));
    }

    #[test]
    fn by_load_what_fits_is_taken_before_what_does_not() {
        let loads = (0u32..).map(PartitionId::from).zip([50, 10, 40]).collect();
        let policy = Policy { strategy: Strategy::weighted(), loads, ..Policy::default() };
        // The fourth counts as the mean, 34, so that 67 are fair: my 40 leave room for the ten, not for the fifty.
        for seed in 0..10 {
            let plan = plan(&view_of("..mb"), &policy, &mut StdRng::seed_from_u64(seed));
            assert_eq!(claimed(&plan), ["1"]);
        }
    }

    #[test]
    fn by_load_an_owner_is_robbed_only_if_that_gains_more_than_the_threshold() {
        let plan = |loads: [u64; 4], threshold_percent| {
            let loads = (0u32..).map(PartitionId::from).zip(loads).collect();
            let strategy = Strategy::Weighted { threshold_percent };
            checked(&view_of("bbbm"), &Policy { strategy, loads, ..Policy::default() })
        };
        // Fair are 100. With 40 of 120 for my 80 I would hold as much as the victim held: no gain. With 10 it is 30.
        assert!(plan([40, 40, 40, 80], 0).is_empty());
        assert_eq!(claimed(&plan([10, 70, 40, 80], 29)), ["0"]);
        assert!(plan([10, 70, 40, 80], 30).is_empty());
        // Of several that gain, the one that evens out most.
        assert_eq!(claimed(&plan([10, 60, 100, 30], 10)), ["1"]);
    }

    #[test]
    fn by_load_only_who_holds_least_goes_above_the_fair_load() {
        let plan = |layout: &str| {
            let strategy = Strategy::Weighted { threshold_percent: 0 };
            checked(&view_of(layout), &Policy { strategy, ..Policy::default() })
        };
        // Fair are 2.75. With two and one more I would be above.
        assert!(plan("bbbbbbmmccd").is_empty());
        // Fair are three: whoever stays within them need not wait for d.
        assert_eq!(plan("bbbbbbbmmccd").claim.len(), 1);
        assert_eq!(plan("bbbbbmmccdd").claim.len(), 1);
    }
}
