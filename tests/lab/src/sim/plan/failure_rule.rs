//! Failures that last for hours: a percentage of the requests, by operation, blob and instance.

use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Incident, IncidentKind, Scale};
use crate::proportion::factors::Disturbance;
use crate::sim::observer::Slowdown;
use crate::sim::quota::SERVICE as MANAGEMENT_QUOTA;

/// The waits for which a service that throttles may ask.
const WAITS: [u64; 4] = [1, 3, 30, 120];

/// The rates that are drawn, in thousandths of the requests.
const RATES: [u32; 7] = [1, 5, 10, 50, 100, 200, 300];

/// How many times in a row the service may tell one operation to wait.
const WAITS_IN_A_ROW: u32 = 4;

/// A rule by which requests to the storage fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// The member whose requests fail; `None` means all members.
    pub member: Option<u32>,
    /// Which requests; `None` for all.
    pub operation: Option<BlobOperation>,
    /// Requests for which blobs.
    pub blobs: Blobs,
    /// How many of a thousand such requests fail.
    pub per_mille: u32,
    /// How they fail.
    pub failure: Failure,
}

/// The blobs that a rule affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blobs {
    /// All blobs, and all listings.
    All,
    /// The ownership record of one partition.
    OwnershipOf(u32),
    /// All checkpoints.
    Checkpoints,
    /// All heartbeats.
    Heartbeats,
}

/// How a request fails. None of them is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The service limits the rate, and asks to wait this long.
    Throttled(Duration),
    /// The service responds with 500, so the sender does not know whether the request was applied.
    ServerError,
    /// There is no response.
    Hang,
}

impl FailureRule {
    /// Returns the rule that throttles this many thousandths of all writes.
    #[must_use]
    pub fn writes(per_mille: u32) -> Self {
        Self {
            member: None,
            operation: Some(BlobOperation::Write),
            blobs: Blobs::All,
            per_mille,
            failure: Failure::Throttled(Duration::from_secs(1)),
        }
    }

    /// Returns the rule that the ownership record of this partition can never be written.
    #[must_use]
    pub fn bad_blob(partition: u32) -> Self {
        Self { blobs: Blobs::OwnershipOf(partition), ..Self::writes(1000) }
    }

    /// Returns whether the rule applies to the requests of this member. `None` means an operator.
    pub(crate) fn concerns(&self, member: Option<u32>) -> bool {
        self.member.is_none() || self.member == member
    }

    /// Adds these failures to others.
    pub(crate) fn added_to(&self, plan: FaultPlan) -> FaultPlan {
        let target = self.operation.map_or_else(Target::any, Target::from);
        let target = match self.blobs {
            Blobs::All => target,
            Blobs::OwnershipOf(partition) => target.ending(format!("/ownership/{partition}")),
            Blobs::Checkpoints => target.named("/checkpoint/"),
            Blobs::Heartbeats => target.named("/heartbeat/"),
        };
        let fault = match self.failure {
            Failure::Throttled(wait) => Fault::Throttled { retry_after: Some(wait) },
            Failure::ServerError => Fault::RequestLost,
            Failure::Hang => Fault::Hang,
        };
        plan.with_on(f64::from(self.per_mille) / 1000.0, target, fault)
    }

    /// Adds that this rule slows a group down.
    pub(in crate::sim) fn slows_down(&self, mut slowdown: Slowdown) -> Slowdown {
        let disturbance = match self.blobs {
            Blobs::OwnershipOf(partition) => {
                slowdown.unwritable.insert(partition as usize);
                Disturbance::BadBlob
            }
            _ => Disturbance::FailedWrites(self.per_mille.div_ceil(10)),
        };
        slowdown.factor *= disturbance.factor();
        if let Failure::Throttled(wait) = self.failure {
            slowdown.waits += WAITS_IN_A_ROW * wait;
        }
        slowdown
    }
}

/// Draws the rules of a plan. Uses its own random numbers, so that the rest of the plan stays the same.
pub(super) fn drawn(seed: u64, scale: &Scale) -> Vec<Incident> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0xfa11);
    let mut incidents = Vec::new();
    if scale.failures {
        for _ in 0..rng.random_range(1..4) {
            let lasts = scale.storm.mul_f64(rng.random_range(0.3..1.0));
            let at = scale.storm.saturating_sub(lasts).mul_f64(rng.random_range(0.0..1.0));
            incidents.push(Incident { at, kind: IncidentKind::Failures { rule: rule(&mut rng, scale), lasts } });
        }
    }
    let whole_time = |rule| Incident { at: Duration::ZERO, kind: IncidentKind::Failures { rule, lasts: scale.storm } };
    if scale.failed_writes_per_mille > 0 {
        incidents.push(whole_time(FailureRule::writes(scale.failed_writes_per_mille)));
    }
    if scale.bad_blob {
        incidents.push(whole_time(FailureRule::bad_blob(0)));
    }
    incidents
}

/// Draws the quota of requests for properties of the event hub: the quota of the service, a lower one, or none. Uses
/// its own random numbers, so that the rest of the plan stays the same.
pub(super) fn quota(seed: u64, scale: &Scale) -> Option<u32> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x9007);
    (scale.failures && rng.random_bool(0.5)).then(|| [MANAGEMENT_QUOTA, 10][rng.random_range(0..2)])
}

/// Draws the members whose runtimes are blocked, for a while or as long as the faults last. Uses its own random
/// numbers, so that the rest of the plan stays the same.
pub(super) fn blocked(seed: u64, scale: &Scale) -> Vec<Incident> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0xb10c);
    let count = if scale.blocked { rng.random_range(1..4) } else { 0 };
    let one = |_| {
        let at = scale.storm.mul_f64(rng.random_range(0.1..0.8));
        let left = scale.storm.saturating_sub(at);
        let lasts = if rng.random_bool(0.3) { left } else { left.min(Duration::from_secs(rng.random_range(1..900))) };
        Incident { at, kind: IncidentKind::Block { member: rng.random_range(0..scale.instances.max(1)), lasts } }
    };
    (0..count).map(one).collect()
}

fn rule(rng: &mut StdRng, scale: &Scale) -> FailureRule {
    if rng.random_bool(0.25) {
        return FailureRule::bad_blob(rng.random_range(0..scale.partitions.max(1)));
    }
    let operations = [
        None,
        Some(BlobOperation::Write),
        Some(BlobOperation::Write),
        Some(BlobOperation::Get),
        Some(BlobOperation::List),
    ];
    let blobs = [Blobs::All, Blobs::All, Blobs::Checkpoints, Blobs::Heartbeats];
    let wait = Duration::from_secs(WAITS[rng.random_range(0..WAITS.len())]);
    let failures = [Failure::Throttled(wait), Failure::ServerError, Failure::Hang];
    FailureRule {
        member: rng.random_bool(0.3).then(|| rng.random_range(0..scale.instances.max(1))),
        operation: operations[rng.random_range(0..operations.len())],
        blobs: blobs[rng.random_range(0..blobs.len())],
        per_mille: RATES[rng.random_range(0..RATES.len())],
        failure: failures[rng.random_range(0..failures.len())],
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;

    fn rules(seed: u64, scale: &Scale) -> Vec<FailureRule> {
        let incidents = Plan::draw(seed, scale).incidents.into_iter();
        incidents
            .filter_map(|incident| match incident.kind {
                IncidentKind::Failures { rule, .. } => Some(rule),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn rules_do_not_change_the_rest_of_a_plan() {
        let scale = Scale::default();
        for seed in 1..100 {
            let mut failing = Plan::draw(seed, &Scale { failures: true, ..scale });
            failing.incidents.retain(|incident| !matches!(incident.kind, IncidentKind::Failures { .. }));
            failing.management_quota = None;
            let plain = Plan::draw(seed, &scale);
            for (failing, plain) in failing.members.iter_mut().zip(&plain.members) {
                (failing.bad_events, failing.tracks) = (None, plain.tracks);
            }
            assert_eq!(plain, failing);
        }
    }

    #[test]
    fn every_kind_of_rule_is_drawn() {
        let scale = Scale { failures: true, ..Scale::default() };
        let drawn: Vec<_> = (1..100).flat_map(|seed| rules(seed, &scale)).collect();
        let some = |holds: &dyn Fn(&FailureRule) -> bool| assert!(drawn.iter().any(holds));
        some(&|rule| matches!(rule.blobs, Blobs::OwnershipOf(_)) && rule.per_mille == 1000);
        some(&|rule| rule.blobs == Blobs::Heartbeats && rule.per_mille < 1000);
        some(&|rule| rule.operation == Some(BlobOperation::List) && rule.member.is_some());
        some(&|rule| rule.failure == Failure::Throttled(Duration::from_secs(120)));
        some(&|rule| rule.failure == Failure::Hang);
        some(&|rule| rule.failure == Failure::ServerError);
    }

    #[test]
    fn wanted_rules_last_as_long_as_the_faults() {
        let scale = Scale { failed_writes_per_mille: 100, bad_blob: true, ..Scale::default() };
        assert_eq!(rules(1, &scale), [FailureRule::writes(100), FailureRule::bad_blob(0)]);
    }
}
