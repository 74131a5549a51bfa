//! How the group shares the partitions.

use std::time::Duration;

use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::balancer::OnLeaseExpiry;
use tokio::time::sleep;

use super::away;
use crate::feature::{Allowed, Draw, Feature, Settings, Sharing};
use crate::scene::{GUEST, SECOND_MEMBER, Scene};

/// How long an instance stays away that ends in order.
const AWAY: Duration = Duration::from_secs(30);

/// How long an instance takes part that joins.
const GUEST_STAYS: Duration = Duration::from_secs(70);

pub const FEATURES: [Feature; 9] = [
    Feature::of("handoff", |settings, _| settings.configure(|config| config.with_handoff(true)))
        .acting(|scene| Box::pin(join_and_leave(scene)))
        .allowing(leaves),
    Feature::of("stealing", |settings, _| settings.configure(|config| config.with_handoff(false)))
        .acting(|scene| Box::pin(join_and_leave(scene)))
        .allowing(|allowed, settings, draw| {
            leaves(allowed, settings, draw);
            allowed.repeats = true;
        }),
    Feature::of("scope partition", |settings, _| {
        settings.configure(|config| config.with_lease_scope(LeaseScope::Partition));
    })
    .acting(|scene| Box::pin(join_and_leave(scene)))
    .allowing(leaves),
    Feature::of("scope instance", |settings, _| {
        settings.configure(|config| config.with_lease_scope(LeaseScope::Instance));
    })
    .acting(|scene| Box::pin(join_and_leave(scene)))
    .allowing(leaves),
    Feature::of("balanced", |settings, _| shared(settings, Sharing::Balanced, LoadBalancingStrategy::Balanced))
        .acting(|scene| Box::pin(leave_and_come_back(scene)))
        .allowing(leaves),
    Feature::of("greedy", |settings, _| shared(settings, Sharing::Greedy, LoadBalancingStrategy::Greedy))
        .acting(|scene| Box::pin(leave_and_come_back(scene)))
        .allowing(leaves),
    // Each instance has an assignment of its own: see `Scene`.
    Feature::of("static", |settings, _| settings.sharing = Sharing::Static)
        .acting(|scene| Box::pin(leave_and_come_back(scene)))
        .allowing(leaves),
    Feature::of("weighted", |settings, _| shared(settings, Sharing::Weighted, LoadBalancingStrategy::weighted()))
        .acting(|scene| Box::pin(leave_and_come_back(scene)))
        .allowing(leaves),
    Feature::of("strict leases", |settings, _| {
        settings.configure(|config| config.with_on_lease_expiry(OnLeaseExpiry::Stop));
    })
    .acting(|scene| Box::pin(join_and_leave(scene)))
    .allowing(leaves),
];

fn shared(settings: &mut Settings, sharing: Sharing, strategy: LoadBalancingStrategy) {
    settings.sharing = sharing;
    settings.configure(|config| config.with_load_balancing_strategy(strategy));
}

fn leaves(allowed: &mut Allowed, settings: &Settings, _: &Draw) {
    allowed.dark_for(away(settings, AWAY));
}

async fn join_and_leave(scene: &Scene) {
    scene.start(GUEST).await;
    sleep(GUEST_STAYS).await;
    scene.end_in_order(GUEST).await;
}

async fn leave_and_come_back(scene: &Scene) {
    scene.end_in_order(SECOND_MEMBER).await;
    sleep(AWAY).await;
    scene.start(SECOND_MEMBER).await;
}
