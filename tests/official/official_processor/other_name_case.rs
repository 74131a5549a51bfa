//! Owners that keep their records under names of another case, like the official store.

use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::store::{BlobNameCase, OnCaseMismatch, StoreConfig};
use tokio::time::advance;

use super::official_rules::OfficialRules;
use super::records::{
    GROUP, HUB, LocalClock, NAMESPACE, NONE, adapter, checkpoint, cycle, kind_of, listed, live_owners, position,
    refused, wish,
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

#[tokio::test(start_paused = true)]
async fn a_partition_owned_there_is_taken_over_afterwards() {
    let container = MemoryContainer::new();
    let official = official(&container).await;
    let (new, clock) = (adapter(container), LocalClock::ahead(0));
    for _ in 0..3 {
        // From the first time, when the requesting owner is still unknown.
        assert_eq!(cycle(&*new, "new", [0, 1]).await, NONE);
        let shown = listed(&*new).await;
        assert_eq!(live_owners(&shown, &*clock), ["old"], "{shown:?}");
        assert_eq!(shown.len(), 2);
    }

    // The official processor releases nothing: its leases expire like those of an owner of another SDK.
    checkpoint(&*official, 1, 6).await.unwrap();
    advance(Duration::from_secs(183)).await;
    assert!(live_owners(&listed(&*new).await, &*clock).is_empty());
    assert_eq!(cycle(&*new, "new", [0, 1]).await, [0, 1]);
    assert_eq!((position(&*new, 0).await, position(&*new, 1).await), (Some(5), Some(6)));
    checkpoint(&*new, 0, 7).await.unwrap();
}

/// Even a claim without any listing before it.
#[tokio::test(start_paused = true)]
async fn a_partition_owned_there_is_not_taken_blindly() {
    let container = MemoryContainer::new();
    official(&container).await;
    let new = adapter(container);
    assert!(new.claim_ownership(&[wish("new", 0, None)]).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_partition_owned_here_stays_here() {
    let container = MemoryContainer::new();
    let new = adapter(container.clone());
    assert_eq!(cycle(&*new, "new", [0]).await, [0]);
    official(&container).await;
    assert_eq!(cycle(&*new, "new", [0, 1]).await, [0]);
    let shown = listed(&*new).await;
    assert_eq!(shown["0"].owner_id.as_deref(), Some("new"));
    assert_eq!(shown["1"].owner_id.as_deref(), Some("old"));
}

#[tokio::test(start_paused = true)]
async fn with_verbatim_names_both_share_one_name_case() {
    let container = MemoryContainer::new();
    let official = official(&container).await;
    let new = BlobCheckpointStore::builder(container)
        .with_wall_clock(LocalClock::ahead(0))
        .with_config(StoreConfig::default().with_blob_name_case(BlobNameCase::Verbatim))
        .build()
        .unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_rejected_mismatch_ends_the_processor_at_once() {
    let container = MemoryContainer::new();
    official(&container).await;
    let settings = |split| {
        let builder = BlobCheckpointStore::builder(container.clone()).with_wall_clock(LocalClock::ahead(0));
        builder.with_config(StoreConfig::default().with_on_case_mismatch(split)).build().unwrap()
    };
    let error = settings(OnCaseMismatch::Fail).list_ownerships(NAMESPACE, HUB, GROUP).await.unwrap_err();
    assert_eq!(kind_of(&error), ErrorKind::Config);
    assert!(error.to_string().contains("owned by old under a different blob-name case"), "{error}");
    assert_eq!(cycle(&*settings(OnCaseMismatch::Ignore), "new", [0]).await, [0]);
}
