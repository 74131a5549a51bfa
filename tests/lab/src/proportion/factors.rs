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
    /// The disturbances of the storage. The first one is none.
    pub const OF_STORAGE: [Self; 7] = [
        Self::NONE,
        Self::FailedWrites(1),
        Self::FailedWrites(5),
        Self::FailedWrites(10),
        Self::FailedWrites(20),
        Self::FailedWrites(30),
        Self::BadBlob,
    ];

    /// The disturbances of the handler.
    pub const OF_HANDLER: [Self; 5] =
        [Self::FailsOnce(100), Self::FailsOnce(20), Self::FailsOnce(10), Self::FailsAlways(100), Self::FailsAlways(10)];

    /// Nothing goes wrong.
    pub const NONE: Self = Self::FailedWrites(0);

    /// Returns how many times as long as without the disturbance something may take. If the disturbance has no
    /// entry, the entry of the next greater one applies. If there is none, nothing is promised.
    #[must_use]
    pub fn factor(self) -> f64 {
        let as_rough = FACTORS.iter().filter(|(other, _)| self.is_at_most(*other));
        as_rough.map(|(_, factor)| *factor).fold(f64::INFINITY, f64::min)
    }

    /// Returns whether it is of the same kind, and no rougher.
    fn is_at_most(self, other: Self) -> bool {
        match (self, other) {
            (Self::FailedWrites(percent), Self::FailedWrites(other)) => percent <= other,
            (Self::FailsOnce(every), Self::FailsOnce(other)) | (Self::FailsAlways(every), Self::FailsAlways(other)) => {
                every >= other
            }
            (one, other) => one == other,
        }
    }
}

/// How many times as long as without a disturbance something may take.
const FACTORS: [(Disturbance, f64); 11] = [
    (Disturbance::NONE, 1.0),
    (Disturbance::FailedWrites(1), 1.5),
    (Disturbance::FailedWrites(5), 2.0),
    (Disturbance::FailedWrites(10), 2.5),
    (Disturbance::FailedWrites(20), 4.0),
    (Disturbance::FailedWrites(30), 6.0),
    (Disturbance::BadBlob, 1.5),
    (Disturbance::FailsOnce(100), 2.0),
    (Disturbance::FailsOnce(10), 4.0),
    (Disturbance::FailsAlways(100), 2.0),
    (Disturbance::FailsAlways(10), 4.0),
];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_rougher_disturbance_has_the_factor() {
        assert_eq!(Disturbance::FailedWrites(7).factor().total_cmp(&2.5), std::cmp::Ordering::Equal);
        assert_eq!(Disturbance::FailsOnce(20).factor().total_cmp(&4.0), std::cmp::Ordering::Equal);
        assert_eq!(Disturbance::FailsAlways(500).factor().total_cmp(&2.0), std::cmp::Ordering::Equal);
        assert!(Disturbance::FailedWrites(31).factor().is_infinite());
    }
}
