//! Owners that are entitled to unowned partitions, and do not claim them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::policy::{LoadBalancingStrategy, Policy};
use super::view::View;
use super::{shares, weighted};
use crate::model::{Moment, OwnerId};

/// Since when each owner below its share has claimed nothing, although partitions were unowned.
///
/// An owner may be unable to claim and still renew its leases: its runtime is stalled, it has reached its own limit,
/// its listings fail, or it is of another version or SDK with a defect of its own. Other instances cannot know the
/// reason. If they left its share to it all the same, no instance would read that share.
#[derive(Clone, Debug, Default)]
pub struct Idleness(BTreeMap<OwnerId, Waiting>);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    owned: usize,
    since: Moment,
}

impl Idleness {
    /// Records a view at `now`, and returns the other owners that were entitled for longer than `limit` without a gain,
    /// for [`Policy::idle`]. `outage_ended` is when an outage of the observer ended: before that the observer could not
    /// see what the others did, and the others may have been unable to do anything.
    pub fn record_view(
        &mut self,
        view: &View<'_>,
        policy: &Policy,
        outage_ended: Option<Moment>,
        now: Moment,
        limit: Duration,
    ) -> BTreeSet<OwnerId> {
        if !view.has_unowned() {
            self.0.clear();
            return BTreeSet::new();
        }
        let counts = view.count_by_owner();
        let known = std::mem::take(&mut self.0);
        // Without the idle owners, the shares of the others are greater, so that more of them may be below their share.
        let mut policy = Policy { idle: BTreeSet::new(), ..policy.clone() };
        loop {
            for owner in owners_below_share(view, &policy) {
                let owned = counts.get(owner).copied().unwrap_or_default();
                let since = known.get(owner).filter(|before| owned <= before.owned).map_or(now, |before| before.since);
                self.0.insert(owner.clone(), Waiting { owned, since: since.max(outage_ended.unwrap_or_default()) });
            }
            let idle = self.0.iter().filter(|(_, waiting)| now.saturating_sub(waiting.since) > limit);
            let idle: BTreeSet<_> = idle.map(|(owner, _)| owner.clone()).collect();
            if idle == policy.idle {
                return idle;
            }
            policy.idle = idle;
        }
    }
}

/// Returns the other owners that are below their share.
fn owners_below_share<'a>(view: &'a View<'_>, policy: &Policy) -> impl Iterator<Item = &'a OwnerId> {
    let below_share = match policy.strategy {
        LoadBalancingStrategy::Balanced | LoadBalancingStrategy::Greedy => shares::owners_below_target(view, policy),
        LoadBalancingStrategy::Weighted { .. } => weighted::owners_below_fair_load(view, policy),
        // No other owner claims a partition that is assigned to one.
        LoadBalancingStrategy::Static(_) => Vec::new(),
    };
    below_share.into_iter().filter(|owner| **owner != view.me)
}

#[cfg(test)]
pub(in crate::planner) mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::planner::{PartitionOwner, PartitionView};

    const LIMIT: Duration = Duration::from_secs(60);

    /// Creates a view with one letter per partition: `.` is unowned, `m` is the observer's, any other letter is a live
    /// owner's.
    pub(in crate::planner) fn view_of(layout: &str) -> View<'static> {
        let owner = |letter: char| match letter {
            '.' => PartitionOwner::Unowned,
            'm' => PartitionOwner::This,
            owner => PartitionOwner::Other(OwnerId::from_record(&owner.to_string())),
        };
        let entries = (0u32..).zip(layout.chars());
        View {
            partitions: entries.map(|(id, letter)| PartitionView::new(id.into(), owner(letter))).collect(),
            records: HashMap::new(),
            removed: Vec::new(),
            present: BTreeSet::new(),
            not_requestable: BTreeSet::new(),
            me: OwnerId::from_record("m"),
            replaced_by: None,
            foreign_owner: false,
            next_expiry: None,
            owners: BTreeMap::new(),
        }
    }

    /// Returns the idle owners after these views, which are recorded at these seconds.
    fn idle_after(policy: &Policy, outage_ended: Option<u64>, views: &[(u64, &str)]) -> String {
        let (mut idleness, mut idle) = (Idleness::default(), BTreeSet::new());
        for (at, layout) in views {
            let (now, outage_ended) = (Duration::from_secs(*at), outage_ended.map(Duration::from_secs));
            idle = idleness.record_view(&view_of(layout), policy, outage_ended, now, LIMIT);
        }
        idle.iter().map(OwnerId::as_str).collect()
    }

    #[test]
    fn an_owner_below_its_share_without_gains_is_idle() {
        let by_load = Policy { strategy: LoadBalancingStrategy::weighted(), ..Policy::default() };
        for policy in [Policy::default(), by_load] {
            let after = |views: &[_]| idle_after(&policy, None, views);
            assert_eq!(after(&[(0, "amm.."), (60, "amm..")]), "", "the limit is not exceeded yet");
            assert_eq!(after(&[(0, "amm.."), (61, "amm..")]), "a");
            assert_eq!(after(&[(0, "amm.."), (30, "aamm.."), (61, "aamm..")]), "", "it gained one");
            assert_eq!(after(&[(0, "amm.."), (30, "ammmm"), (61, "amm..")]), "", "nothing was unowned");
            assert_eq!(after(&[(0, "aammm.."), (30, "ammm..."), (61, "ammm...")]), "a", "a loss is no gain");
        }
    }

    #[test]
    fn an_owner_with_its_share_is_not_idle() {
        assert_eq!(idle_after(&Policy::default(), None, &[(0, "aaammm."), (100, "aaammm.")]), "a", "or one more");
        assert_eq!(idle_after(&Policy::default(), None, &[(0, "aaaamm."), (100, "aaaamm.")]), "");
    }

    /// Each of the four owners may own four of the 15 partitions. Once `a` is idle, two of the others may own five.
    #[test]
    fn each_owner_has_its_own_time_to_become_idle() {
        let view = "abbbbccccmmmm..";
        let after = |seconds: &[u64]| {
            idle_after(&Policy::default(), None, &seconds.iter().map(|at| (*at, view)).collect::<Vec<_>>())
        };
        assert_eq!(after(&[0, 61]), "a");
        assert_eq!(after(&[0, 61, 121]), "a");
        assert_eq!(after(&[0, 61, 122]), "abc");
    }

    /// What a plan assumed before does not make the others wait for more.
    #[test]
    fn idle_owners_are_found_anew_in_each_view() {
        let assumed = Policy { idle: [OwnerId::from_record("a")].into(), ..Policy::default() };
        let view = "abbbbccccmmmm..";
        assert_eq!(idle_after(&assumed, None, &[(0, view), (61, view)]), "a");
    }

    #[test]
    fn the_observer_is_not_idle() {
        assert_eq!(idle_after(&Policy::default(), None, &[(0, "aaam.."), (100, "aaam..")]), "");
    }

    #[test]
    fn the_time_of_an_outage_does_not_count() {
        assert_eq!(idle_after(&Policy::default(), Some(50), &[(0, "amm.."), (110, "amm..")]), "");
        assert_eq!(idle_after(&Policy::default(), Some(50), &[(0, "amm.."), (111, "amm..")]), "a");
    }
}
