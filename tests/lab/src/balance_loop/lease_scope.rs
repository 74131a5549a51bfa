//! Leases that a heartbeat of their instance keeps alive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::sim::Simulation;
use eventhubs_checkpoint::balancer::{BalancerConfig, ClaimReason, OwnershipEvent};
use eventhubs_checkpoint::store::Ownership;
use eventhubs_checkpoint::store::protocol::membership::Heartbeat;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::{LeaseScope, PartitionId};

use super::group::{
    ABANDONED, EXPIRY, LONGEST_CYCLE, MINUTE, ROUND, balanced, by_heartbeat, comes, config, events, group, group_with,
    held_by,
};

async fn ownerships(group: &Simulation, by: &str) -> Vec<Ownership> {
    group.store(by).unwrap().list_ownerships().await.unwrap().records
}

async fn heartbeat_of(group: &Simulation, owner: &str, by: &str) -> Heartbeat {
    let heartbeats = group.store(by).unwrap().list_heartbeats().await.unwrap().records;
    heartbeats.into_iter().find(|seen| seen.record.owner.as_str() == owner).unwrap()
}

fn held(group: &Simulation, owner: &str) -> BTreeMap<PartitionId, i64> {
    group.handle(owner).unwrap().snapshots().borrow().owned.clone()
}

#[tokio::test(start_paused = true)]
async fn no_lease_is_renewed_and_none_is_lost() {
    let group = group_with(1, 6, &["a", "b"], &by_heartbeat()).await;
    let before = group.trace().len();
    group.run_for(10 * MINUTE).await;
    assert_eq!(events(&group, before), []);
    assert!(ownerships(&group, "a").await.iter().all(|seen| seen.age > 10 * MINUTE));
    for owner in ["a", "b"] {
        assert!(heartbeat_of(&group, owner, "a").await.age <= EXPIRY / 2 + Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_crashed_owner_is_declared_dead_once() {
    let mut group = group_with(2, 9, &["a", "b", "c"], &by_heartbeat()).await;
    let before = group.trace().len();
    group.crash("a").await.unwrap();
    let took = balanced(&group, ABANDONED + LONGEST_CYCLE + 3 * ROUND).await;
    assert!(took >= EXPIRY / 2, "its heartbeat was written {took:?} before");
    assert!(heartbeat_of(&group, "a", "b").await.record.declared_dead_by.is_some());
    let claims = events(&group, before).into_iter().filter(|(_, _, event)| {
        matches!(event, OwnershipEvent::Claimed { reason: ClaimReason::Expired(from), .. } if from.as_str() == "a")
    });
    assert_eq!(claims.count(), 3);
    group.run_for(11 * EXPIRY).await;
    let heartbeats = group.store("b").unwrap().list_heartbeats().await.unwrap().records;
    assert_eq!(heartbeats.len(), 2, "expired heartbeats are deleted");
}

#[tokio::test(start_paused = true)]
async fn a_recovered_owner_keeps_what_is_left() {
    let group = group_with(3, 8, &["a", "b"], &by_heartbeat().with_max_partitions(5)).await;
    let before = group.trace().len();
    let before_outage = held(&group, "a");
    assert_eq!(before_outage.len(), 4);
    group.outage(Some("a"));
    comes(&group, ABANDONED + LONGEST_CYCLE + ROUND, |group| held_by(group, "b") == 5).await;
    group.outage_over(Some("a"));
    // Its heartbeat may have to wait for the next attempt.
    group.run_for(Duration::from_secs(10)).await;
    let events: Vec<_> = events(&group, before).into_iter().filter(|(_, owner, _)| owner == "a").collect();
    let crashed =
        |event: &OwnershipEvent| matches!(event, OwnershipEvent::DeclaredDead { by: Some(by) } if by.as_str() == "b");
    assert!(events.iter().any(|(_, _, event)| crashed(event)), "{events:?}");
    let lost = |event: &OwnershipEvent| match event {
        OwnershipEvent::Lost { partition, .. } => Some(partition.clone()),
        _ => None,
    };
    let lost: BTreeSet<_> = events.iter().filter_map(|(_, _, event)| lost(event)).collect();
    assert!((1..=3).contains(&lost.len()), "{events:?}");
    let is_left = |partition: &PartitionId| before_outage.contains_key(partition) && !lost.contains(partition);
    let left: BTreeMap<_, _> = held(&group, "a").into_iter().filter(|(partition, _)| is_left(partition)).collect();
    assert_eq!(left.len(), 4 - lost.len(), "{events:?}");
    assert!(left.iter().all(|(partition, ownership)| before_outage[partition] == *ownership), "one was interrupted");
    group.run_for(Duration::from_secs(1)).await;
    let rewritten = |seen: &Ownership| seen.age < Duration::from_secs(15);
    let records = ownerships(&group, "b").await;
    assert!(records.iter().filter(|seen| is_left(&seen.partition)).all(rewritten), "{records:?}");
    balanced(&group, 5 * MINUTE).await;
}

async fn restarted_one_by_one(group: &mut Simulation, owners: &[&str], config: &BalancerConfig) {
    for owner in owners {
        group.stop(owner).await.unwrap();
        balanced(group, LONGEST_CYCLE + 5 * ROUND).await;
        group.start(owner, config.clone()).await.unwrap();
        balanced(group, LONGEST_CYCLE + 5 * ROUND).await;
        group.run_for(3 * EXPIRY).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_scope_can_change_in_both_directions() {
    let owners = ["a", "b", "c"];
    let mut group = group(4, 9, &owners).await;
    let before = group.trace().len();
    for (config, scope) in [(by_heartbeat(), "instance"), (config(), "partition")] {
        restarted_one_by_one(&mut group, &owners, &config).await;
        let scopes = ownerships(&group, "a").await.into_iter().map(|seen| format!("{:?}", seen.record.scope));
        assert!(scopes.map(|reported| reported.to_lowercase()).all(|reported| reported == scope));
    }
    let events = events(&group, before);
    let crashed = events.iter().filter(|(_, _, event)| {
        matches!(
            event,
            OwnershipEvent::DeclaredDead { .. } | OwnershipEvent::Claimed { reason: ClaimReason::Expired(_), .. }
        )
    });
    assert_eq!(crashed.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_heartbeat_each_lease_is_renewed() {
    let mut group = Simulation::new(5, 2);
    group.start("a", by_heartbeat()).await.unwrap();
    let heartbeat = Target::from(BlobOperation::Write).named("/heartbeat/");
    group.set_faults(Some("a"), &FaultPlan::default().with_on(1.0, heartbeat, Fault::RequestLost));
    group.run_for(5 * MINUTE).await;
    let scopes = async |group: &Simulation| {
        let records = ownerships(group, "a").await;
        records.into_iter().map(|seen| seen.record.scope).collect::<Vec<_>>()
    };
    assert_eq!((held_by(&group, "a"), scopes(&group).await), (2, vec![LeaseScope::Partition; 2]));
    group.set_faults(Some("a"), &FaultPlan::default());
    group.run_for(LONGEST_CYCLE).await;
    assert_eq!((held_by(&group, "a"), scopes(&group).await), (2, vec![LeaseScope::Instance; 2]));
}
