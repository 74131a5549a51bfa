//! Handmade plans.

use std::time::Duration;

use crate::sim::{IncidentKind, Load, Plan, Role, Scale, Settings};
use crate::simulate::args::Scenario;

pub fn plan(scenario: Scenario, seed: u64) -> Plan {
    match scenario {
        Scenario::Rolling => rolling(seed),
    }
}

pub fn headline(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Rolling => "A crash and a rolling deployment",
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn rolling(seed: u64) -> Plan {
    let scale = Scale { instances: 4, partitions: 16, storm: minutes(20), ..Scale::default() };
    let mut plan = Plan::calm(seed, &scale);
    plan.settings = Settings::default();
    for (index, member) in (0u32..).zip(&mut plan.members) {
        member.role = Role::CrateProcessor;
        member.starts_at = Duration::from_secs(5) * index;
        (member.skew_seconds, member.failures_per_mille, member.tracks) = (0, 0, false);
        member.work = Duration::from_millis(100);
    }
    plan.members[3].starts_at = minutes(3);
    plan.members[1].skew_seconds = 300;
    plan.loads = vec![Load { every: Duration::from_secs(20), burst: 20 }];
    plan.with(minutes(6), IncidentKind::Crash { member: 2, down: minutes(3) })
        .with(minutes(12), IncidentKind::Deployment { gap: Duration::from_secs(90), down: Duration::from_secs(5) })
}
