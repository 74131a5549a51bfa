//! A cap, and the partitions that stay unowned because of it.

use crate::sim::Simulation;
use eventhubs_checkpoint::balancer::OwnershipEvent;

use super::group::{EXPIRY, LONGEST_CYCLE, MINUTE, ROUND, balanced, comes, config, events, held_by};

fn limits(group: &Simulation) -> Vec<(String, usize)> {
    let events = events(group, 0).into_iter().filter_map(|(_, owner, event)| match event {
        OwnershipEvent::LimitReached { unclaimed } => Some((owner, unclaimed)),
        _ => None,
    });
    events.collect()
}

#[tokio::test(start_paused = true)]
async fn unclaimed_partitions_are_reported_until_claimed() {
    let mut group = Simulation::new(17, 8);
    group.start("a", config().with_max_partitions(3)).await.unwrap();
    group.run_for(10 * MINUTE).await;
    assert_eq!(held_by(&group, "a"), 3);
    let snapshot = group.handle("a").unwrap().snapshots();
    assert_eq!(snapshot.borrow().unclaimed_due_to_limit, 5);
    assert_eq!(limits(&group).last(), Some(&("a".to_owned(), 5)));

    group.start("b", config()).await.unwrap();
    comes(&group, ROUND * 5, |group| held_by(group, "b") == 4).await;
    group.run_for(ROUND).await;
    assert_eq!(snapshot.borrow().unclaimed_due_to_limit, 1);
    // `a` owns less than its share and takes nothing: after one lease duration its share goes to b.
    comes(&group, EXPIRY + 2 * ROUND, |group| held_by(group, "b") == 5).await;
    group.run_for(LONGEST_CYCLE + ROUND).await;
    assert_eq!(snapshot.borrow().unclaimed_due_to_limit, 0);

    group.start("c", config()).await.unwrap();
    balanced(&group, ROUND * 4).await;
    assert_eq!(limits(&group).last(), Some(&("a".to_owned(), 0)));
    assert!(limits(&group).iter().all(|(owner, _)| owner == "a"));
}
