//! Groups while some percent of their requests fail, some of their events cannot be processed, and the namespace has a
//! quota.

use std::time::Duration;

use super::{SeedsOf, assert_no_violation, play};
use crate::sim::{BadEvents, Plan, Scale};

fn scale() -> Scale {
    Scale { instances: 5, partitions: 12, storm: Duration::from_secs(2400), failures: true, ..Scale::default() }
}

#[test]
fn failing_requests_violate_no_invariant() {
    let test = "failing::failing_requests_violate_no_invariant";
    let totals = assert_no_violation(test, SeedsOf::FAILURES, |seed| Plan::draw(seed, &scale()));
    assert!(totals.incidents["failing requests"] >= totals.plans, "{totals:?}");
}

#[test]
fn a_seed_with_failing_requests_is_repeatable() {
    let plan =
        Plan::draw(2, &Scale { storm: Duration::from_secs(900), mixed_settings: true, blocked: true, ..scale() });
    let (one, again) = (play(&plan, false), play(&plan, false));
    assert_eq!((one.trace, one.totals), (again.trace, again.totals));
}

/// Each instance asks for the list of partitions in every interval, and for the properties of a partition when it
/// starts the partition and every 30 s.
#[test]
fn a_used_up_quota_only_delays() {
    let small = Scale { failures: false, foreign: false, storm: Duration::from_secs(900), ..scale() };
    let mut plan = Plan::calm(3, &small);
    plan.management_quota = Some(3);
    let report = play(&plan, true);
    assert_eq!(report.violations, [], "{:?}", report.history);
    let management = report.totals.management;
    assert!(management.rejected > 10 && management.total > 10 * management.rejected / 9, "{management:?}");
}

/// The events that always fail go to the dead letters, the others are handled, and the checkpoints pass all of them.
#[test]
fn bad_events_delay_only_their_partition() {
    for always in [false, true] {
        let small = Scale { failures: false, foreign: false, storm: Duration::from_secs(900), ..scale() };
        let mut plan = Plan::calm(5, &small);
        for member in &mut plan.members {
            (member.bad_events, member.tracks) = (Some(BadEvents { every: 20, always }), false);
        }
        let report = play(&plan, true);
        assert_eq!(report.violations, [], "{:?}", report.history);
    }
}
