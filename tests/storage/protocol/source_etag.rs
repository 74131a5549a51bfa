//! Other name case: which checkpoint counts.

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::store::{BlobNameCase, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault};

use crate::bench::{Adopted, Bench, Describe, Owner, VERBATIM, at, checkpoint, metadata, position};

fn there() -> String {
    format!("{VERBATIM}checkpoint/0")
}

/// A checkpoint of this crate that records this version of the one in the other name case.
fn copied(sequence_number: i64, etag: &str) -> Metadata {
    let mut record = position(sequence_number);
    record.insert("sourceetag", etag);
    record
}

/// Returns the position of an adoption.
async fn adopted(bench: &Bench) -> (Owner, i64) {
    let a = bench.owner("a").await;
    match bench.blob(&crate::bench::ownership(0)).await {
        Some(_) => a.take(0).await,
        None => a.win(0).await,
    };
    a.sent();
    let position = a.adopt(0, Some(-1)).await.adoption().record().sequence_number.unwrap();
    assert_eq!(bench.position_of(0).await, position);
    (a, position)
}

pub async fn it_counts_while_there_is_none_here(bench: Bench) {
    let theirs = bench.put(&there(), &position(7)).await;
    let (a, position) = adopted(&bench).await;
    assert_eq!(position, 7);
    let expected = ["read checkpoint/0", "read verbatim checkpoint/0", "read ownership/0", "create checkpoint/0"];
    assert_eq!(a.requests(), expected);
    let ours = bench.read(&checkpoint(0)).await;
    assert_eq!((&ours["offset"], &ours["ownerid"]), ("x", "a"));
    assert_eq!(&ours["sourceetag"], theirs.as_str());
}

pub async fn a_changed_one_counts_if_it_is_greater(bench: Bench) {
    for (ours, theirs, wins) in [(5, 9, 9), (9, 5, 9), (9, 9, 9)] {
        let etag = bench.put(&there(), &position(theirs)).await;
        bench.put(&checkpoint(0), &copied(ours, "an older one")).await;
        let (a, position) = adopted(&bench).await;
        assert_eq!(position, wins, "{ours} {theirs}");
        assert_eq!(a.requests().pop(), Some("match checkpoint/0".to_owned()));
        // It was read, whichever won.
        assert_eq!(&bench.read(&checkpoint(0)).await["sourceetag"], etag.as_str());
    }
}

pub async fn an_unchanged_one_does_not_count(bench: Bench) {
    let etag = bench.put(&there(), &position(9)).await;
    bench.put(&checkpoint(0), &copied(5, etag.as_str())).await;
    assert_eq!(adopted(&bench).await.1, 5);
}

/// A checkpoint of this crate keeps the key, so that the next adoption compares again.
pub async fn the_key_is_kept_by_every_checkpoint(bench: Bench) {
    let etag = bench.put(&there(), &position(7)).await;
    let (a, _) = adopted(&bench).await;
    let mut adoption = a.adopted(0).await;
    assert_eq!(a.checkpoint(&mut adoption, 8).await.describe(), "written");
    assert_eq!(&bench.read(&checkpoint(0)).await["sourceetag"], etag.as_str());
    bench.put(&there(), &position(20)).await;
    assert_eq!(adopted(&bench).await.1, 20);
}

/// Other SDKs write only the position.
pub async fn without_the_key_the_one_here_counts(bench: Bench) {
    bench.put(&there(), &position(7)).await;
    adopted(&bench).await;
    bench.put(&checkpoint(0), &position(3)).await;
    bench.put(&there(), &position(20)).await;
    let (a, position) = adopted(&bench).await;
    assert_eq!(position, 3);
    assert!(a.requests().iter().all(|request| !request.contains("verbatim")));
}

pub async fn a_reset_is_not_undone_by_an_old_number(bench: Bench) {
    bench.put(&there(), &position(7)).await;
    let (a, _) = adopted(&bench).await;
    let mut adoption = a.adopted(0).await;
    a.store.replace_checkpoint(&mut adoption, &at(2)).await.unwrap();
    assert_eq!(adopted(&bench).await.1, 2);
}

/// It was created there after the last adoption here.
pub async fn a_reset_is_not_undone_by_an_unread_number(bench: Bench) {
    for ours in [copied(5, "an older one"), copied(5, "none")] {
        bench.put(&checkpoint(0), &ours).await;
        let (a, _) = adopted(&bench).await;
        let mut adoption = a.adopted(0).await;
        let theirs = bench.put(&there(), &position(90)).await;
        a.store.replace_checkpoint(&mut adoption, &at(2)).await.unwrap();
        assert_eq!(adopted(&bench).await.1, 2, "{ours:?}");
        assert_ne!(bench.read(&checkpoint(0)).await.get("sourceetag"), Some(theirs.as_str()));
        bench.delete(&there()).await;
    }
}

/// The numbers begin again: a foreign owner here has written one, or the last read of this crate was of this old one.
pub async fn a_recreated_hub_ignores_an_old_number(bench: Bench) {
    let old = bench.put(&there(), &position(1_000_000)).await;
    for ours in [position(5), copied(5, old.as_str())] {
        bench.put(&checkpoint(0), &ours).await;
        assert_eq!(adopted(&bench).await.1, 5, "{ours:?}");
    }
}

pub async fn one_without_a_number_is_used_only_without_another(bench: Bench) {
    let unnumbered = metadata(&[("sequencenumber", ""), ("offset", "100")]);
    bench.put(&there(), &unnumbered).await;
    bench.put(&checkpoint(0), &copied(5, "an older one")).await;
    assert_eq!(adopted(&bench).await.1, 5);
    bench.delete(&checkpoint(0)).await;
    let a = bench.owner("a").await;
    a.take(0).await;
    let adoption = a.adopted(0).await;
    assert_eq!(adoption.record().offset.as_deref(), Some("100"));
    assert_eq!(&bench.read(&checkpoint(0)).await["offset"], "100");
}

/// Both writes are conditional, and begin again with both reads.
pub async fn it_is_written_under_the_adoption_conditions(bench: Bench) {
    for (ours, first) in [(None, "create"), (Some(copied(1, "an older one")), "match")] {
        bench.put(&there(), &position(7)).await;
        if let Some(ours) = ours {
            bench.put(&checkpoint(0), &ours).await;
        }
        let a = bench.owner("a").await;
        match bench.blob(&crate::bench::ownership(0)).await {
            Some(_) => a.take(0).await,
            None => a.win(0).await,
        };
        a.sent();
        // Another writer here is further meanwhile, without a key for the other name case: that counts.
        a.next_write("/checkpoint/", Fault::ConcurrentWrite(position(30)));
        let adoption = a.adopt(0, Some(-1)).await.adoption();
        assert_eq!(adoption.record().sequence_number, Some(30));
        let writes: Vec<_> = a.requests().into_iter().filter(|request| !request.starts_with("read")).collect();
        assert_eq!(writes, [format!("{first} checkpoint/0"), "match checkpoint/0".to_owned()]);
        assert_eq!(bench.position_of(0).await, 30);
        bench.delete(&checkpoint(0)).await;
    }
}

/// The position there moves on while its owner shuts down: a read before the claim would be too old.
pub async fn it_is_read_again_after_a_takeover(bench: Bench) {
    bench.put(&there(), &position(7)).await;
    let a = bench.owner("a").await;
    let container = bench.container.clone();
    a.wire().after(BlobOperation::Write, "ownership/0", async move {
        container.write(&there(), &position(9), &eventhubs_checkpoint::blob::Condition::Unconditional).await.unwrap();
    });
    a.win(0).await;
    assert_eq!(a.adopted(0).await.record().sequence_number, Some(9));
}

pub async fn verbatim_reads_the_lower_case_one(bench: Bench) {
    bench.put(&checkpoint(0), &position(7)).await;
    let a = bench.owner_with("a", StoreConfig::default().with_blob_name_case(BlobNameCase::Verbatim)).await;
    a.win(0).await;
    assert_eq!(a.adopted(0).await.record().sequence_number, Some(7));
    assert_eq!(&bench.read(&there()).await["sequencenumber"], "7");
}
