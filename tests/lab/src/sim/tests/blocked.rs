//! Instances whose application's runtime is blocked, while their load-balancing loop goes on.

use std::time::Duration;

use eventhubs_checkpoint::balancer::BalancerConfig;

use super::{SeedsOf, assert_no_violation, play};
use crate::sim::{IncidentKind, Plan, Scale, Simulation};

#[test]
fn blocked_runtimes_violate_no_invariant() {
    let scale = Scale {
        instances: 4,
        partitions: 12,
        storm: Duration::from_secs(2400),
        foreign: false,
        blocked: true,
        ..Scale::default()
    };
    let test = "blocked::blocked_runtimes_violate_no_invariant";
    let totals = assert_no_violation(test, SeedsOf::BLOCKED, |seed| Plan::draw(seed, &scale));
    assert!(totals.incidents["blocked runtime"] >= totals.plans, "{totals:?}");
}

/// Nothing moves, and the events wait until the runtime goes on.
#[test]
fn a_blocked_runtime_costs_no_partition() {
    let scale =
        Scale { instances: 3, partitions: 9, storm: Duration::from_secs(1500), foreign: false, ..Scale::default() };
    let plan = Plan::calm(4, &scale);
    let report = play(
        &plan.with(Duration::from_secs(800), IncidentKind::Block { member: 1, lasts: Duration::from_secs(200) }),
        true,
    );
    assert_eq!(report.violations, [], "{:?}", report.history);
    assert_eq!(report.totals.counts.get("taken from an expired owner"), None);
}

/// The only other instance crashes. What it had is claimed by nobody who could read it, but neither by one who cannot.
#[tokio::test(start_paused = true)]
async fn a_blocked_instance_claims_nothing() {
    let mut group = Simulation::new(7, 16);
    for owner in ["a", "b"] {
        group.start(owner, BalancerConfig::default()).await.unwrap();
    }
    group.run_until(Duration::from_secs(300), Simulation::is_balanced).await.unwrap();
    group.block("a", true).unwrap();
    group.run_for(Duration::from_secs(10)).await;
    group.crash("b").await.unwrap();
    group.run_for(Duration::from_secs(280)).await;
    assert_eq!(group.owners().len(), 8, "{:?}", group.counts());
    group.block("a", false).unwrap();
    let claimed = |group: &Simulation| group.owners().len() == 16;
    group.run_until(Duration::from_secs(120), claimed).await.unwrap();
}
