//! Releases: of removed partitions, of partitions that are not assigned anymore, and on request.

use std::time::Duration;

use crate::sim::Simulation;
use eventhubs_checkpoint::balancer::{Assignment, ClaimReason, LoadBalancingStrategy, OwnershipEvent, ReleaseReason};
use eventhubs_checkpoint::{OwnerId, PartitionId};

use super::group::{INTERVAL, LONGEST_CYCLE, MINUTE, ROUND, balanced, comes, config, events, group, held_by, sizes};

fn released_with(group: &Simulation, since: usize, why: ReleaseReason) -> Vec<PartitionId> {
    let mut partitions: Vec<_> = events(group, since)
        .into_iter()
        .filter_map(|(_, _, event)| match event {
            OwnershipEvent::Releasing { partition, reason } if reason == why => Some(partition),
            _ => None,
        })
        .collect();
    partitions.sort();
    partitions
}

#[tokio::test(start_paused = true)]
async fn removed_partitions_are_released_and_claimed_again() {
    let mut group = group(13, 8, &["a", "b"]).await;
    let since = group.trace().len();
    group.set_partitions(0..5);
    balanced(&group, INTERVAL + ROUND * 3).await;
    assert_eq!(released_with(&group, since, ReleaseReason::PartitionRemoved), [5, 6, 7].map(PartitionId::from));
    group.run_for(5 * MINUTE).await;
    assert_eq!(sizes(&group), [3, 2]);

    let (since, moves) = (group.trace().len(), group.moves().len());
    group.set_partitions(0..8);
    balanced(&group, INTERVAL + ROUND * 3).await;
    group.run_for(5 * MINUTE).await;
    let events = events(&group, since);
    let is_removal =
        |event: &OwnershipEvent| matches!(event, OwnershipEvent::Claimed { reason: ClaimReason::Released, .. });
    assert!(events.len() == 3 && events.iter().all(|(_, _, event)| is_removal(event)), "{events:#?}");
    assert_eq!((sizes(&group), group.moves().len()), (vec![4, 4], moves));
}

#[tokio::test(start_paused = true)]
async fn static_instances_release_and_never_steal() {
    let mut group = Simulation::new(14, 4);
    for (index, owner) in ["a", "b"].into_iter().enumerate() {
        let strategy = LoadBalancingStrategy::Static(Assignment::index(index, 2).unwrap());
        group.start(owner, config().with_load_balancing_strategy(strategy)).await.unwrap();
    }
    let assigned = |expected: &[(u32, &str)]| {
        let expected = expected.iter().map(|(id, owner)| (PartitionId::from(*id), OwnerId::new(owner).unwrap()));
        let expected: Vec<_> = expected.collect();
        move |group: &Simulation| group.owners().into_iter().eq(expected.iter().cloned())
    };
    comes(&group, ROUND, assigned(&[(0, "a"), (1, "b"), (2, "a"), (3, "b")])).await;
    group.run_for(5 * MINUTE).await;
    let since = group.trace().len();
    // Their ordinals change, and with them all assignments.
    group.set_partitions(1..5);
    comes(&group, INTERVAL + LONGEST_CYCLE + ROUND, assigned(&[(1, "a"), (2, "b"), (3, "a"), (4, "b")])).await;
    group.run_for(5 * MINUTE).await;
    assert_eq!(released_with(&group, since, ReleaseReason::PartitionRemoved), [0].map(PartitionId::from));
    assert_eq!(released_with(&group, since, ReleaseReason::NotAssigned), [1, 2, 3].map(PartitionId::from));
    assert_eq!(group.moves(), []);
    group.stop("a").await.unwrap();
    group.run_for(10 * MINUTE).await;
    assert_eq!(held_by(&group, "b"), 2, "a partition without an assigned instance stays unowned");
}

/// Releases the first partition of an owner.
fn release_first(group: &Simulation, owner: &str, cooldown: Duration) -> PartitionId {
    let handle = group.handle(owner).unwrap();
    let held = handle.snapshots().borrow().owned.clone();
    let (partition, ownership) = held.first_key_value().unwrap();
    handle.release(partition.clone(), *ownership, cooldown);
    partition.clone()
}

#[tokio::test(start_paused = true)]
async fn its_releaser_waits_for_the_end_of_the_cooldown() {
    let group = group(15, 2, &["a"]).await;
    let partition = release_first(&group, "a", 5 * MINUTE);
    let owned = |group: &Simulation| group.owners().contains_key(&partition);
    comes(&group, Duration::from_secs(1), |group| !owned(group)).await;
    assert_eq!(
        group.run_until((5 * MINUTE).saturating_sub(Duration::from_secs(2)), owned).await,
        None,
        "reclaimed too soon"
    );
    comes(&group, LONGEST_CYCLE + ROUND, owned).await;
}

#[tokio::test(start_paused = true)]
async fn others_may_claim_during_the_cooldown() {
    let mut group = group(16, 3, &["a"]).await;
    let partition = release_first(&group, "a", 5 * MINUTE);
    comes(&group, Duration::from_secs(1), |group| !group.owners().contains_key(&partition)).await;
    group.start("b", config()).await.unwrap();
    comes(&group, ROUND, |group| group.owners().get(&partition).is_some_and(|owner| owner.as_str() == "b")).await;
    balanced(&group, ROUND).await;
    assert_eq!(group.moves(), []);
}
