//! What a reset would change, decided before anything is written: pure.

use serde::Serialize;
use time::OffsetDateTime;

use super::partition_description::{OwnerDescription, OwnershipState, PartitionDescription, RecordedPosition};
use super::reset::Reset;
use crate::model::{CheckpointRecord, OwnerId, OwnershipRecord, PartitionId, Position};
use crate::source::{BEFORE_EVERYTHING, names_another_event};

/// Why a partition has no event to find.
pub(super) const NO_SUCH_PARTITION: &str = "the event hub has no such partition";

/// Why a position has no offset: the event is missing or cannot be decoded, or the namespace rejects the offset that it
/// reports.
const NO_OFFSET: &str = "its offset is not known, so SDKs that start by the offset cannot continue there";

/// What a reset would change.
///
/// Nothing is written before [`execute`](Self::execute). Its JSON has a `schema`, see
/// [`GroupDescription`](super::describe::GroupDescription).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The name and version of the JSON format.
    pub schema: &'static str,
    /// The changes, in order of their partitions.
    pub changes: Vec<PlannedChange>,
    /// When the event hub was created in which the positions were found.
    #[serde(skip)]
    pub(super) hub_created_at: Option<OffsetDateTime>,
}

impl Plan {
    const SCHEMA: &'static str = "ehcp.plan/1";

    /// Creates the plan of a reset, by what was read.
    pub(super) fn new(reset: &Reset, hub_created_at: Option<OffsetDateTime>, mut changes: Vec<PlannedChange>) -> Self {
        // With `keep_existing`, a checkpoint that its owner writes first stays.
        for change in changes.iter_mut().filter(|_| reset.keep_existing) {
            change.may_advance = false;
        }
        Self { schema: Self::SCHEMA, changes, hub_created_at }
    }

    /// Returns the changes that would write something.
    pub fn writes(&self) -> impl Iterator<Item = &PlannedChange> {
        self.changes.iter().filter(|change| change.effect.writes())
    }
}

/// What a reset would change in one partition.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PlannedChange {
    /// The partition.
    pub partition: PartitionId,
    /// Whether and how it is owned.
    pub state: OwnershipState,
    /// Its live owner.
    pub owner: Option<OwnerDescription>,
    /// The checkpoint as it is. `None` if there is none.
    pub from: Option<RecordedPosition>,
    /// Whether the application keeps its own position. The operator then refuses to write the checkpoint, unless
    /// [`ResetOptions::allow_own_positions`](super::ResetOptions::allow_own_positions) is set.
    pub own_position: bool,
    /// The checkpoint as it would be. `None` if it cannot be set.
    pub to: Option<Position>,
    /// By how many events the checkpoint would move.
    pub delta: Option<i64>,
    /// What would happen.
    pub effect: PlannedEffect,
    /// Why, if the effect needs a reason.
    pub why: Option<String>,
    /// Whether its owner may advance the checkpoint before it is set.
    #[serde(skip)]
    pub(super) may_advance: bool,
}

impl PlannedChange {
    pub(super) fn expected_checkpoint(&self) -> Expected {
        Expected::Planned {
            from: self.from.clone(),
            by: self.owner.as_ref().filter(|_| self.may_advance).map(|owner| (owner.id.clone(), owner.epoch)),
        }
    }
}

/// What a reset would do to one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlannedEffect {
    /// It would be moved.
    Move,
    /// It would be created.
    Create,
    /// It would keep its position and get its missing number.
    Complete,
    /// It would be set to the first available event, because the requested events have expired.
    Expired,
    /// It would be set to the last event, because the partition has none after that.
    BeyondEnd,
    /// It would stay as it is.
    NoChange,
    /// It cannot be set.
    Refused,
}

impl PlannedEffect {
    /// Returns the name, as it is serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Move => "move",
            Self::Create => "create",
            Self::Complete => "complete",
            Self::Expired => "expired",
            Self::BeyondEnd => "beyond_end",
            Self::NoChange => "no_change",
            Self::Refused => "refused",
        }
    }

    /// Returns whether something would be written.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::NoChange | Self::Refused)
    }
}

/// What a checkpoint must be when it is reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Anything.
    Any,
    /// What the plan found. If the partition had a live owner, this owner may have advanced it.
    Planned {
        /// The checkpoint that the plan found, if there was one.
        from: Option<RecordedPosition>,
        /// The live owner and its epoch, which may have advanced it.
        by: Option<(OwnerId, Option<i64>)>,
    },
}

impl Expected {
    /// Returns whether this checkpoint may be reset. `displaced` is the ownership that the operator has replaced: in
    /// another epoch, another operator may have reset the checkpoint.
    pub(super) fn may_replace(&self, found: &CheckpointRecord, displaced: Option<&OwnershipRecord>) -> bool {
        let Self::Planned { from, by } = self else { return true };
        let may_advance = by
            .as_ref()
            .zip(displaced)
            .is_some_and(|((id, epoch), displaced)| displaced.owner.as_ref() == Some(id) && displaced.epoch == *epoch);
        let found = RecordedPosition::from(found);
        let from = from.clone().unwrap_or_default();
        match (from.sequence_number, found.sequence_number) {
            _ if found == from => true,
            (Some(from), Some(found)) => may_advance && found > from,
            (None, _) => may_advance,
            (Some(_), None) => false,
        }
    }
}

/// Returns the change of a checkpoint to a position that was found. `effect` is the effect of the search for it.
pub(super) fn plan_reset(partition: &PartitionDescription, to: Position, effect: PlannedEffect) -> PlannedChange {
    let unchanged = without_change(partition);
    let from = unchanged.from.clone().unwrap_or_default();
    let is_there = from.sequence_number == Some(to.sequence_number);
    let is_elsewhere = from.offset.as_ref().is_some_and(|offset| continues_elsewhere(partition, offset, &to));
    let of_former_hub = partition.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.of_former_hub);
    let is_there_by_offset = from.sequence_number.is_none() && from.offset.as_ref() == Some(&to.offset);
    let clamped = match effect {
        PlannedEffect::Expired => Some("it is before the first available event".to_owned()),
        PlannedEffect::BeyondEnd => Some("it is after the last event".to_owned()),
        _ if to.offset.is_empty() => Some(NO_OFFSET.to_owned()),
        _ => None,
    };
    let (effect, why) = match effect {
        _ if unchanged.from.is_none() => (PlannedEffect::Create, clamped),
        effect if is_there && of_former_hub => {
            (effect, clamped.or_else(|| Some("it was recorded before the event hub was recreated".to_owned())))
        }
        effect if is_there && is_elsewhere => {
            (effect, clamped.or_else(|| Some("its offset belongs to another event".to_owned())))
        }
        _ if is_there && (from.offset.is_some() || to.offset.is_empty()) => (PlannedEffect::NoChange, clamped),
        _ if is_there || is_there_by_offset => {
            (PlannedEffect::Complete, Some("a number of the record is missing".to_owned()))
        }
        effect => (effect, clamped),
    };
    PlannedChange {
        delta: from.sequence_number.map(|from| to.sequence_number.saturating_sub(from)),
        to: Some(to),
        effect,
        why,
        ..unchanged
    }
}

/// Returns whether processing would continue elsewhere after a record with the same number and this offset. That is so
/// if the event hub was recreated. Offsets that are not plain numbers change without a meaning.
fn continues_elsewhere(partition: &PartitionDescription, offset: &str, to: &Position) -> bool {
    if to.offset.is_empty() && offset != BEFORE_EVERYTHING {
        return false;
    }
    let before_first = partition.hub.as_ref().map(|range| range.first.saturating_sub(1));
    match (offset == BEFORE_EVERYTHING, to.offset == BEFORE_EVERYTHING) {
        (true, true) => false,
        (false, false) => names_another_event(offset, &to.offset),
        _ => before_first != Some(to.sequence_number),
    }
}

/// Returns a checkpoint that stays as it is, for this reason.
pub(super) fn plan_no_change(partition: &PartitionDescription, why: &str) -> PlannedChange {
    PlannedChange { why: Some(why.to_owned()), ..without_change(partition) }
}

/// Returns a checkpoint that cannot be reset, because the event hub does not have the partition.
#[cfg(feature = "azure")]
pub(super) fn refuse_unknown(partition: PartitionId) -> PlannedChange {
    PlannedChange {
        partition,
        state: OwnershipState::Unowned,
        owner: None,
        from: None,
        own_position: false,
        to: None,
        delta: None,
        effect: PlannedEffect::Refused,
        why: Some(NO_SUCH_PARTITION.to_owned()),
        may_advance: false,
    }
}

/// Returns a checkpoint that cannot be reset, for this reason.
pub(super) fn plan_refusal(partition: &PartitionDescription, why: String) -> PlannedChange {
    PlannedChange { effect: PlannedEffect::Refused, why: Some(why), ..without_change(partition) }
}

fn without_change(partition: &PartitionDescription) -> PlannedChange {
    let from = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.position.clone());
    PlannedChange {
        partition: partition.id.clone(),
        state: partition.state,
        owner: partition.owner.clone().filter(|_| partition.state.is_live()),
        to: from.as_ref().and_then(RecordedPosition::complete),
        from,
        own_position: partition.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.own_position),
        delta: None,
        effect: PlannedEffect::NoChange,
        why: None,
        may_advance: partition.state.is_live() && partition.state != OwnershipState::Operator,
    }
}
