//! Handmade plans.

use std::time::Duration;

use crate::sim::{IncidentKind, Load, Plan, Role, Scale, Settings, Terms};
use crate::simulate::args::Scenario;

pub fn plan(scenario: Scenario, seed: u64) -> Plan {
    match scenario {
        Scenario::Rolling => rolling(seed),
        Scenario::Rollout => rollout(seed),
    }
}

pub fn headline(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Rolling => "A crash and a rolling deployment",
        Scenario::Rollout => "The profile for a fast failover, rolled out and back",
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Returns a group with the default settings, and nothing special.
fn plain(seed: u64, lasts: Duration) -> Plan {
    let scale = Scale { instances: 4, partitions: 16, storm: lasts, ..Scale::default() };
    let mut plan = Plan::calm(seed, &scale);
    plan.settings = Settings::default();
    for (index, member) in (0u32..).zip(&mut plan.members) {
        member.role = Role::CrateProcessor;
        member.starts_at = Duration::from_secs(5) * index;
        (member.skew_seconds, member.failures_per_mille, member.tracks) = (0, 0, false);
        member.one_by_one = None;
        member.work = Duration::from_millis(100);
    }
    plan.loads = vec![Load { every: Duration::from_secs(20), burst: 20 }];
    plan
}

fn rolling(seed: u64) -> Plan {
    let mut plan = plain(seed, minutes(20));
    plan.members[3].starts_at = minutes(3);
    plan.members[1].skew_seconds = 300;
    plan.with(minutes(6), IncidentKind::Crash { member: 2, down: minutes(3) })
        .with(minutes(12), IncidentKind::Deployment { gap: Duration::from_secs(90), down: Duration::from_secs(5) })
}

/// The deployments take half an hour each, so that instances with either profile run together for long.
pub fn rollout(seed: u64) -> Plan {
    let (gap, down) = (minutes(10), Duration::from_secs(5));
    let to = |terms| IncidentKind::Rollout { terms, gap, down };
    plain(seed, minutes(100))
        .with(minutes(10), to(Terms::fast_failover()))
        .with(minutes(55), to(Terms::default_profile()))
}
