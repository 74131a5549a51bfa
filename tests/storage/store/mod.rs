//! The store on a container in memory: its settings, its verification of the storage, its log, and its limit of
//! concurrent operations. The rules for the records are in `protocol`.

mod billing;
mod identity_and_heartbeats;
mod name_case_races;
mod slow_storage;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ListResult, Metadata, WriteResult,
};
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome, Lease, ReleaseOutcome};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::WallClock;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, PartitionId, Result};
use tokio::time::Instant;

use crate::captured::Captured;
use crate::intercepted::{Intercept, Intercepted};

fn group() -> ConsumerGroup {
    ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap()
}

async fn store_on(container: Arc<dyn BlobContainer>, owner: &str) -> GroupStore {
    GroupStore::builder(container, group(), OwnerId::new(owner).unwrap()).connect().await.unwrap()
}

fn zero() -> PartitionId {
    0.into()
}

async fn win(store: &GroupStore) -> Lease {
    match store.claim_all(vec![Claim::unowned(zero())]).await.remove(0).1 {
        ClaimOutcome::Won(lease) => lease,
        other => panic!("not won: {other:?}"),
    }
}

#[tokio::test]
async fn a_bad_blob_is_logged_once_per_version() {
    let (log, _guard) = Captured::begin();
    let times = || log.text().matches("ownership/7").count();
    let container = Arc::new(MemoryContainer::new());
    let a = store_on(container.clone(), "a").await;
    let name = "ns.servicebus.windows.net/hub/$default/ownership/7";
    for expected in 1..=2 {
        container.overwrite(name, &Metadata::new()).await.unwrap();
        for _ in 0..3 {
            assert_eq!(a.list_ownerships().await.unwrap().malformed.len(), 1);
            assert_eq!(times(), expected);
        }
    }
}

/// With responses as slow as these, the queue is longer than the timeout of any operation.
#[tokio::test(start_paused = true)]
async fn every_renewal_gets_its_turn() {
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let a = store_on(Arc::new(faulty.clone()), "a").await;
    let claims = (0..500u32).map(|id| Claim::unowned(id.into())).collect();
    let won = a.claim_all(claims).await.into_iter().map(|(_, outcome)| match outcome {
        ClaimOutcome::Won(lease) => lease,
        other => panic!("not won: {other:?}"),
    });
    let leases: Vec<_> = won.collect();
    faulty.set_plan(FaultPlan::always(Fault::Latency(Duration::from_secs(4))));
    let renewed = a.renew_all(leases).await;
    assert_eq!(renewed.iter().filter(|(_, outcome)| matches!(outcome, ClaimOutcome::Won(_))).count(), 500);
}

/// With any limit of concurrent operations.
#[tokio::test(start_paused = true)]
async fn a_hanging_checkpoint_delays_no_renewal() {
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let owner = OwnerId::new("a").unwrap();
    let config = StoreConfig::default().with_max_concurrent_requests(1);
    let builder = GroupStore::builder(Arc::new(faulty.clone()), group(), owner).with_config(config);
    let a = builder.connect().await.unwrap();
    let lease = win(&a).await;
    faulty.inject_on(Target::any().named("/checkpoint/"), Fault::Hang);
    let adopting = tokio::spawn({
        let (a, epoch) = (a.clone(), lease.epoch());
        async move { a.adopt(&zero(), epoch, None).await.map(drop) }
    });
    tokio::task::yield_now().await;
    let requested = Instant::now();
    assert!(matches!(a.renew_all(vec![lease]).await.remove(0).1, ClaimOutcome::Won(_)));
    assert!(requested.elapsed() < Duration::from_secs(1));
    assert_eq!(adopting.await.unwrap().unwrap_err().kind(), ErrorKind::Indeterminate);
}

/// The ownership record of partition 1, just written by an owner of another SDK.
async fn just_written_by_another_sdk(container: &FaultyContainer, a: &GroupStore) -> Claim {
    let name = "ns.servicebus.windows.net/hub/$default/ownership/1";
    container.overwrite(name, &Metadata::from([("ownerid", "python")])).await.unwrap();
    Claim::over(&a.read_ownership(&1.into()).await.unwrap().unwrap())
}

/// It is written without an epoch, and written again with one when that record is old enough.
#[tokio::test(start_paused = true)]
async fn a_claim_over_a_young_record_delays_no_renewal() {
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let config = StoreConfig::default().with_max_concurrent_requests(1);
    let builder = GroupStore::builder(Arc::new(faulty.clone()), group(), OwnerId::new("a").unwrap());
    let a = builder.with_config(config).connect().await.unwrap();
    let lease = win(&a).await;
    let claim = just_written_by_another_sdk(&faulty, &a).await;
    let claiming = tokio::spawn({
        let a = a.clone();
        async move { a.claim(&claim).await }
    });
    let requested = Instant::now();
    while a.read_ownership(&1.into()).await.unwrap().unwrap().record.owner.as_ref() != Some(&a.identity().owner) {
        tokio::task::yield_now().await;
    }
    assert!(matches!(a.renew(&lease).await, ClaimOutcome::Won(_)));
    assert!(requested.elapsed() < Duration::from_secs(1));
    assert!(matches!(claiming.await.unwrap(), ClaimOutcome::Won(_)));
    assert!(requested.elapsed() >= Duration::from_secs(2));
}

/// Two writes without a response end a claim, but not one before and one after the wait.
#[tokio::test(start_paused = true)]
async fn a_claim_over_a_young_record_begins_to_count_anew() {
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let a = store_on(Arc::new(faulty.clone()), "a").await;
    let claim = just_written_by_another_sdk(&faulty, &a).await;
    faulty.inject_on(BlobOperation::Write, Fault::Hang);
    let claiming = tokio::spawn({
        let a = a.clone();
        async move { a.claim(&claim).await }
    });
    while a.read_ownership(&1.into()).await.unwrap().unwrap().record.owner.as_ref() != Some(&a.identity().owner) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    faulty.inject_on(BlobOperation::Write, Fault::Hang);
    let ClaimOutcome::Won(lease) = claiming.await.unwrap() else { panic!("not won") };
    let recorded = a.read_ownership(&1.into()).await.unwrap().unwrap().record.epoch;
    assert_eq!(recorded, Some(lease.epoch()));
}

/// A local clock with this offset from the container's.
#[derive(Debug)]
struct Skewed(time::Duration);

impl WallClock for Skewed {
    fn now(&self) -> time::OffsetDateTime {
        // The initial time of the container in memory.
        time::macros::datetime!(2026-01-01 00:00:00 UTC) + self.0
    }
}

#[tokio::test(start_paused = true)]
async fn verification_finds_a_wrong_clock_and_cleans_up() {
    for (skew, finds) in [(0, false), (3600, true), (-3600, true)] {
        let container = Arc::new(MemoryContainer::new());
        let builder = GroupStore::builder(container.clone(), group(), OwnerId::new("a/b c").unwrap());
        let clock = Arc::new(Skewed(time::Duration::seconds(skew)));
        let store = builder.with_wall_clock(clock).connect().await.unwrap();
        assert_eq!(store.storage_warnings().len(), usize::from(finds), "{:?}", store.storage_warnings());
        assert!(container.list("").await.unwrap().blobs.is_empty());
    }
}

/// A claim that is lost has sent an epoch. The next one is over a listing of a server whose clock is behind: with an
/// earlier epoch, this owner would take its own checkpoints for those of another one.
#[tokio::test(start_paused = true)]
async fn an_earlier_date_begins_no_earlier_epoch() {
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let a = store_on(Arc::new(faulty.clone()), "a").await;
    let released = a.release(&win(&a).await).await;
    assert!(matches!(released, ReleaseOutcome::Released), "{released:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let behind = a.list_ownerships().await.unwrap().records.remove(0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let current = a.list_ownerships().await.unwrap().records.remove(0);
    faulty.inject_on(BlobOperation::Write, Fault::Unreachable);
    assert!(matches!(a.claim(&Claim::over(&current)).await, ClaimOutcome::Indeterminate(_)));
    let ClaimOutcome::Won(lease) = a.claim(&Claim::over(&behind)).await else { panic!("not won") };
    assert!(lease.epoch() > current.server_time.unix_timestamp() * 1000, "{} {current:?}", lease.epoch());
}

/// Those of checks that may still be under way stay.
#[tokio::test(start_paused = true)]
async fn a_start_deletes_what_old_checks_have_left() {
    let container = Arc::new(MemoryContainer::new());
    let left = "ns.servicebus.windows.net/verify/hub/$default/b-0000000000000001";
    container.overwrite(left, &Metadata::new()).await.unwrap();
    for (minutes, remains) in [(59, 1), (2, 0)] {
        tokio::time::sleep(Duration::from_secs(minutes * 60)).await;
        GroupStore::builder(container.clone(), group(), OwnerId::new("a").unwrap()).connect().await.unwrap();
        assert_eq!(container.list("").await.unwrap().blobs.len(), remains, "after {minutes} more minutes");
    }
}

/// Every way in which a backend may lack what ownership needs.
#[tokio::test(start_paused = true)]
async fn verification_rejects_an_unreliable_storage() {
    for (weakness, text) in [
        (Weakness::RefusesMissing, "a read of a missing blob fails for another reason"),
        (Weakness::CreatesUnderETags, "accepts a write under an ETag to a missing blob"),
        (Weakness::IgnoresConditions, "accepts a write under an ETag that has changed"),
        (Weakness::RefusesETags, "a blob cannot be written"),
        (Weakness::ListsWithoutMetadata, "does not return the blob that was just written"),
        (Weakness::ReadOnly, "a blob cannot be written"),
        (Weakness::Silent, "within 5s"),
    ] {
        let container = Arc::new(Intercepted { inner: Arc::new(MemoryContainer::new()), interceptor: weakness });
        let builder = GroupStore::builder(container, group(), OwnerId::new("a").unwrap());
        let error = builder.connect().await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Weakness {
    /// Of a read, with an error that does not say so.
    RefusesMissing,
    CreatesUnderETags,
    /// Of blobs that exist.
    IgnoresConditions,
    /// Whether they are current or not.
    RefusesETags,
    ListsWithoutMetadata,
    ReadOnly,
    /// Never responds to a read.
    Silent,
}

#[async_trait]
impl Intercept for Weakness {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        let mut list = inner.list(prefix).await?;
        if *self == Self::ListsWithoutMetadata {
            list.blobs.iter_mut().for_each(|blob| blob.metadata.clear());
        }
        Ok(list)
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        if *self == Self::Silent {
            std::future::pending::<()>().await;
        }
        inner.get(name).await.map_err(|error| match self {
            Self::RefusesMissing => Error::new(ErrorKind::Rejected, "no such blob"),
            _ => error,
        })
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        match self {
            Self::CreatesUnderETags | Self::IgnoresConditions
                if inner.get(name).await.is_ok() == (*self == Self::IgnoresConditions) =>
            {
                inner.overwrite(name, metadata).await
            }
            Self::RefusesETags if matches!(condition, Condition::IfMatch(_)) => {
                Err(Error::new(ErrorKind::Conflict, "this ETag is not current"))
            }
            Self::RefusesMissing
            | Self::CreatesUnderETags
            | Self::IgnoresConditions
            | Self::RefusesETags
            | Self::ListsWithoutMetadata
            | Self::Silent => inner.write(name, metadata, condition).await,
            Self::ReadOnly => Err(Error::new(ErrorKind::Unauthorized, "only reading is permitted")),
        }
    }
}

#[tokio::test]
async fn invalid_settings_are_rejected_with_value_and_rule() {
    let config = StoreConfig::default;
    let seconds = Duration::from_secs;
    for (config, named) in [
        (config().with_lease_duration(seconds(3)), "`with_lease_duration` is 3s, but must be at least 4s"),
        (config().with_lease_duration(Duration::MAX), "must be at most a day"),
        (
            config().with_foreign_lease_duration(seconds(3)),
            "`with_foreign_lease_duration` is 3s, but must be at least 4s",
        ),
        (config().with_request_timeout(seconds(30)), "`with_request_timeout` is 30s"),
        (config().with_request_timeout(Duration::ZERO), "`with_request_timeout` is 0ns"),
    ] {
        let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group(), OwnerId::new("a").unwrap());
        let error = builder.with_config(config).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn a_missing_container_is_detected_or_created() {
    let container = Arc::new(MemoryContainer::missing());
    let build = || GroupStore::builder(container.clone(), group(), OwnerId::new("a").unwrap());
    assert_eq!(build().connect().await.unwrap_err().kind(), ErrorKind::ContainerNotFound);
    assert!(build().with_config(StoreConfig::default().with_create_container(true)).connect().await.is_ok());
}

/// The credentials of a container cannot create it.
struct CannotCreate;

#[async_trait]
impl Intercept for CannotCreate {
    async fn create_container(&self, _: &dyn BlobContainer) -> Result<ContainerCreation> {
        Err(Error::new(ErrorKind::Unauthorized, "no permission to create containers"))
    }
}

#[tokio::test]
async fn a_container_that_exists_is_not_created() {
    for (inner, expected) in
        [(MemoryContainer::new(), Ok(())), (MemoryContainer::missing(), Err(ErrorKind::Unauthorized))]
    {
        let container = Intercepted { inner: Arc::new(inner), interceptor: CannotCreate };
        let builder = GroupStore::builder(container, group(), OwnerId::new("a").unwrap());
        let connected = builder.with_config(StoreConfig::default().with_create_container(true)).connect().await;
        assert_eq!(connected.map(drop).map_err(|error| error.kind()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_does_not_end_a_starting_instance() {
    let (log, _guard) = Captured::begin();
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::missing()), 1);
    let retry_after = Some(Duration::from_secs(2));
    faulty.inject_on(BlobOperation::CreateContainer, Fault::Unreachable);
    faulty.inject_on(BlobOperation::List, Fault::Throttled { retry_after });
    faulty.inject_on(BlobOperation::List, Fault::Throttled { retry_after: Some(Duration::from_secs(600)) });
    faulty.inject_on(BlobOperation::List, Fault::Unreachable);
    faulty.inject_on(BlobOperation::Write, Fault::Throttled { retry_after: None });
    let builder = GroupStore::builder(Arc::new(faulty.clone()), group(), OwnerId::new("a").unwrap());
    let began = Instant::now();
    builder.with_config(StoreConfig::default().with_create_container(true)).connect().await.unwrap();
    assert_eq!(faulty.pending(), 0);
    // As long as it requests, but no longer than the request timeout.
    assert_eq!(began.elapsed(), Duration::from_millis(250 + 2000 + 5000 + 1000 + 250));
    assert_eq!(log.text().matches("cannot connect to storage; retrying").count(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_long_outage_or_a_rejection_ends_it() {
    for (fault, requests) in [(Fault::Unreachable, 4), (Fault::Throttled { retry_after: None }, 4), (Fault::Hang, 4)] {
        let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
        faulty.set_plan(FaultPlan::always(fault.clone()));
        let builder = GroupStore::builder(Arc::new(faulty.clone()), group(), OwnerId::new("a").unwrap());
        assert!(builder.connect().await.is_err());
        assert_eq!(faulty.trace().len(), requests, "{fault:?}");
    }
}
