//! Reset: an operator takes a partition over, writes another position, and returns the partition.

use std::time::Duration;

use eventhubs_checkpoint::admin::{Operator, OperatorBuilder, ResetError, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::store::protocol::Adoption;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, Target};
use eventhubs_checkpoint::{LeaseScope, OwnerId, PartitionId};
use tokio::time::Instant;

use crate::bench::{
    Adopted, Bench, Describe, EXPIRY, LOWER, Owner, at, checkpoint, metadata, owned_by, ownership, position,
};

/// The position before the reset, and the position of the reset.
pub const OLD: i64 = 10;
pub const NEW: i64 = 3;

/// Failed attempts are retried soon, but an emulator on a busy machine has enough time.
pub fn quick_retries(builder: OperatorBuilder) -> OperatorBuilder {
    builder.with_config(StoreConfig::default().with_request_timeout(Duration::from_secs(2)))
}

pub async fn reset(operator: &Owner<Operator>, partition: u32, to: i64) -> ResetOutcome {
    reset_with(operator, partition, to, &ResetOptions::default()).await
}

/// Does not wait for an owner before an earlier operator, which has no heartbeat here, and so may be of another SDK.
pub async fn reset_at_once(operator: &Owner<Operator>, partition: u32, to: i64) -> ResetOutcome {
    reset_with(operator, partition, to, &ResetOptions::default().with_settle(Duration::ZERO)).await
}

async fn reset_with(operator: &Owner<Operator>, partition: u32, to: i64, options: &ResetOptions) -> ResetOutcome {
    let outcomes = operator.store.reset(vec![(partition.into(), at(to))], options).await.unwrap();
    let [(named, outcome)] = <[_; 1]>::try_from(outcomes).unwrap();
    assert_eq!(named, PartitionId::from(partition));
    outcome
}

impl Describe for ResetOutcome {
    fn describe(&self) -> String {
        let named = |owner: &Option<OwnerId>| owner.as_ref().map_or("no owner", OwnerId::as_str).to_owned();
        match self {
            Self::Done => "done".to_owned(),
            Self::NotDone(ResetError::Lost { by }) => format!("lost to {}", named(by)),
            Self::NotDone(ResetError::Busy { operator }) => format!("busy: {operator}"),
            Self::NotDone(ResetError::Foreign { owner }) => format!("foreign: {owner}"),
            Self::NotDone(ResetError::Failed(error)) => format!("failed: {:?}", error.kind()),
            Self::Indeterminate { written: true, .. } => "indeterminate, written".to_owned(),
            Self::Indeterminate { written: false, .. } => "indeterminate".to_owned(),
            other => panic!("{other:?}"),
        }
    }
}

/// A released record of this operator, reserved for an owner.
fn returned(operator: &Owner<Operator>, to: Option<&str>) -> Metadata {
    let (id, lease_duration) = (operator.store.id().as_str(), EXPIRY.to_string());
    let mut record = metadata(&[("ownerid", ""), ("ehcoperator", id), ("ehcleaseduration", &lease_duration)]);
    record.extend(to.map(|to| ("ehchandoffto".to_owned(), to.to_owned())));
    record
}

/// The ownership record without its epoch, which every record of an ownership has.
async fn record_of(bench: &Bench, partition: u32) -> Metadata {
    let mut record = bench.read(&ownership(partition)).await;
    assert!(record.remove("ehcepoch").is_some(), "{record:?}");
    record
}

/// `a` owns the partition and is at the old position.
pub async fn running(bench: &Bench, partition: u32) -> (Owner, Adoption) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(partition).await;
    assert_eq!(a.checkpoint(&mut adoption, OLD).await.describe(), "written");
    (a, adoption)
}

async fn put_young(bench: &Bench, partition: u32, record: &[(&str, &str)]) {
    bench.put(&ownership(partition), &metadata(record)).await;
    bench.put(&checkpoint(partition), &position(OLD)).await;
}

/// Checks that the next owner claims the partition at once and starts exactly at this position.
async fn starts_at(owner: &Owner, partition: u32, at: i64) {
    owner.take(partition).await;
    let adoption = owner.adopt(partition, Some(-1)).await.adoption();
    assert_eq!(adoption.record().sequence_number, Some(at));
    assert!(!adoption.record().initial);
}

pub async fn a_never_owned_partition_is_created(bench: Bench) {
    let (a, operator) = (bench.owner("a").await, bench.operator("o", quick_retries).await);
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    let requests = [
        "list checkpoint/",
        "list ownership/",
        "list heartbeat/",
        "create ownership/0",
        "read beacon",
        "create beacon",
        "read checkpoint/0",
        "read ownership/0",
        "create checkpoint/0",
        "match ownership/0",
        "read beacon",
        "match beacon",
    ];
    assert_eq!(operator.requests(), requests);
    assert_eq!(record_of(&bench, 0).await, returned(&operator, None));
    starts_at(&a, 0, NEW).await;
}

pub async fn a_released_or_expired_partition_is_unowned(bench: Bench) {
    let (a, operator) = (bench.owner("a").await, bench.operator("o", quick_retries).await);
    for (partition, record) in [(0, metadata(&[("ownerid", "")])), (1, owned_by("b"))] {
        bench.put(&ownership(partition), &record).await;
        bench.put(&checkpoint(partition), &position(OLD)).await;
        operator.wire().age(&ownership(partition), EXPIRY + 2);
        assert_eq!(reset(&operator, partition, NEW).await.describe(), "done");
        assert_eq!(record_of(&bench, partition).await, returned(&operator, None));
        starts_at(&a, partition, NEW).await;
    }
}

pub async fn a_live_owner_is_displaced_and_gets_it_back(bench: Bench) {
    let (a, mut adoption) = running(&bench, 0).await;
    let operator = bench.operator("o", quick_retries).await;
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    let requests = [
        "list checkpoint/",
        "list ownership/",
        "list heartbeat/",
        "match ownership/0",
        "read beacon",
        "create beacon",
        "read checkpoint/0",
        "read ownership/0",
        "match checkpoint/0",
        "match checkpoint/0",
        "match ownership/0",
        "read beacon",
        "match beacon",
    ];
    assert_eq!(operator.requests(), requests);
    assert_eq!(record_of(&bench, 0).await, returned(&operator, Some("a")));
    assert_eq!(a.checkpoint(&mut adoption, OLD + 1).await.describe(), "fenced by no owner");
    starts_at(&a, 0, NEW).await;
}

pub async fn every_record_of_an_operator_names_it(bench: Bench) {
    running(&bench, 0).await;
    let operator = bench.operator("o", quick_retries).await;
    let _ = reset(&operator, 0, NEW).await;
    let id = operator.store.id().as_str();
    assert!(id.starts_with("operator-"), "{id}");
    let writes: Vec<_> = operator.sent().into_iter().filter(|sent| sent.is_write_of("ownership/")).collect();
    let [claim, release] = <[_; 2]>::try_from(writes).unwrap();
    for (record, owner) in [(&claim.metadata, id), (&release.metadata, "")] {
        assert_eq!((&record["ownerid"], &record["ehcoperator"]), (owner, id));
        assert_eq!(&record["ehchandoffto"], "a");
        assert!(!record.contains_key("ehccooperative") && !record.contains_key("ehcleasescope"), "{record:?}");
    }
    assert!(claim.metadata.contains_key("ehcincarnation"));
    let other = bench.operator("p", quick_retries).await;
    assert_ne!(other.store.id(), operator.store.id());
}

pub async fn keeps_the_measured_load(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    let mut record = owned_by("a");
    record.insert("ehcload", "7");
    bench.put(&ownership(0), &record).await;
    bench.put(&checkpoint(0), &position(OLD)).await;
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    let mut expected = returned(&operator, Some("a"));
    expected.insert("ehcload", "7");
    assert_eq!(record_of(&bench, 0).await, expected);
}

/// `a` owns the partition with a lease that its heartbeat keeps alive, and wrote the record long ago.
async fn by_heartbeat(bench: &Bench, heartbeat_age: i64) -> (Owner, Adoption, Owner<Operator>) {
    let mut a = bench.owner("a").await;
    a.scope = LeaseScope::Instance;
    let _ = a.store.send_heartbeat().await.unwrap();
    let (_, mut adoption) = a.run(0).await;
    assert_eq!(a.checkpoint(&mut adoption, OLD).await.describe(), "written");
    let operator = bench.operator("o", quick_retries).await;
    operator.wire().age("ownership/0", 100 * EXPIRY);
    operator.wire().age("heartbeat/a", heartbeat_age);
    (a, adoption, operator)
}

pub async fn an_owner_with_a_heartbeat_is_not_declared_dead(bench: Bench) {
    let (a, mut adoption, operator) = by_heartbeat(&bench, EXPIRY + 1).await;
    let heartbeat = format!("{LOWER}heartbeat/a");
    let before = bench.read(&heartbeat).await;
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    assert_eq!(bench.read(&heartbeat).await, before);
    assert_eq!(record_of(&bench, 0).await, returned(&operator, Some("a")));
    assert_eq!(a.checkpoint(&mut adoption, OLD + 1).await.describe(), "fenced by no owner");
    starts_at(&a, 0, NEW).await;
}

pub async fn an_expired_heartbeat_is_declared_dead_first(bench: Bench) {
    let (_a, _, operator) = by_heartbeat(&bench, EXPIRY + 2).await;
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    assert_eq!(operator.requests()[3..5], ["match heartbeat/a", "match ownership/0"]);
    assert_eq!(&bench.read(&format!("{LOWER}heartbeat/a")).await["ehcdeclareddeadby"], operator.store.id().as_str());
    assert_eq!(record_of(&bench, 0).await, returned(&operator, None));
}

/// It sends a heartbeat between the listing and the declaration: it is alive, and listed again.
pub async fn an_owner_faster_than_the_declaration_is_alive(bench: Bench) {
    let (a, _, operator) = by_heartbeat(&bench, EXPIRY + 2).await;
    let heartbeat = bench.read(&format!("{LOWER}heartbeat/a")).await;
    operator.next_write("heartbeat/a", Fault::ConcurrentWrite(heartbeat.clone()));
    let link = operator.clone();
    operator.wire().after(BlobOperation::Write, "heartbeat/a", async move { link.wire().age("heartbeat/a", 0) });
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    assert_eq!(record_of(&bench, 0).await, returned(&operator, Some("a")));
    assert_eq!(bench.read(&format!("{LOWER}heartbeat/a")).await, heartbeat);
    starts_at(&a, 0, NEW).await;
}

pub async fn a_valid_reservation_is_kept(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    bench.put(&ownership(7), &owned_by("b")).await;
    for (partition, age, to) in [(0, EXPIRY + 1, Some("b")), (1, EXPIRY + 2, None)] {
        put_young(&bench, partition, &[("ownerid", ""), ("ehchandoffto", "b")]).await;
        operator.wire().age(&ownership(partition), age);
        assert_eq!(reset(&operator, partition, NEW).await.describe(), "done");
        assert_eq!(record_of(&bench, partition).await, returned(&operator, to));
    }
}

/// The former owner has not claimed it yet when the next operator begins.
pub async fn after_a_reset_it_returns_to_the_same_owner(bench: Bench) {
    let (a, _) = running(&bench, 0).await;
    let (first, second) = (bench.operator("o", quick_retries).await, bench.operator("p", quick_retries).await);
    assert_eq!(reset(&first, 0, NEW).await.describe(), "done");
    second.wire().age("ownership/0", EXPIRY / 2 + 1);
    assert_eq!(reset_at_once(&second, 0, NEW + 1).await.describe(), "done");
    assert_eq!(record_of(&bench, 0).await, returned(&second, Some("a")));
    starts_at(&a, 0, NEW + 1).await;
}

pub async fn a_requested_partition_goes_to_the_requester(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    bench.put(&ownership(7), &owned_by("b")).await;
    for (partition, asking, to) in [(0, "b", "b"), (1, "c", "a")] {
        let mut requested = owned_by("a");
        requested.extend(metadata(&[("ehccooperative", "1"), ("ehchandoffto", asking)]));
        bench.put(&ownership(partition), &requested).await;
        bench.put(&checkpoint(partition), &position(OLD)).await;
        assert_eq!(reset(&operator, partition, NEW).await.describe(), "done");
        assert_eq!(record_of(&bench, partition).await, returned(&operator, Some(to)));
    }
}

/// The record of an operator that is working on it.
fn operated(by: &str) -> Metadata {
    let mut record = owned_by(by);
    record.extend(metadata(&[("ehcoperator", by), ("ehchandoffto", "a")]));
    record
}

pub async fn another_live_operator_means_busy(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    bench.put(&ownership(0), &operated("operator-1")).await;
    operator.wire().age("ownership/0", EXPIRY + 1);
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "busy: operator-1");
    assert_eq!(operator.requests(), ["list checkpoint/", "list ownership/", "list heartbeat/"]);
}

pub async fn after_a_dead_operator_inherits_its_owner(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    bench.put(&ownership(0), &operated("operator-1")).await;
    operator.wire().age("ownership/0", EXPIRY + 2);
    assert_eq!(reset_at_once(&operator, 0, NEW).await.describe(), "done");
    assert_eq!(record_of(&bench, 0).await, returned(&operator, Some("a")));
}

/// It kept the partition after an earlier reset that failed.
pub async fn again_by_the_same_operator_inherits_it(bench: Bench) {
    let (a, _) = running(&bench, 0).await;
    let operator = bench.operator("o", quick_retries).await;
    let failing = operator.clone();
    operator.wire().after(BlobOperation::Write, "ownership/0", async move { failing.cut_off(Target::any()) });
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "failed: Unavailable");
    assert_eq!(bench.owner_of(0).await, operator.store.id().as_str());
    operator.restored();
    assert_eq!(reset_at_once(&operator, 0, NEW).await.describe(), "done");
    assert_eq!(record_of(&bench, 0).await, returned(&operator, Some("a")));
    starts_at(&a, 0, NEW).await;
}

pub async fn with_a_foreign_owner_is_rejected(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    running(&bench, 0).await;
    bench.put(&ownership(1), &metadata(&[("ownerid", "python")])).await;
    operator.wire().age("ownership/1", 3 * EXPIRY + 1);
    for partition in [0, 1, 2] {
        assert_eq!(reset(&operator, partition, NEW).await.describe(), "foreign: python");
        assert_eq!(operator.requests(), ["list checkpoint/", "list ownership/", "list heartbeat/"]);
    }
}

/// With the shortest possible lease duration, so that a second is long enough for a renewal before the last one.
async fn settling(bench: &Bench) -> (Owner<Operator>, ResetOptions) {
    let config = StoreConfig::default()
        .with_lease_duration(Duration::from_secs(4))
        .with_request_timeout(Duration::from_millis(1900));
    let operator = bench.operator("o", |builder| builder.with_config(config)).await;
    (operator, ResetOptions::default().with_allow_foreign(true).with_settle(Duration::from_secs(1)))
}

pub async fn with_a_foreign_owner_waits_and_renews(bench: Bench) {
    let (operator, options) = settling(&bench).await;
    put_young(&bench, 0, &[("ownerid", "python")]).await;
    let began = Instant::now();
    assert_eq!(reset_with(&operator, 0, NEW, &options).await.describe(), "done");
    assert!(began.elapsed() >= options.settle);
    let mut requests = operator.requests();
    requests.retain(|request| !request.contains("beacon"));
    let after_the_adoption = ["match ownership/0", "match ownership/0", "match checkpoint/0", "match ownership/0"];
    // A slow machine may leave no time for the first renewal.
    let last = if bench.is_paused() { 4 } else { 3 };
    assert_eq!(requests[requests.len() - last..], after_the_adoption[4 - last..]);
    let mut expected = returned(&operator, Some("python"));
    expected.insert("ehcleaseduration", "4");
    assert_eq!(record_of(&bench, 0).await, expected);
    assert_eq!(bench.position_of(0).await, NEW);
}

/// It may still write, although no record of it is listed as live.
pub async fn after_a_foreign_owner_waits_too(bench: Bench) {
    let (operator, options) = settling(&bench).await;
    put_young(&bench, 0, &[("ownerid", "python")]).await;
    operator.wire().age("ownership/0", 3 * EXPIRY + 2);
    let began = Instant::now();
    assert_eq!(reset_with(&operator, 0, NEW, &options.clone().with_allow_foreign(false)).await.describe(), "done");
    assert!(began.elapsed() >= options.settle);
}

pub async fn waits_again_after_a_foreign_checkpoint(bench: Bench) {
    let (operator, options) = settling(&bench).await;
    let options = options.with_settle(Duration::from_millis(300));
    put_young(&bench, 0, &[("ownerid", "python")]).await;
    let container = bench.container.clone();
    operator.wire().after_nth(2, BlobOperation::Write, "ownership/0", async move {
        container.overwrite(&checkpoint(0), &position(OLD + 1)).await.unwrap();
    });
    let began = Instant::now();
    assert_eq!(reset_with(&operator, 0, NEW, &options).await.describe(), "done");
    assert!(began.elapsed() >= 2 * options.settle, "the wait begins again");
    assert_eq!(bench.position_of(0).await, NEW);
}

pub async fn a_partition_taken_by_a_foreign_owner_is_lost(bench: Bench) {
    let (operator, options) = settling(&bench).await;
    put_young(&bench, 0, &[("ownerid", "python")]).await;
    let container = bench.container.clone();
    operator.wire().after(BlobOperation::Write, "checkpoint/0", async move {
        container.overwrite(&ownership(0), &metadata(&[("ownerid", "java")])).await.unwrap();
    });
    assert_eq!(reset_with(&operator, 0, NEW, &options).await.describe(), "lost to java");
    assert_eq!(bench.position_of(0).await, OLD);
    assert_eq!(bench.owner_of(0).await, "java");
}

/// A blob without a position, and no blob.
pub async fn without_a_checkpoint_creates_the_first(bench: Bench) {
    let (a, operator) = (bench.owner("a").await, bench.operator("o", quick_retries).await);
    let lease = a.win(0).await;
    let mut unpinned = a.adopt(0, None).await.adoption();
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    assert!(operator.requests().contains(&"create checkpoint/0".to_owned()));
    assert_eq!(a.checkpoint(&mut unpinned, OLD).await.describe(), "fenced by no owner");
    assert_eq!(a.renew(&lease).await.describe(), "lost to no owner");
    bench.put(&checkpoint(1), &metadata(&[("theirs", "1")])).await;
    assert_eq!(reset(&operator, 1, NEW).await.describe(), "done");
    assert_eq!(&bench.read(&checkpoint(1)).await["theirs"], "1");
    for partition in [0, 1] {
        if partition == 1 {
            assert!(bench.blob(&ownership(1)).await.is_some());
        }
        starts_at(&a, partition, NEW).await;
    }
}

pub async fn to_the_current_position_writes_nevertheless(bench: Bench) {
    let (a, mut adoption) = running(&bench, 0).await;
    let operator = bench.operator("o", quick_retries).await;
    assert_eq!(reset(&operator, 0, OLD).await.describe(), "done");
    let writes = operator.sent().into_iter().filter(|sent| sent.is_write_of("checkpoint/0")).count();
    assert_eq!(writes, 2, "the adoption and the position");
    assert_eq!(a.checkpoint(&mut adoption, OLD + 1).await.describe(), "fenced by no owner");
    starts_at(&a, 0, OLD).await;
}

/// Its former owner claims it again before it detects the reset: its earlier work moves nothing.
pub async fn is_not_undone_by_an_earlier_checkpoint(bench: Bench) {
    let (a, mut before) = running(&bench, 0).await;
    let operator = bench.operator("o", quick_retries).await;
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    a.take(0).await;
    assert_eq!(a.checkpoint(&mut before, OLD + 1).await.describe(), "fenced by a");
    let mut after = a.adopted(0).await;
    assert_eq!(a.checkpoint(&mut before, OLD + 2).await.describe(), "fenced by a");
    assert_eq!(a.checkpoint(&mut after, NEW + 1).await.describe(), "written");
    assert_eq!(bench.position_of(0).await, NEW + 1);
}

/// Forward and backward; an initial checkpoint becomes a regular one.
pub async fn moves_a_checkpoint_anywhere(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    let a = bench.owner("a").await;
    a.run(0).await;
    for to in [OLD, NEW, i64::MAX / 10, 0] {
        assert_eq!(reset(&operator, 0, to).await.describe(), "done");
        assert_eq!(bench.position_of(0).await, to);
        assert_eq!(bench.read(&checkpoint(0)).await["offset"], at(to).offset);
        starts_at(&a, 0, to).await;
    }
}

pub async fn keeps_every_other_key(bench: Bench) {
    let (a, _) = running(&bench, 0).await;
    let operator = bench.operator("o", quick_retries).await;
    let mut theirs = bench.read(&checkpoint(0)).await;
    theirs.extend(metadata(&[("theirs", "1"), ("rewound", "x"), ("ehcepoch", "5")]));
    bench.put(&checkpoint(0), &theirs).await;
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    let mut found = bench.read(&checkpoint(0)).await;
    let id = operator.store.id().to_string();
    for (key, value) in [("ownerid", id), ("sequencenumber", NEW.to_string()), ("offset", at(NEW).offset)] {
        assert_eq!(found.insert(key, &theirs[key]), Some(value), "{key}");
    }
    found.insert("ehcupdatedat", &theirs["ehcupdatedat"]);
    assert_eq!(found, theirs);
    starts_at(&a, 0, NEW).await;
}

pub async fn of_several_partitions_reports_each(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    running(&bench, 0).await;
    bench.put(&ownership(1), &operated("operator-1")).await;
    let resets = vec![(2.into(), at(2)), (1.into(), at(1)), (0.into(), at(0))];
    let outcomes = operator.store.reset(resets, &ResetOptions::default()).await.unwrap();
    let reported: Vec<_> =
        outcomes.iter().map(|(partition, outcome)| (partition.as_str(), outcome.describe())).collect();
    let expected = [("2", "done"), ("1", "busy: operator-1"), ("0", "done")];
    assert_eq!(reported, expected.map(|(partition, reported)| (partition, reported.to_owned())));
    assert_eq!((bench.position_of(2).await, bench.position_of(0).await), (2, 0));
}

pub async fn of_one_partition_twice_at_once_is_rejected(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    let resets = vec![(0.into(), at(2)), (1.into(), at(1)), (0.into(), at(3))];
    let refused = operator.store.reset(resets, &ResetOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("partition 0"), "{refused}");
    assert_eq!(operator.requests(), [""; 0]);
}
