//! What came of a plan.

use std::collections::BTreeMap;
use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::FaultKind;

use super::invariant::{Invariant, Violation};
use super::observer::TimelineEntry;

/// What came of a plan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// That of the plan.
    pub seed: u64,
    /// How much virtual time it took.
    pub elapsed: Duration,
    /// The same plan gives the same.
    pub trace: u64,
    /// What did not hold. Empty, if all is well.
    pub violations: Vec<Violation>,
    /// The last lines of what happened, if they were asked for.
    pub history: Vec<String>,
    /// What is summed up over many plans.
    pub totals: Totals,
    /// How long it took from the end of all trouble until the group was balanced; nothing, if it never was.
    pub convergence: Option<Duration>,
    /// Storage requests of each member.
    pub requests_by_member: BTreeMap<u32, u64>,
    /// For a picture.
    pub timeline: Vec<TimelineEntry>,
}

/// Numbers that can be summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// How many plans.
    pub plans: u64,
    /// How many of them violated something.
    pub failures: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// How often each invariant was checked.
    pub checked: BTreeMap<Invariant, u64>,
    /// Incidents, by their names.
    pub incidents: BTreeMap<&'static str, u64>,
    /// Faults that befell single requests.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Storage requests.
    pub requests: u64,
    /// Events published.
    pub published: u64,
    /// Events processed, repeated ones each time.
    pub handled: u64,
    /// Events processed again.
    pub repeated: u64,
    /// Partitions taken from an owner that went on.
    pub moves: u64,
    /// The sum, over the partitions, of the time in which none of the living owned them.
    pub unowned_time: Duration,
    /// Other things that came about.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Adds those of another.
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
