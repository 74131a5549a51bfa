//! Initial checkpoint: written where there is none.

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::store::protocol::InitOutcome;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};
use futures::future::join_all;

use crate::bench::{Adopted, Bench, Describe, Owner, at, checkpoint, metadata, owned_by, ownership, position};
use crate::placing::place;

fn pinned(sequence_number: i64) -> Metadata {
    let mut record = position(sequence_number);
    record.insert("ehcinitial", sequence_number.to_string());
    record
}

async fn pin(owner: &Owner, partition: u32, sequence_number: i64) -> bool {
    owner.store.init_checkpoint(&partition.into(), &at(sequence_number)).await.unwrap() == InitOutcome::Written
}

pub async fn creates_a_first_checkpoint_without_an_ownership(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&ownership(0), &owned_by("b")).await;
    assert!(pin(&a, 0, 41).await);
    assert_eq!(a.requests(), ["create checkpoint/0"]);
    let written = bench.read(&checkpoint(0)).await;
    for (key, value) in [("sequencenumber", "41"), ("offset", "410"), ("ownerid", "a")] {
        assert_eq!(&written[key], value);
    }
    assert!(written.contains_key("ehcupdatedat"));
    assert_eq!(bench.read(&ownership(0)).await, owned_by("b"));
}

pub async fn never_changes_an_existing_checkpoint(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, there) in (0..).zip([position(7), position(99), metadata(&[]), metadata(&[("odd", "x")])]) {
        let etag = bench.put(&checkpoint(partition), &there).await;
        assert!(!pin(&a, partition, 41).await, "{there:?}");
        assert_eq!(bench.blob(&checkpoint(partition)).await.unwrap().etag, etag);
    }
    // Nor its own, which still exists.
    assert!(pin(&a, 9, 41).await && pin(&a, 9, 41).await);
    assert!(!pin(&a, 9, 42).await);
    assert_eq!(bench.position_of(9).await, 41);
    assert!(!pin(&bench.owner("b").await, 9, 41).await);
}

pub async fn the_next_owner_starts_there(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    assert!(pin(&a, 0, 41).await);
    b.win(0).await;
    let mut adoption = b.adopt(0, Some(90)).await.adoption();
    assert_eq!(adoption.record().sequence_number, Some(41));
    assert_eq!(b.checkpoint(&mut adoption, 50).await.describe(), "written");
    assert!(!pin(&a, 0, 60).await);
    assert_eq!(bench.position_of(0).await, 50);
}

pub async fn survives_lost_responses(bench: Bench) {
    let a = bench.owner("a").await;
    let faults = [
        (Fault::RequestLost, true, 41),
        (Fault::ResponseLost, true, 41),
        (Fault::Conflict, true, 41),
        (Fault::ConcurrentWrite(position(7)), false, 7),
    ];
    for (partition, (fault, stands, stored)) in (0..).zip(faults) {
        a.next_write("checkpoint", fault.clone());
        assert_eq!(pin(&a, partition, 41).await, stands, "{fault:?}");
        assert_eq!(bench.position_of(partition).await, stored, "{fault:?}");
    }
    a.next_write("checkpoint", Fault::Conflict);
    a.next_read_fails("checkpoint");
    assert!(a.store.init_checkpoint(&8.into(), &at(41)).await.is_err());
    assert!(pin(&a, 8, 41).await);
}

pub async fn is_bounded_then_contended(bench: Bench) {
    let a = bench.owner("a").await;
    a.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::RequestLost));
    let error = a.store.init_checkpoint(&0.into(), &at(41)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended);
    assert!(error.to_string().contains("partition 0"), "{error}");
    assert!(a.sent().len() < 20);
    assert!(bench.blob(&checkpoint(0)).await.is_none());
}

pub async fn of_several_at_once_one_remains(bench: Bench) {
    let owners = join_all(["a", "b", "c"].map(|name| bench.owner(name))).await;
    for partition in 0..bench.rounds {
        let pins = join_all((0..).zip(&owners).map(|(number, owner)| {
            owner.add_jitter();
            pin(owner, partition, number)
        }));
        let standing: Vec<_> = (0..).zip(pins.await).filter(|(_, stands)| *stands).map(|(number, _)| number).collect();
        assert_eq!(standing, [bench.position_of(partition).await]);
    }
}

/// It started before the initial checkpoint was written, and an adoption without a known start wrote nothing.
pub async fn yields_to_an_owner_that_adopted_before(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    b.win(0).await;
    let mut adoption = b.adopt(0, None).await.adoption();
    assert!(pin(&a, 0, 41).await);
    assert_eq!(b.checkpoint(&mut adoption, 20).await.describe(), "written");
    assert_eq!(bench.position_of(0).await, 20);
    assert!(!bench.read(&checkpoint(0)).await.contains_key("ehcinitial"));
    assert_eq!(b.checkpoint(&mut adoption, 19).await.describe(), "superseded");
}

/// The initial checkpoint is found while other writes are ambiguous, and conflicts with more than one checkpoint.
pub async fn yields_even_if_responses_are_lost(bench: Bench) {
    for fault in [Fault::RequestLost, Fault::ResponseLost, Fault::ConcurrentWrite(pinned(90)), Fault::Conflict] {
        let (a, b) = (bench.owner("a").await, bench.owner("b").await);
        match bench.blob(&ownership(0)).await {
            Some(_) => b.take(0).await,
            None => b.win(0).await,
        };
        let mut adoption = b.adopt(0, None).await.adoption();
        assert!(pin(&a, 0, 41).await);
        b.next_write("/checkpoint/", fault.clone());
        assert_eq!(b.checkpoint(&mut adoption, 20).await.describe(), "written", "{fault:?}");
        assert_eq!(bench.position_of(0).await, 20);
        bench.delete(&checkpoint(0)).await;
    }
}

/// Every other reader finds a usable position; only the key shows that it is a start.
pub async fn is_flagged_until_the_first_checkpoint(bench: Bench) {
    let a = bench.owner("a").await;
    assert!(pin(&a, 0, 41).await);
    assert_eq!(&bench.read(&checkpoint(0)).await["ehcinitial"], "41");
    a.win(0).await;
    let mut adoption = a.adopt(0, Some(90)).await.adoption();
    assert!(adoption.record().initial);
    assert_eq!(&bench.read(&checkpoint(0)).await["ehcinitial"], "41");
    assert_eq!(a.checkpoint(&mut adoption, 42).await.describe(), "written");
    let written = bench.read(&checkpoint(0)).await;
    assert!(!written.contains_key("ehcinitial"), "{written:?}");
    assert!(!adoption.record().initial);
    // A position that was written explicitly is not a start that yields.
    assert!(pin(&a, 1, 41).await);
    place(&a.store, 1, &at(7)).await;
    assert!(!bench.read(&checkpoint(1)).await.contains_key("ehcinitial"));
}
