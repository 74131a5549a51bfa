//! The table of features. Every pair is tested or listed as impossible.

mod delivery;
mod faults;
mod orders;
mod policies;
mod sharing;
mod single_events;
mod start_positions;

use std::time::Duration;

use crate::feature::{Feature, Settings, Sharing};

static TABLES: [&[Feature]; 7] = [
    &delivery::FEATURES,
    &single_events::FEATURES,
    &orders::FEATURES,
    &policies::FEATURES,
    &sharing::FEATURES,
    &start_positions::FEATURES,
    &faults::FEATURES,
];

pub fn all() -> impl Iterator<Item = &'static Feature> {
    TABLES.into_iter().flatten()
}

/// A lease duration, the longest time between two cycles, a request that hangs, and two rounds of claims.
const CRASH_RECOVERY: Duration = Duration::from_secs(62 + 30 + 5 + 20);

/// The longest time between two cycles, two rounds of claims, and the start of the handler.
const TAKEOVER: Duration = Duration::from_secs(30 + 20 + 5);

/// How long the partitions of an instance may have no handler if the instance releases them for `time`.
fn takeover_time(settings: &Settings, time: Duration) -> Duration {
    // No other instance may take them.
    if settings.sharing == Sharing::Static { time + TAKEOVER } else { TAKEOVER }
}
