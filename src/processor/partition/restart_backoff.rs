//! The waits between restarts.

use std::time::Duration;

use crate::backoff::Backoff;

/// The wait after an attempt that finished new events. It is what a failing event costs the events after it, so it is
/// short: however many events fail, the partition advances between two of these waits.
const WAIT_AFTER_PROGRESS: Duration = Duration::from_millis(100);
/// The wait after the first attempt that finished nothing new. It doubles up to [`LONGEST_WAIT`] with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(250);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How long to wait before the next attempt, and what counts as progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct RestartBackoff {
    /// How many waits in a row came after an attempt that finished nothing new.
    failures: u32,
    /// New events were finished since the last wait.
    progressed: bool,
    /// The last event of the batches that the handler accepted. Redelivered events are no progress. Tracked events may
    /// be unfinished.
    furthest: Option<i64>,
    /// The last event that is finished, with all before it. It may be in a batch that failed.
    finished: Option<i64>,
    /// How long the wait before the next restart may take at most.
    restart_limit: Option<Duration>,
}

impl RestartBackoff {
    pub(crate) fn next_wait(&mut self) -> Duration {
        self.next_wait_between(Duration::ZERO, LONGEST_WAIT)
    }

    /// Returns the next wait. It is no longer than `longest`, but no shorter than what the server requests, up to
    /// [`LONGEST_WAIT`], also with [jitter](crate::processor::shared::shorten_randomly).
    pub(crate) fn next_wait_between(&mut self, requested: Duration, longest: Duration) -> Duration {
        let requested = requested.min(LONGEST_WAIT) * 4 / 3;
        if std::mem::take(&mut self.progressed) {
            return WAIT_AFTER_PROGRESS.max(requested);
        }
        let first = FIRST_WAIT.max(requested);
        let wait = Backoff::new(first, longest.max(first)).wait_after(self.failures);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Returns the wait before the restart after a failure of the handler.
    pub(crate) fn next_restart_wait(&mut self) -> Duration {
        self.next_wait().min(self.restart_limit.take().unwrap_or(Duration::MAX))
    }

    /// Returns what [`next_restart_wait`](Self::next_restart_wait) will return, for logs.
    pub(crate) fn upcoming_restart_wait(&self) -> Duration {
        self.clone().next_restart_wait()
    }

    /// Limits the wait before the next restart, or removes the limit.
    pub(crate) fn limit_restart(&mut self, longest: Option<Duration>) {
        self.restart_limit = longest;
    }

    /// Returns whether the next restart does not wait.
    pub(crate) fn restarts_at_once(&self) -> bool {
        self.restart_limit == Some(Duration::ZERO)
    }

    /// Records that the partition starts after this event. If it starts `elsewhere`, the event hub may be another one,
    /// whose events have other numbers.
    pub(crate) fn record_start(&mut self, after: Option<i64>, elsewhere: bool) {
        if elsewhere {
            self.furthest = None;
            self.finished = after;
        } else {
            self.finished = self.finished.max(after);
        }
    }

    pub(crate) fn last_handled(&self) -> Option<i64> {
        self.furthest
    }

    pub(crate) fn record_handled(&mut self, last: Option<i64>) {
        if last.is_none() || last > self.furthest {
            self.furthest = last.or(self.furthest);
            self.record_progress();
        }
    }

    /// Records the last event up to which all events are finished. A batch that fails may have made progress.
    pub(crate) fn record_finished(&mut self, last: Option<i64>) {
        if last > self.finished {
            self.finished = last;
            self.record_progress();
        }
    }

    pub(crate) fn record_progress(&mut self) {
        self.failures = 0;
        self.progressed = true;
    }

    /// Records how long a link was open. A link that was open for long was healthy, even without events.
    pub(crate) fn record_link_time(&mut self, time: Duration) {
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
        let waits: Vec<_> = (0..10).map(|_| backoff.next_wait()).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], FIRST_WAIT);
        assert_eq!(waits[9], LONGEST_WAIT);
        assert_eq!(backoff.next_wait_between(Duration::ZERO, FIRST_WAIT * 40), FIRST_WAIT * 40);
        assert_eq!(backoff.next_wait_between(LONGEST_WAIT * 2, LONGEST_WAIT), LONGEST_WAIT * 4 / 3);
        backoff.record_link_time(LONGEST_WAIT);
        assert_eq!(backoff.next_wait(), LONGEST_WAIT);
        backoff.record_link_time(LONGEST_WAIT * 2);
        assert_eq!(backoff.next_wait_between(FIRST_WAIT * 6, LONGEST_WAIT), FIRST_WAIT * 8);
        assert_eq!(backoff.next_wait_between(FIRST_WAIT * 6, LONGEST_WAIT), FIRST_WAIT * 16);
    }

    #[test]
    fn a_limit_holds_for_one_restart() {
        let mut backoff = RestartBackoff::default();
        backoff.limit_restart(Some(Duration::ZERO));
        assert!(backoff.restarts_at_once());
        assert_eq!(backoff.upcoming_restart_wait(), Duration::ZERO);
        assert_eq!([backoff.next_restart_wait(), backoff.next_restart_wait()], [Duration::ZERO, FIRST_WAIT * 2]);
        backoff.limit_restart(Some(Duration::ZERO));
        assert_eq!(backoff.next_wait(), FIRST_WAIT * 4, "a link or the storage is another matter");
        backoff.limit_restart(None);
        assert_eq!(backoff.next_restart_wait(), FIRST_WAIT * 8);
    }

    #[test]
    fn a_restart_after_progress_comes_sooner() {
        let mut backoff = RestartBackoff::default();
        assert_eq!([backoff.next_wait(), backoff.next_wait()], [FIRST_WAIT, FIRST_WAIT * 2]);
        for progress in [RestartBackoff::record_handled, RestartBackoff::record_finished] {
            progress(&mut backoff, Some(5));
            assert_eq!(backoff.next_wait(), WAIT_AFTER_PROGRESS);
            progress(&mut backoff, Some(5));
            assert_eq!(backoff.next_wait(), FIRST_WAIT, "a redelivered event is no progress");
            assert_eq!(backoff.next_wait(), FIRST_WAIT * 2);
        }
        backoff.record_finished(Some(6));
        assert_eq!(backoff.next_wait_between(FIRST_WAIT * 3, LONGEST_WAIT), FIRST_WAIT * 4, "the server asks for more");
    }

    #[test]
    fn what_was_finished_before_the_start_is_no_progress() {
        let mut backoff = RestartBackoff::default();
        backoff.record_start(Some(5), false);
        backoff.record_finished(Some(5));
        assert_eq!(backoff.next_wait(), FIRST_WAIT);
        backoff.record_finished(Some(9));
        backoff.record_start(Some(7), false);
        assert_eq!(backoff.next_wait(), WAIT_AFTER_PROGRESS, "a start takes nothing back");
        backoff.record_finished(Some(8));
        assert_eq!(backoff.next_wait(), FIRST_WAIT, "it was finished before");
    }

    #[test]
    fn numbers_of_a_former_hub_count_no_longer() {
        let mut backoff = RestartBackoff::default();
        backoff.record_handled(Some(99));
        backoff.record_finished(Some(99));
        assert_eq!(backoff.next_wait(), WAIT_AFTER_PROGRESS);
        backoff.record_start(Some(-1), true);
        backoff.record_finished(Some(-1));
        assert_eq!(backoff.next_wait(), FIRST_WAIT);
        for progress in [RestartBackoff::record_handled, RestartBackoff::record_finished] {
            progress(&mut backoff, Some(0));
            assert_eq!(backoff.next_wait(), WAIT_AFTER_PROGRESS);
        }
    }
}
