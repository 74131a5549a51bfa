//! The table of features. Every pair of them is tested, or in the list of the impossible ones.

mod delivery;
mod faults;
mod policies;
mod sharing;
mod starts;

use std::time::Duration;

use crate::feature::{Feature, Settings, Sharing};

static TABLES: [&[Feature]; 5] =
    [&delivery::FEATURES, &policies::FEATURES, &sharing::FEATURES, &starts::FEATURES, &faults::FEATURES];

pub fn all() -> impl Iterator<Item = &'static Feature> {
    TABLES.into_iter().flatten()
}

/// An expiry, the longest time between two cycles, a request that hangs, and two rounds of claims.
const CRASH: Duration = Duration::from_secs(62 + 30 + 5 + 20);

/// The longest time between two cycles, two rounds of claims, and the start of the handler.
const TAKEN_OVER: Duration = Duration::from_secs(30 + 20 + 5);

/// How long the partitions of an instance may be without a handler that gives them back for this long.
fn away(settings: &Settings, time: Duration) -> Duration {
    // No other instance may take them.
    if settings.sharing == Sharing::Static { time + TAKEN_OVER } else { TAKEN_OVER }
}
