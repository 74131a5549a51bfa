//! The requests of a group in the steady state.

use std::time::Duration;

use crate::sim::Simulation;
use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::balancer::BalancerConfig;
use eventhubs_checkpoint::store::StorageOperation;

use super::group::{by_heartbeat, config, group_with};

const SIZES: [(u32, usize); 2] = [(32, 4), (64, 8)];

fn requests(group: &Simulation, owners: &[&str]) -> u64 {
    let counts = owners.iter().map(|owner| group.store(owner).unwrap().request_counts());
    counts.flat_map(|counts| StorageOperation::ALL.iter().map(move |operation| counts.total(*operation))).sum()
}

async fn requests_per_hour(partitions: u32, instances: usize, config: &BalancerConfig) -> u64 {
    let names: Vec<_> = (0..instances).map(|number| format!("owner-{number}")).collect();
    let owners: Vec<_> = names.iter().map(String::as_str).collect();
    let group = group_with(8, partitions, &owners, config).await;
    let before = requests(&group, &owners);
    group.run_for(Duration::from_secs(3600)).await;
    requests(&group, &owners) - before
}

/// The requests of an instance in an idle group: it reads the beacon every three seconds and two owners once a minute,
/// and lists every five minutes.
const PER_INSTANCE: u64 = 1200 + 120 + 12;

/// Two renewals of each partition a minute.
#[tokio::test(start_paused = true)]
async fn a_steady_group_sends_the_expected_requests() {
    for (partitions, instances) in SIZES {
        let sent = requests_per_hour(partitions, instances, &config()).await;
        let renewals = u64::from(partitions) * 120;
        let expected = renewals + instances as u64 * PER_INSTANCE;
        assert!(sent * 100 <= expected * 106, "{sent} requests, expected {expected}");
        assert!(sent >= renewals, "{sent} requests cannot have renewed everything");
    }
}

/// Four heartbeats a minute.
#[tokio::test(start_paused = true)]
async fn with_instance_leases_partitions_cost_nothing() {
    assert_eq!(by_heartbeat().lease_scope, LeaseScope::Instance);
    for (partitions, instances) in SIZES {
        let sent = requests_per_hour(partitions, instances, &by_heartbeat()).await;
        let expected = instances as u64 * (240 + PER_INSTANCE);
        assert!(sent * 100 <= expected * 105, "{sent} requests, expected {expected}");
        assert!(sent * 100 >= expected * 95, "{sent} requests cannot have kept every lease alive");
    }
}
