//! Groups that have come to rest, and what happened in them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sim::{LoopEventKind, Simulation};
use eventhubs_checkpoint::balancer::{BalancerConfig, OwnershipEvent};
use eventhubs_checkpoint::{LeaseScope, OwnerId};

pub const INTERVAL: Duration = Duration::from_secs(10);
pub const EXPIRY: Duration = Duration::from_secs(60);
/// The longest interval: with its jitter, and with the requests of a cycle.
pub const ROUND: Duration = Duration::from_millis(11_500);
/// The longest cycle of a group at rest, `min(3 x interval, expiry / 2)`, and its requests.
pub const LONGEST_CYCLE: Duration = Duration::from_millis(30_500);
/// The time after which a dead owner's record counts as abandoned.
pub const ABANDONED: Duration = EXPIRY.saturating_add(Duration::from_secs(2));
pub const MINUTE: Duration = Duration::from_secs(60);

pub fn config() -> BalancerConfig {
    BalancerConfig::default().with_load_balancing_interval(INTERVAL)
}

/// Whose leases live by a presence.
pub fn by_heartbeat() -> BalancerConfig {
    config().with_lease_scope(LeaseScope::Instance)
}

/// Balanced since a while, so that the cycles are as long as they get.
pub async fn group(seed: u64, partitions: u32, owners: &[&str]) -> Simulation {
    group_with(seed, partitions, owners, &config()).await
}

pub async fn group_with(seed: u64, partitions: u32, owners: &[&str], config: &BalancerConfig) -> Simulation {
    let mut group = Simulation::new(seed, partitions);
    for owner in owners {
        group.start(owner, config.clone()).await.unwrap();
    }
    balanced(&group, ROUND * (partitions + 2)).await;
    group.run_for(5 * MINUTE).await;
    group
}

pub async fn balanced(group: &Simulation, within: Duration) -> Duration {
    comes(group, within, Simulation::is_balanced).await
}

pub async fn comes(group: &Simulation, within: Duration, condition: impl Fn(&Simulation) -> bool) -> Duration {
    let took = group.run_until(within, condition).await;
    took.unwrap_or_else(|| panic!("not within {within:?}: {group:#?}"))
}

/// What was told since there were so many entries: when, by whom, what.
pub fn told(group: &Simulation, since: usize) -> Vec<(Duration, String, OwnershipEvent)> {
    let entries = group.trace().into_iter().skip(since);
    let told = entries.filter_map(|entry| match entry.kind {
        LoopEventKind::Emitted(event) => Some((entry.at, entry.owner.to_string(), event)),
        _ => None,
    });
    told.collect()
}

/// How many partitions everybody holds, most first.
pub fn sizes(group: &Simulation) -> Vec<usize> {
    let mut sizes: Vec<_> = group.counts().into_values().collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

pub fn held_by(group: &Simulation, owner: &str) -> usize {
    group.counts().get(&OwnerId::new(owner).unwrap()).copied().unwrap_or_default()
}

/// No loop claims twice within one interval. Claims are told when they are answered, so a little less may lie between.
pub fn one_claim_per_interval(group: &Simulation, since: usize) {
    let claims = told(group, since).into_iter().filter(|(_, _, event)| matches!(event, OwnershipEvent::Claimed { .. }));
    let mut last = BTreeMap::new();
    for (at, owner, event) in claims {
        if let Some(before) = last.insert(owner.clone(), at) {
            assert!(at >= before + INTERVAL.mul_f64(0.97), "{owner} at {before:?} and {at:?}: {event:?}");
        }
    }
}
