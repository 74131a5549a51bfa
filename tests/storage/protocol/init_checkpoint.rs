//! Initial checkpoint: written where there is none.

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::store::{InitOutcome, OnCaseMismatch, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};
use futures::future::join_all;

use crate::bench::{
    Adopted, Bench, Describe, Owner, VERBATIM, at, checkpoint, metadata, owned_by, ownership, position,
};
use crate::placing::place;

fn pinned(sequence_number: i64) -> Metadata {
    let mut record = position(sequence_number);
    record.insert("initial", sequence_number.to_string());
    record
}

async fn pin(owner: &Owner, partition: u32, sequence_number: i64) -> bool {
    owner.store.init_checkpoint(&partition.into(), &at(sequence_number)).await.unwrap() == InitOutcome::Written
}

fn there(partition: u32) -> String {
    format!("{VERBATIM}checkpoint/{partition}")
}

pub async fn creates_a_first_checkpoint_without_an_ownership(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&ownership(0), &owned_by("b")).await;
    assert!(pin(&a, 0, 41).await);
    assert_eq!(a.requests(), ["read verbatim checkpoint/0", "create checkpoint/0"]);
    let written = bench.read(&checkpoint(0)).await;
    for (key, value) in [("sequencenumber", "41"), ("offset", "410"), ("ownerid", "a")] {
        assert_eq!(&written[key], value);
    }
    assert!(written.contains_key("updatedat"));
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

pub async fn yields_to_a_checkpoint_in_the_other_name_case(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&there(0), &position(7)).await;
    assert!(!pin(&a, 0, 41).await);
    assert!(bench.blob(&checkpoint(0)).await.is_none());
    a.win(0).await;
    assert_eq!(a.adopt(0, Some(41)).await.adoption().record().sequence_number, Some(7));
    // One without a position has no effect.
    bench.put(&there(1), &metadata(&[])).await;
    assert!(pin(&a, 1, 41).await);
}

/// An owner there may be active, and not have written its first one.
pub async fn a_later_checkpoint_in_the_other_name_case_counts(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&there(1), &metadata(&[])).await;
    for partition in 0..2 {
        assert!(pin(&a, partition, 41).await);
        bench.put(&there(partition), &position(57)).await;
        a.win(partition).await;
        assert_eq!(a.adopt(partition, Some(90)).await.adoption().record().sequence_number, Some(57));
    }
}

/// An owner there may have started before the initial checkpoint was written, without a record of its start.
pub async fn yields_to_a_smaller_one_in_the_other_name_case(bench: Bench) {
    let a = bench.owner("a").await;
    assert!(pin(&a, 0, 41).await);
    // The same for a start that an adoption wrote.
    a.win(1).await;
    assert_eq!(a.adopt(1, Some(41)).await.adoption().record().sequence_number, Some(41));
    a.win(0).await;
    let b = bench.owner("b").await;
    for partition in 0..2 {
        bench.put(&there(partition), &position(7)).await;
        b.take(partition).await;
        let adoption = b.adopt(partition, Some(90)).await.adoption();
        assert_eq!((adoption.record().sequence_number, adoption.record().initial), (Some(7), false));
    }
}

/// A later one there belongs to another application: its position may be after events that were not processed here.
pub async fn a_checkpoint_here_ends_the_other_name_case(bench: Bench) {
    let a = bench.owner("a").await;
    assert!(pin(&a, 0, 41).await);
    a.win(0).await;
    let mut adoption = a.adopt(0, Some(90)).await.adoption();
    assert_eq!(a.checkpoint(&mut adoption, 42).await.describe(), "written");
    bench.put(&there(0), &position(57)).await;
    let b = bench.owner("b").await;
    b.take(0).await;
    assert_eq!(b.adopt(0, Some(90)).await.adoption().record().sequence_number, Some(42));
}

pub async fn one_in_the_other_name_case_is_taken_over(bench: Bench) {
    bench.put(&there(0), &pinned(41)).await;
    let a = bench.owner("a").await;
    assert!(!pin(&a, 0, 50).await, "there is one");
    a.win(0).await;
    let adoption = a.adopt(0, Some(90)).await.adoption();
    assert_eq!((adoption.record().sequence_number, adoption.record().initial), (Some(41), true));
    assert_eq!(&bench.read(&checkpoint(0)).await["initial"], "41");
}

/// It started before the initial checkpoint was written, and an adoption without a known start wrote nothing.
pub async fn yields_to_an_owner_that_adopted_before(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    b.win(0).await;
    let mut adoption = b.adopt(0, None).await.adoption();
    assert!(pin(&a, 0, 41).await);
    assert_eq!(b.checkpoint(&mut adoption, 20).await.describe(), "written");
    assert_eq!(bench.position_of(0).await, 20);
    assert!(!bench.read(&checkpoint(0)).await.contains_key("initial"));
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
    assert_eq!(&bench.read(&checkpoint(0)).await["initial"], "41");
    a.win(0).await;
    let mut adoption = a.adopt(0, Some(90)).await.adoption();
    assert!(adoption.record().initial);
    assert_eq!(&bench.read(&checkpoint(0)).await["initial"], "41");
    assert_eq!(a.checkpoint(&mut adoption, 42).await.describe(), "written");
    let written = bench.read(&checkpoint(0)).await;
    assert!(!written.contains_key("initial") && !written.contains_key("sourceetag"), "{written:?}");
    assert!(!adoption.record().initial);
    // A position that was written explicitly is not a start that yields.
    assert!(pin(&a, 1, 41).await);
    place(&a.store, 1, &at(7)).await;
    assert!(!bench.read(&checkpoint(1)).await.contains_key("initial"));
}

pub async fn ignores_an_ignored_name_case(bench: Bench) {
    let a = bench.owner_with("a", StoreConfig::default().with_on_case_mismatch(OnCaseMismatch::Ignore)).await;
    bench.put(&there(0), &position(7)).await;
    assert!(pin(&a, 0, 41).await);
    assert_eq!(a.requests(), ["create checkpoint/0"]);
    assert!(!bench.read(&checkpoint(0)).await.contains_key("sourceetag"));
}
