//! Whether the storage was away for this instance. What stopped me may have stopped the others, so whoever could not renew
//! meanwhile is given time to do so before it counts as dead.

use std::time::Duration;

use crate::balance::Moment;

#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    /// No success for longer than this, and at least one failure in that time, is an outage.
    patience: Duration,
    last_success: Moment,
    failed_since: bool,
    ended: Option<Moment>,
}

impl Outage {
    pub(super) fn new(patience: Duration, now: Moment) -> Self {
        Self { patience, last_success: now, failed_since: false, ended: None }
    }

    /// A request failed, or was not answered.
    pub(super) fn failed(&mut self) {
        self.failed_since = true;
    }

    /// A request was answered as it should be. Answers how long the outage was that ends with it.
    pub(super) fn succeeded(&mut self, now: Moment) -> Option<Duration> {
        let silence = now.saturating_sub(self.last_success);
        let was_away = self.failed_since && silence > self.patience;
        if was_away {
            self.ended = Some(now);
        }
        (self.last_success, self.failed_since) = (now, false);
        was_away.then_some(silence)
    }

    /// When the last one ended.
    pub(super) fn ended(&self) -> Option<Moment> {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(35);

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_long_silence_with_a_failure_in_it_is_an_outage() {
        let mut outage = Outage::new(PATIENCE, at(100));
        outage.failed();
        assert_eq!(outage.succeeded(at(136)), Some(Duration::from_secs(36)));
        assert_eq!(outage.ended(), Some(at(136)));
        assert_eq!(outage.succeeded(at(137)), None);
        assert_eq!(outage.ended(), Some(at(136)), "it is remembered");
    }

    #[test]
    fn neither_a_short_one_nor_one_without_a_failure_is() {
        let mut outage = Outage::new(PATIENCE, at(100));
        outage.failed();
        assert_eq!(outage.succeeded(at(135)), None);
        assert_eq!(outage.succeeded(at(500)), None, "the failure lies before the last success");
        assert_eq!(outage.ended(), None);
    }
}
