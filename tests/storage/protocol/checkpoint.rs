//! Checkpoint: nothing to do (1), one request (2), reads after an ambiguous response (3), and the last attempt (4).

use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::store::StorageOperation as Purpose;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use tokio::join;

use crate::bench::{Bench, Describe, at, checkpoint, metadata, not_owned_by_a, owned_by, ownership, position};
use crate::captured::Captured;
use crate::wire::shown;

pub async fn line_1_not_beyond_the_last_position_is_no_work(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let _ = a.checkpoint(&mut adoption, 9).await;
    a.sent();
    for not_beyond in [9, 8, -1] {
        assert_eq!(a.checkpoint(&mut adoption, not_beyond).await.describe(), "superseded");
    }
    assert_eq!(a.requests(), [""; 0]);
    assert_eq!(bench.position_of(0).await, 9);
}

pub async fn line_2_writes_its_keys_and_keeps_all_others(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&checkpoint(0), &metadata(&[("sequencenumber", "7"), ("offset", "x"), ("theirs", "1")])).await;
    let (_, mut adoption) = a.run(0).await;
    assert_eq!(a.checkpoint(&mut adoption, 8).await.describe(), "written");
    let mut written = bench.read(&checkpoint(0)).await;
    assert!(written.remove("ehcupdatedat").is_some_and(|updated| updated.starts_with("20")));
    let expected = [("sequencenumber", "8"), ("offset", "80"), ("ownerid", "a"), ("theirs", "1")];
    assert_eq!(written, metadata(&expected));
}

pub async fn line_2_is_written_under_the_previous_etag(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let mut before = bench.blob(&checkpoint(0)).await.unwrap().etag;
    for number in 0..5 {
        let _ = a.checkpoint(&mut adoption, number).await;
        let sent = a.sent().remove(0);
        assert_eq!(sent.under(), Some(&before));
        before = sent.etag.unwrap();
    }
}

/// A foreign write in between is detected, and not overwritten unseen.
pub async fn line_2_overwrites_no_unseen_write(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let theirs = bench.put(&checkpoint(0), &position(20)).await;
    assert_eq!(a.checkpoint(&mut adoption, 10).await.describe(), "superseded");
    assert_eq!(bench.blob(&checkpoint(0)).await.unwrap().etag, theirs);
}

pub async fn line_2_needs_one_request_in_the_steady_state(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let before = a.store.request_counts();
    for number in 0..10 {
        let _ = a.checkpoint(&mut adoption, number).await;
    }
    assert_eq!(a.requests(), ["match checkpoint/0"; 10]);
    for &purpose in Purpose::ALL {
        let counted = a.store.request_counts().total(purpose) - before.total(purpose);
        assert_eq!(counted, if purpose == Purpose::Checkpoint { 10 } else { 0 }, "{purpose:?}");
    }
}

/// Causes each of the three failures, each on its own partition.
async fn after_conflict_unknown_and_404(bench: &Bench, then: &[&str], position_then: i64) {
    let a = bench.owner("a").await;
    for (partition, cause) in (0..).zip(["conflict", "unknown", "404"]) {
        let (_, mut adoption) = a.run(partition).await;
        match cause {
            "conflict" => drop(bench.put(&checkpoint(partition), &position(3)).await),
            "unknown" => a.next_write("/checkpoint/", Fault::RequestLost),
            _ => bench.delete(&checkpoint(partition)).await,
        }
        a.faulty.inject_on(Target::from(BlobOperation::Get), Fault::Latency(Duration::from_millis(20)));
        assert_eq!(a.checkpoint(&mut adoption, position_then).await.describe(), "written", "{cause}");
        let sent = a.sent();
        assert_eq!(shown(&sent)[1..3], then.iter().map(|it| format!("{it}/{partition}")).collect::<Vec<_>>());
        assert!(sent[2].is_after(&sent[1]) && sent[3].is_after(&sent[2]), "{cause}: {:?}", shown(&sent));
        assert_eq!(bench.position_of(partition).await, position_then);
    }
}

pub async fn line_3_failures_read_checkpoint_then_ownership(bench: Bench) {
    after_conflict_unknown_and_404(&bench, &["read checkpoint", "read ownership"], 5).await;
}

/// If they were read concurrently or in the other order, the next owner's checkpoint could be mistaken for its own.
pub async fn line_3_interrupted_by_the_next_owner_is_fenced(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let (_, mut adoption) = a.run(0).await;
    bench.put(&checkpoint(0), &position(3)).await;
    a.wire().after(BlobOperation::Get, "", async move { b.take_over(0, 50).await });
    assert_eq!(a.checkpoint(&mut adoption, 70).await.describe(), "fenced by b");
    assert_eq!(bench.position_of(0).await, 50);
}

pub async fn line_3_another_owner_fences_any_position(bench: Bench) {
    let a = bench.owner("a").await;
    for (record, by) in not_owned_by_a() {
        for stored in [3, 5, 9] {
            let (_, mut adoption) = a.run(0).await;
            match &record {
                Some(record) => drop(bench.put(&ownership(0), record).await),
                None => bench.delete(&ownership(0)).await,
            }
            let theirs = bench.put(&checkpoint(0), &position(stored)).await;
            assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), format!("fenced by {by}"), "{record:?}");
            assert_eq!(bench.blob(&checkpoint(0)).await.unwrap().etag, theirs);
            bench.delete(&checkpoint(0)).await;
            if record.is_some() {
                bench.delete(&ownership(0)).await;
            }
        }
    }
}

pub async fn line_3_an_equal_position_is_written(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    a.next_write("/checkpoint/", Fault::ResponseLost);
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "written");
    assert_eq!(a.requests(), ["match checkpoint/0", "read checkpoint/0", "read ownership/0"]);
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "superseded");
    assert_eq!(a.checkpoint(&mut adoption, 6).await.describe(), "written");
    assert_eq!(a.requests(), ["match checkpoint/0"]);
}

pub async fn line_3_a_later_position_supersedes(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let ahead = bench.put(&checkpoint(0), &position(20)).await;
    assert_eq!(a.checkpoint(&mut adoption, 10).await.describe(), "superseded");
    assert_eq!(adoption.record().sequence_number, Some(20));
    a.sent();
    assert_eq!(a.checkpoint(&mut adoption, 15).await.describe(), "superseded");
    assert_eq!(a.requests(), [""; 0]);
    assert_eq!(a.checkpoint(&mut adoption, 21).await.describe(), "written");
    let sent = a.sent();
    assert_eq!((sent.len(), sent[0].under()), (1, Some(&ahead)));
}

pub async fn line_3_an_earlier_position_is_overwritten(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let _ = a.checkpoint(&mut adoption, 5).await;
    a.sent();
    let behind = bench.put(&checkpoint(0), &position(3)).await;
    assert_eq!(a.checkpoint(&mut adoption, 6).await.describe(), "written");
    assert_eq!(a.sent()[3].under(), Some(&behind));
    assert_eq!(bench.position_of(0).await, 6);
}

/// It is neither ahead nor behind.
pub async fn line_3_a_position_without_a_number_is_replaced(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let mut number = 0;
    for odd in [
        metadata(&[("sequencenumber", "x"), ("offset", "100")]),
        metadata(&[("offset", "100")]),
        metadata(&[("sequencenumber", ""), ("offset", "")]),
        metadata(&[]),
    ] {
        number += 1;
        let bad = bench.put(&checkpoint(0), &odd).await;
        a.sent();
        let (log, guard) = Captured::begin();
        assert_eq!(a.checkpoint(&mut adoption, number).await.describe(), "written", "{odd:?}");
        drop(guard);
        assert!(log.text().contains(&checkpoint(0)), "{odd:?} is not reported: {}", log.text());
        assert_eq!((a.sent()[3].under(), bench.position_of(0).await), (Some(&bad), number));
    }
}

/// Another writer gets further between the read and the second write.
pub async fn line_3_the_second_write_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    for (behind, ahead) in [(3, 50), (53, 100)] {
        bench.put(&checkpoint(0), &position(behind)).await;
        a.next_write("/checkpoint/", Fault::Conflict);
        a.next_write("/checkpoint/", Fault::ConcurrentWrite(position(ahead)));
        assert_eq!(a.checkpoint(&mut adoption, behind + 10).await.describe(), "superseded");
        assert_eq!(bench.position_of(0).await, ahead);
    }
}

pub async fn line_3_verification_precedes_the_creation(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    bench.delete(&checkpoint(0)).await;
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "written");
    let requests = ["match checkpoint/0", "read checkpoint/0", "read ownership/0", "create checkpoint/0"];
    assert_eq!(a.requests(), requests);
    assert_eq!(bench.position_of(0).await, 5);
    bench.delete(&checkpoint(0)).await;
    bench.put(&ownership(0), &owned_by("b")).await;
    assert_eq!(a.checkpoint(&mut adoption, 6).await.describe(), "fenced by b");
    assert!(bench.blob(&checkpoint(0)).await.is_none());
}

pub async fn line_3_the_creation_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    bench.delete(&checkpoint(0)).await;
    a.next_write("/checkpoint/", Fault::RequestLost);
    a.next_write("/checkpoint/", Fault::ConcurrentWrite(position(50)));
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "superseded");
    assert_eq!(bench.position_of(0).await, 50);
}

/// Of the owner's and a foreign SDK's checkpoint, the later one remains. The foreign SDK writes once, without a
/// condition.
pub async fn line_3_of_two_at_once_nothing_moves_back(bench: Bench) {
    let a = bench.owner("a").await;
    for partition in 0..bench.rounds {
        let (_, mut adoption) = a.run(partition).await;
        a.add_jitter();
        let foreign = i64::from(partition % 8) + 1;
        join!(
            async {
                for number in 0..8 {
                    let reported = a.checkpoint(&mut adoption, number).await.describe();
                    assert!(reported == "written" || reported == "superseded", "{reported}");
                }
            },
            async {
                tokio::time::sleep(Duration::from_millis(u64::from(partition % 5) * 4)).await;
                bench.put(&checkpoint(partition), &position(foreign)).await;
            },
        );
        // The next write corrects what it moved back.
        a.faulty.set_plan(FaultPlan::default());
        let _ = a.checkpoint(&mut adoption, 8).await;
        assert_eq!(bench.position_of(partition).await, 8);
    }
}

pub async fn line_4_is_bounded_then_names_the_other_writer(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    let python = metadata(&[("sequencenumber", "3"), ("offset", "x"), ("ownerid", "python")]);
    a.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::ConcurrentWrite(python)));
    let error = a.store.checkpoint(&mut adoption, &at(5)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended);
    assert!(error.to_string().contains("python") && error.is_retryable(), "{error}");
    let round = ["match checkpoint/0", "read checkpoint/0", "read ownership/0"];
    assert_eq!(a.requests(), round.repeat(5));
}

pub async fn line_4_the_position_stays_pending(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    a.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::Conflict));
    assert_eq!(a.store.checkpoint(&mut adoption, &at(5)).await.unwrap_err().kind(), ErrorKind::Contended);
    a.next_read_fails("/checkpoint/");
    assert_eq!(a.store.checkpoint(&mut adoption, &at(5)).await.unwrap_err().kind(), ErrorKind::Indeterminate);
    a.faulty.set_plan(FaultPlan::default());
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "written");
    assert_eq!(bench.position_of(0).await, 5);
}

/// If reading cannot continue from the recorded position.
pub async fn replace_moves_an_adopted_checkpoint_anywhere(bench: Bench) {
    let a = bench.owner("a").await;
    let mut theirs = position(9);
    theirs.insert("theirs", "1");
    bench.put(&checkpoint(0), &theirs).await;
    let (_, mut adoption) = a.run(0).await;
    for to in [3, 20, 4] {
        a.store.replace_checkpoint(&mut adoption, &at(to)).await.unwrap();
        assert_eq!(a.requests(), ["match checkpoint/0"]);
        assert_eq!(bench.position_of(0).await, to);
    }
    assert_eq!(&bench.read(&checkpoint(0)).await["theirs"], "1");
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "written");
}

/// Only another adoption can determine what is recorded.
pub async fn replace_is_rejected_after_a_possible_write(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    a.next_write("/checkpoint/", Fault::ResponseLost);
    for to in [3, 4] {
        let error = a.store.replace_checkpoint(&mut adoption, &at(to)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert_eq!(a.requests(), ["match checkpoint/0"]);
        assert_eq!(bench.position_of(0).await, 3);
    }
}
