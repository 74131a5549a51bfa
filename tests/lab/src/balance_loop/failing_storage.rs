//! A loop whose storage fails: how often it asks, and that its leases survive.

use std::time::Duration;

use crate::sim::Simulation;
use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::balancer::{BalancerConfig, LoadBalancingStrategy, OnLeaseExpiry, OwnershipEvent};
use eventhubs_checkpoint::store::StorageOperation;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};

use super::group::{EXPIRY, MINUTE, by_heartbeat, config, events, group_with};

fn requests(group: &Simulation) -> u64 {
    let counts = group.store("a").unwrap().request_counts();
    StorageOperation::ALL.iter().map(|operation| counts.total(*operation)).sum()
}

async fn requests_in(group: &Simulation, time: Duration) -> u64 {
    let before = requests(group);
    group.run_for(time).await;
    requests(group) - before
}

async fn alone(partitions: u32, config: BalancerConfig) -> Simulation {
    group_with(5, partitions, &["a"], &config.with_load_balancing_strategy(LoadBalancingStrategy::Greedy)).await
}

fn storage_faults() -> [Fault; 3] {
    let throttled = |retry_after| Fault::Throttled { retry_after };
    [throttled(None), throttled(Some(Duration::from_secs(3))), Fault::Unreachable]
}

/// A large instance, because a throttled storage gets too many requests from large ones.
#[tokio::test(start_paused = true)]
async fn a_failing_storage_gets_no_more_requests() {
    for storage_fault in storage_faults() {
        let group = alone(128, config()).await;
        let calm = requests_in(&group, 5 * MINUTE).await;
        group.set_faults(None, &FaultPlan::always(storage_fault.clone()));
        let first = requests_in(&group, MINUTE).await;
        assert!(first * 50 <= calm * 11, "{storage_fault:?}: {first} in the first minute, {calm} in five calm ones");
        let during_faults = requests_in(&group, 5 * MINUTE).await;
        assert!(during_faults <= calm, "{storage_fault:?}: {during_faults} in five minutes, {calm} when calm");
    }
}

/// A small instance sends few requests in any case, but it must detect within the lease duration that the storage works
/// again.
#[tokio::test(start_paused = true)]
async fn an_instance_with_few_requests_retries() {
    // A heartbeat is repeated more often, because all leases depend on it.
    for (config, most) in [(config(), 200), (by_heartbeat(), 330)] {
        for storage_fault in storage_faults() {
            let group = alone(4, config.clone()).await;
            group.set_faults(None, &FaultPlan::always(storage_fault.clone()));
            group.run_for(2 * MINUTE).await;
            let during_faults = requests_in(&group, 10 * MINUTE).await;
            assert!((80..=most).contains(&during_faults), "{storage_fault:?}: {during_faults} in ten minutes");
        }
    }
}

/// At any moment of the outage's beginning: a lease that could not be renewed at half the lease duration is renewed in
/// time. Under strict leases processing otherwise stops.
#[tokio::test(start_paused = true)]
async fn leases_survive_a_short_outage() {
    for (partitions, config) in [(4, config()), (32, config()), (4, by_heartbeat())] {
        for storage_fault in storage_faults() {
            let group = alone(partitions, config.clone().with_on_lease_expiry(OnLeaseExpiry::Stop)).await;
            for _ in 0..5 {
                group.set_faults(None, &FaultPlan::always(storage_fault.clone()));
                group.run_for(EXPIRY * 3 / 10).await;
                group.outage_over(None);
                group.run_for(EXPIRY * 3 / 2 + Duration::from_secs(4)).await;
            }
            let outlived = events(&group, 0)
                .into_iter()
                .filter(|(.., event)| matches!(event, OwnershipEvent::LeaseExpired { .. }));
            assert_eq!(outlived.count(), 0, "{partitions} {:?} {storage_fault:?}", config.lease_scope);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn loads_require_renewals() {
    let weighted = config().with_load_balancing_strategy(LoadBalancingStrategy::weighted());
    let mut group = Simulation::new(1, 2);
    group.start("a", weighted.clone()).await.unwrap();
    let error = group.start("b", weighted.with_lease_scope(LeaseScope::Instance)).await.unwrap_err();
    assert_eq!(error.kind(), eventhubs_checkpoint::ErrorKind::Config);
    assert!(error.to_string().contains("use `LeaseScope::Partition`, or `Balanced` or `Greedy`"), "{error}");
}

/// The server requests a longer wait than the lease duration. With a short lease duration, half of it leaves time for
/// only two requests before the expiry.
#[tokio::test(start_paused = true)]
async fn short_leases_are_retried_before_they_expire() {
    for (expiry, interval) in [(4, 1), (20, 5)] {
        for partitions in [2, 8] {
            let expiry = Duration::from_secs(expiry);
            let mut group = Simulation::new(3, partitions).with_expiry(expiry);
            let config = config()
                .with_load_balancing_interval(Duration::from_secs(interval))
                .with_load_balancing_strategy(LoadBalancingStrategy::Greedy);
            for owner in ["a", "b"] {
                group.start(owner, config.clone()).await.unwrap();
            }
            group.run_for(2 * MINUTE).await;
            let before = group.moves();
            let storage_fault = Fault::Throttled { retry_after: Some(expiry) };
            for _ in 0..20 {
                group.set_faults(Some("a"), &FaultPlan::always(storage_fault.clone()));
                group.run_for(expiry / 6).await;
                group.outage_over(Some("a"));
                group.run_for(expiry * 137 / 100).await;
            }
            assert_eq!(group.moves()[before.len()..], [], "{expiry:?}, {partitions} partitions");
        }
    }
}
