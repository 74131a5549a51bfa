//! Records of other SDKs: read as far as possible, reported with their names, and never an obstacle for other records.

use eventhubs_checkpoint::store::{Checkpoint, Listing, MalformedRecord, Ownership};

use crate::bench::{Bench, Describe, LOWER, Owner, checkpoint, metadata, owned_by, ownership, position};

/// Puts a blob between two valid ones, and returns the listing.
async fn ownerships_with(bench: &Bench, last_segment: &str, pairs: &[(&str, &str)]) -> (Owner, Listing<Ownership>) {
    bench.put(&ownership(0), &owned_by("b")).await;
    bench.put(&ownership(9), &owned_by("c")).await;
    bench.put_as_given(&format!("{LOWER}ownership/{last_segment}"), pairs).await;
    let a = bench.owner("a").await;
    let listing = a.store.list_ownerships().await.unwrap();
    for (partition, owner) in [(0, "b"), (9, "c")] {
        let found = listing.records.iter().find(|record| record.partition == partition.into()).unwrap();
        assert_eq!(found.record.owner.as_ref().unwrap().as_str(), owner);
    }
    (a, listing)
}

async fn checkpoints_with(bench: &Bench, last_segment: &str, pairs: &[(&str, &str)]) -> (Owner, Listing<Checkpoint>) {
    bench.put(&checkpoint(0), &position(10)).await;
    bench.put(&checkpoint(9), &position(19)).await;
    bench.put_as_given(&format!("{LOWER}checkpoint/{last_segment}"), pairs).await;
    let a = bench.owner("a").await;
    let listing = a.store.list_checkpoints().await.unwrap();
    for (partition, number) in [(0, 10), (9, 19)] {
        let found = listing.records.iter().find(|record| record.partition == partition.into()).unwrap();
        assert_eq!(found.record.sequence_number, Some(number));
    }
    (a, listing)
}

fn assert_reported(malformed: &[MalformedRecord], blob: &str, problem: &str) {
    let [reported] = malformed else { panic!("{malformed:?}") };
    assert_eq!(reported.blob, format!("{LOWER}{blob}"));
    assert!(reported.problem.contains(problem), "{reported}");
}

/// It counts as released, can be claimed, and is reported.
async fn assert_unowned(bench: &Bench, pairs: &[(&str, &str)]) {
    let (a, listing) = ownerships_with(bench, "3", pairs).await;
    assert_reported(&listing.malformed, "ownership/3", "has no ownerid");
    assert_eq!((listing.records.len(), &listing.records[1].record.owner), (3, &None));
    let _ = a.claim_over(3, &listing.records[1].etag).await;
    assert_eq!(bench.owner_of(3).await, "a");
}

pub async fn an_ownership_without_any_metadata(bench: Bench) {
    assert_unowned(&bench, &[]).await;
}

pub async fn an_ownership_with_other_keys_and_no_ownerid(bench: Bench) {
    assert_unowned(&bench, &[("offset", "1"), ("theirs", "1")]).await;
}

/// That is how all SDKs release.
pub async fn an_ownership_with_an_empty_ownerid_is_released(bench: Bench) {
    let (a, listing) = ownerships_with(&bench, "3", &[("ownerid", "")]).await;
    assert!(listing.malformed.is_empty());
    assert_eq!(listing.records[1].record.owner, None);
    let _ = a.claim_over(3, &listing.records[1].etag).await;
    assert_eq!(bench.owner_of(3).await, "a");
}

pub async fn an_ownership_with_other_empty_values(bench: Bench) {
    let pairs = [("ownerid", "python"), ("ehcincarnation", ""), ("ehcclaimedat", "")];
    let (_, listing) = ownerships_with(&bench, "3", &pairs).await;
    assert!(listing.malformed.is_empty());
    let record = &listing.records[1].record;
    assert_eq!(record.owner.as_ref().unwrap().as_str(), "python");
    assert_eq!((&record.incarnation, record.claimed_at), (&None, None));
}

/// No instance of this crate could have such an id, but it is the owner.
pub async fn an_ownership_of_an_owner_with_an_unusual_name(bench: Bench) {
    let odd = "x".repeat(300);
    let (_, listing) = ownerships_with(&bench, "3", &[("ownerid", &odd), ("ehcclaimedat", "yesterday")]).await;
    assert!(listing.malformed.is_empty());
    assert_eq!(listing.records[1].record.owner.as_ref().unwrap().as_str(), odd);
}

pub async fn an_ownership_with_keys_of_another_case(bench: Bench) {
    let (_, listing) = ownerships_with(&bench, "3", &[("OwnerId", "python"), ("EHCINCARNATION", "1")]).await;
    assert!(listing.malformed.is_empty());
    let record = &listing.records[1].record;
    assert_eq!(record.owner.as_ref().unwrap().as_str(), "python");
    assert_eq!(record.incarnation.as_ref().unwrap().as_str(), "1");
}

pub async fn an_ownership_with_extra_keys(bench: Bench) {
    let (_, listing) = ownerships_with(&bench, "3", &[("ownerid", "python"), ("theirs", "b")]).await;
    assert!(listing.malformed.is_empty());
    assert_eq!(listing.records[1].record.other, metadata(&[("theirs", "b")]).into_iter().collect());
}

pub async fn an_ownership_at_a_wrong_depth(bench: Bench) {
    let (_, listing) = ownerships_with(&bench, "3/too/deep", &[("ownerid", "python")]).await;
    assert_reported(&listing.malformed, "ownership/3/too/deep", "partition id");
    assert_eq!(listing.records.len(), 2);
}

pub async fn an_ownership_with_a_zero_length_name(bench: Bench) {
    let (_, listing) = ownerships_with(&bench, "", &[("ownerid", "python")]).await;
    assert_reported(&listing.malformed, "ownership/", "must not be empty");
    assert_eq!(listing.records.len(), 2);
}

pub async fn an_ownership_whose_last_segment_is_empty(bench: Bench) {
    let (_, listing) = ownerships_with(&bench, "3/", &[("ownerid", "python")]).await;
    assert_reported(&listing.malformed, "ownership/3/", "partition id");
    assert_eq!(listing.records.len(), 2);
}

/// Blobs outside the two folders are not read: verification blobs, and the records of older SDKs.
pub async fn foreign_blobs_next_to_the_records(bench: Bench) {
    for foreign in ["3", "heartbeat/a", "probe/a", "ownership", "ownershipx/3", "checkpoints/3", "Ownership/3"] {
        bench.put(&format!("{LOWER}{foreign}"), &metadata(&[("Owner", "x")])).await;
    }
    let (a, listing) = ownerships_with(&bench, "3", &[("ownerid", "b")]).await;
    assert!(listing.malformed.is_empty() && listing.records.len() == 3);
    let checkpoints = a.store.list_checkpoints().await.unwrap();
    assert!(checkpoints.malformed.is_empty() && checkpoints.records.is_empty());
}

/// A partition that the hub does not have, or that is not a number, is read unchanged.
pub async fn a_partition_that_is_not_a_number(bench: Bench) {
    let (_, listing) = ownerships_with(&bench, "seven", &[("ownerid", "python")]).await;
    assert!(listing.malformed.is_empty());
    assert!(listing.records.iter().any(|record| record.partition.as_str() == "seven"));
}

/// Checks what is read of an unusual position, and what is reported about it.
async fn assert_read(bench: &Bench, pairs: &[(&str, &str)], number: Option<i64>, offset: Option<&str>, problem: &str) {
    let (a, listing) = checkpoints_with(bench, "3", pairs).await;
    assert_reported(&listing.malformed, "checkpoint/3", problem);
    let record = &listing.records[1].record;
    assert_eq!((record.sequence_number, record.offset.as_deref()), (number, offset));
    // The partition can be processed.
    let (_, mut adoption) = a.run(3).await;
    assert_eq!(a.checkpoint(&mut adoption, 1000).await.describe(), "written");
    assert!(a.store.list_checkpoints().await.unwrap().malformed.is_empty());
}

pub async fn a_checkpoint_without_any_metadata(bench: Bench) {
    assert_read(&bench, &[], None, None, "neither").await;
}

pub async fn a_checkpoint_with_empty_values(bench: Bench) {
    let empty = [("sequencenumber", ""), ("offset", ""), ("ownerid", ""), ("ehcupdatedat", "")];
    assert_read(&bench, &empty, None, None, "neither").await;
}

pub async fn a_checkpoint_with_an_empty_offset(bench: Bench) {
    assert_read(&bench, &[("sequencenumber", "7"), ("offset", "")], Some(7), None, "offset \"\" is not a position")
        .await;
}

pub async fn a_checkpoint_without_an_offset(bench: Bench) {
    assert_read(&bench, &[("sequencenumber", "7")], Some(7), None, "offset (absent)").await;
}

pub async fn a_checkpoint_whose_offset_is_no_offset(bench: Bench) {
    for (index, text) in ["no offset", "No Offset"].into_iter().enumerate() {
        let pairs = [("sequencenumber", "7"), ("offset", text)];
        let (_, listing) = checkpoints_with(&bench, "3", &pairs).await;
        assert_reported(&listing.malformed, "checkpoint/3", text);
        assert_eq!(listing.records[1].record.offset, None, "{index}");
    }
    assert_read(&bench, &[("sequencenumber", "7"), ("offset", "no offset")], Some(7), None, "no offset").await;
}

pub async fn a_checkpoint_whose_offset_is_none(bench: Bench) {
    assert_read(&bench, &[("sequencenumber", "7"), ("offset", "None")], Some(7), None, "None").await;
}

pub async fn a_checkpoint_with_an_empty_sequencenumber(bench: Bench) {
    let pairs = [("sequencenumber", ""), ("offset", "100")];
    assert_read(&bench, &pairs, None, Some("100"), "sequencenumber \"\" is not a number").await;
}

pub async fn a_checkpoint_without_a_sequencenumber(bench: Bench) {
    assert_read(&bench, &[("offset", "100")], None, Some("100"), "sequencenumber (absent)").await;
}

pub async fn a_checkpoint_whose_sequencenumber_is_none(bench: Bench) {
    assert_read(&bench, &[("sequencenumber", "None"), ("offset", "100")], None, Some("100"), "None").await;
}

pub async fn a_checkpoint_with_text_for_a_number(bench: Bench) {
    for text in ["seven", "7.0", "0x7", "99999999999999999999"] {
        let pairs = [("sequencenumber", text), ("offset", "100")];
        let (_, listing) = checkpoints_with(&bench, "3", &pairs).await;
        assert_reported(&listing.malformed, "checkpoint/3", text);
        assert_eq!(listing.records[1].record.sequence_number, None);
    }
    assert_read(&bench, &[("sequencenumber", "seven"), ("offset", "100")], None, Some("100"), "seven").await;
}

pub async fn a_checkpoint_with_the_smallest_number(bench: Bench) {
    let least = i64::MIN.to_string();
    assert_read(&bench, &[("sequencenumber", &least), ("offset", "100")], None, Some("100"), &least).await;
}

/// If an event hub with geo-replication keeps its offsets, they are text.
pub async fn a_checkpoint_with_text_for_an_offset_is_valid(bench: Bench) {
    let (_, listing) = checkpoints_with(&bench, "3", &[("sequencenumber", "7"), ("offset", "1:23:abc")]).await;
    assert!(listing.malformed.is_empty());
    assert_eq!(listing.records[1].record.offset.as_deref(), Some("1:23:abc"));
}

pub async fn a_checkpoint_with_keys_of_another_case(bench: Bench) {
    let (_, listing) = checkpoints_with(&bench, "3", &[("SequenceNumber", "7"), ("Offset", "100")]).await;
    assert!(listing.malformed.is_empty());
    let record = &listing.records[1].record;
    assert_eq!((record.sequence_number, record.offset.as_deref()), (Some(7), Some("100")));
}

pub async fn a_checkpoint_with_extra_keys(bench: Bench) {
    let pairs = [("sequencenumber", "7"), ("offset", "100"), ("clientidentifier", "net")];
    let (a, listing) = checkpoints_with(&bench, "3", &pairs).await;
    assert!(listing.malformed.is_empty());
    assert_eq!(listing.records[1].record.other, metadata(&[("clientidentifier", "net")]).into_iter().collect());
    let (_, mut adoption) = a.run(3).await;
    let _ = a.checkpoint(&mut adoption, 8).await;
    assert_eq!(&bench.read(&checkpoint(3)).await["clientidentifier"], "net");
}

pub async fn a_checkpoint_at_a_wrong_depth(bench: Bench) {
    let (_, listing) = checkpoints_with(&bench, "3/too/deep", &[("sequencenumber", "7"), ("offset", "x")]).await;
    assert_reported(&listing.malformed, "checkpoint/3/too/deep", "partition id");
    assert_eq!(listing.records.len(), 2);
}

pub async fn a_checkpoint_with_a_zero_length_name(bench: Bench) {
    let (_, listing) = checkpoints_with(&bench, "", &[("sequencenumber", "7"), ("offset", "x")]).await;
    assert_reported(&listing.malformed, "checkpoint/", "must not be empty");
    assert_eq!(listing.records.len(), 2);
}

/// All at once: each is reported, none hides another.
pub async fn many_bad_blobs_are_all_reported(bench: Bench) {
    for bad in ["", "1/x", "2", "3"] {
        bench.put(&format!("{LOWER}ownership/{bad}"), &metadata(&[])).await;
        bench.put(&format!("{LOWER}checkpoint/{bad}"), &metadata(&[("offset", "")])).await;
    }
    let (a, ownerships) = ownerships_with(&bench, "4", &[("ownerid", "d")]).await;
    let checkpoints = a.store.list_checkpoints().await.unwrap();
    for (kind, malformed) in [("ownership", &ownerships.malformed), ("checkpoint", &checkpoints.malformed)] {
        let named: Vec<_> = malformed.iter().map(|bad| bad.blob.trim_start_matches(LOWER).to_owned()).collect();
        assert_eq!(named, ["", "1/x", "2", "3"].map(|bad| format!("{kind}/{bad}")));
    }
    let readable = |records: Vec<String>| records.join(" ");
    assert_eq!(readable(ownerships.records.iter().map(|it| it.partition.to_string()).collect()), "0 2 3 4 9");
    assert_eq!(readable(checkpoints.records.iter().map(|it| it.partition.to_string()).collect()), "2 3");
}
