//! What changed between two looks.

use std::time::Duration as StdDuration;

use eventhubs_checkpoint::admin::{Operator, ResetOptions};
use eventhubs_checkpoint::{Pause, Position};
use tokio::time::sleep;

use super::super::history::GroupHistory;
use super::super::tests::*;
use super::*;

/// Returns the only change, with the owners before and after.
fn only(before: &GroupDescription, after: &GroupDescription) -> (ChangeKind, Option<String>, Option<String>) {
    let changes = find_changes(before, after);
    let [GroupChange { kind, from, to, partition, at, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((partition.as_ref(), *at), (Some(&zero()), after.taken_at));
    let text = |id: &Option<OwnerId>| id.as_ref().map(ToString::to_string);
    (*kind, text(from), text(to))
}

fn ids(from: &str, to: &str) -> (Option<String>, Option<String>) {
    let id = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    (id(from), id(to))
}

#[track_caller]
fn assert_change(before: &GroupDescription, after: &GroupDescription, kind: ChangeKind, from: &str, to: &str) {
    let (from, to) = ids(from, to);
    assert_eq!(only(before, after), (kind, from, to));
}

fn expire(partition: &mut PartitionDescription) {
    partition.state = OwnershipState::Expired;
    partition.owner.as_mut().unwrap().expires_in = StdDuration::ZERO;
}

fn release(partition: &mut PartitionDescription) {
    partition.state = OwnershipState::Released;
    partition.owner = None;
}

#[tokio::test(start_paused = true)]
async fn nothing_changes_while_an_owner_works() {
    let before = look().await;
    assert_eq!(find_changes(&before, &before), []);
    assert_eq!(find_changes(&before, &later(&before, 2, |partition| advance(partition, 15, 30))), []);
}

#[tokio::test(start_paused = true)]
async fn a_dead_owner_expires_and_is_replaced() {
    let before = look().await;
    let expired = later(&before, 61, expire);
    assert_change(&before, &expired, ChangeKind::Expired, "a", "");
    let taken = later(&expired, 2, |partition| {
        partition.state = OwnershipState::Owned;
        give_to(partition, "b");
    });
    assert_change(&expired, &taken, ChangeKind::TakenOver, "a", "b");
    let back = later(&expired, 2, |partition| partition.state = OwnershipState::Owned);
    assert_change(&expired, &back, ChangeKind::Claimed, "a", "a");
    assert_change(&expired, &later(&expired, 2, release), ChangeKind::Released, "a", "");
}

/// The lease ended between the looks, so the owner did not release.
#[tokio::test(start_paused = true)]
async fn an_expiry_between_two_looks_is_a_takeover() {
    let before = look().await;
    let taken = later(&before, 70, |partition| give_to(partition, "b"));
    assert_change(&before, &taken, ChangeKind::TakenOver, "a", "b");
}

/// The lease was valid for 60 s. A busy storage answers the later look with the time at which it received the request.
#[tokio::test(start_paused = true)]
async fn a_look_with_a_late_response_shows_a_takeover() {
    let before = look().await;
    let mut taken = later(&before, 61, |partition| give_to(partition, "b"));
    taken.taken_at = before.taken_at + time::Duration::seconds(50);
    assert_change(&before, &taken, ChangeKind::TakenOver, "a", "b");
}

#[tokio::test(start_paused = true)]
async fn a_quick_handoff_is_seen_as_one() {
    let before = look().await;
    let taken = later(&before, 2, |partition| give_to(partition, "b"));
    assert_change(&before, &taken, ChangeKind::HandedOver, "a", "b");
}

/// The lease that the first look showed has ended, but the owner renewed it after that look.
#[tokio::test(start_paused = true)]
async fn an_active_owner_has_handed_over() {
    let mut before = look().await;
    let mut other = before.partitions[0].clone();
    other.id = 1.into();
    before.partitions.push(other);
    let taken = later(&before, 63, |partition| give_to(partition, "b"));
    assert_change(&before, &taken, ChangeKind::HandedOver, "a", "b");
    let mut released = taken.clone();
    release(&mut released.partitions[1]);
    let mut expired = taken.clone();
    expire(&mut expired.partitions[1]);
    let mut restarted = taken.clone();
    restarted.partitions[1].owner.as_mut().unwrap().since = Some(taken.taken_at);
    for (after, kind) in
        [(released, ChangeKind::HandedOver), (expired, ChangeKind::TakenOver), (restarted, ChangeKind::TakenOver)]
    {
        assert_eq!(find_changes(&before, &after)[0].kind, kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handoff_in_two_looks_is_one_handoff() {
    let before = look().await;
    let asked = later(&before, 2, |partition| {
        partition.state = OwnershipState::HandingOver;
        partition.owner.as_mut().unwrap().handoff_to = Some(owner("b"));
    });
    assert_eq!(find_changes(&before, &asked), []);
    let released = later(&asked, 2, release);
    assert_change(&asked, &released, ChangeKind::Released, "a", "b");
    let taken = later(&before, 6, |partition| give_to(partition, "b"));
    assert_change(&released, &taken, ChangeKind::Claimed, "", "b");

    let mut history = GroupHistory::default();
    let kinds: Vec<_> = [before, asked, released, taken].map(|look| history.add_look(look, true)).concat();
    let kinds: Vec<_> = kinds.iter().map(|change| (change.kind, change.from.clone(), change.to.clone())).collect();
    let a = Some(owner("a"));
    let b = Some(owner("b"));
    assert_eq!(kinds, [(ChangeKind::Released, a.clone(), b.clone()), (ChangeKind::HandedOver, a, b)]);
}

#[tokio::test(start_paused = true)]
async fn partitions_without_earlier_record_are_claimed() {
    let after = look().await;
    let mut before = after.clone();
    before.partitions.clear();
    assert_change(&before, &after, ChangeKind::Claimed, "", "a");
    assert_eq!(find_changes(&after, &before), [], "the event hub is missing");
}

#[tokio::test(start_paused = true)]
async fn members_join_and_leave() {
    let before = look().await;
    let group = Group::new().await;
    let mut after = group.look(19).await;
    after.partitions.clone_from(&before.partitions);
    let kinds = |changes: Vec<GroupChange>| changes.into_iter().map(|it| (it.kind, it.from, it.to)).collect::<Vec<_>>();
    assert_eq!(kinds(find_changes(&before, &after)), [(ChangeKind::Left, Some(owner("a")), None)]);
    assert_eq!(kinds(find_changes(&after, &before)), [(ChangeKind::Joined, None, Some(owner("a")))]);
}

#[tokio::test(start_paused = true)]
async fn checkpoints_that_go_back_or_vanish_are_seen() {
    let before = look().await;
    let back = later(&before, 2, |partition| advance(partition, 3, 19));
    assert_eq!(find_changes(&before, &back)[0].checkpoints, Some((Some(9), Some(3))));
    assert_change(&before, &back, ChangeKind::WentBack, "", "a");
    let gone = later(&before, 2, |partition| partition.checkpoint = None);
    assert_change(&before, &gone, ChangeKind::Removed, "", "a");
    // Some SDKs write only the offset.
    let position = |partition: &mut PartitionDescription| {
        partition.checkpoint.as_mut().unwrap().position.sequence_number = None;
    };
    assert_eq!(find_changes(&before, &later(&before, 2, position)), []);
}

#[tokio::test(start_paused = true)]
async fn a_pause_begins_changes_and_ends() {
    let before = look().await;
    let with = |pause| later(&before, 2, |partition| partition.checkpoint.as_mut().unwrap().paused = Some(pause));
    let since = before.taken_at;
    let paused = with(Pause::new(since, None, Some("a migration")));
    let longer = with(Pause::new(since, Some(since + time::Duration::HOUR), Some("another one")));
    let parked = with(Pause::after_failure(since, "no database"));
    for (before, after, kind, reason) in [
        (&before, &paused, ChangeKind::Paused, "a migration"),
        (&paused, &longer, ChangeKind::Paused, "another one"),
        (&before, &parked, ChangeKind::Parked, "no database"),
        (&paused, &before, ChangeKind::Resumed, "a migration"),
    ] {
        let changes = find_changes(before, after);
        let [GroupChange { kind: found, pause: Some(pause), .. }] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((*found, pause.reason.as_deref()), (kind, Some(reason)));
    }
    assert_eq!(find_changes(&paused, &later(&paused, 2, |_| {})), []);
}

/// With real records: the owner, its successor, and a reset by an operator.
#[tokio::test(start_paused = true)]
async fn a_reset_of_real_records_is_seen() {
    let group = Group::new().await;
    group.owned("a", 9).await;
    let mut history = GroupHistory::default();
    history.add_look(group.look(19).await, true);
    sleep(StdDuration::from_secs(70)).await;
    assert_eq!(kinds_of(history.add_look(group.look(19).await, true)), [ChangeKind::Left, ChangeKind::Expired]);
    group.owned("b", 12).await;
    assert_eq!(kinds_of(history.add_look(group.look(19).await, true)), [ChangeKind::Joined, ChangeKind::TakenOver]);
    let operator = Operator::connect(group.container.clone(), Group::named()).await.unwrap();
    operator.reset(vec![(zero(), Position::new(15, "15"))], &ResetOptions::default()).await.unwrap();
    let changes = history.add_look(group.look(19).await, true);
    let reset = changes.iter().find(|change| change.kind == ChangeKind::Reset).unwrap_or_else(|| panic!("{changes:?}"));
    assert_eq!((reset.checkpoints, reset.to.as_ref()), (Some((Some(12), Some(15))), Some(operator.id())));
}

fn kinds_of(changes: Vec<GroupChange>) -> Vec<ChangeKind> {
    changes.into_iter().map(|change| change.kind).collect()
}
