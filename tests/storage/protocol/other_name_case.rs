//! Other name case: an owner whose blob names have the other case is an owner.

use std::sync::Arc;

use eventhubs_checkpoint::balancer::PartitionOwner;
use eventhubs_checkpoint::store::{BlobNameCase, GroupStore, OnCaseMismatch, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId};

use super::group::Group;
use crate::bench::{Bench, EXPIRY, Owner, VERBATIM, metadata, owned_by, ownership};

fn there(partition: u32) -> String {
    format!("{VERBATIM}ownership/{partition}")
}

async fn own_there(bench: &Bench, partitions: &[u32]) {
    for partition in partitions {
        bench.put(&there(*partition), &owned_by("x")).await;
    }
}

fn elsewhere() -> PartitionOwner {
    PartitionOwner::OtherNameCase(OwnerId::new("x").unwrap())
}

async fn listed_there(owner: &Owner) -> Vec<String> {
    let listing = owner.store.list_other_name_case().await.unwrap();
    listing.records.iter().map(|record| record.partition.to_string()).collect()
}

pub async fn always_exists_for_the_default_group(bench: Bench) {
    let lower = bench.owner("a").await;
    let verbatim = bench.owner_with("b", StoreConfig::default().with_blob_name_case(BlobNameCase::Verbatim)).await;
    lower.win(0).await;
    verbatim.win(1).await;
    assert!(bench.blob(&ownership(0)).await.is_some() && bench.blob(&there(1)).await.is_some());
    assert_eq!((listed_there(&lower).await, listed_there(&verbatim).await), (vec!["1".into()], vec!["0".into()]));
    // Without a capital letter there is only one case.
    let group = ConsumerGroup::new("ns", "hub", "workers").unwrap();
    let container = Arc::clone(&bench.container);
    let builder = GroupStore::builder(container, group, OwnerId::new("c").unwrap());
    let store = builder.connect().await.unwrap();
    let before = store.request_counts();
    assert!(store.list_other_name_case().await.unwrap().records.is_empty());
    assert_eq!(store.request_counts(), before);
}

/// Two owners, four partitions: two for each, wherever the other keeps its records.
pub async fn a_fresh_ownership_there_is_counted(bench: Bench) {
    own_there(&bench, &[0]).await;
    let a = bench.owner("a").await;
    let mut group = Group::run(&a, 4);
    group.until("two are held", |snapshot| snapshot.owned.len() == 2).await;
    let holders = group.settled().await;
    let count = |holder: &PartitionOwner| holders.iter().filter(|it| *it == holder).count();
    assert_eq!((count(&PartitionOwner::This), count(&elsewhere()), count(&PartitionOwner::Unowned)), (2, 1, 1));
    group.stop().await;
}

pub async fn a_fresh_ownership_there_is_not_claimed_or_stolen(bench: Bench) {
    own_there(&bench, &[0, 1, 2]).await;
    let a = bench.owner("a").await;
    let mut group = Group::run(&a, 4);
    group.until_it_holds(&[3]).await;
    assert_eq!(group.settled().await, [elsewhere(), elsewhere(), elsewhere(), PartitionOwner::This]);
    assert!(bench.container.list(VERBATIM).await.unwrap().blobs.iter().all(|blob| blob.metadata == owned_by("x")));
    for partition in 0..3 {
        assert!(bench.blob(&ownership(partition)).await.is_none());
    }
    group.stop().await;
}

/// Not even if its record here would allow it.
pub async fn an_ownership_there_blocks_claims_here(bench: Bench) {
    own_there(&bench, &[0, 1]).await;
    bench.put(&ownership(0), &metadata(&[("ownerid", "")])).await;
    bench.put(&ownership(1), &owned_by("b")).await;
    let a = bench.owner("a").await;
    a.wire().age(&ownership(1), 2 * EXPIRY);
    let mut group = Group::run(&a, 2);
    assert_eq!(group.settled().await, [elsewhere(), elsewhere()]);
    assert!(a.sent().iter().all(|sent| !sent.is_write_of("ownership")));
    group.stop().await;
}

pub async fn until_it_is_released(bench: Bench) {
    own_there(&bench, &[0]).await;
    let a = bench.owner("a").await;
    let mut group = Group::run(&a, 1);
    assert_eq!(group.settled().await, [elsewhere()]);
    bench.put(&there(0), &metadata(&[("ownerid", "")])).await;
    group.until_it_holds(&[0]).await;
    assert_eq!(bench.owner_of(0).await, "a");
    group.stop().await;
}

pub async fn or_expired(bench: Bench) {
    own_there(&bench, &[0]).await;
    let a = bench.owner("a").await;
    let mut group = Group::run(&a, 1);
    for age in [0, EXPIRY + 1] {
        a.wire().age(VERBATIM, age);
        assert_eq!(group.settled().await, [elsewhere()]);
    }
    a.wire().age(VERBATIM, EXPIRY + 2);
    group.until_it_holds(&[0]).await;
    group.stop().await;
}

/// The records of the SDKs that keep names unchanged have no incarnation.
pub async fn or_expired_by_the_foreign_lease_duration(bench: Bench) {
    bench.put(&there(0), &metadata(&[("ownerid", "x")])).await;
    let a = bench.owner("a").await;
    let mut group = Group::run(&a, 1);
    a.wire().age(VERBATIM, 181);
    assert_eq!(group.settled().await, [elsewhere()]);
    a.wire().age(VERBATIM, 182);
    group.until_it_holds(&[0]).await;
    group.stop().await;
}

pub async fn waiting_is_the_default(bench: Bench) {
    own_there(&bench, &[0]).await;
    assert_eq!(OnCaseMismatch::default(), OnCaseMismatch::Wait);
    for a in [
        bench.owner("a").await,
        bench.owner_with("a", StoreConfig::default().with_on_case_mismatch(OnCaseMismatch::Wait)).await,
    ] {
        assert_eq!(listed_there(&a).await, ["0"]);
        let mut group = Group::run(&a, 1);
        assert_eq!(group.settled().await, [elsewhere()]);
        group.stop().await;
    }
}

pub async fn fail_does_not_start_while_one_is_owned_there(bench: Bench) {
    let refusing = |age: i64| {
        let bench = &bench;
        async move {
            let config = StoreConfig::default().with_on_case_mismatch(OnCaseMismatch::Fail);
            bench.try_owner("a", |builder| builder.with_config(config), |wire| wire.age(VERBATIM, age)).await
        }
    };
    assert!(refusing(0).await.is_ok());
    own_there(&bench, &[3]).await;
    for age in [0, EXPIRY + 1] {
        let error = refusing(age).await.err().expect("it started");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("partition 3") && error.to_string().contains("owned by x"), "{error}");
    }
    let a = refusing(EXPIRY + 2).await.unwrap();
    // And one that appears later is left alone.
    a.wire().age(VERBATIM, 0);
    let mut group = Group::run(&a, 4);
    group.until("two are held", |snapshot| snapshot.owned.len() == 2).await;
    assert_eq!(group.settled().await[3], elsewhere());
    group.stop().await;
}

pub async fn ignore_reads_nothing_there(bench: Bench) {
    own_there(&bench, &[0]).await;
    bench.put(&format!("{VERBATIM}checkpoint/0"), &crate::bench::position(7)).await;
    let a = bench.owner_with("a", StoreConfig::default().with_on_case_mismatch(OnCaseMismatch::Ignore)).await;
    assert!(listed_there(&a).await.is_empty());
    let mut group = Group::run(&a, 1);
    group.until_it_holds(&[0]).await;
    assert_eq!(a.adopted(0).await.record().sequence_number, Some(-1));
    assert!(a.requests().iter().all(|request| !request.contains("verbatim")));
    group.stop().await;
}

/// Between the listing here and the claim. Without a claim the second listing is not needed.
pub async fn it_is_read_again_right_before_claiming(bench: Bench) {
    own_there(&bench, &[0]).await;
    let a = bench.owner("a").await;
    let mut group = Group::run(&a, 2);
    group.until_it_holds(&[1]).await;
    bench.put(&there(0), &metadata(&[("ownerid", "")])).await;
    group.until_it_holds(&[0, 1]).await;
    let requests = a.requests();
    let claimed = requests.iter().position(|request| request == "create ownership/0").unwrap();
    assert_eq!(requests[claimed - 2..claimed], ["list ownership/", "list verbatim ownership/"]);
    group.settled().await;
    a.sent();
    group.settled().await;
    assert!(a.requests().iter().all(|request| request == "list ownership/"));
    group.stop().await;
}

/// With verbatim names there is only one case for all.
pub async fn long_side_by_side_with_verbatim_names(bench: Bench) {
    own_there(&bench, &[0, 1]).await;
    let a = bench.owner_with("a", StoreConfig::default().with_blob_name_case(BlobNameCase::Verbatim)).await;
    let mut group = Group::run(&a, 4);
    group.until_it_holds(&[2, 3]).await;
    let x = PartitionOwner::Other(OwnerId::new("x").unwrap());
    assert_eq!(group.settled().await, [x.clone(), x, PartitionOwner::This, PartitionOwner::This]);
    assert_eq!(&bench.read(&there(2)).await["ownerid"], "a");
    assert!(bench.container.list(crate::bench::LOWER).await.unwrap().blobs.is_empty());
    group.stop().await;
}
