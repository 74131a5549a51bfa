//! A measured time and the rule for it.

use std::time::Duration;

use super::factors::Disturbance;

/// How long something took with a disturbance, by seed, and without it. `None`: too long to wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct Proportion {
    /// What was measured.
    pub what: String,
    /// What went wrong.
    pub disturbance: Disturbance,
    /// The times, from the shortest to the longest. `None` is last.
    pub took: Vec<Option<Duration>>,
    faultless: Vec<Option<Duration>>,
}

/// Something took longer than its factor says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Disproportionate(String);

impl Proportion {
    /// Creates it. Without `faultless`, these are the times without a disturbance.
    #[must_use]
    pub fn new(
        what: String,
        disturbance: Disturbance,
        mut took: Vec<Option<Duration>>,
        faultless: Option<Vec<Option<Duration>>>,
    ) -> Self {
        took.sort_by_key(|time| time.unwrap_or(Duration::MAX));
        let faultless = faultless.unwrap_or_else(|| took.clone());
        Self { what, disturbance, took, faultless }
    }

    /// Returns the median of the times.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        self.took.get(self.took.len() / 2).copied().flatten()
    }

    /// Returns the longest time.
    #[must_use]
    pub fn worst(&self) -> Option<Duration> {
        self.took.last().copied().flatten()
    }

    /// Checks the invariant *Proportionate*: the longest time is at most as many times as long as the longest one
    /// without the disturbance as [`Disturbance::factor`] says.
    ///
    /// # Errors
    ///
    /// The times, if it is longer.
    pub fn check(&self) -> Result<(), Disproportionate> {
        let Self { what, disturbance, .. } = self;
        let most = self.faultless.last().copied().flatten().map(|faultless| faultless.mul_f64(disturbance.factor()));
        match (self.worst(), most) {
            (Some(worst), Some(most)) if worst <= most => Ok(()),
            (worst, most) => Err(Disproportionate(format!(
                "{what}, {disturbance}: {worst:?}, but at most {most:?} is in proportion"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(times: &[u64]) -> Vec<Option<Duration>> {
        times.iter().map(|time| Some(Duration::from_secs(*time))).collect()
    }

    #[test]
    fn the_longest_time_is_compared_with_the_factor() {
        let faultless = seconds(&[8, 10]);
        let most = 10.0 * Disturbance::FailedWrites(10).factor();
        let took = |last: Option<Duration>| {
            let times = vec![last, Some(Duration::from_secs(12)), Some(Duration::from_secs(11))];
            Proportion::new("reading".to_owned(), Disturbance::FailedWrites(10), times, Some(faultless.clone()))
        };
        assert_eq!(took(Some(Duration::from_secs_f64(most))).check(), Ok(()));
        assert!(took(Some(Duration::from_secs_f64(most + 0.1))).check().is_err());
        assert!(took(None).check().is_err());
        assert_eq!(took(None).median(), Some(Duration::from_secs(12)));
    }
}
