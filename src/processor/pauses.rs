//! The waits between restarts.

use std::time::Duration;

/// The wait before the first restart; it doubles up to [`LONGEST_PAUSE`] until a batch is handled.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The wait with jitter, up to a quarter shorter by a random number: what lost its links together does not open them
/// together for ever.
pub(super) fn jittered(pause: Duration, random: u64) -> Duration {
    let quarter = pause / 4;
    // The number of a percent is random enough.
    pause.saturating_sub(quarter * u32::try_from(random % 100).unwrap_or_default() / 100)
}

/// How long to wait before the next attempt, and what counts as progress.
#[derive(Debug, Default)]
pub(super) struct RestartBackoff {
    failures: u32,
    /// The furthest event that was ever handled. What comes again after a failure is no progress.
    furthest: Option<i64>,
}

impl RestartBackoff {
    pub(super) fn next(&mut self) -> Duration {
        self.next_between(Duration::ZERO, LONGEST_PAUSE)
    }

    /// The same, but no wait is longer than `longest`, nor shorter than what the server asks for, up to
    /// [`LONGEST_PAUSE`], also with [jitter](jittered).
    pub(super) fn next_between(&mut self, asked: Duration, longest: Duration) -> Duration {
        let first = FIRST_PAUSE.max(asked.min(LONGEST_PAUSE) * 4 / 3);
        let pause = first.saturating_mul(2u32.saturating_pow(self.failures.min(16)));
        self.failures = self.failures.saturating_add(1);
        pause.min(longest.max(first))
    }

    pub(super) fn furthest(&self) -> Option<i64> {
        self.furthest
    }

    pub(super) fn handled(&mut self, last: Option<i64>) {
        if last.is_none() || last > self.furthest {
            self.furthest = last.or(self.furthest);
            self.failures = 0;
        }
    }

    /// A link held for so long was a good one, even if nothing came.
    pub(super) fn link_held(&mut self, time: Duration) {
        if time > LONGEST_PAUSE {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn b23_jitter_shortens_a_wait_by_up_to_a_quarter() {
        let waits: BTreeSet<_> = (0..1000).map(|random| jittered(LONGEST_PAUSE, random)).collect();
        assert_eq!(waits.len(), 100);
        assert!(waits.first() > Some(&(LONGEST_PAUSE * 3 / 4)) && waits.last() == Some(&LONGEST_PAUSE));
        assert_eq!(jittered(Duration::ZERO, 50), Duration::ZERO);
    }

    #[test]
    fn restarts_wait_longer_each_time_up_to_a_limit() {
        let mut pauses = RestartBackoff::default();
        let waits: Vec<_> = (0..10).map(|_| pauses.next()).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], FIRST_PAUSE);
        assert_eq!(waits[9], LONGEST_PAUSE);
        assert_eq!(pauses.next_between(Duration::ZERO, FIRST_PAUSE * 40), FIRST_PAUSE * 40);
        assert_eq!(pauses.next_between(LONGEST_PAUSE * 2, LONGEST_PAUSE), LONGEST_PAUSE * 4 / 3);
        pauses.handled(Some(5));
        assert_eq!(pauses.next(), FIRST_PAUSE);
        pauses.handled(Some(5));
        assert_eq!(pauses.next(), FIRST_PAUSE * 2, "the same event again is no progress");
        pauses.link_held(LONGEST_PAUSE);
        assert_eq!(pauses.next(), FIRST_PAUSE * 4);
        pauses.link_held(LONGEST_PAUSE * 2);
        assert_eq!(pauses.next_between(FIRST_PAUSE * 6, LONGEST_PAUSE), FIRST_PAUSE * 8);
        assert_eq!(pauses.next_between(FIRST_PAUSE * 6, LONGEST_PAUSE), FIRST_PAUSE * 16);
    }
}
