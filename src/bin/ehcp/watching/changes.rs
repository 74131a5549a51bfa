//! What changed in a group between two looks: pure.

use std::collections::{BTreeMap, BTreeSet};

use eventhubs_checkpoint::admin::describe::{GroupDescription, OwnershipState, PartitionDescription, Sdk};
use eventhubs_checkpoint::{OwnerId, PartitionId, Pause};
use serde::Serialize;
use time::{Duration, OffsetDateTime};

/// How the ids of operators begin.
const OPERATOR_PREFIX: &str = "operator-";

/// How much earlier than the end of a lease a claim after that end may seem to be: records and responses state times in
/// whole seconds, and the claimer and the look know the server's time from different responses.
const TIME_TOLERANCE: Duration = Duration::seconds(2);

/// What happened to a partition or to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// A member took a partition that had no owner, or its own one after its lease had expired.
    Claimed,
    /// A member released a partition for another one, which took it. That is concluded if the lease was still valid at
    /// the time of the claim: members of this crate do not take partitions from each other. It is also concluded if the
    /// member kept or released another partition meanwhile, so that it has renewed since the look before.
    HandedOver,
    /// A member or an operator took a partition whose owner did not release it.
    TakenOver,
    /// An owner released a partition.
    Released,
    /// An owner did not renew in time.
    Expired,
    /// An operator set the checkpoint.
    Reset,
    /// The checkpoint went back.
    WentBack,
    /// The checkpoint is gone.
    Removed,
    /// An operator paused the partition, or changed its pause.
    Paused,
    /// The handler failed, and its owner parked the partition.
    Parked,
    /// The pause ended.
    Resumed,
    /// A member appeared.
    Joined,
    /// A member ended.
    Left,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupChange {
    /// The time of the look that found it.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub kind: ChangeKind,
    pub partition: Option<PartitionId>,
    /// The owner before, or the member that left.
    pub from: Option<OwnerId>,
    /// The owner after, or the member that joined. Of a release: the member that requested the partition.
    pub to: Option<OwnerId>,
    /// The checkpoints before and after, if the checkpoint changed in an unusual way.
    pub checkpoints: Option<(Option<i64>, Option<i64>)>,
    /// The pause that began, or that ended.
    pub pause: Option<Pause>,
}

impl GroupChange {
    /// Creates a change without any details.
    fn new(at: OffsetDateTime, kind: ChangeKind) -> Self {
        Self { at, kind, partition: None, from: None, to: None, checkpoints: None, pause: None }
    }
}

/// Returns what changed between two looks at a group.
///
/// A partition that only the second look shows had no record before. One that only the first look shows did not change:
/// without the event hub, the looks show the partitions that have a record.
pub fn find_changes(before: &GroupDescription, after: &GroupDescription) -> Vec<GroupChange> {
    let by_id: BTreeMap<_, _> = before.partitions.iter().map(|partition| (&partition.id, partition)).collect();
    let times = (before.taken_at, after.taken_at);
    let active = active_owners(&by_id, after, before.taken_at);
    let mut changes = member_changes(before, after);
    for partition in &after.partitions {
        let before = by_id.get(&partition.id).copied();
        changes.extend(ownership_change(before, partition, times, &active));
        changes.extend(before.and_then(|before| checkpoint_change(before, partition, after.taken_at)));
        changes.extend(pause_change(before, partition, after.taken_at));
    }
    changes
}

fn member_changes(before: &GroupDescription, after: &GroupDescription) -> Vec<GroupChange> {
    let ids_before: BTreeSet<_> = before.members.iter().map(|member| &member.id).collect();
    let ids_after: BTreeSet<_> = after.members.iter().map(|member| &member.id).collect();
    let left = ids_before.difference(&ids_after).map(|id| (ChangeKind::Left, Some((*id).clone()), None));
    let joined = ids_after.difference(&ids_before).map(|id| (ChangeKind::Joined, None, Some((*id).clone())));
    left.chain(joined)
        .map(|(kind, from, to)| GroupChange { from, to, ..GroupChange::new(after.taken_at, kind) })
        .collect()
}

fn ownership_change(
    before: Option<&PartitionDescription>,
    after: &PartitionDescription,
    (before_at, at): (OffsetDateTime, OffsetDateTime),
    active: &BTreeSet<&OwnerId>,
) -> Option<GroupChange> {
    let state = before.map_or(OwnershipState::Unowned, |before| before.state);
    let from = before.and_then(live_owner);
    let to = live_owner(after);
    // The record of an expired owner still names it.
    let last = before.and_then(|before| before.owner.as_ref());
    let kind = match (from, to) {
        (Some(one), Some(other)) if one == other => return None,
        (Some(_), Some(_)) if was_handed_over(before, after, before_at, active) => ChangeKind::HandedOver,
        (None, Some(to)) if last.is_none_or(|last| last.id == *to) => ChangeKind::Claimed,
        (_, Some(_)) => ChangeKind::TakenOver,
        (Some(_), None) if after.state == OwnershipState::Expired => ChangeKind::Expired,
        (Some(_), None) => ChangeKind::Released,
        (None, None) if state == OwnershipState::Expired && after.owner.is_none() => ChangeKind::Released,
        (None, None) => return None,
    };
    let to = match kind {
        ChangeKind::Released => last.and_then(|last| last.handoff_to.as_ref()),
        _ => to,
    };
    Some(GroupChange {
        partition: Some(after.id.clone()),
        from: last.map(|last| last.id.clone()),
        to: to.cloned(),
        ..GroupChange::new(at, kind)
    })
}

/// Returns whether the owner released the partition for the next one between two looks.
///
/// The time of the claim decides, not the time of the later look. A busy storage may date its response when it receives
/// the request and read the records later, so the listing can show claims that are newer than its date.
fn was_handed_over(
    before: Option<&PartitionDescription>,
    after: &PartitionDescription,
    before_at: OffsetDateTime,
    active: &BTreeSet<&OwnerId>,
) -> bool {
    let (Some(before), Some(to)) = (before, &after.owner) else { return false };
    let Some(from) = &before.owner else { return false };
    let was_requested = before.state == OwnershipState::HandingOver && from.handoff_to.as_ref() == Some(&to.id);
    let are_of_this_crate = from.sdk == Sdk::ThisCrate && to.sdk == Sdk::ThisCrate;
    let was_valid = to.since.is_some_and(|claimed_at| claimed_at + TIME_TOLERANCE < before_at + from.expires_in);
    let is_by_member = are_of_this_crate && after.state != OwnershipState::Operator;
    was_requested || is_by_member && (was_valid || active.contains(&from.id))
}

/// Returns the owners that kept a partition from one look to the other, or released one: their leases did not expire in
/// between. If the looks are as far apart as a lease is long, its end at the first look does not show that.
fn active_owners<'a>(
    before: &BTreeMap<&PartitionId, &'a PartitionDescription>,
    after: &GroupDescription,
    before_at: OffsetDateTime,
) -> BTreeSet<&'a OwnerId> {
    let is_kept = |partition: &PartitionDescription, owner: &OwnerId| {
        let since = partition.owner.as_ref().and_then(|owner| owner.since);
        live_owner(partition) == Some(owner) && since.is_some_and(|since| since <= before_at)
    };
    let both = after.partitions.iter().filter_map(|after| Some((live_owner(before.get(&after.id)?)?, after)));
    both.filter(|(owner, after)| after.state == OwnershipState::Released || is_kept(after, owner))
        .map(|(owner, _)| owner)
        .collect()
}

fn live_owner(partition: &PartitionDescription) -> Option<&OwnerId> {
    partition.owner.as_ref().filter(|_| partition.state.is_live()).map(|owner| &owner.id)
}

fn checkpoint_change(
    before: &PartitionDescription,
    after: &PartitionDescription,
    at: OffsetDateTime,
) -> Option<GroupChange> {
    let from = before.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.sequence_number);
    let to = after.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.sequence_number);
    let by = after.checkpoint.as_ref().and_then(|checkpoint| checkpoint.owner.as_ref());
    let is_by_operator = by.is_some_and(|by| by.as_str().starts_with(OPERATOR_PREFIX));
    let kind = match (from, to) {
        _ if before.checkpoint.is_some() && after.checkpoint.is_none() => ChangeKind::Removed,
        _ if is_by_operator && from != to => ChangeKind::Reset,
        (Some(from), Some(to)) if to < from => ChangeKind::WentBack,
        _ => return None,
    };
    Some(GroupChange {
        partition: Some(after.id.clone()),
        to: if kind == ChangeKind::Reset { by } else { live_owner(after) }.cloned(),
        checkpoints: Some((from, to)),
        ..GroupChange::new(at, kind)
    })
}

fn pause_change(
    before: Option<&PartitionDescription>,
    after: &PartitionDescription,
    at: OffsetDateTime,
) -> Option<GroupChange> {
    let earlier = before.and_then(PartitionDescription::active_pause);
    let pause = after.active_pause();
    let kind = match pause {
        _ if pause == earlier => return None,
        None => ChangeKind::Resumed,
        Some(pause) if pause.parked => ChangeKind::Parked,
        Some(_) => ChangeKind::Paused,
    };
    Some(GroupChange {
        partition: Some(after.id.clone()),
        pause: pause.or(earlier).cloned(),
        ..GroupChange::new(at, kind)
    })
}

#[cfg(test)]
mod tests;
