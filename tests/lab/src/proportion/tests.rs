//! The rule holds for groups that are small enough for every run of the tests. `cargo simulate --proportion` measures
//! larger ones.

use std::time::Duration;

use super::factors::Disturbance;
use super::reading::{Case, Measurement};
use super::{Proportion, throughput};

const SEEDS: u64 = 2;

fn alone(measuring: impl Future<Output = eventhubs_checkpoint::Result<Option<Duration>>>) -> Option<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(measuring).unwrap()
}

/// Compares with a run without a disturbance.
fn assert_proportionate(
    what: &str,
    disturbances: &[Disturbance],
    measure: impl Fn(Disturbance, u64) -> Option<Duration>,
) {
    let times = |disturbance: Disturbance| (1..=SEEDS).map(|seed| measure(disturbance, seed)).collect::<Vec<_>>();
    let faultless = times(Disturbance::NONE);
    let measured = disturbances.iter().map(|disturbance| {
        let times = times(*disturbance);
        println!("{what}, {disturbance}: {times:?} instead of {faultless:?}");
        Proportion::new(what.to_owned(), *disturbance, times, Some(faultless.clone()))
    });
    let violations: Vec<_> = measured.filter_map(|measured| measured.check().err()).collect();
    assert_eq!(violations, []);
}

fn reading(case: Case, disturbances: &[Disturbance]) {
    let measurement = Measurement { case, partitions: 32 };
    let measure = |disturbance, seed| alone(measurement.take(disturbance, seed));
    assert_proportionate(&measurement.to_string(), disturbances, measure);
}

#[test]
fn few_failed_writes_delay_a_takeover_little() {
    reading(Case::Crash, &[Disturbance::FailedWrites(1)]);
}

#[test]
fn failed_writes_delay_a_takeover_in_proportion() {
    reading(Case::Crash, &[Disturbance::FailedWrites(10), Disturbance::FailedWrites(30), Disturbance::BadBlob]);
}

#[test]
fn failed_writes_delay_a_start_in_proportion() {
    reading(Case::ColdStart, &[Disturbance::FailedWrites(10), Disturbance::FailedWrites(30), Disturbance::BadBlob]);
}

#[test]
fn failing_events_cost_throughput_in_proportion() {
    let measure = |disturbance, seed| alone(throughput::measure(disturbance, seed));
    assert_proportionate("throughput", &[Disturbance::FailsOnce(10), Disturbance::FailsAlways(10)], measure);
}

#[test]
fn rare_failing_events_cost_little_throughput() {
    let measure = |disturbance, seed| alone(throughput::measure(disturbance, seed));
    assert_proportionate("throughput", &[Disturbance::FailsOnce(500), Disturbance::FailsAlways(500)], measure);
}
