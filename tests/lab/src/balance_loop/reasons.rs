//! Every event reports its reason.

use crate::sim::Simulation;
use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::balancer::{ClaimReason, OwnershipEvent, ReleaseReason};

use super::group::{ABANDONED, EXPIRY, LONGEST_CYCLE, MINUTE, ROUND, balanced, comes, config, events, held_by};

/// Returns the events after the first `since` entries, without partitions and epochs.
fn reasons(group: &Simulation, since: usize) -> Vec<(String, String)> {
    let short = |event| match event {
        OwnershipEvent::Claimed { reason, .. } => format!("{reason:?}"),
        OwnershipEvent::Lost { by, .. } => format!("lost to {by:?}"),
        OwnershipEvent::Releasing { reason, .. } => format!("releasing: {reason:?}"),
        OwnershipEvent::Released { .. } => "released".to_owned(),
        other => format!("{other:?}"),
    };
    events(group, since).into_iter().map(|(_, owner, event)| (owner, short(event))).collect()
}

fn by(owner: &str, what: impl std::fmt::Debug) -> (String, String) {
    (owner.to_owned(), format!("{what:?}"))
}

fn reported(owner: &str, what: &str) -> (String, String) {
    (owner.to_owned(), what.to_owned())
}

#[tokio::test(start_paused = true)]
async fn claims_losses_and_releases_report_reason_and_owner() {
    let [a, b] = ["a", "b"].map(|name| OwnerId::new(name).unwrap());
    let mut group = Simulation::new(9, 2);
    group.start("a", config()).await.unwrap();
    balanced(&group, ROUND * 2).await;
    group.run_for(2 * MINUTE).await;
    assert_eq!(reasons(&group, 0), [by("a", ClaimReason::Unowned), by("a", ClaimReason::Unowned)]);

    let since = group.trace().len();
    group.start("b", config()).await.unwrap();
    group.run_for(2 * MINUTE).await;
    assert_eq!(reasons(&group, since), [by("b", ClaimReason::Stolen(a.clone())), reported("a", "lost to Some(b)")]);

    let since = group.trace().len();
    group.crash("a").await.unwrap();
    group.start("a", config()).await.unwrap();
    group.run_for(2 * MINUTE).await;
    assert_eq!(reasons(&group, since), [by("a", ClaimReason::Reclaimed)]);

    let since = group.trace().len();
    group.crash("a").await.unwrap();
    comes(&group, ABANDONED + LONGEST_CYCLE, |group| held_by(group, "b") == 2).await;
    group.run_for(2 * MINUTE).await;
    assert_eq!(reasons(&group, since), [by("b", ClaimReason::Expired(a))]);

    group.start("a", config()).await.unwrap();
    group.run_for(2 * MINUTE).await;
    let since = group.trace().len();
    group.stop("a").await.unwrap();
    comes(&group, LONGEST_CYCLE, |group| held_by(group, "b") == 2).await;
    group.run_for(2 * MINUTE).await;
    let releasing = reported("a", &format!("releasing: {:?}", ReleaseReason::Shutdown));
    let [first, second] = [reported("a", "released"), by("b", ClaimReason::Released)];
    assert_eq!(reasons(&group, since), [releasing, first, second]);
    assert_eq!(group.moves().last().unwrap().from, b);
}

#[tokio::test(start_paused = true)]
async fn requested_changes_are_reported_as_requested() {
    let mut group = Simulation::new(10, 2);
    group.start("a", config()).await.unwrap();
    balanced(&group, ROUND * 2).await;
    group.run_for(2 * MINUTE).await;
    // The next cycle, which claims the partitions again, is far away.
    let snapshots = group.handle("a").unwrap().snapshots();
    let cycles = snapshots.borrow().cycles;
    comes(&group, 5 * EXPIRY + ROUND, |_| snapshots.borrow().cycles > cycles).await;
    let since = group.trace().len();
    let held = group.handle("a").unwrap().snapshots().borrow().owned.clone();
    let [(first, ownership), (second, other)] = [held.first_key_value(), held.last_key_value()].map(Option::unwrap);
    group.handle("a").unwrap().release(first.clone(), *ownership, MINUTE);
    group.handle("a").unwrap().mark_lost(second.clone(), *other);
    group.run_for(MINUTE / 12).await;
    let releasing = reported("a", &format!("releasing: {:?}", ReleaseReason::Requested));
    let mut events = reasons(&group, since);
    events.sort();
    assert_eq!(events, [reported("a", "lost to None"), reported("a", "released"), releasing]);
}
