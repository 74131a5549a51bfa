//! The waits between restarts.

use std::time::Duration;

/// The wait before the first restart. It doubles up to [`LONGEST_WAIT`] until an event is handled for the first time.
const FIRST_WAIT: Duration = Duration::from_millis(250);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How long to wait before the next attempt, and what counts as progress.
#[derive(Debug, Default)]
pub(super) struct RestartBackoff {
    failures: u32,
    /// The last event of the batches that the handler accepted. Redelivered events are no progress. Tracked events may be
    /// unfinished.
    furthest: Option<i64>,
    /// The last event that is finished, with all before it. It may be in a batch that failed.
    finished: Option<i64>,
}

impl RestartBackoff {
    pub(super) fn next(&mut self) -> Duration {
        self.next_between(Duration::ZERO, LONGEST_WAIT)
    }

    /// Returns the next wait. It is no longer than `longest`, but no shorter than what the server requests, up to
    /// [`LONGEST_WAIT`], also with [jitter](super::jitter::jittered).
    pub(super) fn next_between(&mut self, requested: Duration, longest: Duration) -> Duration {
        let first = FIRST_WAIT.max(requested.min(LONGEST_WAIT) * 4 / 3);
        let wait = first.saturating_mul(2u32.saturating_pow(self.failures.min(16)));
        self.failures = self.failures.saturating_add(1);
        wait.min(longest.max(first))
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

    /// Records the last event up to which all events are finished. A batch that fails may have made progress.
    pub(super) fn finished(&mut self, last: Option<i64>) {
        if last > self.finished {
            (self.finished, self.failures) = (last, 0);
        }
    }

    /// Records how long a link was open. A link that was open for long was healthy, even without events.
    pub(super) fn link_held(&mut self, time: Duration) {
        if time > LONGEST_WAIT {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit() {
        let mut backoff = RestartBackoff::default();
        let waits: Vec<_> = (0..10).map(|_| backoff.next()).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], FIRST_WAIT);
        assert_eq!(waits[9], LONGEST_WAIT);
        assert_eq!(backoff.next_between(Duration::ZERO, FIRST_WAIT * 40), FIRST_WAIT * 40);
        assert_eq!(backoff.next_between(LONGEST_WAIT * 2, LONGEST_WAIT), LONGEST_WAIT * 4 / 3);
        backoff.handled(Some(5));
        assert_eq!(backoff.next(), FIRST_WAIT);
        backoff.handled(Some(5));
        assert_eq!(backoff.next(), FIRST_WAIT * 2, "a redelivered event is no progress");
        backoff.link_held(LONGEST_WAIT);
        assert_eq!(backoff.next(), FIRST_WAIT * 4);
        backoff.link_held(LONGEST_WAIT * 2);
        assert_eq!(backoff.next_between(FIRST_WAIT * 6, LONGEST_WAIT), FIRST_WAIT * 8);
        assert_eq!(backoff.next_between(FIRST_WAIT * 6, LONGEST_WAIT), FIRST_WAIT * 16);
    }
}
