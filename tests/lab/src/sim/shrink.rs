//! Removes everything from a failing plan that its failure does not need.

use super::plan::{Incident, Plan};

/// Returns the same plan with a minimal set of incidents for which `fails` still returns `true`: without any single one
/// of them the plan passes. (Zeller and Hildebrandt's `ddmin`, "Simplifying and Isolating Failure-Inducing Input",
/// 2002.)
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint_lab::sim::{IncidentKind, Plan, Scale, shrink};
///
/// let plan = Plan::draw(7, &Scale::default()).with(Duration::from_secs(900), IncidentKind::Growth(5));
/// let grows = |plan: &Plan| plan.incidents.iter().any(|incident| incident.kind == IncidentKind::Growth(5));
/// assert_eq!(shrink(&plan, grows).incidents.len(), 1);
/// ```
#[must_use]
pub fn shrink(plan: &Plan, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut kept = plan.clone();
    let mut parts = 2;
    while kept.incidents.len() >= 2 {
        match smaller(&kept, parts, &mut fails) {
            Some(plan) => {
                kept = plan;
                parts = (parts - 1).max(2);
            }
            None if parts >= kept.incidents.len() => return kept,
            None => parts = (parts * 2).min(kept.incidents.len()),
        }
    }
    let empty = with(&kept, Vec::new());
    if !kept.incidents.is_empty() && fails(&empty) { empty } else { kept }
}

/// Returns the plan without one of `parts` parts, if it still fails.
fn smaller(plan: &Plan, parts: usize, fails: &mut impl FnMut(&Plan) -> bool) -> Option<Plan> {
    let size = plan.incidents.len().div_ceil(parts);
    (0..plan.incidents.len()).step_by(size).find_map(|from| {
        let to = (from + size).min(plan.incidents.len());
        let rest = [&plan.incidents[..from], &plan.incidents[to..]].concat();
        let candidate = with(plan, rest);
        fails(&candidate).then_some(candidate)
    })
}

fn with(plan: &Plan, incidents: Vec<Incident>) -> Plan {
    Plan { incidents, ..plan.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::{IncidentKind, Scale};

    fn numbered(count: u32) -> Plan {
        let plan = Plan::calm(1, &Scale::default());
        (0..count)
            .fold(plan, |plan, number| plan.with(Duration::from_secs(number.into()), IncidentKind::Growth(number)))
    }

    fn numbers(plan: &Plan) -> Vec<u32> {
        plan.incidents
            .iter()
            .filter_map(|incident| match incident.kind {
                IncidentKind::Growth(number) => Some(number),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn only_incidents_that_the_failure_needs_remain() {
        for needed in [vec![], vec![13], vec![0, 31], vec![3, 4, 17, 30]] {
            let fails = |plan: &Plan| needed.iter().all(|number| numbers(plan).contains(number));
            assert_eq!(numbers(&shrink(&numbered(32), fails)), needed);
        }
    }
}
