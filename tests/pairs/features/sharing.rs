//! How the group distributes the partitions.

use std::time::Duration;

use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::balancer::{LoadBalancingStrategy, OnLeaseExpiry};
use tokio::time::sleep;

use super::takeover_time;
use crate::feature::{Allowed, Draw, Feature, Settings, Sharing};
use crate::scene::{GUEST, SECOND_MEMBER, Scene};

/// How long an instance stays down after a clean shutdown.
const DOWNTIME: Duration = Duration::from_secs(30);

/// How long a joining instance stays.
const GUEST_UPTIME: Duration = Duration::from_secs(70);

pub const FEATURES: [Feature; 9] = [
    Feature::of("handoff", |settings, _| settings.balance(|balancer| balancer.with_handoff(true)))
        .with_action(|scene| Box::pin(join_and_leave(scene)))
        .with_allowance(allow_leave),
    Feature::of("stealing", |settings, _| settings.balance(|balancer| balancer.with_handoff(false)))
        .with_action(|scene| Box::pin(join_and_leave(scene)))
        .with_allowance(|allowed, settings, draw| {
            allow_leave(allowed, settings, draw);
            allowed.repeats = true;
        }),
    Feature::of("scope partition", |settings, _| {
        settings.balance(|balancer| balancer.with_lease_scope(LeaseScope::Partition));
    })
    .with_action(|scene| Box::pin(join_and_leave(scene)))
    .with_allowance(allow_leave),
    Feature::of("scope instance", |settings, _| {
        settings.balance(|balancer| balancer.with_lease_scope(LeaseScope::Instance));
    })
    .with_action(|scene| Box::pin(join_and_leave(scene)))
    .with_allowance(allow_leave),
    Feature::of("balanced", |settings, _| set_strategy(settings, Sharing::Balanced, LoadBalancingStrategy::Balanced))
        .with_action(|scene| Box::pin(leave_and_return(scene)))
        .with_allowance(allow_leave),
    Feature::of("greedy", |settings, _| set_strategy(settings, Sharing::Greedy, LoadBalancingStrategy::Greedy))
        .with_action(|scene| Box::pin(leave_and_return(scene)))
        .with_allowance(allow_leave),
    // Each instance has its own assignment: see `Scene`.
    Feature::of("static", |settings, _| settings.sharing = Sharing::Static)
        .with_action(|scene| Box::pin(leave_and_return(scene)))
        .with_allowance(allow_leave),
    Feature::of("weighted", |settings, _| set_strategy(settings, Sharing::Weighted, LoadBalancingStrategy::weighted()))
        .with_action(|scene| Box::pin(leave_and_return(scene)))
        .with_allowance(allow_leave),
    Feature::of("strict leases", |settings, _| {
        settings.balance(|balancer| balancer.with_on_lease_expiry(OnLeaseExpiry::Stop));
    })
    .with_action(|scene| Box::pin(join_and_leave(scene)))
    .with_allowance(allow_leave),
];

fn set_strategy(settings: &mut Settings, sharing: Sharing, strategy: LoadBalancingStrategy) {
    settings.sharing = sharing;
    settings.balance(|balancer| balancer.with_load_balancing_strategy(strategy));
}

fn allow_leave(allowed: &mut Allowed, settings: &Settings, _: &Draw) {
    allowed.allow_no_handler(takeover_time(settings, DOWNTIME));
}

async fn join_and_leave(scene: &Scene) {
    scene.start(GUEST).await;
    sleep(GUEST_UPTIME).await;
    scene.shut_down(GUEST).await;
}

async fn leave_and_return(scene: &Scene) {
    scene.shut_down(SECOND_MEMBER).await;
    sleep(DOWNTIME).await;
    scene.start(SECOND_MEMBER).await;
}
