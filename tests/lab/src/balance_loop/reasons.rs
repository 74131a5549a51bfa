//! Everything that happens is told with its reason.

use crate::sim::Simulation;
use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::balancer::ClaimReason;
use eventhubs_checkpoint::balancer::{OwnershipEvent, ReleaseReason};

use super::group::{ABANDONED, LONGEST_CYCLE, MINUTE, ROUND, balanced, comes, config, held_by, told};

/// The events since there were so many entries, without partitions and tenures.
fn reasons(group: &Simulation, since: usize) -> Vec<(String, String)> {
    let short = |event| match event {
        OwnershipEvent::Claimed { reason, .. } => format!("{reason:?}"),
        OwnershipEvent::Lost { by, .. } => format!("lost to {by:?}"),
        OwnershipEvent::Releasing { reason, .. } => format!("releasing: {reason:?}"),
        OwnershipEvent::Released { .. } => "released".to_owned(),
        other => format!("{other:?}"),
    };
    told(group, since).into_iter().map(|(_, owner, event)| (owner, short(event))).collect()
}

fn by(owner: &str, what: impl std::fmt::Debug) -> (String, String) {
    (owner.to_owned(), format!("{what:?}"))
}

fn said(owner: &str, what: &str) -> (String, String) {
    (owner.to_owned(), what.to_owned())
}

#[tokio::test(start_paused = true)]
async fn claims_losses_and_releases_say_why_and_by_whom() {
    let [a, b] = ["a", "b"].map(|name| OwnerId::new(name).unwrap());
    let mut group = Simulation::new(9, 2);
    group.start("a", config()).await.unwrap();
    balanced(&group, ROUND * 2).await;
    group.run_for(2 * MINUTE).await;
    assert_eq!(reasons(&group, 0), [by("a", ClaimReason::Unowned), by("a", ClaimReason::Unowned)]);

    let since = group.trace().len();
    group.start("b", config()).await.unwrap();
    group.run_for(2 * MINUTE).await;
    assert_eq!(reasons(&group, since), [by("b", ClaimReason::Stolen(a.clone())), said("a", "lost to Some(b)")]);

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
    let releasing = said("a", &format!("releasing: {:?}", ReleaseReason::Shutdown));
    let [first, second] = [said("a", "released"), by("b", ClaimReason::Released)];
    assert_eq!(reasons(&group, since), [releasing, first, second]);
    assert_eq!(group.moves().last().unwrap().from, b);
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_is_told_as_such() {
    let mut group = Simulation::new(10, 2);
    group.start("a", config()).await.unwrap();
    balanced(&group, ROUND * 2).await;
    group.run_for(2 * MINUTE).await;
    let since = group.trace().len();
    let held = group.handle("a").unwrap().snapshots().borrow().owned.clone();
    let [(first, ownership), (second, other)] = [held.first_key_value(), held.last_key_value()].map(Option::unwrap);
    group.handle("a").unwrap().release(first.clone(), *ownership, MINUTE);
    group.handle("a").unwrap().mark_lost(second.clone(), *other);
    group.run_for(MINUTE / 12).await;
    let releasing = said("a", &format!("releasing: {:?}", ReleaseReason::Requested));
    let mut told = reasons(&group, since);
    told.sort();
    assert_eq!(told, [said("a", "lost to None"), said("a", "released"), releasing]);
}
