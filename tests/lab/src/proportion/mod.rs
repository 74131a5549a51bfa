//! Degrades in proportion: with some percent of the requests failing for hours, or some events that cannot be
//! processed, everything still happens, later by no more than a stated factor.
//!
//! | | what is measured | what is disturbed |
//! |---|---|---|
//! | [`reading`] | the time until all partitions are read | writes to the storage |
//! | [`throughput`] | the time until all events of a partition are processed | the handler |
//!
//! [`factors`] has all factors. docs/guarantees.md states them.

pub mod factors;
mod measured;
pub mod reading;
#[cfg(test)]
mod tests;
pub mod throughput;

use std::time::Duration;

pub use self::measured::{Disproportionate, Proportion};
use crate::sim::{Member, Plan, Role, Scale, Settings};

/// Returns a group with the default settings, whose instances all start at once, without any fault.
fn quiet_group(seed: u64, instances: u32, partitions: u32, lasts: Duration) -> Plan {
    let scale = Scale { instances, partitions, storm: lasts, foreign: false, ..Scale::default() };
    let mut plan = Plan::calm(seed, &scale);
    plan.settings = Settings::default();
    plan.members = (0..instances).map(Member::plain).collect();
    plan.loads = Vec::new();
    plan
}

impl Member {
    /// Returns a member that runs this crate, with nothing special.
    fn plain(number: u32) -> Self {
        Self {
            role: Role::CrateProcessor,
            number,
            dots: 0,
            starts_at: Duration::ZERO,
            skew_seconds: 0,
            work: Duration::ZERO,
            tracks: false,
            failures_per_mille: 0,
            bad_events: None,
            one_by_one: None,
            terms: None,
        }
    }
}
