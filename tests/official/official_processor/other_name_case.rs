//! Owners that keep their records under names in another casing, like the official store.

use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::store::{BlobNameCase, StoreConfig};
use tokio::time::advance;

use super::official_rules::OfficialRules;
use super::records::{
    GROUP, HUB, LocalClock, NAMESPACE, checkpoint, cycle, kind_of, listed, owner_in, position, put, refused, try_cycle,
    wish,
};

/// An application on the official store, on both partitions, which it has processed up to 5.
async fn official(container: &MemoryContainer) -> Arc<OfficialRules> {
    let official = OfficialRules::new(container.clone());
    assert_eq!(cycle(&*official, "old", [0, 1]).await, [0, 1]);
    for partition in [0, 1] {
        checkpoint(&*official, partition, 5).await.unwrap();
    }
    official
}

/// Returns a store that uses this casing of the blob names.
fn with_case(container: MemoryContainer, case: BlobNameCase) -> Arc<BlobCheckpointStore> {
    BlobCheckpointStore::builder(container)
        .with_wall_clock(LocalClock::ahead(0))
        .with_config(StoreConfig::default().with_blob_name_case(case))
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_records_of_the_official_store_are_found() {
    for case in [BlobNameCase::Auto, BlobNameCase::Verbatim] {
        let container = MemoryContainer::new();
        let official = official(&container).await;
        let new = with_case(container, case);
        let shown = listed(&*new).await;
        assert_eq!((shown.len(), position(&*new, 0).await), (2, Some(5)));
        assert_eq!(cycle(&*new, "new", [0]).await, [0], "stolen as from any other");
        assert_eq!(position(&*new, 0).await, Some(5));
        checkpoint(&*new, 0, 6).await.unwrap();
        let shown = listed(&*official).await;
        let owner = |partition: &str| shown[partition].owner_id.clone();
        assert_eq!((owner("0").as_deref(), owner("1").as_deref()), (Some("new"), Some("old")));
        refused(checkpoint(&*new, 1, 6).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_owner_in_the_other_case_ends_the_processor() {
    let container = MemoryContainer::new();
    official(&container).await;
    let new = || with_case(container.clone(), BlobNameCase::Lower);
    for error in [
        new().list_ownerships(NAMESPACE, HUB, GROUP).await.unwrap_err(),
        new().claim_ownership(&[wish("new", 0, None)]).await.unwrap_err(),
    ] {
        assert_eq!(kind_of(&error), ErrorKind::Config);
        assert!(error.to_string().contains("old (partition"), "{error}");
    }
    // The official processor releases nothing: its leases expire like those of an owner of another SDK.
    advance(Duration::from_secs(183)).await;
    assert_eq!(cycle(&*new(), "new", [0, 1]).await, [0, 1]);
}

/// Both had connected before either of them claimed.
#[tokio::test(start_paused = true)]
async fn an_owner_that_claimed_meanwhile_is_found() {
    let container = MemoryContainer::new();
    let (lower, verbatim) = (BlobNameCase::Lower, BlobNameCase::Verbatim);
    let (a, b) = (with_case(container.clone(), lower), with_case(container.clone(), verbatim));
    assert!(listed(&*a).await.is_empty() && listed(&*b).await.is_empty());
    assert_eq!(cycle(&*b, "b", [1]).await, [1]);
    let error = a.claim_ownership(&[wish("a", 0, None)]).await.unwrap_err();
    assert_eq!(kind_of(&error), ErrorKind::Config);
    assert_eq!(cycle(&*b, "b", [1]).await, [1], "it goes on");
}

/// Lets this owner renew its partitions for this many seconds.
async fn renews_for(store: &BlobCheckpointStore, partitions: &[u32], seconds: u64) {
    for _ in 0..seconds / 5 {
        advance(Duration::from_secs(5)).await;
        assert_eq!(cycle(store, "a", partitions.iter().copied()).await, partitions);
    }
}

/// Of two instances of this crate, the one in lower case waits for the other one.
#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_while_both_cases_have_owners() {
    for ends in [true, false] {
        let container = MemoryContainer::new();
        let a = with_case(container.clone(), BlobNameCase::Lower);
        assert_eq!(cycle(&*a, "a", [0]).await, [0]);
        // Its first look of those every ten lease durations comes 5 s later.
        renews_for(&a, &[0], 610).await;
        let name = format!("{NAMESPACE}/{HUB}/{GROUP}/ownership/0");
        let incarnation = ("ehcincarnation", "20260101T000000Z-00000001");
        let owned = [("ownerid", "x"), incarnation, ("ehcleaseduration", "60")];
        put(&container, &name, owned).await;
        renews_for(&a, &[0], 5).await;
        assert_eq!(cycle(&*a, "a", [0, 1]).await, [0]);
        if ends {
            put(&container, &name, [("ownerid", ""), incarnation, ("ehcleaseduration", "60")]).await;
            assert_eq!(cycle(&*a, "a", [0]).await, [0], "it looks");
            assert_eq!(cycle(&*a, "a", [0, 1]).await, [0, 1]);
        } else {
            renews_for(&a, &[0], 30).await;
            put(&container, &name, owned).await;
            renews_for(&a, &[0], 25).await;
            advance(Duration::from_secs(5)).await;
            let error = try_cycle(&*a, "a", [0]).await.unwrap_err();
            assert_eq!(kind_of(&error), ErrorKind::Config);
            assert_eq!(owner_in(&container, 0).await, "", "everything is released");
        }
    }
}
