//! Outages of the storage, as one balancing loop sees them in the results of its requests.
//!
//! What stops the requests of this instance may stop those of the others. After an outage, owners that could not renew
//! in the meantime get time to do so before they count as dead.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::lock::lock;
use crate::model::LeaseTerms;
use crate::telemetry::Outcome;

/// The record of the storage's answers. All clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Outages(Arc<Mutex<Outage>>);

#[derive(Clone, Copy, Debug)]
struct Outage {
    /// An outage is a longer time than this without any answer and with a failure.
    limit: Duration,
    last_answer: Duration,
    /// A request failed after the last answer.
    failed: bool,
    /// When the last outage ended.
    ended: Option<Duration>,
    /// How long it was, until that is reported.
    unreported: Option<Duration>,
}

/// Whether a request with this outcome shows that the storage works. A refused condition and a missing blob do, because
/// the storage had to look at the blob. Any other refusal, such as a missing permission, keeps this instance from its
/// records just as an unreachable storage does.
fn is_answer(outcome: Outcome) -> bool {
    match outcome {
        Outcome::Done | Outcome::Conflict | Outcome::NotFound => true,
        Outcome::Throttled | Outcome::Unknown | Outcome::Unavailable | Outcome::Refused => false,
    }
}

impl Outage {
    fn new(limit: Duration, now: Duration) -> Self {
        Self { limit, last_answer: now, failed: false, ended: None, unreported: None }
    }

    fn observe(&mut self, outcome: Outcome, now: Duration) {
        if !is_answer(outcome) {
            self.failed = true;
            return;
        }
        if let Some(silence) = self.silence(now) {
            (self.ended, self.unreported) = (Some(now), Some(silence));
        }
        (self.last_answer, self.failed) = (now, false);
    }

    /// How long the outage has lasted, if there is one now.
    fn silence(&self, now: Duration) -> Option<Duration> {
        let silence = now.saturating_sub(self.last_answer);
        (self.failed && silence > self.limit).then_some(silence)
    }
}

impl Outages {
    /// A record that begins now.
    pub(super) fn new(terms: LeaseTerms, request_deadline: Duration, now: Duration) -> Self {
        Self(Arc::new(Mutex::new(Outage::new(terms.expiry / 2 + request_deadline, now))))
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        lock(&self.0)
    }

    pub(super) fn observe(&self, outcome: Outcome, now: Duration) {
        self.outage().observe(outcome, now);
    }

    /// How long the outage has lasted, if there is one now.
    pub(crate) fn silence(&self, now: Duration) -> Option<Duration> {
        self.outage().silence(now)
    }

    /// When the last outage ended, on the lease clock.
    pub(crate) fn ended(&self) -> Option<Duration> {
        self.outage().ended
    }

    /// How long the last outage was, once after each.
    pub(crate) fn take_ended(&self) -> Option<Duration> {
        self.outage().unreported.take()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::error::{Error, ErrorKind};
    use crate::model::{ConsumerGroup, OwnerId};
    use crate::store::GroupStore;
    use crate::telemetry::Operation;

    const LIMIT: Duration = Duration::from_secs(35);

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn answered(outage: &mut Outage, now: u64) -> Option<Duration> {
        outage.observe(Outcome::Done, at(now));
        outage.unreported.take()
    }

    #[test]
    fn an_answer_is_told_from_a_failure() {
        for (kind, answer) in [
            (ErrorKind::Conflict, true),
            (ErrorKind::NotFound, true),
            (ErrorKind::Throttled { retry_after: None }, false),
            (ErrorKind::Unknown, false),
            (ErrorKind::Unavailable, false),
            (ErrorKind::Unauthorized, false),
            (ErrorKind::ContainerNotFound, false),
            (ErrorKind::Rejected, false),
        ] {
            let outcome = Outcome::of::<()>(&Err(Error::new(kind, "x")));
            assert_eq!(is_answer(outcome), answer, "{kind:?}");
        }
        assert!(is_answer(Outcome::of(&Ok(()))));
    }

    #[test]
    fn a_long_silence_with_a_failure_is_an_outage() {
        let mut outage = Outage::new(LIMIT, at(100));
        outage.observe(Outcome::Unavailable, at(101));
        assert_eq!((outage.silence(at(135)), outage.silence(at(136))), (None, Some(at(36))));
        assert_eq!(answered(&mut outage, 136), Some(at(36)));
        assert_eq!(outage.ended, Some(at(136)));
        assert_eq!(answered(&mut outage, 137), None);
        assert_eq!(outage.ended, Some(at(136)), "it is remembered");
    }

    #[test]
    fn a_short_silence_and_one_without_a_failure_are_none() {
        let mut outage = Outage::new(LIMIT, at(100));
        outage.observe(Outcome::Unavailable, at(101));
        assert_eq!(answered(&mut outage, 135), None);
        assert_eq!(answered(&mut outage, 500), None, "the failure came before the last answer");
        assert_eq!((outage.ended, outage.silence(at(999))), (None, None));
    }

    /// The loop and the checkpoints have a store each.
    #[tokio::test(start_paused = true)]
    async fn a_store_observes_the_requests_of_its_clones_alone() {
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
        let other = builder.expiry(at(60)).request_deadline(at(5)).connect().await.unwrap();
        let store = other.clone().with_own_outages();
        let failure = async { Err::<(), _>(Error::new(ErrorKind::Unavailable, "x")) };
        store.send(Operation::Renew, failure).await.unwrap_err();
        advance(at(36)).await;
        other.list_checkpoints().await.unwrap();
        assert_eq!(store.outages().silence(store.lease_time()), Some(at(36)));
        store.clone().list_presences().await.unwrap();
        assert_eq!(store.outages().silence(store.lease_time()), None);
        assert_eq!((store.outages().take_ended(), store.outages().take_ended()), (Some(at(36)), None));
        assert_eq!((store.outages().ended(), other.outages().ended()), (Some(store.lease_time()), None));
    }
}
