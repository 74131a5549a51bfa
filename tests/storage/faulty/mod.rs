//! Each fault has its documented effect, and the same seed gives the same faults.

mod platform;

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{
    BlobOperation, Fault, FaultKind, FaultPlan, FaultyContainer, Injected, Target,
};
use eventhubs_checkpoint::{ErrorKind, Result};
use tokio::time::{Instant, advance, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a container, and the same container with faults in front of it.
fn pair() -> (Arc<MemoryContainer>, FaultyContainer) {
    let inner = Arc::new(MemoryContainer::new());
    (inner.clone(), FaultyContainer::new(inner, 1))
}

fn marked(mark: &str) -> Metadata {
    Metadata::from([("mark".to_owned(), mark.to_owned())])
}

async fn mark_of(container: &dyn BlobContainer, name: &str) -> Option<String> {
    container.get(name).await.ok()?.metadata.remove("mark")
}

async fn create(container: &dyn BlobContainer, mark: &str) -> Result<()> {
    container.write("a", &marked(mark), &Condition::Create).await.map(drop)
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

#[tokio::test(start_paused = true)]
async fn latency_delays_and_changes_nothing_else() {
    let (inner, faulty) = pair();
    faulty.inject(Fault::Latency(3 * SECOND));
    let began = Instant::now();
    create(&faulty, "1").await.unwrap();
    assert_eq!(began.elapsed(), 3 * SECOND);
    assert_eq!(mark_of(&inner, "a").await.as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_arrive_is_not_applied() {
    for (fault, expected) in [
        (Fault::RequestLost, ErrorKind::Indeterminate),
        (Fault::Unreachable, ErrorKind::Unavailable),
        (Fault::Throttled { retry_after: Some(9 * SECOND) }, ErrorKind::Throttled { retry_after: Some(9 * SECOND) }),
        (Fault::Conflict, ErrorKind::Conflict),
        (Fault::Unauthorized, ErrorKind::Unauthorized),
    ] {
        let (inner, faulty) = pair();
        faulty.inject(fault.clone());
        let began = Instant::now();
        let error = create(&faulty, "1").await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (expected, Duration::ZERO), "{fault:?}");
        let is_answer = matches!(fault, Fault::Throttled { .. } | Fault::Conflict | Fault::Unauthorized);
        assert_eq!(error.server_time().is_some(), is_answer, "{fault:?}");
        sleep(100 * SECOND).await;
        assert_eq!(mark_of(&inner, "a").await, None, "{fault:?}");
        create(&faulty, "2").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_changes_neither_the_blob_nor_its_etag() {
    let (inner, faulty) = pair();
    let written = faulty.write("a", &marked("1"), &Condition::Create).await.unwrap();
    for _ in 0..2 {
        faulty.inject(Fault::Conflict);
    }
    let condition = Condition::IfMatch(written.etag.clone());
    assert_eq!(kind(faulty.write("a", &marked("2"), &condition).await), Some(ErrorKind::Conflict));
    assert_eq!(kind(faulty.delete("a", &written.etag).await), Some(ErrorKind::Conflict));
    assert_eq!(inner.get("a").await.unwrap().etag, written.etag);
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_hides_an_applied_change() {
    let inner = Arc::new(MemoryContainer::missing());
    let faulty = FaultyContainer::new(inner.clone(), 1);
    for _ in 0..3 {
        faulty.inject(Fault::ResponseLost);
    }
    assert_eq!(kind(faulty.create_container().await), Some(ErrorKind::Indeterminate));
    assert_eq!(kind(create(&faulty, "1").await), Some(ErrorKind::Indeterminate));
    assert_eq!(mark_of(&inner, "a").await.as_deref(), Some("1"));
    assert_eq!(kind(faulty.remove("a").await), Some(ErrorKind::Indeterminate));
    assert_eq!(mark_of(&inner, "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_may_have_been_a_rejection() {
    let (inner, faulty) = pair();
    create(&inner, "other").await.unwrap();
    faulty.inject(Fault::ResponseLost);
    assert_eq!(kind(create(&faulty, "1").await), Some(ErrorKind::Indeterminate));
    assert_eq!(mark_of(&inner, "a").await.as_deref(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn a_late_change_is_applied_later() {
    let (inner, faulty) = pair();
    faulty.inject(Fault::AppliedLate(5 * SECOND));
    assert_eq!(kind(create(&faulty, "1").await), Some(ErrorKind::Indeterminate));
    sleep(4 * SECOND).await;
    assert_eq!(mark_of(&inner, "a").await, None);
    sleep(2 * SECOND).await;
    assert_eq!(mark_of(&inner, "a").await.as_deref(), Some("1"));

    faulty.inject(Fault::AppliedLate(5 * SECOND));
    assert_eq!(kind(faulty.remove("a").await), Some(ErrorKind::Indeterminate));
    sleep(4 * SECOND).await;
    assert!(inner.get("a").await.is_ok());
    sleep(2 * SECOND).await;
    assert_eq!(kind(inner.get("a").await), Some(ErrorKind::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_late_change_with_a_failed_condition_is_dropped() {
    let (inner, faulty) = pair();
    faulty.inject(Fault::AppliedLate(5 * SECOND));
    assert_eq!(kind(create(&faulty, "late").await), Some(ErrorKind::Indeterminate));
    create(&inner, "faster").await.unwrap();
    sleep(6 * SECOND).await;
    assert_eq!(mark_of(&inner, "a").await.as_deref(), Some("faster"));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_request_times_out_and_is_not_applied() {
    let (inner, faulty) = pair();
    faulty.inject(Fault::Hang);
    assert!(timeout(3600 * SECOND, create(&faulty, "1")).await.is_err());
    assert_eq!(mark_of(&inner, "a").await, None);
    create(&faulty, "2").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_write_causes_a_conflict() {
    let (inner, faulty) = pair();
    faulty.inject(Fault::ConcurrentWrite(marked("other")));
    assert_eq!(kind(create(&faulty, "1").await), Some(ErrorKind::Conflict));
    assert_eq!(mark_of(&inner, "a").await.as_deref(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn a_stale_page_shows_the_past_with_the_current_date() {
    let (inner, faulty) = pair();
    let first = inner.write("p/1", &marked("old"), &Condition::Create).await.unwrap();
    faulty.list("p/").await.unwrap();
    advance(10 * SECOND).await;
    inner.overwrite("p/1", &marked("new")).await.unwrap();
    inner.write("p/2", &marked("new"), &Condition::Create).await.unwrap();
    faulty.list("p/").await.unwrap();
    advance(10 * SECOND).await;

    faulty.inject(Fault::StaleListing(15 * SECOND));
    let stale = faulty.list("p/").await.unwrap();
    let [blob] = stale.blobs.as_slice() else { panic!("{stale:?}") };
    assert_eq!(
        (&blob.etag, &blob.metadata, blob.last_modified),
        (&first.etag, &marked("old"), first.response.server_time)
    );
    assert_eq!((blob.response, blob.age()), (stale.response, 20 * SECOND));
    assert_eq!(stale.response.received_at, Instant::now());
    let outcome = faulty.write("p/1", &marked("x"), &Condition::IfMatch(blob.etag.clone())).await;
    assert_eq!(kind(outcome), Some(ErrorKind::Conflict));

    faulty.inject(Fault::StaleListing(5 * SECOND));
    assert_eq!(faulty.list("p/").await.unwrap().blobs.len(), 2);
    assert_eq!(faulty.list("p/").await.unwrap().blobs[0].metadata, marked("new"));
}

#[tokio::test(start_paused = true)]
async fn a_page_is_stale_only_if_there_was_an_earlier_one() {
    let (inner, faulty) = pair();
    create(&inner, "1").await.unwrap();
    faulty.inject(Fault::StaleListing(SECOND));
    assert_eq!(faulty.list("").await.unwrap().blobs.len(), 1);
    assert_eq!(faulty.pending(), 1);
    inner.remove("a").await.unwrap();
    assert_eq!(faulty.list("").await.unwrap().blobs.len(), 1);
    assert_eq!(faulty.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_page_is_an_error() {
    let (inner, faulty) = pair();
    create(&inner, "1").await.unwrap();
    faulty.inject(Fault::TruncatedListing);
    assert_eq!(kind(faulty.list("").await), Some(ErrorKind::Indeterminate));
    assert_eq!(faulty.list("").await.unwrap().blobs.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fault_waits_for_its_request() {
    let (_, faulty) = pair();
    faulty.inject_on(Target::from(BlobOperation::Get).named("/checkpoint/"), Fault::RequestLost);
    faulty.inject_on(BlobOperation::List, Fault::Unreachable);
    create(&faulty, "1").await.unwrap();
    assert!(faulty.get("a").await.is_ok());
    assert_eq!(kind(faulty.list("").await), Some(ErrorKind::Unavailable));
    assert_eq!(kind(faulty.get("g/checkpoint/0").await), Some(ErrorKind::Indeterminate));
    assert_eq!(faulty.pending(), 0);
    assert!(faulty.list("").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_plan_can_change_while_it_runs() {
    let (_, faulty) = pair();
    faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    assert_eq!(kind(create(&faulty, "1").await), Some(ErrorKind::Unavailable));
    faulty.set_plan(FaultPlan::default());
    create(&faulty, "1").await.unwrap();
    assert_eq!(faulty.counts().into_iter().collect::<Vec<_>>(), [(FaultKind::Unreachable, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_container_with_new_connections_shares_everything() {
    let (inner, faulty) = pair();
    let isolated = faulty.with_new_connections().unwrap();
    faulty.inject(Fault::RequestLost);
    assert_eq!(kind(create(&isolated, "1").await), Some(ErrorKind::Indeterminate));
    faulty.set_plan(FaultPlan::always(Fault::ResponseLost));
    assert_eq!(kind(create(&isolated, "2").await), Some(ErrorKind::Indeterminate));
    assert_eq!(mark_of(&inner, "a").await.as_deref(), Some("2"));
    let kinds: Vec<_> = faulty.trace().iter().map(|injected| injected.fault.kind()).collect();
    assert_eq!(kinds, [FaultKind::RequestLost, FaultKind::ResponseLost]);
}

#[tokio::test(start_paused = true)]
async fn the_trace_has_time_request_and_fault() {
    let (_, faulty) = pair();
    advance(7 * SECOND).await;
    faulty.inject(Fault::TruncatedListing);
    assert!(faulty.list("p/").await.is_err());
    let trace = faulty.trace();
    let [injected] = trace.as_slice() else { panic!("{trace:?}") };
    assert_eq!((injected.at, injected.operation, injected.name.as_str()), (7 * SECOND, BlobOperation::List, "p/"));
    assert_eq!(injected.fault, Fault::TruncatedListing);
}

#[tokio::test]
async fn debug_shows_the_seed() {
    let shown = format!("{:?}", FaultyContainer::new(Arc::new(MemoryContainer::new()), 4711));
    assert!(shown.contains("seed: 4711"), "{shown}");
}

/// Runs several tasks on one container and returns the faults and the remaining blobs.
async fn workload(seed: u64) -> (Vec<Injected>, Vec<String>) {
    let (inner, _) = pair();
    let faulty = FaultyContainer::new(inner.clone(), seed);
    faulty.set_plan(
        FaultPlan::default()
            .with(0.5, Fault::Latency(3 * SECOND))
            .with(0.1, Fault::RequestLost)
            .with(0.1, Fault::ResponseLost)
            .with(0.1, Fault::AppliedLate(20 * SECOND))
            .with(0.05, Fault::Hang)
            .with(0.1, Fault::Conflict)
            .with(0.1, Fault::Throttled { retry_after: Some(SECOND) })
            .with(0.2, Fault::StaleListing(30 * SECOND))
            .with(0.1, Fault::TruncatedListing),
    );
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let faulty = faulty.clone();
        tasks.spawn(async move {
            for round in 0..40 {
                let name = (round % 3).to_string();
                let listed = timeout(5 * SECOND, faulty.list("")).await;
                let known = listed.ok().and_then(Result::ok).map(|list| list.blobs).unwrap_or_default();
                let known = known.into_iter().find(|blob| blob.name == name);
                let condition = known.map_or(Condition::Create, |blob| Condition::IfMatch(blob.etag));
                let _ = timeout(5 * SECOND, faulty.write(&name, &marked(&format!("{task}.{round}")), &condition)).await;
            }
        });
    }
    tasks.join_all().await;
    let blobs = inner.list("").await.unwrap().blobs;
    (faulty.trace(), blobs.into_iter().map(|blob| format!("{} {:?}", blob.name, blob.metadata)).collect())
}

#[test]
fn the_same_seed_and_calls_give_the_same_faults() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(workload(seed))
    };
    let first = run(42);
    assert_eq!(run(42), first);
    assert_ne!(run(43).0, first.0);
    let mut kinds: Vec<_> = first.0.iter().map(|injected| injected.fault.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), 9, "not every fault of the plan happened: {kinds:?}");
}
