//! The result of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::FaultKind;

use super::invariant::{Invariant, Violation};
use super::observer::TimelineEntry;
use super::quota::ManagementRequests;

/// The result of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed of the plan.
    pub seed: u64,
    /// How much virtual time the run took.
    pub elapsed: Duration,
    /// The hash of everything that was observed. The same plan gives the same hash.
    pub trace: u64,
    /// The violations. Empty if all invariants held.
    pub violations: Vec<Violation>,
    /// The last lines of the history, if requested.
    pub history: Vec<String>,
    /// Numbers that are summed over many runs.
    pub totals: Totals,
    /// The time from the last fault until the group was balanced; `None` if it never was.
    pub convergence: Option<Duration>,
    /// Storage requests of each member.
    pub requests_by_member: BTreeMap<u32, u64>,
    /// The data of a picture.
    pub timeline: Vec<TimelineEntry>,
}

/// Numbers that can be summed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// The number of runs.
    pub plans: u64,
    /// The number of runs with violations.
    pub failures: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// How often each invariant was checked.
    pub checked: BTreeMap<Invariant, u64>,
    /// Incidents, by their names.
    pub incidents: BTreeMap<&'static str, u64>,
    /// Faults of single requests.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Storage requests.
    pub requests: u64,
    /// Events published.
    pub published: u64,
    /// Events processed, including repeated ones.
    pub handled: u64,
    /// Events processed again.
    pub repeated: u64,
    /// Partitions taken from a running owner.
    pub moves: u64,
    /// The sum, over the partitions, of the time in which no running instance owned them.
    pub unowned_time: Duration,
    /// Requests about the event hub and its partitions.
    pub management: ManagementRequests,
    /// Other counters.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: &Self) {
        self.plans += other.plans;
        self.failures += other.failures;
        self.elapsed += other.elapsed;
        self.requests += other.requests;
        self.published += other.published;
        self.handled += other.handled;
        self.repeated += other.repeated;
        self.moves += other.moves;
        self.unowned_time += other.unowned_time;
        self.management.add(&other.management);
        add_all(&mut self.checked, &other.checked);
        add_all(&mut self.incidents, &other.incidents);
        add_all(&mut self.faults, &other.faults);
        add_all(&mut self.counts, &other.counts);
    }
}

fn add_all<K: Ord + Clone>(sums: &mut BTreeMap<K, u64>, numbers: &BTreeMap<K, u64>) {
    for (key, number) in numbers {
        *sums.entry(key.clone()).or_default() += number;
    }
}
