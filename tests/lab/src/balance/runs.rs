//! Final states of whole groups.

use std::collections::BTreeMap;

use eventhubs_checkpoint::balancer::{LoadBalancingStrategy, PartitionOwner};
use eventhubs_checkpoint::internal::planner::{Policy, plan};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Deserialize;

use super::table::{cases, index, view};
use eventhubs_checkpoint::internal::postconditions;

#[derive(Deserialize)]
struct Run {
    partitions: usize,
    start: String,
    members: Vec<char>,
    #[serde(default)]
    idle_members: Vec<char>,
    strategy: String,
    rounds: usize,
    owned: Option<BTreeMap<char, usize>>,
    counts: Option<Vec<usize>>,
    moves: Option<usize>,
}

impl Run {
    fn policy(&self) -> Policy {
        let strategy = match self.strategy.as_str() {
            "balanced" => LoadBalancingStrategy::Balanced,
            "greedy" => LoadBalancingStrategy::Greedy,
            other => panic!("unknown strategy {other}"),
        };
        Policy { strategy, ..Policy::default() }
    }

    /// Lets every member plan once. Returns how many partitions got another owner, and how many were taken from a live
    /// owner.
    fn round(&self, layout: &mut [char], rng: &mut StdRng) -> (usize, usize) {
        let (mut changes, mut moves, policy) = (0, 0, self.policy());
        for this in &self.members {
            let seen = view(&layout.iter().collect::<String>(), *this);
            let plan = plan(&seen, &policy, rng);
            postconditions::check_plan(&seen, &policy, &plan).unwrap();
            for claim in plan.claim {
                moves +=
                    usize::from(matches!(seen.owner_of_partition(&claim.partition), Some(PartitionOwner::Other(_))));
                changes += 1;
                layout[index(&claim)] = *this;
            }
        }
        (changes, moves)
    }
}

fn check(case: &Run) {
    for seed in 0..20 {
        check_seed(case, seed);
    }
}

fn check_seed(case: &Run, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut layout: Vec<char> = case.start.chars().collect();
    assert_eq!(layout.len(), case.partitions);
    let moves: usize = (0..case.rounds).map(|_| case.round(&mut layout, &mut rng).1).sum();
    let all_members = case.members.iter().chain(&case.idle_members);
    let counts: BTreeMap<char, usize> =
        all_members.map(|member| (*member, layout.iter().filter(|owner| *owner == member).count())).collect();
    assert!(case.owned.as_ref().is_none_or(|owned| *owned == counts), "seed {seed}: {counts:?}");
    if let Some(expected) = &case.counts {
        let mut found: Vec<_> = counts.values().copied().collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(found, *expected, "seed {seed}");
    }
    assert!(case.moves.is_none_or(|expected| expected == moves), "seed {seed}: {moves} moves");
    for _ in 0..2 {
        assert_eq!(case.round(&mut layout, &mut rng).0, 0, "seed {seed}");
    }
}

cases! { "runs", check:
    alone_takes_one_per_round
    two_share_three
    newcomer_takes_one_of_three
    four_on_three
    third_joins_two_of_four
    odd_thirteenth
    one_owns_all_nine
    gist_scale_out_18_by_3_to_4
    gist_one_of_four_crashes_20
    gist_hub_grows_20_to_25
    gist_sixth_stays_idle
    greedy_two_on_five
    single_partition_never_hops
}
