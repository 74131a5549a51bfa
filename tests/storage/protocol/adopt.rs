//! Adopt: what is read in which order (1, 2), written back (3), or written as a start (4).

use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use time::format_description::well_known::Rfc3339;
use tokio::join;

use crate::bench::{Adopted, Bench, Describe, EXPIRY, Win, checkpoint, metadata, not_owned_by_a, ownership, position};
use crate::wire::shown;

pub async fn line_0_every_win_must_be_adopted(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let (mut lease, mut adoption) = a.run(0).await;
    for from in [
        "a victim",
        "an expired owner",
        "an earlier incarnation",
        "an own record that is not run",
        "a record that had vanished",
    ] {
        a.wire().age("ownership/0", 0);
        match from {
            "a victim" => drop(b.take(0).await),
            "an expired owner" => {
                b.take(0).await;
                a.wire().age("ownership/0", 2 * EXPIRY);
            }
            "an earlier incarnation" => {
                let epoch = lease.epoch().to_string();
                bench.put(&ownership(0), &metadata(&[("ownerid", "a"), ("ehcepoch", &epoch)])).await;
            }
            "an own record that is not run" => {}
            _ => bench.delete(&ownership(0)).await,
        }
        let won =
            if bench.blob(&ownership(0)).await.is_some() { a.take(0).await } else { a.renew(&lease).await.lease() };
        assert!(won.epoch() > lease.epoch(), "{from}");
        assert_eq!(a.checkpoint(&mut adoption, 100).await.describe(), "fenced by a", "{from}");
        (lease, adoption) = (won, a.adopted(0).await);
    }
    // And an ownership that this instance already runs must not be adopted again.
    assert_eq!(a.renew(&lease).await.lease().epoch(), lease.epoch());
    assert_eq!(a.checkpoint(&mut adoption, 100).await.describe(), "written");
}

pub async fn line_1_the_checkpoint_is_read(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&checkpoint(0), &position(7)).await;
    a.win(0).await;
    a.sent();
    assert_eq!(a.adopt(0, None).await.adoption().record().sequence_number, Some(7));
    assert_eq!(a.requests(), ["read checkpoint/0", "read ownership/0", "match checkpoint/0"]);
}

pub async fn line_2_the_ownership_is_read_after_the_checkpoint(bench: Bench) {
    let a = bench.owner("a").await;
    for partition in 0..2 {
        if partition == 1 {
            bench.put(&checkpoint(partition), &position(7)).await;
        }
        a.win(partition).await;
        a.sent();
        a.faulty.inject_on(Target::any().named("checkpoint"), Fault::Latency(Duration::from_millis(30)));
        a.adopt(partition, Some(-1)).await.adoption();
        let sent = a.sent();
        let read = sent.iter().position(|sent| sent.is_read_of("/checkpoint/")).unwrap();
        let looked: Vec<_> = sent.iter().filter(|sent| sent.is_read_of("/ownership/")).collect();
        assert!(looked.len() == 1 && looked[0].is_after(&sent[read]), "{:?}", shown(&sent));
        let written = sent.iter().find(|sent| sent.is_write_of("/checkpoint/")).unwrap();
        assert!(written.is_after(looked[0]));
    }
}

/// In the other order, the checkpoint that was read could already be the next owner's.
pub async fn line_2_an_adoption_interrupted_by_an_owner_is_lost(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    for (partition, start) in [(0, Some(-1)), (1, None)] {
        a.win(partition).await;
        let b = b.clone();
        a.wire().after(BlobOperation::Get, "", async move { b.take_over(partition, 50).await });
        assert_eq!(a.adopt(partition, start).await.describe(), "lost to b");
        assert_eq!(bench.position_of(partition).await, 50);
    }
}

pub async fn line_2_another_owner_means_lost_and_no_write(bench: Bench) {
    let a = bench.owner("a").await;
    for (record, by) in not_owned_by_a() {
        match &record {
            Some(record) => drop(bench.put(&ownership(0), record).await),
            None => bench.delete(&ownership(0)).await,
        }
        for start in [Some(-1), None] {
            assert_eq!(a.adopt(0, start).await.describe(), format!("lost to {by}"), "{record:?}");
        }
        assert!(bench.blob(&checkpoint(0)).await.is_none());
    }
}

pub async fn line_3_the_metadata_is_written_back_with_ownerid(bench: Bench) {
    let a = bench.owner("a").await;
    // The write changes the time of the blob, so the time of the position is kept.
    for (partition, odd) in (0..).zip([
        metadata(&[("sequencenumber", "007"), ("offset", "a b:c|d"), ("ownerid", "python"), ("theirs", "<&>")]),
        metadata(&[("sequencenumber", "7"), ("offset", "no offset"), ("ehcupdatedat", "yesterday")]),
        metadata(&[("sequencenumber", "x"), ("offset", "100"), ("empty", "")]),
    ]) {
        let stored = bench.put(&checkpoint(partition), &odd).await;
        let written_at = bench.blob(&checkpoint(partition)).await.unwrap().last_modified;
        a.win(partition).await;
        a.sent();
        a.adopt(partition, Some(-1)).await.adoption();
        assert_eq!(a.sent().last().unwrap().under(), Some(&stored));
        let mut expected = odd;
        expected.insert("ownerid", "a");
        if expected.get("ehcupdatedat").is_none() {
            let written_at = written_at.replace_nanosecond(0).unwrap().format(&Rfc3339).unwrap();
            expected.insert("ehcupdatedat", written_at);
        }
        assert_eq!(bench.read(&checkpoint(partition)).await, expected);
    }
}

/// A late write of a displaced owner during the adoption is kept.
pub async fn line_3_a_conflict_goes_to_1(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&checkpoint(0), &position(5)).await;
    a.win(0).await;
    a.sent();
    a.next_write("checkpoint/0", Fault::ConcurrentWrite(position(7)));
    assert_eq!(a.adopt(0, Some(-1)).await.adoption().record().sequence_number, Some(7));
    let round = ["read checkpoint/0", "read ownership/0", "match checkpoint/0"];
    assert_eq!(a.requests(), round.repeat(2));
    assert_eq!(bench.position_of(0).await, 7);
}

pub async fn line_3_indeterminate_goes_to_1(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, fault) in (0..).zip([Fault::RequestLost, Fault::ResponseLost]) {
        bench.put(&checkpoint(partition), &position(5)).await;
        a.win(partition).await;
        a.sent();
        a.next_write("/checkpoint/", fault);
        a.adopt(partition, Some(-1)).await.adoption();
        let sent = a.sent();
        assert_eq!((sent.len(), sent[5].under()), (6, sent[3].etag.as_ref()), "{:?}", shown(&sent));
    }
}

pub async fn line_3_is_bounded_and_backed_off_then_contended(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&checkpoint(0), &position(5)).await;
    a.win(0).await;
    a.sent();
    a.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::Conflict));
    let error = a.try_adopt(0, Some(-1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended);
    let sent = a.sent();
    let begun: Vec<_> = sent.iter().filter(|sent| sent.is_read_of("/checkpoint/")).map(|sent| sent.when).collect();
    let pauses: Vec<_> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((sent.len(), pauses.len()), (17, 5), "two reads before each write, and after the last");
    for (pause, at_least) in pauses.iter().zip([20, 40, 80, 160, 320]) {
        assert!(*pause >= Duration::from_millis(at_least), "{pauses:?}");
    }
}

pub async fn line_4_without_a_blob_the_start_is_written(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, start) in [(0, -1), (1, 41)] {
        a.win(partition).await;
        a.sent();
        let adoption = a.adopt(partition, Some(start)).await.adoption();
        assert_eq!(adoption.record().sequence_number, Some(start));
        assert_eq!(a.requests().pop(), Some(format!("create checkpoint/{partition}")));
        let mut pinned = bench.read(&checkpoint(partition)).await;
        assert!(pinned.remove("ehcupdatedat").is_some());
        let (number, offset) = (start.to_string(), (start * 10).to_string());
        let marked = [("ownerid", "a"), ("ehcinitial", number.as_str())];
        let position = [("sequencenumber", number.as_str()), ("offset", offset.as_str())];
        assert_eq!(pinned, metadata(&[position.as_slice(), &marked].concat()));
    }
}

/// Another SDK may leave a checkpoint without a position.
pub async fn line_4_a_blob_without_a_position_gets_the_start(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&checkpoint(0), &metadata(&[("sequencenumber", ""), ("offset", ""), ("theirs", "1")])).await;
    a.win(0).await;
    assert_eq!(a.adopt(0, Some(41)).await.adoption().record().sequence_number, Some(41));
    assert_eq!(&bench.read(&checkpoint(0)).await["theirs"], "1");
}

pub async fn line_4_conflict_or_indeterminate_goes_to_1(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, fault, adopted) in
        [(0, Fault::ConcurrentWrite(position(7)), 7), (1, Fault::RequestLost, 41), (2, Fault::ResponseLost, 41)]
    {
        a.win(partition).await;
        a.sent();
        a.next_write("/checkpoint/", fault);
        assert_eq!(a.adopt(partition, Some(41)).await.adoption().record().sequence_number, Some(adopted));
        assert_eq!(bench.position_of(partition).await, adopted);
        let again = format!("read checkpoint/{partition}");
        assert_eq!(a.requests().iter().filter(|request| **request == again).count(), 2);
    }
}

pub async fn line_4_a_crash_before_the_checkpoint_loses_nothing(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    a.win(0).await;
    a.adopt(0, Some(41)).await.adoption();
    b.take(0).await;
    assert_eq!(b.adopt(0, Some(99)).await.adoption().record().sequence_number, Some(41));
}

/// The victim writes its start while the claiming instance steals and writes another.
pub async fn line_4_of_two_starts_at_once_one_remains(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        a.add_jitter();
        b.add_jitter();
        let (of_a, of_b) = join!(a.adopt(partition, Some(41)), async {
            b.claim_over(partition, lease.etag()).await.lease();
            b.adopt(partition, Some(99)).await.adoption()
        });
        let pinned = bench.position_of(partition).await;
        assert_eq!(of_b.record().sequence_number, Some(pinned));
        if of_a.describe() == "lost to b" {
            assert!([41, 99].contains(&pinned));
            continue;
        }
        let mut of_a = of_a.adoption();
        assert_eq!((of_a.record().sequence_number, pinned), (Some(41), 41));
        assert_eq!(a.checkpoint(&mut of_a, 1000).await.describe(), "fenced by b");
    }
}
