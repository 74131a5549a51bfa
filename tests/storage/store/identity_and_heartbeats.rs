//! Owner IDs, incarnations and heartbeats at their limits.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig, BalancerHandle};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::store::protocol::membership::HeartbeatOutcome;
use eventhubs_checkpoint::store::protocol::{AdoptOutcome, Claim, ClaimOutcome};
use eventhubs_checkpoint::store::{GroupStore, GroupStoreBuilder, StoreConfig};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Platform};
use eventhubs_checkpoint::{Error, ErrorKind, LeaseScope, OwnerId, PartitionId, Result};
use futures::future::join_all;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Weakness, group, store_on, win, zero};
use crate::captured::Captured;
use crate::intercepted::{Intercept, Intercepted};

const PREFIX: &str = "ns.servicebus.windows.net/hub/$default";

fn build(container: impl BlobContainer + 'static, owner: &str) -> GroupStoreBuilder {
    GroupStore::builder(Arc::new(container), group(), OwnerId::new(owner).unwrap())
}

fn metadata(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn put(container: &MemoryContainer, name: &str, pairs: &[(&str, &str)]) {
    container.overwrite(&format!("{PREFIX}/{name}"), &metadata(pairs)).await.unwrap();
}

/// The replicas of one deployment, with requests of up to 20 ms.
#[tokio::test(start_paused = true)]
async fn replicas_with_one_owner_id_verify_at_once() {
    let container = MemoryContainer::new();
    let replicas = (0..8).map(|seed| {
        let faulty = FaultyContainer::new(Arc::new(container.clone()), seed);
        faulty.set_plan(FaultPlan::always(Fault::Latency(Duration::from_millis(20))));
        build(faulty, "app").connect()
    });
    for connected in join_all(replicas).await {
        connected.unwrap();
    }
    assert!(container.list("").await.unwrap().blobs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failed_verification_leaves_no_blob() {
    for weakness in [Weakness::IgnoresConditions, Weakness::RefusesETags, Weakness::ListsWithoutMetadata] {
        let inner = MemoryContainer::new();
        let container = Intercepted { inner: Arc::new(inner.clone()), interceptor: weakness };
        build(container, "a").connect().await.unwrap_err();
        assert!(inner.list("").await.unwrap().blobs.is_empty(), "{weakness:?}");
    }
}

/// All within one second of the server's clock.
#[tokio::test(start_paused = true)]
async fn a_restart_within_the_second_is_the_later_one() {
    for seed in 0..20 {
        let container = MemoryContainer::new();
        let connect = async |seed| build(container.clone(), "pod-0").with_seed(seed).connect().await.unwrap();
        drop(win(&connect(2 * seed).await).await);
        let (_partitions, listed) = watch::channel([0, 1].map(PartitionId::from).into());
        let second = connect(2 * seed + 1).await;
        let (balancer, _handle) = Balancer::new(second, BalancerConfig::default(), listed).unwrap();
        let ended = timeout(Duration::from_secs(30), balancer.run()).await;
        assert!(ended.is_err(), "{seed}: {ended:?}");
    }
}

/// It owned nothing, so no ownership names it.
#[tokio::test(start_paused = true)]
async fn a_restart_of_a_spare_instance_in_the_second() {
    for seed in 0..20 {
        let container = MemoryContainer::new();
        let connect = async |seed| build(container.clone(), "pod-0").with_seed(seed).connect().await.unwrap();
        for start in [2 * seed, 2 * seed + 1] {
            assert_eq!(connect(start).await.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written, "{seed}");
        }
    }
}

/// A clock was wrong when it was recorded. The next start is the later one nevertheless, and need not wait for an
/// expiry.
#[tokio::test(start_paused = true)]
async fn an_incarnation_of_the_far_future_is_followed() {
    let container = MemoryContainer::new();
    put(&container, "ownership/0", &[("ownerid", "a"), ("ehcincarnation", "29990101T000000Z-00000000")]).await;
    put(&container, "ownership/1", &[("ownerid", "a"), ("ehcincarnation", "zzz")]).await;
    put(&container, "ownership/2", &[("ownerid", "b"), ("ehcincarnation", "30000101T000000Z-00000000")]).await;
    let a = build(container, "a").connect().await.unwrap();
    let incarnation = a.identity().incarnation.as_str();
    assert!(incarnation.starts_with("29990101T000001Z-"), "{incarnation}");
    let seen = a.read_ownership(&zero()).await.unwrap().unwrap();
    assert_eq!(
        eventhubs_checkpoint::internal::relation::of_record(&seen.record, a.identity()),
        Relation::EarlierIncarnation
    );
}

/// Azure drops dots at the end of a blob's name.
fn drops_dots() -> Arc<Platform> {
    Arc::new(Platform::new(Arc::new(MemoryContainer::new()), 7))
}

async fn balancing(
    container: Arc<dyn BlobContainer>,
    owner: &str,
    seed: u64,
) -> (BalancerHandle, JoinHandle<Result<()>>, watch::Sender<Arc<[PartitionId]>>) {
    let store = build(container, owner).with_seed(seed).connect().await.unwrap();
    let (partitions, listed) = watch::channel((0..8).map(PartitionId::from).collect());
    let config = BalancerConfig::default().with_lease_scope(LeaseScope::Instance).with_seed(seed);
    let (balancer, handle) = Balancer::new(store, config, listed).unwrap();
    (handle, tokio::spawn(balancer.run()), partitions)
}

#[tokio::test(start_paused = true)]
async fn owner_ids_that_end_with_a_dot() {
    let container = drops_dots();
    let mut instances = Vec::new();
    for (owner, seed) in [("a.", 1), ("b.", 2)] {
        instances.push(balancing(container.clone(), owner, seed).await);
    }
    sleep(Duration::from_secs(900)).await;
    let held: Vec<_> = instances.iter().map(|(handle, ..)| handle.snapshots().borrow().owned.len()).collect();
    assert_eq!(held, [4, 4]);
}

#[tokio::test(start_paused = true)]
async fn owner_ids_that_differ_by_a_dot() {
    let container = drops_dots();
    for owner in ["a", "a.", "a.."] {
        let store = store_on(container.clone(), owner).await;
        assert_eq!(store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
        let listing = store.list_heartbeats().await.unwrap();
        assert!(listing.records.iter().any(|seen| seen.record.owner.as_str() == owner), "{listing:?}");
        assert_eq!(listing.malformed, []);
    }
}

#[tokio::test(start_paused = true)]
async fn verification_of_an_owner_id_ending_with_a_dot() {
    build(drops_dots(), "a.").connect().await.unwrap();
}

/// How a response of the service passes the HTTP client: a listing has everything; a read lacks values beyond ASCII,
/// and has values with a tab, which cannot be written.
struct ForeignValues;

const ODD: &str = "theirs";

#[async_trait]
impl Intercept for ForeignValues {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        let mut list = inner.list(prefix).await?;
        for blob in &mut list.blobs {
            if !blob.metadata.contains_key("ownerid") {
                blob.metadata.insert("ownerid", "gr\u{f6}\u{df}e");
            }
        }
        Ok(list)
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        let mut blob = inner.get(name).await?;
        blob.metadata.insert(ODD, "a\tb");
        Ok(blob)
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_beyond_ascii_is_read_as_listed() {
    let inner = MemoryContainer::new();
    put(&inner, "ownership/0", &[]).await;
    let a = build(Intercepted { inner: Arc::new(inner), interceptor: ForeignValues }, "a")
        .with_config(StoreConfig::default().with_verify_storage(false))
        .connect()
        .await
        .unwrap();
    let seen = a.read_ownership(&zero()).await.unwrap().unwrap();
    assert_eq!(seen.record.owner.as_ref().map(OwnerId::as_str), Some("gr\u{f6}\u{df}e"));
    let lost = a.claim_all(vec![Claim::unowned(zero())]).await.remove(0).1;
    assert!(matches!(&lost, ClaimOutcome::Lost { by: Some(by) } if by.as_str() == "gr\u{f6}\u{df}e"), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_value_with_a_tab_does_not_prevent_adoption() {
    let (log, _guard) = Captured::begin();
    let inner = MemoryContainer::new();
    put(&inner, "checkpoint/0", &[("sequencenumber", "7"), ("offset", "70"), ("kept", "a  b")]).await;
    let a = build(Intercepted { inner: Arc::new(inner.clone()), interceptor: ForeignValues }, "a")
        .with_config(StoreConfig::default().with_verify_storage(false))
        .connect()
        .await
        .unwrap();
    let lease = win(&a).await;
    let adopted = a.adopt(&zero(), lease.epoch(), None).await.unwrap();
    assert!(matches!(&adopted, AdoptOutcome::Adopted(adopted) if adopted.record().sequence_number == Some(7)));
    let written = inner.get(&format!("{PREFIX}/checkpoint/0")).await.unwrap().metadata;
    let expected = [
        ("sequencenumber", "7"),
        ("offset", "70"),
        ("kept", "a  b"),
        ("ownerid", "a"),
        ("ehcupdatedat", "2026-01-01T00:00:00Z"),
    ];
    assert_eq!(written, metadata(&expected));
    assert!(log.text().contains(ODD), "{}", log.text());
}

/// Some blobs cannot be deleted, because they have snapshots.
struct Undeletable(&'static [&'static str], ErrorKind);

#[async_trait]
impl Intercept for Undeletable {
    async fn delete(&self, inner: &dyn BlobContainer, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        if self.0.iter().any(|part| name.ends_with(part)) {
            return Err(Error::new(self.1, format!("blob {name} has snapshots")));
        }
        inner.delete(name, etag).await
    }
}

/// Returns which of three long expired heartbeats were deleted.
async fn cleared(undeletable: Undeletable) -> Result<Vec<String>> {
    let container = Arc::new(Intercepted { inner: Arc::new(MemoryContainer::new()), interceptor: undeletable });
    for owner in ["a", "b", "c"] {
        let _ = store_on(container.clone(), owner).await.send_heartbeat().await.unwrap();
    }
    sleep(Duration::from_secs(601)).await;
    let this = store_on(container, "me").await;
    let seen = this.list_heartbeats().await.unwrap().records;
    let cleared = this.delete_stale_heartbeats(&seen).await?;
    Ok(cleared.iter().map(ToString::to_string).collect())
}

#[tokio::test(start_paused = true)]
async fn an_undeletable_heartbeat_keeps_no_other() {
    let (log, _guard) = Captured::begin();
    assert_eq!(cleared(Undeletable(&["/a", "/b"], ErrorKind::Rejected)).await.unwrap(), ["c"]);
    assert_eq!(log.text().matches("has snapshots").count(), 1, "the other warning is suppressed: {}", log.text());
}

/// A failure that applies to all of them ends it: more such requests gain nothing.
#[tokio::test(start_paused = true)]
async fn a_rejected_deletion_is_not_repeated() {
    for kind in [ErrorKind::Unauthorized, ErrorKind::Unavailable] {
        assert_eq!(cleared(Undeletable(&["/a"], kind)).await.unwrap_err().kind(), kind);
    }
}

const LAST_MOMENT: OffsetDateTime = datetime!(9999-12-31 23:59:59 UTC);

/// A server whose clock is at the last representable date.
struct AtTheEnd;

#[async_trait]
impl Intercept for AtTheEnd {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        let mut list = inner.list(prefix).await?;
        list.response.server_time = LAST_MOMENT;
        Ok(list)
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        let mut written = inner.write(name, metadata, condition).await?;
        written.response.server_time = LAST_MOMENT;
        Ok(written)
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_at_the_last_date_causes_no_panic() {
    let container = Intercepted { inner: Arc::new(MemoryContainer::new()), interceptor: AtTheEnd };
    let store = store_on(Arc::new(container), "a").await;
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(store.server_time() >= LAST_MOMENT);
    let lease = win(&store).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    store.renew_all(vec![lease]).await;
}

/// It is cancelled after it has read what its lost response hid.
#[tokio::test(start_paused = true)]
async fn a_cancelled_heartbeat_keeps_what_it_read() {
    // Less than the time after which a request about a heartbeat is repeated.
    const SLOW: Fault = Fault::Latency(Duration::from_millis(450));
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let config = StoreConfig::default().with_request_timeout(Duration::from_secs(1));
    let store = build(faulty.clone(), "a").with_config(config).connect().await.unwrap();
    assert_eq!(store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);

    for (operation, fault) in [
        (BlobOperation::Write, Fault::ResponseLost),
        (BlobOperation::Get, SLOW),
        (BlobOperation::Write, Fault::Conflict),
        (BlobOperation::Get, SLOW),
        (BlobOperation::Write, SLOW),
    ] {
        faulty.inject_on(operation, fault);
    }
    timeout(Duration::from_millis(1200), store.send_heartbeat()).await.unwrap_err();
    assert_eq!(faulty.pending(), 0);

    faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Get, Fault::Unreachable));
    assert_eq!(store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written, "without a read");
}

/// It was repeated after half a second, and the repetition was rejected before the first one succeeded.
#[tokio::test(start_paused = true)]
async fn an_error_of_a_repetition_does_not_fail_a_heartbeat() {
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let store = build(faulty.clone(), "a").connect().await.unwrap();
    faulty.inject_on(BlobOperation::Write, Fault::Latency(Duration::from_millis(700)));
    faulty.inject_on(BlobOperation::Write, Fault::Throttled { retry_after: None });
    assert_eq!(store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
    assert_eq!(faulty.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_without_response_is_sent_four_times() {
    let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
    let store = build(faulty.clone(), "a").connect().await.unwrap();
    let before = faulty.trace().len();
    faulty.set_plan(FaultPlan::always(Fault::Hang));
    assert_eq!(store.send_heartbeat().await.unwrap_err().kind(), ErrorKind::Indeterminate);
    let sent = faulty.trace()[before..].iter().filter(|sent| sent.operation == BlobOperation::Write).count();
    assert_eq!(sent, 4);
}
