//! Resets by an operator while the official processor runs.

use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use eventhubs_checkpoint::admin::{Operator, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::{ConsumerGroup, PartitionId, Position};
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::crowd::{Crowd, azurite_container, until};
use super::records::{
    GROUP, HUB, NAMESPACE, NONE, at, checkpoint, cycle, faulty, listed, owner_in, position, refused, settled, wish,
};

async fn reset(container: impl BlobContainer + 'static, namespace: &str, resets: Vec<(PartitionId, Position)>) {
    let group = ConsumerGroup::new(namespace, HUB, GROUP).unwrap();
    let operator = Operator::connect(container, group).await.unwrap();
    let outcomes = operator.reset(resets, &ResetOptions::default()).await.unwrap();
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, ResetOutcome::Done)), "{outcomes:?}");
}

/// Resets partition 0 to 2.
async fn reset_to_two(container: &MemoryContainer) {
    reset(container.clone(), NAMESPACE, vec![(0.into(), at(2))]).await;
}

/// The response after a loss leaves the partition out, so that its old client ends; the next one starts at the new
/// position.
async fn starts_again(a: &dyn CheckpointStore, when: &str) {
    assert_eq!(cycle(a, "a", [0]).await, [0], "{when}");
    assert_eq!(position(a, 0).await, Some(2), "{when}");
    checkpoint(a, 0, 3).await.unwrap();
    assert_eq!(position(a, 0).await, Some(3), "{when}");
}

#[tokio::test(start_paused = true)]
async fn a_reset_between_two_cycles_ends_the_old_client() {
    let container = MemoryContainer::new();
    let a = settled(container.clone()).await;
    reset_to_two(&container).await;
    assert_eq!(cycle(&*a, "a", [0]).await, NONE);
    starts_again(&*a, "between two cycles").await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_before_a_claim_ends_the_old_client() {
    let container = MemoryContainer::new();
    let a = settled(container.clone()).await;
    let own = listed(&*a).await["0"].etag.clone();
    reset_to_two(&container).await;
    assert!(a.claim_ownership(&[wish("a", 0, own)]).await.unwrap().is_empty());
    starts_again(&*a, "within a cycle").await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_found_by_a_checkpoint_ends_the_old_client() {
    let container = MemoryContainer::new();
    let a = settled(container.clone()).await;
    reset_to_two(&container).await;
    let message = refused(checkpoint(&*a, 0, 6).await);
    assert!(message.contains("current owner: none"), "{message}");
    assert_eq!(position(&*a, 0).await, Some(2));
    assert_eq!(cycle(&*a, "a", [0]).await, NONE);
    assert!(refused(checkpoint(&*a, 0, 7).await).contains("is not owned"));
    starts_again(&*a, "after a checkpoint").await;
}

/// The earlier state remains valid for one more response.
#[tokio::test(start_paused = true)]
async fn an_undetected_reset_ends_the_old_client_later() {
    let (faulty, container) = faulty();
    let a = settled(faulty.clone()).await;
    let own = listed(&*a).await["0"].etag.clone();
    reset_to_two(&container).await;
    faulty.set_plan(FaultPlan::always(Fault::Unreachable));
    assert_eq!(a.claim_ownership(&[wish("a", 0, own)]).await.unwrap().len(), 1, "it cannot know");
    faulty.set_plan(FaultPlan::default());
    assert_eq!(cycle(&*a, "a", [0]).await, NONE);
    starts_again(&*a, "after a failure").await;
}

/// Cycles run while the operator works. Its record is that of a live owner.
#[tokio::test(start_paused = true)]
async fn a_slow_reset_is_waited_for() {
    let (faulty, container) = faulty();
    let a = settled(container.clone()).await;
    faulty.set_plan(FaultPlan::default().with_on(
        1.0,
        Target::from(BlobOperation::Get).named("/checkpoint/"),
        Fault::Latency(Duration::from_millis(900)),
    ));
    let resetting = tokio::spawn(reset(faulty, NAMESPACE, vec![(0.into(), at(2))]));
    while owner_in(&container, 0).await == "a" {
        sleep(Duration::from_millis(1)).await;
    }
    let shown = listed(&*a).await["0"].owner_id.clone().unwrap();
    assert!(shown.starts_with("operator-"), "{shown}");
    assert_eq!(cycle(&*a, "a", NONE).await, NONE);
    resetting.await.unwrap();
    // Without a wish there was no response.
    assert_eq!(cycle(&*a, "a", [0]).await, NONE);
    starts_again(&*a, "after it").await;
}

/// The real processor, its own balancer, and its clients.
#[tokio::test]
async fn the_official_processor_reads_from_the_new_position() {
    LocalSet::new()
        .run_until(async {
            let (crowd, container) = (Crowd::new(4).await, azurite_container().await);
            let a = crowd.start(crowd.adapter(container.clone())).await;
            until("four partitions", || a.holds().last.len() == 4).await;
            crowd.until_all_are_read().await;
            crowd.publish(0..40).await;
            until("all events", || (0..40).all(|number| a.times(number) == 1)).await;
            let start = || Position::new(-1, "-1");
            let resets = (0..4).map(|partition: u32| (partition.into(), start())).collect();
            reset(container, "localhost", resets).await;
            until("all events again", || (0..40).all(|number| a.times(number) == 2)).await;
            until("four partitions again", || a.holds().last.len() == 4).await;
            crowd.publish(40..80).await;
            until("all of the second", || (40..80).all(|number| a.times(number) == 1)).await;
            assert!((0..40).all(|number| a.times(number) == 2), "nothing was read by two clients");
            a.shut_down().await;
        })
        .await;
}
