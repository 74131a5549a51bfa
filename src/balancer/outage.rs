//! Whether the storage was away for this instance. What stopped me may have stopped the others, so whoever could not renew
//! meanwhile is given time to do so before it counts as dead.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::balance::Moment;
use crate::lock::lock;
use crate::store::GroupStore;

#[derive(Clone, Copy, Debug)]
struct Outage {
    /// No success for longer than this, and at least one failure in that time, is an outage.
    patience: Duration,
    last_success: Moment,
    failed_since: bool,
    ended: Option<Moment>,
}

impl Outage {
    fn new(patience: Duration, now: Moment) -> Self {
        Self { patience, last_success: now, failed_since: false, ended: None }
    }

    /// A request failed, or was not answered.
    fn failed(&mut self) {
        self.failed_since = true;
    }

    /// A request was answered as it should be. Answers how long the outage was that ends with it.
    fn succeeded(&mut self, now: Moment) -> Option<Duration> {
        let silence = self.silence(now);
        if silence.is_some() {
            self.ended = Some(now);
        }
        (self.last_success, self.failed_since) = (now, false);
        silence
    }

    /// How long there has been no success, if that is longer than it should be.
    fn silence(&self, now: Moment) -> Option<Duration> {
        let silence = now.saturating_sub(self.last_success);
        (self.failed_since && silence > self.patience).then_some(silence)
    }

    /// When the last one ended.
    fn ended(&self) -> Option<Moment> {
        self.ended
    }
}

/// The outage as the loop knows it, for whoever holds a handle. All clones are one.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    outage: Arc<Mutex<Outage>>,
    /// When the last cycle succeeded, or else when the loop began.
    last_cycle: Arc<Mutex<Option<Moment>>>,
    store: GroupStore,
}

impl Reach {
    pub(super) fn new(patience: Duration, store: GroupStore) -> Self {
        let outage = Outage::new(patience, store.lease_time());
        Self { outage: Arc::new(Mutex::new(outage)), last_cycle: Arc::default(), store }
    }

    /// The loop begins, or a cycle has succeeded.
    pub(super) fn cycle_succeeded(&self) {
        *lock(&self.last_cycle) = Some(self.store.lease_time());
    }

    /// How long no cycle has succeeded, if that is longer than the expiry. Slow as cycles may be, one comes within that.
    pub(super) fn blind(&self) -> Option<Duration> {
        let last = *lock(&self.last_cycle);
        let blind = self.store.lease_time().saturating_sub(last?);
        (blind > self.store.terms().expiry).then_some(blind)
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        lock(&self.outage)
    }

    pub(super) fn failed(&self) {
        self.outage().failed();
    }

    pub(super) fn succeeded(&self) -> Option<Duration> {
        self.outage().succeeded(self.store.lease_time())
    }

    pub(super) fn ended(&self) -> Option<Moment> {
        self.outage().ended()
    }

    pub(super) fn silence(&self) -> Option<Duration> {
        self.outage().silence(self.store.lease_time())
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
