//! By how much longer something may take than without faults. docs/guarantees.md states the same factors.

use std::fmt;

/// What goes wrong all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// This many percent of all writes to the storage are throttled.
    FailedWrites(u32),
    /// One ownership record can never be written.
    BadBlob,
    /// The handler fails once for one event in so many.
    FailsOnce(u32),
    /// The handler always fails for one event in so many, and knows it, so that they become dead letters.
    FailsAlways(u32),
}

impl Disturbance {
    /// Those of the storage, beginning with none.
    pub const OF_STORAGE: [Self; 7] = [
        Self::NONE,
        Self::FailedWrites(1),
        Self::FailedWrites(5),
        Self::FailedWrites(10),
        Self::FailedWrites(20),
        Self::FailedWrites(30),
        Self::BadBlob,
    ];

    /// Those of the handler.
    pub const OF_HANDLER: [Self; 5] =
        [Self::FailsOnce(100), Self::FailsOnce(20), Self::FailsOnce(10), Self::FailsAlways(100), Self::FailsAlways(10)];

    /// Nothing goes wrong.
    pub const NONE: Self = Self::FailedWrites(0);

    /// Returns how many times as long as without the disturbance something may take.
    #[must_use]
    pub fn factor(self) -> f64 {
        match self {
            Self::FailedWrites(0) => 1.0,
            Self::FailedWrites(1) | Self::BadBlob => 1.5,
            Self::FailedWrites(2..=5) => 2.0,
            Self::FailedWrites(6..=10) => 2.5,
            Self::FailedWrites(11..=20) => 4.0,
            Self::FailedWrites(_) => 6.0,
            Self::FailsOnce(100..) | Self::FailsAlways(100..) => 2.0,
            Self::FailsOnce(_) | Self::FailsAlways(_) => 4.0,
        }
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FailedWrites(0) => f.write_str("none"),
            Self::FailedWrites(percent) => write!(f, "{percent} % of writes fail"),
            Self::BadBlob => f.write_str("one blob cannot be written"),
            Self::FailsOnce(every) => write!(f, "one event in {every} fails once"),
            Self::FailsAlways(every) => write!(f, "one event in {every} always fails"),
        }
    }
}
