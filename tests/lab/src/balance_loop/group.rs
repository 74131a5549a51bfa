//! Groups in the steady state, and the events in them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sim::{LoopEventKind, Simulation};
use eventhubs_checkpoint::balancer::{BalancerConfig, ClaimReason, OwnershipEvent};
use eventhubs_checkpoint::{LeaseScope, OwnerId};

pub const INTERVAL: Duration = Duration::from_secs(10);
pub const EXPIRY: Duration = Duration::from_secs(60);
/// The longest interval, including its jitter and the requests of a cycle.
pub const ROUND: Duration = Duration::from_millis(11_500);
/// The longest cycle of a group in the steady state, `min(3 x interval, expiry / 2)`, and its requests.
pub const LONGEST_CYCLE: Duration = Duration::from_millis(30_500);
/// The time after which the lease of a crashed owner has expired.
pub const ABANDONED: Duration = EXPIRY.saturating_add(Duration::from_secs(2));
/// The longest time until all instances have noticed a change, and listed: the beacon is read every 3 s.
pub const NOTICED: Duration = Duration::from_millis(4500);
/// The longest time that a request takes.
pub const LATENCY: Duration = Duration::from_millis(100);
pub const MINUTE: Duration = Duration::from_secs(60);

pub fn config() -> BalancerConfig {
    BalancerConfig::default().with_load_balancing_interval(INTERVAL)
}

/// Returns a configuration in which heartbeats keep the leases alive.
pub fn by_heartbeat() -> BalancerConfig {
    config().with_lease_scope(LeaseScope::Instance)
}

/// Returns a group that has been balanced for long enough that its cycles have their maximum length.
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

/// Returns the events after the first `since` entries: time, owner, event.
pub fn events(group: &Simulation, since: usize) -> Vec<(Duration, String, OwnershipEvent)> {
    let entries = group.trace().into_iter().skip(since);
    let events = entries.filter_map(|entry| match entry.kind {
        LoopEventKind::Emitted(event) => Some((entry.at, entry.owner.to_string(), event)),
        _ => None,
    });
    events.collect()
}

/// Returns how many partitions each instance holds, most first.
pub fn sizes(group: &Simulation) -> Vec<usize> {
    let mut sizes: Vec<_> = group.counts().into_values().collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

pub fn held_by(group: &Simulation, owner: &str) -> usize {
    group.counts().get(&OwnerId::new(owner).unwrap()).copied().unwrap_or_default()
}

/// Checks that no loop steals within one interval after a claim, and claims unowned partitions at most once per second:
/// one, or several together. Claims are reported at their response, so the distance may be slightly smaller.
pub fn claims_stay_apart(group: &Simulation, since: usize) {
    let mut last = BTreeMap::new();
    for (at, owner, event) in events(group, since) {
        let OwnershipEvent::Claimed { reason, .. } = &event else { continue };
        let is_steal = matches!(reason, ClaimReason::Stolen(_));
        let distance = if is_steal { INTERVAL } else { Duration::from_secs(1) }.saturating_sub(LATENCY * 3);
        let before = *last.entry(owner.clone()).or_insert(at);
        if !is_steal && at <= before + LATENCY {
            continue;
        }
        assert!(at == before || at >= before + distance, "{owner} at {before:?} and {at:?}: {event:?}");
        last.insert(owner, at);
    }
}
