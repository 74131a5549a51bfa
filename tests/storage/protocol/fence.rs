//! Adopt: the fence, with a known start or without (4), and the rule that guarantees it.

use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::ETag;
use eventhubs_checkpoint::store::protocol::{Adoption, CheckpointOutcome};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};
use tokio::join;

use crate::bench::{Adopted, Bench, Describe, Owner, at, checkpoint};
use crate::wire::{Sent, shown};

pub async fn adopt_4_the_fence_is_complete_with_a_start(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let (_, mut of_a) = a.run(0).await;
    b.take(0).await;
    let mut of_b = b.adopted(0).await;
    assert_eq!(a.checkpoint(&mut of_a, 6).await.describe(), "fenced by b");
    assert_eq!(bench.position_of(0).await, -1);
    assert_eq!(b.checkpoint(&mut of_b, 1).await.describe(), "written");
}

pub async fn adopt_4_without_a_known_start_none_is_written(bench: Bench) {
    let a = bench.owner("a").await;
    a.win(0).await;
    a.sent();
    let adoption = a.adopt(0, None).await.adoption();
    assert_eq!(a.requests(), ["read checkpoint/0", "read ownership/0"]);
    assert!(!adoption.record().has_position() && bench.blob(&checkpoint(0)).await.is_none());
}

pub async fn adopt_4_without_a_start_the_create_is_verified(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    a.win(0).await;
    let mut of_a = a.adopt(0, None).await.adoption();
    a.sent();
    assert_eq!(a.checkpoint(&mut of_a, 1).await.describe(), "written");
    assert_eq!(a.requests(), ["read checkpoint/0", "read ownership/0", "create checkpoint/0"]);

    a.win(1).await;
    let mut displaced = a.adopt(1, None).await.adoption();
    b.take(1).await;
    let mut of_b = b.adopt(1, None).await.adoption();
    a.sent();
    assert_eq!(a.checkpoint(&mut displaced, 100).await.describe(), "fenced by b");
    assert_eq!(a.requests(), ["read checkpoint/1", "read ownership/1"]);
    assert_eq!(b.checkpoint(&mut of_b, 1).await.describe(), "written");
}

/// The one exception: the displaced owner had verified the ownership just before.
pub async fn adopt_4_one_displaced_write_moves_nothing_back(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    // It lands before the new owner's first one.
    a.win(0).await;
    let mut of_a = a.adopt(0, None).await.adoption();
    let claimer = b.clone();
    a.wire().after(BlobOperation::Get, "ownership/0", async move {
        claimer.take(0).await;
        claimer.adopt(0, None).await.adoption();
    });
    assert_eq!(a.checkpoint(&mut of_a, 100).await.describe(), "written");
    let mut of_b = b.adopt(0, None).await.adoption();
    assert_eq!(of_b.record().sequence_number, Some(100));
    assert_eq!(b.checkpoint(&mut of_b, 50).await.describe(), "superseded");
    assert_eq!(a.checkpoint(&mut of_a, 101).await.describe(), "fenced by b");

    // It lands after the new owner's first one.
    a.win(1).await;
    let mut of_a = a.adopt(1, None).await.adoption();
    let claimer = b.clone();
    a.wire().after(BlobOperation::Get, "ownership/1", async move {
        claimer.take(1).await;
        let mut adoption = claimer.adopt(1, None).await.adoption();
        assert_eq!(claimer.checkpoint(&mut adoption, 120).await.describe(), "written");
    });
    assert_eq!(a.checkpoint(&mut of_a, 100).await.describe(), "fenced by b");
    assert_eq!(bench.position_of(1).await, 120);
}

/// Each write under a version that was read comes after a read of the ownership that came after that read. Returns how
/// many there were.
fn assert_ownership_was_seen_after_each_read(owner: &Owner) -> usize {
    let sent = &owner.sent();
    let this = owner.store.identity();
    let own = |sent: &Sent| {
        sent.is_read_of("/ownership/")
            && sent.metadata.get("ownerid").is_some_and(|owner| owner == this.owner.as_str())
            && sent.metadata.get("ehcincarnation").is_some_and(|incarnation| incarnation == this.incarnation.as_str())
    };
    let mut by_reading = 0;
    let versions = |it: &Sent, version: &ETag| it.etag.as_ref() == Some(version);
    for write in sent.iter().filter(|sent| sent.is_write_of("/checkpoint/")) {
        let Some(under) = write.under() else { continue };
        if sent.iter().any(|it| it.operation == BlobOperation::Write && versions(it, under)) {
            continue;
        }
        by_reading += 1;
        let source = sent.iter().find(|it| versions(it, under)).unwrap();
        let seen = sent.iter().any(|read| own(read) && read.is_after(source) && write.is_after(read));
        assert!(seen, "{write} under a version that was read before the ownership: {:?}", shown(sent));
    }
    by_reading
}

/// Checkpoints until it is fenced or done, and returns the last position that was reported as stored.
async fn work(owner: &Owner, adoption: &mut Adoption) -> Option<i64> {
    let first = adoption.record().sequence_number.unwrap() + 1;
    let mut stored = None;
    for number in first..first + 6 {
        match owner.store.checkpoint(adoption, &at(number)).await {
            Ok(CheckpointOutcome::Written) => stored = Some(number),
            Ok(CheckpointOutcome::Fenced { by }) => {
                assert_eq!(by.unwrap().as_str(), "b");
                break;
            }
            Err(error) => assert!(error.is_retryable() || error.is_indeterminate(), "{error:?}"),
            Ok(other) => panic!("{other:?}"),
        }
    }
    stored
}

async fn win_and_adopt(owner: &Owner, partition: u32, over: &ETag) -> Adoption {
    while owner.claim_over(partition, over).await.describe() != "won" {}
    loop {
        match owner.try_adopt(partition, Some(-1)).await {
            Ok(outcome) => return outcome.adoption(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Contended),
        }
    }
}

/// The victim checkpoints all the time, and responses are lost on both sides.
pub async fn adopt_rule_a_read_etag_needs_a_verified_ownership(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let plan = FaultPlan::default()
        .with(0.7, Fault::Latency(Duration::from_millis(3)))
        .with_on(0.2, BlobOperation::Write, Fault::ResponseLost)
        .with_on(0.1, BlobOperation::Write, Fault::RequestLost)
        .with_on(0.1, BlobOperation::Write, Fault::Conflict);
    for partition in 0..bench.rounds {
        a.faulty.set_plan(FaultPlan::default());
        b.faulty.set_plan(FaultPlan::default());
        let lease = a.win(partition).await;
        let mut of_a = a.adopt(partition, Some(-1)).await.adoption();
        a.faulty.set_plan(plan.clone());
        b.faulty.set_plan(plan.clone());
        let (stored_by_a, (mut of_b, adopted)) = join!(work(&a, &mut of_a), async {
            let adoption = win_and_adopt(&b, partition, lease.etag()).await;
            let adopted = adoption.record().sequence_number;
            (adoption, adopted)
        });
        assert!(adopted >= stored_by_a, "{adopted:?} {stored_by_a:?}");
        a.faulty.set_plan(FaultPlan::default());
        assert_eq!(a.checkpoint(&mut of_a, 1000).await.describe(), "fenced by b");
        assert_eq!(bench.position_of(partition).await, adopted.unwrap());
        let stored_by_b = work(&b, &mut of_b).await;
        b.faulty.set_plan(FaultPlan::default());
        assert!(Some(bench.position_of(partition).await) >= stored_by_b);
    }
    assert_ownership_was_seen_after_each_read(&a);
    assert!(assert_ownership_was_seen_after_each_read(&b) > 0, "no version was obtained by reading");
}
