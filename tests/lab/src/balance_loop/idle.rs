//! Owners that renew their leases and take nothing: the other owners take the partitions of a crashed one.

use std::time::Duration;

use crate::sim::Simulation;
use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};

use super::group::{ABANDONED, EXPIRY, LONGEST_CYCLE, MINUTE, ROUND, by_heartbeat, comes, config, group_with, held_by};

/// The time until everything that a crashed owner held is owned again, if one of the survivors takes nothing.
const BOUND: Duration = ABANDONED.saturating_add(LONGEST_CYCLE).saturating_add(EXPIRY).saturating_add(ROUND);

fn owned(group: &Simulation) -> usize {
    group.counts().values().sum()
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_stalled_instance_is_taken() {
    for config in [config(), by_heartbeat()] {
        for strategy in [LoadBalancingStrategy::Greedy, LoadBalancingStrategy::Balanced] {
            let rounds = if strategy == LoadBalancingStrategy::Greedy { 1 } else { 6 };
            let config = config.clone().with_load_balancing_strategy(strategy).with_stall_timeout(MINUTE);
            let mut group = group_with(3, 9, &["a", "b", "c"], &config).await;
            let handle = group.handle("a").unwrap().clone();
            group.block("a", true).unwrap();
            group.run_for(2 * MINUTE).await;
            assert!(handle.snapshots().borrow().stalled.runtime);
            group.crash("c").await.unwrap();
            comes(&group, BOUND + ROUND * rounds, |group| held_by(group, "a") == 3 && held_by(group, "b") == 6).await;

            // When it has recovered, it gets its share.
            group.block("a", false).unwrap();
            comes(&group, 10 * MINUTE, |group| held_by(group, "a") == 4).await;
            assert_eq!(owned(&group), 9);
        }
    }
}

/// It can renew, but its listings fail.
#[tokio::test(start_paused = true)]
async fn the_share_without_listings_is_taken() {
    let config = config().with_load_balancing_strategy(LoadBalancingStrategy::Greedy);
    let mut group = group_with(4, 9, &["a", "b", "c"], &config).await;
    group.set_faults(Some("a"), &FaultPlan::default().with_on(1.0, BlobOperation::List, Fault::Unreachable));
    group.crash("c").await.unwrap();
    comes(&group, BOUND, |group| held_by(group, "a") == 3 && held_by(group, "b") == 6).await;
}
