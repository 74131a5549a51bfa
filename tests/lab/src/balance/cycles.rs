//! Plans of one instance.

use std::collections::BTreeSet;

use eventhubs_checkpoint::balancer::{ClaimReason, LoadBalancingStrategy};
use eventhubs_checkpoint::internal::planner::{Policy, plan};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Deserialize;

use super::table::{cases, index, owner, view};
use eventhubs_checkpoint::internal::postconditions;

#[derive(Deserialize)]
struct Cycle {
    layout: String,
    this: char,
    balanced: usize,
    greedy: usize,
    only: Option<BTreeSet<usize>>,
    balanced_only: Option<BTreeSet<usize>>,
    #[serde(default)]
    must: BTreeSet<usize>,
    must_in: Option<String>,
    #[serde(default)]
    never: BTreeSet<usize>,
    steal_from: Option<char>,
}

fn check(case: &Cycle) {
    for seed in 0..20 {
        check_strategy(case, "balanced", LoadBalancingStrategy::Balanced, case.balanced, seed);
        check_strategy(case, "greedy", LoadBalancingStrategy::Greedy, case.greedy, seed);
    }
}

fn check_strategy(case: &Cycle, name: &str, strategy: LoadBalancingStrategy, expected: usize, seed: u64) {
    let (view, policy) = (view(&case.layout, case.this), Policy { strategy, ..Policy::default() });
    let plan = plan(&view, &policy, &mut StdRng::seed_from_u64(seed));
    postconditions::check_plan(&view, &policy, &plan).unwrap();
    let claimed: BTreeSet<_> = plan.claim.iter().map(index).collect();
    let context = format!("{name}, seed {seed}: {claimed:?}");
    assert_eq!(claimed.len(), expected, "{context}");
    let only = case.balanced_only.as_ref().filter(|_| name == "balanced").or(case.only.as_ref());
    assert!(only.is_none_or(|only| claimed.is_subset(only)), "{context}");
    assert!(claimed.is_disjoint(&case.never), "{context}");
    if case.must_in.as_deref().is_none_or(|strategy| strategy == name) {
        assert!(claimed.is_superset(&case.must), "{context}");
    }
    for claim in &plan.claim {
        if let (ClaimReason::Stolen(victim), Some(allowed)) = (&claim.reason, case.steal_from) {
            assert_eq!(*victim, owner(allowed), "{context}");
        }
    }
}

cases! { "cycles", check:
    join_three_of_one
    join_four_of_one
    one_unowned_is_claimed
    even_two_two
    even_odd_count
    ten_over_four_settled_enough
    empty_four
    take_unowned_never_owned
    free_before_steal
    released_then_free_then_steal
    expired_is_free
    expired_and_free
    thirteenth_is_claimed
    steal_from_six
    steal_from_five
    more_owners_than_partitions
    settled_6
    settled_7
    settled_31
    released_are_free
    same_owner_fresh_and_expired
    expired_owner_does_not_count
    own_expired_is_claimable
}
