//! Groups whose instances have different settings.

use std::time::Duration;

use super::{SeedsOf, assert_no_violation};
use crate::sim::{IncidentKind, Invariant, Plan, Scale};
use crate::simulate::scenarios;

fn scale(mixed_settings: bool) -> Scale {
    Scale {
        instances: 5,
        partitions: 12,
        storm: Duration::from_secs(2400),
        foreign: false,
        mixed_settings,
        ..Scale::default()
    }
}

#[test]
fn mixed_settings_violate_no_invariant() {
    let test = "mixed::mixed_settings_violate_no_invariant";
    let totals = assert_no_violation(test, SeedsOf::MIXED_SETTINGS, |seed| Plan::draw(seed, &scale(true)));
    assert!(totals.incidents["rollout of settings"] >= 1, "{totals:?}");
}

#[test]
fn a_rollout_takes_nothing_from_live_owners() {
    assert_no_violation("mixed::a_rollout_takes_nothing_from_live_owners", 1, scenarios::rollout);
}

/// The terms do not change the rest of a plan.
#[test]
fn terms_leave_the_rest_of_a_plan_as_it_is() {
    for seed in 1..100 {
        let (plain, mut mixed) = (Plan::draw(seed, &scale(false)), Plan::draw(seed, &scale(true)));
        mixed.members.iter_mut().for_each(|member| member.terms = None);
        mixed.incidents.retain(|incident| !matches!(incident.kind, IncidentKind::Rollout { .. }));
        assert_eq!(plain, mixed);
    }
}

/// Every instance that comes back has the new settings.
#[test]
fn a_rollout_reaches_every_instance() {
    let plan = scenarios::rollout(1);
    let slowest = plan.slowest_settings();
    assert_eq!((slowest.expiry, slowest.interval), (Duration::from_secs(60), Duration::from_secs(10)));
    let report = super::play(&plan, false);
    let others = |violation: &&crate::sim::Violation| violation.invariant != Invariant::LiveOwnerKeeps;
    assert_eq!(report.violations.iter().filter(others).count(), 0, "{:?}", report.violations);
    assert_eq!(report.totals.incidents["rollout of settings"], 2);
}
