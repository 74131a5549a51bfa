//! The waits between restarts.

use std::time::Duration;

/// The wait before the first restart. It doubles up to [`LONGEST_PAUSE`] until a batch is handled.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Returns the wait with jitter, up to a quarter shorter: receivers that failed at the same time are not all reopened
/// at the same time.
pub(super) fn jittered(pause: Duration, random: u64) -> Duration {
    let quarter = pause / 4;
    // A hundred steps are random enough.
    pause.saturating_sub(quarter * u32::try_from(random % 100).unwrap_or_default() / 100)
}

/// How long to wait before the next attempt, and what counts as progress.
#[derive(Debug, Default)]
pub(super) struct RestartBackoff {
    failures: u32,
    /// The last event ever handled. Redelivered events are no progress.
    furthest: Option<i64>,
}

impl RestartBackoff {
    pub(super) fn next(&mut self) -> Duration {
        self.next_between(Duration::ZERO, LONGEST_PAUSE)
    }

    /// Returns the next wait. It is no longer than `longest`, but no shorter than what the server requests, up to
    /// [`LONGEST_PAUSE`], also with [jitter](jittered).
    pub(super) fn next_between(&mut self, requested: Duration, longest: Duration) -> Duration {
        let first = FIRST_PAUSE.max(requested.min(LONGEST_PAUSE) * 4 / 3);
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

    /// Records how long a link was open. A link that was open for long was healthy, even without events.
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
    fn b23_jitter_shortens_a_wait_by_a_quarter_at_most() {
        let waits: BTreeSet<_> = (0..1000).map(|random| jittered(LONGEST_PAUSE, random)).collect();
        assert_eq!(waits.len(), 100);
        assert!(waits.first() > Some(&(LONGEST_PAUSE * 3 / 4)) && waits.last() == Some(&LONGEST_PAUSE));
        assert_eq!(jittered(Duration::ZERO, 50), Duration::ZERO);
    }

    #[test]
    fn waits_grow_up_to_a_limit() {
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
        assert_eq!(pauses.next(), FIRST_PAUSE * 2, "a redelivered event is no progress");
        pauses.link_held(LONGEST_PAUSE);
        assert_eq!(pauses.next(), FIRST_PAUSE * 4);
        pauses.link_held(LONGEST_PAUSE * 2);
        assert_eq!(pauses.next_between(FIRST_PAUSE * 6, LONGEST_PAUSE), FIRST_PAUSE * 8);
        assert_eq!(pauses.next_between(FIRST_PAUSE * 6, LONGEST_PAUSE), FIRST_PAUSE * 16);
    }
}
