//! Outages of the storage, as one load-balancing loop detects them by the outcomes of its requests.
//!
//! What stops the requests of this instance may stop the requests of other instances, too. After an outage, owners that
//! could not renew get time to do so before they count as expired.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::LeaseClock;
use crate::model::{LeaseDurations, Moment};
use crate::telemetry::{StorageOperation, StorageOutcome};
use crate::util::lock;

/// The record of the storage's responses. All clones share one state.
#[derive(Clone, Debug)]
pub(crate) struct Outages(Arc<Mutex<Outage>>);

#[derive(Clone, Copy, Debug)]
struct Outage {
    /// An outage is a time longer than this without a response and with a failure.
    limit: Duration,
    last_response: Moment,
    /// Whether a request failed after the last response.
    failed: bool,
    /// The last outage, until the loop has taken it.
    ended: Option<EndedOutage>,
}

/// An outage that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedOutage {
    /// When the storage responded again, on the lease clock.
    pub(crate) at: Moment,
    /// How long it had not responded.
    pub(crate) silence: Duration,
}

/// What the outcome of a request shows about the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Works,
    Fails,
    /// Reads succeed even if writes hang: each operation that fails ends with a read.
    Nothing,
}

/// Returns what the outcome of a request shows. A failed condition and a missing blob show that the storage works,
/// because it had to check the blob. Any other rejection, such as a missing permission, separates this instance from
/// its records just as an unreachable storage does.
fn signal_from(operation: StorageOperation, outcome: StorageOutcome) -> Signal {
    match (operation, outcome) {
        // They are too frequent to show that writes hang, and fail alone if only their blob does.
        (StorageOperation::Beacon, _) => Signal::Nothing,
        (StorageOperation::Read, StorageOutcome::Ok | StorageOutcome::Conflict | StorageOutcome::NotFound) => {
            Signal::Nothing
        }
        (_, StorageOutcome::Ok | StorageOutcome::Conflict | StorageOutcome::NotFound) => Signal::Works,
        (
            _,
            StorageOutcome::Throttled
            | StorageOutcome::Indeterminate
            | StorageOutcome::Unavailable
            | StorageOutcome::Rejected,
        ) => Signal::Fails,
    }
}

impl Outage {
    fn new(limit: Duration, now: Moment) -> Self {
        Self { limit, last_response: now, failed: false, ended: None }
    }

    fn observe_signal(&mut self, signal: Signal, now: Moment) {
        match signal {
            Signal::Nothing => {}
            Signal::Fails => self.failed = true,
            Signal::Works => {
                if let Some(silence) = self.unavailable_for(now) {
                    self.ended = Some(EndedOutage { at: now, silence });
                }
                self.last_response = now;
                self.failed = false;
            }
        }
    }

    /// Returns how long the outage has lasted, if there is one now.
    fn unavailable_for(&self, now: Moment) -> Option<Duration> {
        let unavailable_for = now.saturating_sub(self.last_response);
        (self.failed && unavailable_for > self.limit).then_some(unavailable_for)
    }
}

impl Outages {
    /// Creates a record that begins now.
    pub(super) fn new(lease_durations: LeaseDurations, request_timeout: Duration, now: Moment) -> Self {
        Self(Arc::new(Mutex::new(Outage::new(lease_durations.own / 2 + request_timeout, now))))
    }

    /// Begins a request. If it is dropped without a response, it counts as a failure: the operation that it belongs to
    /// has run out of time.
    pub(super) fn start<'a>(&'a self, operation: StorageOperation, clock: &'a dyn LeaseClock) -> ObservedRequest<'a> {
        ObservedRequest { outages: self, operation, outcome: StorageOutcome::Indeterminate, clock }
    }

    /// Returns how long the outage has lasted, if there is one now.
    pub(crate) fn unavailable_for(&self, now: Moment) -> Option<Duration> {
        lock(&self.0).unavailable_for(now)
    }

    /// Returns the last outage that has ended, once after each.
    pub(crate) fn take_ended_outage(&self) -> Option<EndedOutage> {
        lock(&self.0).ended.take()
    }
}

/// A request whose outcome is recorded when it is dropped.
pub(super) struct ObservedRequest<'a> {
    outages: &'a Outages,
    operation: StorageOperation,
    outcome: StorageOutcome,
    clock: &'a dyn LeaseClock,
}

impl ObservedRequest<'_> {
    pub(super) fn record_outcome(mut self, outcome: StorageOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for ObservedRequest<'_> {
    fn drop(&mut self) {
        lock(&self.outages.0).observe_signal(signal_from(self.operation, self.outcome), self.clock.now());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{advance, timeout};

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::error::{Error, ErrorKind};
    use crate::model::{ConsumerGroup, OwnerId};
    use crate::store::{GroupStore, StoreConfig};
    use crate::telemetry::BillingType;

    const LIMIT: Duration = Duration::from_secs(35);

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn answered(outage: &mut Outage, now: u64) -> Option<EndedOutage> {
        outage.observe_signal(Signal::Works, at(now));
        outage.ended.take()
    }

    #[test]
    fn outcomes_show_whether_the_storage_works() {
        for (kind, works) in [
            (ErrorKind::Conflict, true),
            (ErrorKind::NotFound, true),
            (ErrorKind::Throttled { retry_after: None }, false),
            (ErrorKind::Indeterminate, false),
            (ErrorKind::Unavailable, false),
            (ErrorKind::Unauthorized, false),
            (ErrorKind::ContainerNotFound, false),
            (ErrorKind::Rejected, false),
        ] {
            let outcome = StorageOutcome::from_response::<()>(&Err(Error::new(kind, "x")));
            let shown = if works { [Signal::Works, Signal::Nothing] } else { [Signal::Fails, Signal::Fails] };
            assert_eq!(
                [StorageOperation::Renew, StorageOperation::Read].map(|it| signal_from(it, outcome)),
                shown,
                "{kind:?}"
            );
        }
        assert_eq!(signal_from(StorageOperation::List, StorageOutcome::Ok), Signal::Works);
        assert_eq!(signal_from(StorageOperation::Read, StorageOutcome::Ok), Signal::Nothing);
    }

    #[test]
    fn a_long_silence_with_a_failure_is_an_outage() {
        let mut outage = Outage::new(LIMIT, at(100));
        outage.observe_signal(Signal::Fails, at(101));
        assert_eq!((outage.unavailable_for(at(135)), outage.unavailable_for(at(136))), (None, Some(at(36))));
        assert_eq!(answered(&mut outage, 136), Some(EndedOutage { at: at(136), silence: at(36) }));
        assert_eq!(answered(&mut outage, 137), None);
    }

    #[test]
    fn short_or_failure_free_silence_is_no_outage() {
        let mut outage = Outage::new(LIMIT, at(100));
        outage.observe_signal(Signal::Fails, at(101));
        assert_eq!(answered(&mut outage, 135), None);
        assert_eq!(answered(&mut outage, 500), None, "the failure came before the last response");
        assert_eq!(outage.unavailable_for(at(999)), None);
    }

    /// The loop and the checkpoints have one store each.
    #[tokio::test(start_paused = true)]
    async fn a_store_observes_only_requests_of_its_clones() {
        let other = store().await;
        let store = other.clone().with_own_outages();
        let failure = async { Err::<(), _>(Error::new(ErrorKind::Unavailable, "x")) };
        store.send(StorageOperation::Renew, BillingType::Other, failure).await.unwrap_err();
        advance(at(36)).await;
        other.list_checkpoints().await.unwrap();
        assert_eq!(store.outages().unavailable_for(store.lease_clock_now()), Some(at(36)));
        store.clone().list_heartbeats().await.unwrap();
        assert_eq!(store.outages().unavailable_for(store.lease_clock_now()), None);
        let ended = EndedOutage { at: store.lease_clock_now(), silence: at(36) };
        assert_eq!(
            [&store, &store, &other].map(|store| store.outages().take_ended_outage()),
            [Some(ended), None, None]
        );
    }

    async fn store() -> GroupStore {
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
        let config = StoreConfig::default().with_lease_duration(at(60)).with_request_timeout(at(5));
        builder.with_config(config).connect().await.unwrap()
    }

    /// A write hangs, the read after it succeeds, and the next write is aborted together with its operation.
    #[tokio::test(start_paused = true)]
    async fn successful_reads_do_not_hide_a_write_outage() {
        let store = store().await.with_own_outages();
        let write = || store.send(StorageOperation::Renew, BillingType::Other, pending::<crate::error::Result<()>>());
        for _ in 0..5 {
            write().await.unwrap_err();
            store.send(StorageOperation::Read, BillingType::Other, async { Ok(()) }).await.unwrap();
            timeout(at(4), write()).await.unwrap_err();
        }
        assert_eq!(store.outages().unavailable_for(store.lease_clock_now()), Some(at(45)));
        store.send(StorageOperation::Renew, BillingType::Other, async { Ok(()) }).await.unwrap();
        assert_eq!(store.outages().take_ended_outage().map(|ended| ended.silence), Some(at(45)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_request_counts_as_a_failure() {
        let store = store().await.with_own_outages();
        let write = store.send(StorageOperation::Renew, BillingType::Other, pending::<crate::error::Result<()>>());
        timeout(at(4), write).await.unwrap_err();
        advance(at(32)).await;
        assert_eq!(store.outages().unavailable_for(store.lease_clock_now()), Some(at(36)));
    }
}
