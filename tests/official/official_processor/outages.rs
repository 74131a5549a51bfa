//! Listings of a blob service that is not available: the processor's `run` ends with the first one that fails.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use azure_messaging_eventhubs::CheckpointStore;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, ListResult};
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::{Error, ErrorKind, LeaseScope, Result};
use tokio::time::{Instant, sleep};

use super::records::{
    EXPIRY, GROUP, HUB, LocalClock, NAMESPACE, adapter, checkpoint, cycle, faulty, group_store, kind_of, listed,
    looks_expired, position, settled, wish,
};
use crate::intercepted::{Intercept, Intercepted};

const SECOND: Duration = Duration::from_secs(1);

fn listings(prefix: &str) -> Target {
    Target::from(BlobOperation::List).named(prefix)
}

/// What a retry can cure.
const TRANSIENT: [Fault; 4] =
    [Fault::Throttled { retry_after: None }, Fault::Unreachable, Fault::RequestLost, Fault::Hang];

/// Makes these requests fail for a while.
async fn outage(faulty: &FaultyContainer, target: Target, fault: Fault, lasts: Duration) {
    faulty.set_plan(FaultPlan::default().with_on(1.0, target, fault));
    sleep(lasts).await;
    faulty.set_plan(FaultPlan::default());
}

/// Another instance whose leases depend on its heartbeat, so that heartbeats are listed.
async fn instance_with_heartbeat(container: &MemoryContainer) {
    let b = group_store(container.clone(), "b").await;
    let _ = b.send_heartbeat().await.unwrap();
    let claim = Claim::unowned(7.into()).with_lease_scope(LeaseScope::Instance);
    assert!(matches!(b.claim(&claim).await, ClaimOutcome::Won(_)));
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_once_is_repeated() {
    for fault in TRANSIENT {
        let (faulty, container) = faulty();
        instance_with_heartbeat(&container).await;
        let a = settled(faulty.clone()).await;
        for prefix in ["/$default/ownership/", "/$default/heartbeat/"] {
            faulty.inject_on(listings(prefix), fault.clone());
            assert_eq!(listed(&*a).await.len(), 2, "{fault:?} of {prefix}");
        }
        faulty.inject_on(listings("/checkpoint/"), fault.clone());
        assert_eq!(position(&*a, 0).await, Some(5), "{fault:?}");
        assert_eq!(faulty.pending(), 0, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_twenty_seconds_fails_no_listing() {
    for fault in TRANSIENT {
        let (faulty, _) = faulty();
        let a = settled(faulty.clone()).await;
        let listing = async {
            assert_eq!(listed(&*a).await.len(), 1, "{fault:?}");
            assert_eq!(position(&*a, 0).await, Some(5), "{fault:?}");
            assert_eq!(cycle(&*a, "a", [0]).await, [0], "{fault:?}");
        };
        tokio::join!(outage(&faulty, Target::any(), fault.clone(), 20 * SECOND), listing);
    }
}

/// Its first listing and its first claim connect.
#[tokio::test(start_paused = true)]
async fn a_processor_may_start_during_an_outage() {
    for fault in TRANSIENT {
        let (faulty, _) = faulty();
        let a = adapter(faulty.clone());
        let ((), listed) = tokio::join!(outage(&faulty, Target::any(), fault.clone(), 45 * SECOND), listed(&*a));
        assert!(listed.is_empty());
        let wishes = [wish("a", 1, None)];
        let during = outage(&faulty, Target::any(), fault.clone(), 45 * SECOND);
        let ((), won) = tokio::join!(during, a.claim_ownership(&wishes));
        assert_eq!(won.unwrap().len(), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_end_after_a_lease_duration() {
    let (faulty, _) = faulty();
    let a = settled(faulty.clone()).await;
    let starting = adapter(faulty.clone());
    faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    let mut calls = Vec::new();
    for store in [&a, &starting] {
        calls.push(failure(store.list_ownerships(NAMESPACE, HUB, GROUP)).await);
        calls.push(failure(store.list_checkpoints(NAMESPACE, HUB, GROUP)).await);
    }
    calls.push(failure(starting.claim_ownership(&[wish("b", 1, None)])).await);
    for (kind, took) in calls {
        assert_eq!(kind, ErrorKind::Unavailable);
        assert!(EXPIRY <= took && took < EXPIRY + 3 * SECOND, "{took:?}");
    }
}

/// Returns the kind of the error that this call ends with, and how long it took.
async fn failure<T: Debug>(call: impl Future<Output = azure_core::Result<T>>) -> (ErrorKind, Duration) {
    let began = Instant::now();
    let error = call.await.unwrap_err();
    (kind_of(&error), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_throttled_listing_waits_as_long_as_asked() {
    let (faulty, _) = faulty();
    let a = settled(faulty.clone()).await;
    faulty.inject_on(listings("/checkpoint/"), Fault::Throttled { retry_after: Some(17 * SECOND) });
    let began = Instant::now();
    assert_eq!(position(&*a, 0).await, Some(5));
    assert!(began.elapsed() >= 17 * SECOND && began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
}

/// Rejects all listings, and counts them.
struct Rejecting {
    kind: ErrorKind,
    listings: AtomicUsize,
}

#[async_trait]
impl Intercept for Rejecting {
    async fn list(&self, _: &dyn BlobContainer, _: &str) -> Result<ListResult> {
        self.listings.fetch_add(1, Ordering::Relaxed);
        Err(Error::new(self.kind, "rejected"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_no_retry_cures_fails_at_once() {
    for kind in [ErrorKind::Unauthorized, ErrorKind::Rejected, ErrorKind::ContainerNotFound, ErrorKind::Config] {
        let interceptor = Rejecting { kind, listings: AtomicUsize::default() };
        let rejecting = Arc::new(Intercepted { inner: Arc::new(MemoryContainer::new()), interceptor });
        let a = adapter(Arc::clone(&rejecting));
        let began = Instant::now();
        let errors = [
            a.list_ownerships(NAMESPACE, HUB, GROUP).await.unwrap_err(),
            a.list_checkpoints(NAMESPACE, HUB, GROUP).await.unwrap_err(),
            a.claim_ownership(&[wish("a", 0, None)]).await.unwrap_err(),
        ];
        assert_eq!(errors.each_ref().map(kind_of), [kind; 3]);
        assert_eq!(rejecting.interceptor.listings.load(Ordering::Relaxed), 3, "{kind:?}");
        assert_eq!(began.elapsed(), Duration::ZERO, "{kind:?}");
    }
}

/// The heartbeats cannot be listed for 50 s, while another owner keeps renewing.
#[tokio::test(start_paused = true)]
async fn a_repeated_listing_is_as_fresh_as_a_first_one() {
    let (faulty, container) = faulty();
    instance_with_heartbeat(&container).await;
    let a = settled(faulty.clone()).await;
    let c = adapter(container);
    assert_eq!(cycle(&*c, "c", [1]).await, [1]);
    sleep(25 * SECOND).await;
    let renewing = async {
        sleep(25 * SECOND).await;
        assert_eq!(cycle(&*c, "c", [1]).await, [1]);
    };
    let during = outage(&faulty, listings("/heartbeat/"), Fault::Unreachable, 50 * SECOND);
    let ((), (), listed) = tokio::join!(during, renewing, listed(&*a));
    assert!(!looks_expired(&listed["1"], &*LocalClock::ahead(0)), "{listed:?}");
    assert_eq!(listed["1"].owner_id.as_deref(), Some("c"));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_listing_delays_no_other_call() {
    let (faulty, _) = faulty();
    let a = settled(faulty.clone()).await;
    faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::List, Fault::Unreachable));
    let others = async {
        sleep(SECOND).await;
        let began = Instant::now();
        checkpoint(&*a, 0, 6).await.unwrap();
        assert_eq!(a.claim_ownership(&[wish("a", 0, None)]).await.unwrap().len(), 1, "a renewal");
        assert_eq!(began.elapsed(), Duration::ZERO);
        faulty.set_plan(FaultPlan::default());
    };
    // Another group is connected meanwhile.
    let (of_another_group, _, ()) = tokio::join!(a.list_ownerships(NAMESPACE, HUB, "other"), listed(&*a), others);
    assert!(of_another_group.unwrap().is_empty());
}

/// Both connect at once, and only one store may serve the group.
#[tokio::test(start_paused = true)]
async fn of_two_first_claims_at_once_one_owner_is_served() {
    let (faulty, _) = faulty();
    faulty.set_plan(FaultPlan::always(Fault::Latency(SECOND)));
    let a = adapter(faulty);
    let wishes = [[wish("a", 0, None)], [wish("a", 1, None)]];
    let (first, second) = tokio::join!(a.claim_ownership(&wishes[0]), a.claim_ownership(&wishes[1]));
    assert_eq!((first.unwrap().len(), second.unwrap().len()), (1, 1));
    checkpoint(&*a, 0, 1).await.unwrap();
    checkpoint(&*a, 1, 1).await.unwrap();
    assert_eq!(a.release_all().await.len(), 2);

    let wishes = [[wish("b", 0, None)], [wish("c", 1, None)]];
    let (first, second) = tokio::join!(a.claim_ownership(&wishes[0]), a.claim_ownership(&wishes[1]));
    let outcomes = [first, second].map(|outcome| outcome.map_err(|error| kind_of(&error)));
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).all(|kind| *kind == ErrorKind::Config));
}
