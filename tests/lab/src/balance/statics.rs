//! Claims of an instance with a static assignment.

use std::collections::BTreeSet;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::internal::planner::{Policy, plan};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Deserialize;

use super::table::{cases, index, view};
use eventhubs_checkpoint::internal::postconditions;

#[derive(Deserialize)]
struct Static {
    partitions: usize,
    index: Option<usize>,
    of: Option<usize>,
    set: Option<Vec<String>>,
    start: String,
    claims: BTreeSet<usize>,
}

impl Static {
    fn assignment(&self) -> Assignment {
        match (&self.set, self.index, self.of) {
            (Some(ids), None, None) => Assignment::partitions(ids.iter().map(|id| PartitionId::new(id).unwrap())),
            (None, Some(index), Some(of)) => Assignment::index(index, of).unwrap(),
            _ => panic!("neither a set nor an index"),
        }
    }
}

fn check(case: &Static) {
    assert_eq!(case.start.len(), case.partitions);
    let policy = Policy { strategy: LoadBalancingStrategy::Static(case.assignment()), ..Policy::default() };
    let view = view(&case.start, 'a');
    let plan = plan(&view, &policy, &mut StdRng::seed_from_u64(0));
    postconditions::check_plan(&view, &policy, &plan).unwrap();
    assert_eq!(plan.claim.iter().map(index).collect::<BTreeSet<_>>(), case.claims);
    assert_eq!(plan.release, []);
}

cases! { "static", check:
    static_index_0_of_3
    static_index_2_of_3
    static_takes_expired_of_its_own
    static_set
}

#[test]
fn an_index_out_of_range_is_rejected() {
    let error = Assignment::index(3, 3).unwrap_err().to_string();
    assert!(error.contains("index 3 of 3"), "{error}");
    assert!(Assignment::index(0, 0).is_err());
}
