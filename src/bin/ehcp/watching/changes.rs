//! What changed in a group between two looks: pure.

use std::collections::BTreeMap;

use eventhubs_checkpoint::admin::{GroupDescription, OwnershipState, PartitionDescription};
use eventhubs_checkpoint::{OwnerId, PartitionId};
use serde::Serialize;
use time::OffsetDateTime;

/// What happened to a partition or to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// A member took a partition that had no owner.
    Claimed,
    /// A member released a partition for another one, which took it.
    HandedOver,
    /// A member took a partition whose owner did not release it.
    TakenOver,
    /// An owner released a partition.
    Released,
    /// An owner did not renew in time.
    Expired,
    /// The checkpoint went back.
    WentBack,
    /// The checkpoint went to the start of the partition, or is gone.
    Removed,
    /// A member appeared.
    Joined,
    /// A member ended.
    Left,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The time of the look that found it.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub kind: ChangeKind,
    pub partition: Option<PartitionId>,
    /// The owner before, or the member that left.
    pub from: Option<OwnerId>,
    /// The owner after, or the member that joined.
    pub to: Option<OwnerId>,
    /// The checkpoints before and after, if the checkpoint changed in an unusual way.
    pub checkpoints: Option<(Option<i64>, Option<i64>)>,
}

/// Returns what changed between two looks at a group.
pub fn between(before: &GroupDescription, after: &GroupDescription) -> Vec<Change> {
    let at = after.taken_at;
    let by_id: BTreeMap<_, _> = before.partitions.iter().map(|partition| (&partition.id, partition)).collect();
    let mut changes = members(before, after);
    for partition in &after.partitions {
        let Some(before) = by_id.get(&partition.id) else { continue };
        changes.extend(ownership(before, partition, at));
        changes.extend(checkpoint(before, partition, at));
    }
    changes
}

fn members(before: &GroupDescription, after: &GroupDescription) -> Vec<Change> {
    let has = |group: &GroupDescription, id: &OwnerId| group.members.iter().any(|member| member.id == *id);
    let change = |kind, from, to| Change { at: after.taken_at, kind, partition: None, from, to, checkpoints: None };
    let left = before.members.iter().map(|member| &member.id).filter(|id| !has(after, id));
    let joined = after.members.iter().map(|member| &member.id).filter(|id| !has(before, id));
    let left = left.map(|id| change(ChangeKind::Left, Some(id.clone()), None));
    left.chain(joined.map(|id| change(ChangeKind::Joined, None, Some(id.clone())))).collect()
}

fn ownership(before: &PartitionDescription, after: &PartitionDescription, at: OffsetDateTime) -> Option<Change> {
    let (from, to) = (live_owner(before), live_owner(after));
    let kind = match (from, to) {
        (Some(one), Some(other)) if one == other => return None,
        (None, None) => return None,
        (Some(_), Some(_)) if before.state == OwnershipState::HandingOver => ChangeKind::HandedOver,
        (Some(_), Some(_)) => ChangeKind::TakenOver,
        (None, Some(_)) if before.state == OwnershipState::Expired => ChangeKind::TakenOver,
        (None, Some(_)) => ChangeKind::Claimed,
        (Some(_), None) if after.state == OwnershipState::Expired => ChangeKind::Expired,
        (Some(_), None) => ChangeKind::Released,
    };
    // The record of an expired owner still names it.
    let from = from.or_else(|| before.owner.as_ref().map(|owner| &owner.id)).cloned();
    Some(Change { at, kind, partition: Some(after.id.clone()), from, to: to.cloned(), checkpoints: None })
}

fn live_owner(partition: &PartitionDescription) -> Option<&OwnerId> {
    partition.owner.as_ref().filter(|_| partition.state.is_live()).map(|owner| &owner.id)
}

fn checkpoint(before: &PartitionDescription, after: &PartitionDescription, at: OffsetDateTime) -> Option<Change> {
    let number = |partition: &PartitionDescription| partition.checkpoint.as_ref()?.position.sequence_number;
    let (from, to) = (number(before), number(after));
    let kind = match (from, to) {
        (Some(_), None) => ChangeKind::Removed,
        (Some(from), Some(to)) if to < from => ChangeKind::WentBack,
        _ => return None,
    };
    let owner = live_owner(after).cloned();
    Some(Change { at, kind, partition: Some(after.id.clone()), from: None, to: owner, checkpoints: Some((from, to)) })
}
