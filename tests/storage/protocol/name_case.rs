//! Casing: a group has its records under names in one casing.

use std::sync::Arc;

use eventhubs_checkpoint::admin::{Operator, OperatorBuilder};
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::store::{BlobNameCase, GroupStore, NameCase, StorageOperation, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, Result};

use super::group::Group;
use crate::bench::{Adopted, Bench, EXPIRY, LOWER, Owner, VERBATIM, group, metadata, owned_by, position};
use crate::wire::Wire;

const CHOICES: [BlobNameCase; 3] = [BlobNameCase::Auto, BlobNameCase::Lower, BlobNameCase::Verbatim];

fn other(prefix: &str) -> &'static str {
    if prefix == LOWER { VERBATIM } else { LOWER }
}

fn case_of(prefix: &str) -> NameCase {
    if prefix == LOWER { NameCase::Lower } else { NameCase::Verbatim }
}

/// An ownership that only a heartbeat keeps alive.
fn of_instance(owner: &str) -> Metadata {
    let mut record = owned_by(owner);
    record.insert("ehcleasescope", "instance");
    record
}

fn heartbeat(owner: &str) -> Metadata {
    metadata(&[("ownerid", owner), ("ehcincarnation", "20260101T000000Z-00000001"), ("ehcleaseduration", "60")])
}

/// Connects an owner that sees blobs with these parts in their names at these ages.
async fn connected(bench: &Bench, wanted: BlobNameCase, ages: &[(String, i64)]) -> Result<Owner> {
    let config = StoreConfig::default().with_blob_name_case(wanted);
    let prepare = |wire: &Wire| ages.iter().for_each(|(part, age)| wire.age(part, *age));
    bench.try_owner("a", |builder| builder.with_config(config), prepare).await
}

fn operator(bench: &Bench, wanted: BlobNameCase) -> OperatorBuilder {
    Operator::builder(Arc::clone(&bench.container), group())
        .with_config(StoreConfig::default().with_blob_name_case(wanted))
}

fn assert_refused(error: &Error, owners: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(text.contains("ehcp copy") && owners.iter().all(|owner| text.contains(owner)), "{text}");
}

pub async fn an_empty_group_is_lower_for_all(bench: Bench) {
    for (wanted, case) in CHOICES.into_iter().zip([NameCase::Lower, NameCase::Lower, NameCase::Verbatim]) {
        assert_eq!(connected(&bench, wanted, &[]).await.unwrap().store.name_case(), case);
    }
}

/// Also those of another SDK, as the Go SDK writes them.
pub async fn auto_finds_the_records(bench: Bench) {
    for prefix in [VERBATIM, LOWER] {
        let (ownership, checkpoint) = (format!("{prefix}ownership/0"), format!("{prefix}checkpoint/0"));
        for (name, record) in [(ownership, metadata(&[("ownerid", "go")])), (checkpoint, position(7))] {
            bench.put(&name, &record).await;
            let a = connected(&bench, BlobNameCase::Auto, &[]).await.unwrap();
            assert_eq!(a.store.name_case(), case_of(prefix), "{name}");
            bench.delete(&name).await;
        }
    }
}

/// By the record itself, or by a heartbeat that keeps a much older record alive.
pub async fn live_owners_in_the_other_case_are_refused(bench: Bench) {
    for prefix in [VERBATIM, LOWER] {
        for by_heartbeat in [false, true] {
            let (record, sign) = (format!("{prefix}ownership/0"), format!("{prefix}heartbeat/x"));
            bench.put(&record, &if by_heartbeat { of_instance("x") } else { owned_by("x") }).await;
            bench.put(&sign, &heartbeat("x")).await;
            let ages = |age| {
                let (of_record, of_sign) = if by_heartbeat { (5 * EXPIRY, age) } else { (age, 0) };
                [(record.clone(), of_record), (sign.clone(), of_sign)]
            };
            let [live, expired] = [EXPIRY + 1, EXPIRY + 2].map(ages);
            let here = BlobNameCase::from(case_of(prefix));
            let there = BlobNameCase::from(case_of(other(prefix)));
            for wanted in [BlobNameCase::Auto, here] {
                let a = connected(&bench, wanted, &live).await.unwrap();
                assert_eq!(a.store.name_case(), case_of(prefix));
            }
            assert_refused(&connected(&bench, there, &live).await.err().unwrap(), &["x (partition 0)"]);
            assert_eq!(connected(&bench, there, &expired).await.unwrap().store.name_case(), case_of(other(prefix)));
            assert_refused(&operator(&bench, there).connect().await.unwrap_err(), &["x (partition 0)"]);
            assert!(operator(&bench, BlobNameCase::Auto).connect().await.is_ok());
            bench.delete(&record).await;
            bench.delete(&sign).await;
        }
    }
}

pub async fn live_owners_in_both_cases_are_refused(bench: Bench) {
    bench.put(&format!("{LOWER}ownership/0"), &owned_by("x")).await;
    bench.put(&format!("{VERBATIM}ownership/1"), &metadata(&[("ownerid", "go")])).await;
    assert_refused(&connected(&bench, BlobNameCase::Auto, &[]).await.err().unwrap(), &["x", "go"]);
    assert_refused(&connected(&bench, BlobNameCase::Lower, &[]).await.err().unwrap(), &["go"]);
    assert_refused(&connected(&bench, BlobNameCase::Verbatim, &[]).await.err().unwrap(), &["x"]);
}

pub async fn a_reader_looks_at_any_case(bench: Bench) {
    bench.put(&format!("{LOWER}ownership/0"), &owned_by("x")).await;
    bench.put(&format!("{VERBATIM}ownership/0"), &metadata(&[("ownerid", "go")])).await;
    for (wanted, owner) in [(BlobNameCase::Lower, "x"), (BlobNameCase::Verbatim, "go")] {
        let reader = operator(&bench, wanted).connect_reader().await.unwrap();
        let described = reader.read().await.unwrap().describe(None);
        assert!(described.group.other_name_case);
        assert_eq!(described.members[0].id.as_str(), owner);
    }
    let error = operator(&bench, BlobNameCase::Auto).connect_reader().await.unwrap_err();
    assert!(error.to_string().contains("blob-name-case"), "{error}");
}

pub async fn without_capitals_nothing_is_looked_up(bench: Bench) {
    let group = ConsumerGroup::new("ns", "hub", "workers").unwrap();
    for wanted in CHOICES {
        let container = Arc::clone(&bench.container);
        let builder = GroupStore::builder(container, group.clone(), OwnerId::new("c").unwrap());
        let store = builder.with_config(StoreConfig::default().with_blob_name_case(wanted)).connect().await.unwrap();
        let listings = store.request_counts().total(StorageOperation::List);
        assert_eq!(listings, 2, "ownerships, and the heartbeat of this owner");
    }
}

/// It connected before, when the other owner was not there. An owner that uses lower case waits for the other one
/// before it ends.
pub async fn an_owner_that_came_meanwhile_ends_the_loop(bench: Bench) {
    for by_heartbeat in [false, true] {
        let a = connected(&bench, BlobNameCase::Verbatim, &[]).await.unwrap();
        bench.put(&format!("{LOWER}ownership/0"), &if by_heartbeat { of_instance("x") } else { owned_by("x") }).await;
        bench.put(&format!("{LOWER}heartbeat/x"), &heartbeat("x")).await;
        if by_heartbeat {
            a.wire().age(&format!("{LOWER}ownership/0"), 5 * EXPIRY);
        }
        let refused = Group::run(&a, 2).ended().await.unwrap_err();
        assert_refused(&refused, &["x (partition 0)"]);
        let left = bench.container.list(&format!("{VERBATIM}ownership/")).await.unwrap().blobs;
        assert!(left.iter().all(|blob| blob.metadata["ownerid"].is_empty()), "everything is released");
        for sign in ["ownership/0", "heartbeat/x"] {
            bench.delete(&format!("{LOWER}{sign}")).await;
        }
    }
}

pub async fn the_first_win_lists_the_other_case_once(bench: Bench) {
    let a = connected(&bench, BlobNameCase::Auto, &[]).await.unwrap();
    let mut group = Group::run(&a, 3);
    group.until_it_holds(&[0, 1, 2]).await;
    group.settled().await;
    let looks = a.requests().into_iter().filter(|request| request.contains("verbatim")).collect::<Vec<_>>();
    assert_eq!(looks, ["list verbatim "]);
    group.stop().await;
}

/// A checkpoint there belongs to another application.
pub async fn nothing_there_is_read_afterwards(bench: Bench) {
    let a = connected(&bench, BlobNameCase::Auto, &[]).await.unwrap();
    bench.put(&format!("{VERBATIM}checkpoint/0"), &position(7)).await;
    a.win(0).await;
    a.sent();
    assert_eq!(a.adopt(0, Some(-1)).await.adoption().record().sequence_number, Some(-1));
    assert_eq!(a.requests(), ["read checkpoint/0", "read ownership/0", "create checkpoint/0"]);
}
