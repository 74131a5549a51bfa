//! The official processor and its own balancer, on AMQP and, if the storage's clock matters, on Azurite.

use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::store::protocol::ReleaseOutcome;
use time::macros::datetime;
use tokio::task::LocalSet;

use super::crowd::{Crowd, Instance, azurite_container, until};
use super::official_rules::OfficialRules;
use super::records::put;

/// Four partitions each, the same ones for several cycles.
async fn share_evenly(a: &Instance, b: &Instance) {
    until("four partitions each", || (a.holds().last.len(), b.holds().last.len()) == (4, 4)).await;
    let (a_before, b_before) = (a.holds(), b.holds());
    let cycles = || (a.holds().count - a_before.count).min(b.holds().count - b_before.count);
    until("three more cycles", || cycles() >= 3).await;
    assert_eq!(
        (a.holds().last, b.holds().last),
        (a_before.last.clone(), b_before.last.clone()),
        "partitions still move"
    );
    assert!(a_before.last.is_disjoint(&b_before.last));
}

/// Both get the response that they own everything, and take it from each other at the broker.
async fn compete(a: &Instance, b: &Instance) {
    until("eight partitions each", || (a.holds().last.len(), b.holds().last.len()) == (8, 8)).await;
}

#[tokio::test]
async fn a_crash_and_a_resume_from_the_checkpoints() {
    LocalSet::new().run_until(share_die_resume()).await;
}

async fn share_die_resume() {
    let crowd = Crowd { expiry: Duration::from_secs(10), ..Crowd::new(8).await };
    let container = azurite_container().await;
    let a_store = crowd.adapter(container.clone());
    let a = crowd.start(a_store.clone()).await;
    crowd.until_all_are_read().await;
    let b = crowd.start(crowd.adapter(container.clone())).await;
    share_evenly(&a, &b).await;
    crowd.until_all_are_read().await;
    crowd.publish(0..200).await;
    until("all of the first", || (0..200).all(|number| a.times(number) + b.times(number) > 0)).await;

    let crashed = b.kill().await;
    let of_the_crashed = |number: u32| crashed.borrow().events.contains_key(&number.to_string());
    crowd.publish(200..400).await;
    until("all eight partitions", || a.holds().last.len() == 8).await;
    until("all of the second", || (0..400).all(|number| a.times(number) > 0 || of_the_crashed(number))).await;
    // Each partition has one of the last eight events.
    until("the last checkpoints", || (392..400).all(|number| a.has_checkpoint(number))).await;
    a.shut_down().await;
    let released = a_store.release_all().await;
    assert_eq!(released.len(), 8);
    assert!(released.iter().all(|(_, outcome)| matches!(outcome, ReleaseOutcome::Released)), "{released:?}");

    crowd.publish(400..480).await;
    let c = crowd.start(crowd.adapter(container.clone())).await;
    until("the first cycle", || c.holds().count > 0).await;
    assert_eq!(c.holds().last.len(), 8, "released, so that no owner has to wait");
    until("all of the third", || (400..480).all(|number| c.times(number) > 0)).await;
    assert_eq!(c.seen.borrow().events.len(), 80, "before the checkpoints");
    let d = crowd.start(crowd.adapter(container)).await;
    share_evenly(&c, &d).await;
}

/// The storage's clock starts on 1 January 2026; that of this machine is far ahead of it.
#[tokio::test]
async fn a_clock_far_ahead_of_the_storage() {
    let with = async |make: fn(&Crowd, MemoryContainer) -> Arc<dyn CheckpointStore + Send + Sync>| {
        let (crowd, container) = (Crowd::new(8).await, MemoryContainer::starting_at(datetime!(2026-01-01 00:00 UTC)));
        let (a, b) = (make(&crowd, container.clone()), make(&crowd, container));
        let (a, b) = (crowd.start(a).await, crowd.start(b).await);
        (crowd, a, b)
    };
    let both = async {
        let (_official, a, b) = with(|_, container| OfficialRules::new(container)).await;
        compete(&a, &b).await;
        a.kill().await;
        b.kill().await;
        let (_ours, a, b) = with(|crowd, container| crowd.adapter(container)).await;
        share_evenly(&a, &b).await;
    };
    LocalSet::new().run_until(both).await;
}

#[tokio::test]
async fn replicas_with_one_application_id() {
    let both = async {
        let (crowd, container) = (Crowd::new(8).await, azurite_container().await);
        let start = async || crowd.start_as(Some("app"), OfficialRules::new(container.clone())).await;
        let (a, b) = (start().await, start().await);
        compete(&a, &b).await;
        a.kill().await;
        b.kill().await;

        let (crowd, container) = (Crowd::new(8).await, azurite_container().await);
        let start = async || crowd.start_as(Some("app"), crowd.adapter(container.clone())).await;
        let (a, b) = (start().await, start().await);
        share_evenly(&a, &b).await;
    };
    LocalSet::new().run_until(both).await;
}

#[tokio::test]
async fn partitions_released_by_another_sdk_are_taken() {
    let both = async {
        let crowd = Crowd::new(8).await;
        let released = async |tree: &str| {
            let container = azurite_container().await;
            for partition in 0..8 {
                put(&*container, &format!("localhost/hub/{tree}/ownership/{partition}"), [("ownerid", "")]).await;
            }
            container
        };
        let official = crowd.start(OfficialRules::new(released("$Default").await)).await;
        until("three cycles", || official.holds().count >= 3).await;
        assert_eq!(official.holds().last.len(), 4, "one half is left to the phantom");
        official.kill().await;
        let own = crowd.start(crowd.adapter(released("$default").await)).await;
        until("the first cycle", || own.holds().count > 0).await;
        assert_eq!(own.holds().last.len(), 8);
    };
    LocalSet::new().run_until(both).await;
}
