//! Each behavior of the platform, separately and switched off, and a group of stores that works with all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use eventhubs_checkpoint::blob::{ContainerCreation, ResponseInfo};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::protocol::handoff::{HandoffRequestOutcome, HandoffStatus};
use eventhubs_checkpoint::store::protocol::membership::HeartbeatOutcome;
use eventhubs_checkpoint::store::protocol::{
    AdoptOutcome, CheckpointOutcome, Claim, ClaimOutcome, Lease, LeaseDurations,
};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{Latency, Platform};
use eventhubs_checkpoint::{ConsumerGroup, LeaseScope, OwnerId, Position};

use super::*;
use crate::captured::Captured;

/// Returns the platform over a container, with nothing switched on.
fn plain() -> (Arc<MemoryContainer>, Platform) {
    let inner = Arc::new(MemoryContainer::new());
    let platform = Platform::new(inner.clone(), 1);
    (inner, platform.with_dots_dropped(false).with_directories(false).with_front_ends(Duration::ZERO))
}

async fn names(container: &dyn BlobContainer, prefix: &str) -> Vec<String> {
    container.list(prefix).await.unwrap().blobs.into_iter().map(|blob| blob.name).collect()
}

async fn create_named(container: &dyn BlobContainer, name: &str) -> Result<()> {
    container.write(name, &marked(name), &Condition::Create).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn with_nothing_switched_on_it_has_no_effect() {
    let (inner, platform) = plain();
    let written = platform.write("g./a.", &marked("1"), &Condition::Create).await.unwrap();
    assert_eq!(inner.get("g./a.").await.unwrap().etag, written.etag);
    create_named(&platform, "g/").await.unwrap();
    create_named(&platform, "...").await.unwrap();
    assert_eq!(platform.list("").await.unwrap(), inner.list("").await.unwrap());
    assert_eq!(platform.get("g./a.").await.unwrap(), inner.get("g./a.").await.unwrap());
    assert_eq!(kind(platform.get("g.").await), Some(ErrorKind::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_ends_with_a_dot_means_the_other_blob() {
    let (inner, platform) = plain();
    let platform = platform.with_dots_dropped(true);
    let written = platform.write("g./a.", &marked("1"), &Condition::Create).await.unwrap();
    assert_eq!(names(&inner, "").await, ["g/a"]);
    assert_eq!(names(&platform, "").await, ["g/a"]);
    assert!(names(&platform, "g./").await.is_empty(), "a prefix is used unchanged");
    for name in ["g/a", "g./a", "g/a.", "g../a.."] {
        let blob = platform.get(name).await.unwrap();
        assert_eq!((blob.name.as_str(), &blob.etag), (name, &written.etag));
        assert_eq!(kind(create_named(&platform, name).await), Some(ErrorKind::Conflict), "{name}");
    }
    platform.write("g/a..", &marked("2"), &Condition::IfMatch(written.etag)).await.unwrap();
    assert_eq!(mark_of(&inner, "g/a").await.as_deref(), Some("2"));
    platform.remove("g./a").await.unwrap();
    assert!(names(&inner, "").await.is_empty());
    for name in ["...", "g/..", "g/./a"] {
        assert_eq!(kind(create_named(&platform, name).await), Some(ErrorKind::Rejected), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn directories_are_listed_and_outlive_their_blobs() {
    let (inner, platform) = plain();
    let platform = platform.with_directories(true);
    create_named(&platform, "ns/hub/ownership/0").await.unwrap();
    assert_eq!(names(&platform, "").await, ["ns", "ns/hub", "ns/hub/ownership", "ns/hub/ownership/0"]);
    assert_eq!(names(&platform, "ns/hub/ownership").await, ["ns/hub/ownership", "ns/hub/ownership/0"]);
    assert_eq!(names(&platform, "ns/hub/ownership/").await, ["ns/hub/ownership/0"]);
    let listed = platform.list("ns/hub/ownership").await.unwrap().blobs.remove(0);
    assert_eq!(listed.metadata, Metadata::from([("hdi_isfolder".to_owned(), "true".to_owned())]));
    assert_eq!(platform.get("ns/hub/ownership").await.unwrap().etag, listed.etag);

    platform.remove("ns/hub/ownership/0").await.unwrap();
    assert!(names(&inner, "").await.is_empty());
    assert_eq!(names(&platform, "").await, ["ns", "ns/hub", "ns/hub/ownership"]);
    create_named(&inner, "a/b").await.unwrap();
    assert_eq!(names(&platform, "a").await, ["a", "a/b"], "of blobs that were created without it, too");
    assert_eq!(kind(create_named(&platform, "a/").await), Some(ErrorKind::Rejected));

    inner.delete_container();
    assert_eq!(platform.create_container().await.unwrap(), ContainerCreation::Created);
    assert!(names(&platform, "").await.is_empty());
}

/// Returns how many seconds the platform's dates are ahead of the storage's clock, for 200 requests of each kind.
async fn seconds_ahead(platform: &Platform, inner: &MemoryContainer) -> BTreeMap<i64, usize> {
    let mut seen = BTreeMap::new();
    for _ in 0..200 {
        advance(Duration::from_millis(137)).await;
        let truth = inner.list("").await.unwrap().response.server_time;
        let written = platform.overwrite("a", &marked("1")).await.unwrap();
        let read = platform.get("a").await.unwrap();
        assert_eq!(read.last_modified, truth);
        let list = platform.list("").await.unwrap();
        assert_eq!((list.blobs[0].last_modified, list.blobs[0].response), (truth, list.response));
        let refused = platform.get("b").await.unwrap_err().server_time().unwrap();
        let dates = [written.response, read.response, list.response].map(|response: ResponseInfo| response.server_time);
        for date in dates.into_iter().chain([refused]) {
            assert_eq!(date.nanosecond(), 0);
            *seen.entry((date - truth).whole_seconds()).or_default() += 1;
        }
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn dates_differ_between_front_ends() {
    let mut drawn = BTreeSet::new();
    for seed in 0..8 {
        let inner = Arc::new(MemoryContainer::new());
        let platform = Platform::new(inner.clone(), seed);
        let ahead = seconds_ahead(&platform, &inner).await;
        assert!(ahead.keys().all(|seconds| (-1..=1).contains(seconds)), "seed {seed}: {ahead:?}");
        assert!(ahead.len() > 1, "seed {seed}: {ahead:?}");
        drawn.insert(ahead);
    }
    assert!(drawn.len() > 4, "a seed decides how much they differ: {drawn:?}");
    let (inner, platform) = plain();
    assert_eq!(seconds_ahead(&platform, &inner).await, BTreeMap::from([(0, 800)]));
    let far = seconds_ahead(&platform.with_front_ends(60 * SECOND), &inner).await;
    assert!(far.keys().any(|seconds| seconds.abs() > 5), "{far:?}");
}

/// A takeover from a crashed owner adds the grace period to the lease duration, and must not be early.
#[tokio::test(start_paused = true)]
async fn no_record_looks_too_old_by_the_grace_period() {
    let mut worst = time::Duration::ZERO;
    for seed in 0..200 {
        let platform = Platform::new(Arc::new(MemoryContainer::new()), seed);
        advance(Duration::from_millis(seed * 53 % 1000)).await;
        platform.write("a", &marked("1"), &Condition::Create).await.unwrap();
        let written = Instant::now();
        for _ in 0..30 {
            advance(Duration::from_millis(371)).await;
            let age = platform.get("a").await.unwrap().age();
            worst = worst.max(time::Duration::try_from(age).unwrap() - written.elapsed());
        }
    }
    assert!(worst < LeaseDurations::GRACE, "{worst}");
    assert!(worst > SECOND, "the clocks make no difference: {worst}");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_and_calls_get_the_same_responses() {
    let dates = async |seed| {
        let platform = Platform::new(Arc::new(MemoryContainer::new()), seed);
        let (clone, isolated) = (platform.clone(), platform.with_new_connections().unwrap());
        let mut dates = Vec::new();
        for _ in 0..50 {
            advance(Duration::from_millis(137)).await;
            for container in [&platform as &dyn BlobContainer, &clone, &*isolated] {
                dates.push(container.list("").await.unwrap().response.server_time);
            }
        }
        dates
    };
    assert_eq!(dates(5).await, dates(5).await);
    assert_ne!(dates(5).await, dates(6).await);
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_directories() {
    let (_, platform) = plain();
    let platform = platform.with_directories(true);
    let (clone, isolated) = (platform.clone(), platform.with_new_connections().unwrap());
    create_named(&isolated, "a/1").await.unwrap();
    isolated.remove("a/1").await.unwrap();
    assert_eq!(names(&platform, "").await, ["a"]);
    assert_eq!(names(&clone, "").await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn every_request_takes_the_latency() {
    let (inner, platform) = plain();
    let platform = platform.with_latency(Latency::growing(SECOND, 3 * SECOND, 9 * SECOND));
    let began = Instant::now();
    let written = platform.write("a", &marked("a"), &Condition::Create).await.unwrap();
    assert_eq!(began.elapsed(), SECOND);
    sleep(10 * SECOND).await;
    let began = Instant::now();
    assert!(platform.get("b").await.is_err());
    platform.list("").await.unwrap();
    platform.create_container().await.unwrap();
    assert_eq!(began.elapsed(), 9 * SECOND);
    // It takes effect in the middle.
    timeout(SECOND, platform.delete("a", &written.etag)).await.unwrap_err();
    assert!(inner.get("a").await.is_ok());
    timeout(2 * SECOND, platform.delete("a", &written.etag)).await.unwrap_err();
    assert!(inner.get("a").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_listing_passes_what_it_does_not_show() {
    let (inner, platform) = plain();
    let platform = platform.with_history(NonZeroUsize::new(4).unwrap(), SECOND);
    let mut condition = Condition::Create;
    for _ in 0..3 {
        let written = platform.write("a/1", &marked("1"), &condition).await.unwrap();
        assert!(written.versioned);
        condition = Condition::IfMatch(written.etag);
    }
    create_named(&platform, "a/2").await.unwrap();
    let written = platform.write("a/3", &marked("3"), &Condition::Create).await.unwrap();
    platform.delete("a/3", &written.etag).await.unwrap();
    for (prefix, pages) in [("a/", 1), ("a/1", 0), ("b/", 0)] {
        let began = Instant::now();
        let shown = platform.list(prefix).await.unwrap().blobs.into_iter().map(|blob| (blob.name, blob.etag));
        assert_eq!(began.elapsed(), pages * SECOND, "{prefix}");
        let kept = inner.list(prefix).await.unwrap().blobs.into_iter().map(|blob| (blob.name, blob.etag));
        assert!(shown.eq(kept), "{prefix}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_operation_changes_nothing() {
    let (inner, platform) = plain();
    let written = inner.write("a", &marked("a"), &Condition::Create).await.unwrap();
    let platform = platform.with_denied([BlobOperation::Delete, BlobOperation::CreateContainer]);
    let denied = platform.delete("a", &written.etag).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Unauthorized);
    assert!(denied.server_time().is_some() && denied.to_string().contains("403"), "{denied}");
    assert_eq!(kind(platform.create_container().await), Some(ErrorKind::Unauthorized));
    assert!(platform.get("a").await.is_ok());
    create_named(&platform, "b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_missing_container_without_code_is_a_missing_blob() {
    let (inner, platform) = plain();
    let platform = platform.with_error_codes(false);
    assert_eq!(kind(platform.get("a").await), Some(ErrorKind::NotFound));
    create_named(&platform, "a").await.unwrap();
    assert_eq!(kind(create_named(&platform, "a").await), Some(ErrorKind::Conflict));
    inner.delete_container();
    let missing = platform.get("a").await.unwrap_err();
    assert_eq!((missing.kind(), missing.server_time().is_some()), (ErrorKind::NotFound, true));
    assert_eq!(kind(create_named(&platform, "a").await), Some(ErrorKind::NotFound));
    assert_eq!(kind(platform.list("").await), Some(ErrorKind::Rejected));
}

fn group() -> ConsumerGroup {
    ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap()
}

async fn store(platform: &Platform, owner: &str) -> GroupStore {
    let builder = GroupStore::builder(Arc::new(platform.clone()), group(), OwnerId::new(owner).unwrap());
    builder.with_seed(1).connect().await.unwrap()
}

async fn claim(store: &GroupStore, claim: Claim) -> Lease {
    won(store.claim(&claim.with_cooperative(true).with_lease_scope(LeaseScope::Instance)).await)
}

fn won(outcome: ClaimOutcome) -> Lease {
    match outcome {
        ClaimOutcome::Won(lease) => lease,
        other => panic!("not won: {other:?}"),
    }
}

fn position(sequence_number: i64) -> Position {
    Position::new(sequence_number, sequence_number.to_string())
}

/// Returns the owners with a heartbeat.
async fn present(store: &GroupStore) -> Vec<String> {
    let listing = store.list_heartbeats().await.unwrap();
    assert!(listing.malformed.is_empty(), "{:?}", listing.malformed);
    listing.records.iter().map(|heartbeat| heartbeat.record.owner.to_string()).collect()
}

/// From the first claim to the handoff, with owner IDs that differ by a dot.
#[tokio::test(start_paused = true)]
async fn a_group_of_stores_works_without_warnings() {
    let (log, _guard) = Captured::begin();
    let platform = Platform::new(Arc::new(MemoryContainer::new()), 7);
    let (a, b) = (store(&platform, "a").await, store(&platform, "a.").await);
    for store in [&a, &b, &a, &b] {
        assert_eq!(store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
    }
    assert_eq!(present(&a).await, ["a", "a."]);

    let lease = claim(&a, Claim::unowned(0.into())).await;
    let lease = won(a.renew(&lease).await);
    let AdoptOutcome::Adopted(mut adoption) = a.adopt(&0.into(), lease.epoch(), Some(&position(-1))).await.unwrap()
    else {
        panic!("not adopted")
    };
    assert_eq!(a.checkpoint(&mut adoption, &position(7)).await.unwrap(), CheckpointOutcome::Written);
    for _ in 0..3 {
        assert_eq!(a.list_ownerships().await.unwrap().records.len(), 1);
        assert_eq!(a.list_checkpoints().await.unwrap().records[0].record.sequence_number, Some(7));
    }

    let seen = b.list_ownerships().await.unwrap().records.remove(0);
    let Ok(HandoffRequestOutcome::Requested(mut handoff)) = b.request_handoff(&seen).await else {
        panic!("not requested")
    };
    let lease = won(a.renew(&lease).await);
    assert_eq!(lease.handoff_requested_by().map(OwnerId::as_str), Some("a."));
    let _ = a.release(&lease).await;
    let pursuit = b.poll_handoff(&mut handoff).await.unwrap();
    let HandoffStatus::Ready(after_handoff) = pursuit else { panic!("not handed over: {pursuit:?}") };
    let lease = claim(&b, after_handoff).await;
    let _ = b.adopt(&0.into(), lease.epoch(), None).await.unwrap();
    a.end_heartbeat().await.unwrap();
    assert_eq!(present(&b).await, ["a."]);
    assert_eq!(log.text(), "");
}

/// Each heartbeat was listed under another name, so each owner saw owners that do not exist.
#[tokio::test(start_paused = true)]
async fn heartbeat_of_an_owner_id_ending_with_a_dot() {
    let platform = Platform::new(Arc::new(MemoryContainer::new()), 7);
    let mut expected = Vec::new();
    for owner in ["a", "a.", "a..", "b."] {
        let store = store(&platform, owner).await;
        assert_eq!(store.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written, "{owner}");
        expected.push(owner);
        assert_eq!(
            present(&store).await.into_iter().collect::<BTreeSet<_>>(),
            expected.iter().map(|name| (*name).to_owned()).collect()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn verification_of_an_owner_id_ending_with_a_dot() {
    let platform = Platform::new(Arc::new(MemoryContainer::new()), 7);
    let builder = GroupStore::builder(Arc::new(platform), group(), OwnerId::new("a.").unwrap());
    builder.connect().await.unwrap();
}
