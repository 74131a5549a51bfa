//! What only this crate's store guarantees to the official processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, ListResult};
use eventhubs_checkpoint::store::protocol::{Claim, ReleaseOutcome};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::{ErrorKind, LeaseScope, PartitionId, Result};
use tokio::time::{Instant, advance, sleep};

use super::records::{
    GROUP, HUB, LocalClock, NAMESPACE, NONE, adapter, at, checkpoint, checkpoint_at, cycle, faulty, group_store,
    kind_of, listed, looks_expired, name_of, owner_in, position, put, refused, settled, try_cycle, wish, writes,
};
use crate::intercepted::{Intercept, Intercepted};
use crate::placing::place;

fn zero() -> PartitionId {
    0.into()
}

async fn exists(container: &MemoryContainer, name: &str) -> bool {
    container.get(name).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn every_win_is_adopted_before_it_is_reported() {
    let (faulty, container) = faulty();
    let a = settled(container.clone()).await;
    let b = adapter(faulty.clone());
    // It is won, but the write that fences the previous owner fails: the processor must not start yet.
    faulty.inject_on(writes("checkpoint"), Fault::Unreachable);
    assert_eq!(cycle(&*b, "b", [0]).await, NONE);
    assert_eq!(owner_in(&container, 0).await, "b");
    checkpoint(&*a, 0, 6).await.expect("no owner has adopted it yet");

    assert_eq!(cycle(&*b, "b", [0]).await, [0]);
    refused(checkpoint(&*a, 0, 7).await);
    assert_eq!(position(&*b, 0).await, Some(6));
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_of_an_unclaimed_partition_is_rejected() {
    let container = MemoryContainer::new();
    let a = adapter(container.clone());
    let message = refused(checkpoint(&*a, 0, 5).await);
    assert!(message.contains("nothing was written"), "{message}");
    cycle(&*a, "a", [0]).await;
    let message = refused(checkpoint(&*a, 1, 5).await);
    assert!(message.contains("partition 1 is not owned"), "{message}");
    for partition in [0, 1] {
        assert!(!exists(&container, &name_of("checkpoint", partition)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_as_fresh_as_its_heartbeat() {
    let container = MemoryContainer::new();
    let (clock, heartbeat) = (LocalClock::ahead(0), format!("{NAMESPACE}/{HUB}/$default/heartbeat/b"));
    let b = group_store(container.clone(), "b").await;
    let _ = b.send_heartbeat().await.unwrap();
    let _ = b.claim(&Claim::unowned(zero()).with_lease_scope(LeaseScope::Instance)).await;
    let a = adapter(container.clone());
    for _ in 0..3 {
        sleep(Duration::from_secs(40)).await;
        let _ = b.send_heartbeat().await.unwrap();
        assert!(!looks_expired(&listed(&*a).await["0"], &*clock));
    }
    sleep(Duration::from_secs(70)).await;
    assert!(listed(&*a).await.is_empty());
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
    assert_eq!(&container.get(&heartbeat).await.unwrap().metadata["ehcdeclareddeadby"], "a");

    // A claim from a live owner is not a claim from a dead one.
    let c = group_store(container.clone(), "c").await;
    let _ = c.send_heartbeat().await.unwrap();
    let _ = c.claim(&Claim::unowned(1.into()).with_lease_scope(LeaseScope::Instance)).await;
    assert_eq!(cycle(&*a, "a", [1]).await, [1]);
    let heartbeat = container.get(&heartbeat.replace("heartbeat/b", "heartbeat/c")).await.unwrap();
    assert!(!heartbeat.metadata.contains_key("ehcdeclareddeadby"));
}

#[tokio::test(start_paused = true)]
async fn an_older_checkpoint_is_no_error_and_moves_nothing() {
    let a = settled(MemoryContainer::new()).await;
    for older in [5, 3] {
        checkpoint(&*a, 0, older).await.unwrap();
    }
    assert_eq!(position(&*a, 0).await, Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_lost_partition_is_forgotten() {
    // Detected by a listing, by a rejected checkpoint, or by a rejected renewal.
    for way in ["listing", "checkpoint", "renewal"] {
        let (faulty, container) = faulty();
        let a = settled(faulty.clone()).await;
        let own = listed(&*a).await["0"].etag.clone();
        cycle(&*adapter(container), "b", [0]).await;
        match way {
            "listing" => drop(listed(&*a).await),
            "checkpoint" => drop(refused(checkpoint(&*a, 0, 6).await)),
            _ => assert!(a.claim_ownership(&[wish("a", 0, own)]).await.unwrap().is_empty()),
        }
        // No request is made anymore.
        faulty.set_plan(FaultPlan::always(Fault::Hang));
        let started = Instant::now();
        let message = refused(checkpoint(&*a, 0, 7).await);
        assert!(message.contains("is not owned"), "{way}: {message}");
        assert_eq!(started.elapsed(), Duration::ZERO, "{way}");
        faulty.set_plan(FaultPlan::default());
        assert_eq!(a.release_all().await.len(), 0, "{way}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_indeterminate_renewal_keeps_the_partition() {
    let (faulty, _) = faulty();
    let a = settled(faulty.clone()).await;
    for fault in [Fault::Hang, Fault::Unreachable, Fault::RequestLost] {
        faulty.set_plan(FaultPlan::default().with_on(1.0, writes("ownership"), fault.clone()));
        assert_eq!(cycle(&*a, "a", [0]).await, [0], "{fault:?}");
        checkpoint(&*a, 0, 6).await.unwrap();
    }
    faulty.set_plan(FaultPlan::default());
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
}

#[tokio::test(start_paused = true)]
async fn release_all_releases_all_partitions_and_the_store() {
    let container = MemoryContainer::new();
    let (a, b) = (adapter(container.clone()), adapter(container));
    assert_eq!(cycle(&*a, "a", 0..8).await.len(), 8);
    let released = a.release_all().await;
    assert_eq!(released.len(), 8);
    assert!(released.iter().all(|(_, outcome)| matches!(outcome, ReleaseOutcome::Released)));
    assert!(listed(&*b).await.is_empty());
    assert_eq!(cycle(&*b, "b", 0..8).await.len(), 8);
    refused(checkpoint(&*a, 0, 1).await);

    b.release_all().await;
    assert_eq!(cycle(&*a, "a-restarted", [0]).await, [0]);
    checkpoint(&*a, 0, 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_record_is_recreated_and_adopted_again() {
    let container = MemoryContainer::new();
    let a = settled(container.clone()).await;
    container.remove(&name_of("ownership", 0)).await.unwrap();
    // Another owner may have owned it in between, so that it must be adopted again.
    assert_eq!(cycle(&*a, "a", [0]).await, NONE);
    assert_eq!(owner_in(&container, 0).await, "a");
    refused(checkpoint(&*a, 0, 6).await);
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
    checkpoint(&*a, 0, 6).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_adopted_is_released() {
    let (faulty, container) = faulty();
    settled(container.clone()).await;
    let b = adapter(faulty.clone());
    faulty.set_plan(FaultPlan::default().with_on(1.0, writes("checkpoint"), Fault::Conflict));
    assert_eq!(cycle(&*b, "b", [0]).await, NONE);
    assert_eq!(owner_in(&container, 0).await, "");
    faulty.set_plan(FaultPlan::default());
    assert_eq!(cycle(&*b, "b", [0]).await, [0]);
}

/// A partition that is lost and won again between two responses: its client may still read, from an earlier start.
#[tokio::test(start_paused = true)]
async fn a_partition_lost_meanwhile_is_left_out_once() {
    let container = MemoryContainer::new();
    let (a, b) = (settled(container.clone()).await, adapter(container.clone()));
    cycle(&*b, "b", [0]).await;
    b.release_all().await;
    place(&group_store(container.clone(), "operator").await, 0, &at(2)).await;
    assert_eq!(cycle(&*a, "a", [0]).await, NONE);
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
    assert_eq!(position(&*a, 0).await, Some(2));
}

/// A program that lists the owners while the processor claims: its listing may be older than the claim.
#[tokio::test(start_paused = true)]
async fn an_earlier_listing_removes_nothing() {
    let container = MemoryContainer::new();
    let late = Arc::new(Intercepted { inner: Arc::new(container.clone()), interceptor: LateListings::default() });
    let a = adapter(Arc::clone(&late));
    cycle(&*a, "a", [1]).await;
    cycle(&*adapter(container), "b", [0]).await;
    let etag = listed(&*a).await["0"].etag.clone();

    late.interceptor.0.store(true, Ordering::Relaxed);
    let looking = async {
        assert_eq!(listed(&*a).await["0"].owner_id.as_deref(), Some("b"), "unchanged");
    };
    let winning = async {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(a.claim_ownership(&[wish("a", 0, etag)]).await.unwrap().len(), 1);
    };
    tokio::join!(looking, winning);
    checkpoint(&*a, 0, 1).await.unwrap();
}

/// Shows the state of a second ago, if configured.
#[derive(Default)]
struct LateListings(AtomicBool);

#[async_trait]
impl Intercept for LateListings {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        let list = inner.list(prefix).await;
        if self.0.load(Ordering::Relaxed) {
            sleep(Duration::from_secs(1)).await;
        }
        list
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_without_a_position_is_rejected() {
    let container = MemoryContainer::new();
    let a = settled(container.clone()).await;
    let good = checkpoint_at(0, 6);
    for bad in [Checkpoint { sequence_number: None, ..good.clone() }, Checkpoint { offset: None, ..good }] {
        let error = a.update_checkpoint(bad).await.unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("partition 0 has no"), "{error}");
    }
    assert_eq!(position(&*a, 0).await, Some(5));
    let blob = container.get(&name_of("checkpoint", 0)).await.unwrap();
    assert_eq!((&blob.metadata["sequencenumber"], &blob.metadata["offset"]), ("5", "500"));
}

/// The processor would use it as an explicit start, and ignore the configured one.
#[tokio::test(start_paused = true)]
async fn a_stored_checkpoint_without_a_position_is_hidden() {
    let container = MemoryContainer::new();
    put(&container, &name_of("checkpoint", 0), [("sequencenumber", ""), ("offset", "no offset")]).await;
    assert!(adapter(container).list_checkpoints(NAMESPACE, HUB, GROUP).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_invalid_owner_id_is_rejected_with_its_value() {
    let container = MemoryContainer::new();
    let a = adapter(container.clone());
    for bad in ["", "gr\u{f6}\u{df}e", "two\nlines", " padded "] {
        let error = try_cycle(&*a, bad, [0]).await.unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::Config, "{bad:?}");
        assert!(error.to_string().contains(&format!("owner ID {bad:?} cannot be used")), "{error}");
    }
    assert!(listed(&*a).await.is_empty());
    assert_eq!(cycle(&*a, "a", [0]).await, [0], "no state of them remains");
}

#[tokio::test(start_paused = true)]
async fn claims_for_two_owners_or_groups_are_rejected() {
    let a = adapter(MemoryContainer::new());
    let other_group = Ownership { consumer_group: "other".into(), ..wish("a", 1, None) };
    for second in [wish("b", 1, None), other_group] {
        let error = a.claim_ownership(&[wish("a", 0, None), second]).await.unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::Config, "{error}");
    }
    assert!(a.claim_ownership(&[]).await.unwrap().is_empty());
    assert!(listed(&*a).await.is_empty());
}

/// Owners of other SDKs do not know this crate's lease duration: they get the longest one among them, as everywhere
/// here.
#[tokio::test(start_paused = true)]
async fn an_owner_of_another_sdk_has_the_foreign_duration() {
    let container = MemoryContainer::new();
    let (a, clock) = (adapter(container.clone()), LocalClock::ahead(0));
    put(&container, &name_of("ownership", 0), [("ownerid", "java")]).await;
    advance(Duration::from_secs(175)).await;
    assert!(!looks_expired(&listed(&*a).await["0"], &*clock));
    advance(Duration::from_secs(10)).await;
    assert!(listed(&*a).await.is_empty());
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
}
