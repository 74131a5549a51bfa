//! What a reset would change, decided before anything is written: pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::description::{
    GroupDescription, OwnerDescription, OwnershipState, PartitionDescription, PartitionRange, RecordedPosition,
};
use crate::model::{CheckpointRecord, OwnerId, OwnershipRecord, PartitionId, Position};
use crate::processor::StartPosition;

/// The offset of the position before all events.
pub(super) const BEFORE_EVERYTHING: &str = "-1";

/// Which checkpoints to set, and where to. See [`Operator::plan`](super::Operator::plan).
#[derive(Clone, Debug)]
#[must_use = "nothing is planned yet"]
pub struct Reset {
    pub(super) target: ResetTarget,
    pub(super) partitions: Option<BTreeSet<PartitionId>>,
    pub(super) keep_existing: bool,
    pub(super) clamped: bool,
}

/// Where to set a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetTarget {
    /// To where this start is.
    Start(StartPosition),
    /// By this many events, forward or backward.
    ShiftBy(i64),
    /// To where it is, so that a missing number of the record is written.
    Current,
    /// To a position for each partition. Other partitions stay as they are.
    Positions(BTreeMap<PartitionId, RecordedPosition>),
}

impl Reset {
    /// Describes a reset of all partitions.
    pub fn to(target: ResetTarget) -> Self {
        Self { target, partitions: None, keep_existing: false, clamped: true }
    }

    /// Limits the reset to these partitions. Default: all.
    pub fn with_partitions(mut self, partitions: impl IntoIterator<Item = PartitionId>) -> Self {
        self.partitions = Some(partitions.into_iter().collect());
        self
    }

    /// Sets whether partitions that have a checkpoint stay as they are. Default false.
    pub fn with_keep_existing(mut self, keep_existing: bool) -> Self {
        self.keep_existing = keep_existing;
        self
    }

    /// Sets whether a position outside of the partition's range is moved to its nearest end. Default true. If false,
    /// such a position is written as it is. It must then have both numbers, as in
    /// [`ResetTarget::Positions`].
    pub fn with_clamped(mut self, clamped: bool) -> Self {
        self.clamped = clamped;
        self
    }
}

impl Reset {
    /// Returns the partitions that it names. They exist for a group without the event hub, even without a record.
    pub(super) fn named(&self) -> BTreeSet<PartitionId> {
        let positions = match &self.target {
            ResetTarget::Positions(positions) => Some(positions),
            _ => None,
        };
        positions.into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}

/// What a reset would change.
///
/// Nothing is written before [`execute`](Self::execute). Its JSON has a `schema`, see
/// [`GroupDescription`](super::GroupDescription).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The name and version of the JSON format.
    pub schema: &'static str,
    /// The changes, in order of their partitions.
    pub changes: Vec<PlannedChange>,
}

/// What a reset would change in one partition.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PlannedChange {
    /// The partition.
    pub partition: PartitionId,
    /// Its live owner.
    pub owner: Option<OwnerDescription>,
    /// The checkpoint as it is. `None` if there is none.
    pub from: Option<RecordedPosition>,
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

/// What a reset would do to one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlannedEffect {
    /// It would be moved.
    Move,
    /// It would be created.
    Create,
    /// Its position would stay, and a missing number be added.
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

impl Plan {
    const SCHEMA: &'static str = "ehcp.plan/1";

    pub(super) fn of(reset: &Reset, mut changes: Vec<PlannedChange>) -> Self {
        for change in &mut changes {
            // A checkpoint that its owner writes first stays.
            change.may_advance &= !reset.keep_existing;
        }
        Self { schema: Self::SCHEMA, changes }
    }

    /// Returns the changes that would write something.
    pub fn writes(&self) -> impl Iterator<Item = &PlannedChange> {
        self.changes.iter().filter(|change| change.effect.writes())
    }
}

/// What a checkpoint must be when it is set.
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
    /// Returns whether this checkpoint may be set. `displaced` is the ownership that the operator has replaced: in
    /// another epoch, another operator may have set the checkpoint.
    pub(super) fn permits(&self, found: &CheckpointRecord, displaced: Option<&OwnershipRecord>) -> bool {
        let Self::Planned { from, by } = self else { return true };
        let is_planned_owner = |seen: &OwnershipRecord| {
            by.as_ref().is_some_and(|(id, epoch)| seen.owner.as_ref() == Some(id) && seen.epoch == *epoch)
        };
        let may_advance = displaced.is_some_and(is_planned_owner);
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

impl PlannedChange {
    pub(super) fn expected(&self) -> Expected {
        let by = self.owner.as_ref().filter(|_| self.may_advance).map(|owner| (owner.id.clone(), owner.epoch));
        Expected::Planned { from: self.from.clone(), by }
    }
}

/// A requested position, before the offset of its event is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The position is known.
    At(Position, PlannedEffect),
    /// The event at this start must be found.
    Find(StartPosition, PlannedEffect),
    /// The checkpoint stays as it is.
    Keep(&'static str),
    /// The checkpoint cannot be set.
    Refuse(String),
}

/// Returns where the checkpoint of a partition is to be set, without its clamped position's offset. The effect is that
/// of a clamped position, or [`PlannedEffect::Move`].
pub(super) fn wanted(reset: &Reset, partition: &PartitionDescription) -> Wanted {
    let current = partition.checkpoint.as_ref();
    if reset.keep_existing && current.is_some() {
        return Wanted::Keep("it has a checkpoint");
    }
    let range = partition.hub.as_ref();
    match &reset.target {
        ResetTarget::Start(StartPosition::AfterSequenceNumber(number)) => within(*number, range),
        ResetTarget::Start(start) => Wanted::Find(start.clone(), PlannedEffect::Move),
        ResetTarget::ShiftBy(events) => match current.and_then(|current| current.position.sequence_number) {
            Some(number) => within(number.saturating_add(*events), range),
            None => Wanted::Refuse("there is no sequence number to shift".to_owned()),
        },
        ResetTarget::Current => match current {
            Some(current) => recorded(&current.position, range, reset.clamped),
            None => Wanted::Keep("it has no checkpoint"),
        },
        ResetTarget::Positions(positions) => match positions.get(&partition.id) {
            Some(position) => recorded(position, range, reset.clamped),
            None => Wanted::Keep("no position is given"),
        },
    }
}

/// Returns a position whose numbers are given.
fn recorded(position: &RecordedPosition, range: Option<&PartitionRange>, clamped: bool) -> Wanted {
    let (number, offset) = (position.sequence_number, position.offset.as_deref().filter(|offset| !offset.is_empty()));
    match (number, offset, range) {
        (None, None, _) => Wanted::Keep("no position is given"),
        (Some(number), Some(offset), None) => Wanted::At(Position::new(number, offset), PlannedEffect::Move),
        (Some(number), Some(offset), Some(range)) if !clamped || holds(range, number) => {
            Wanted::At(Position::new(number, offset), PlannedEffect::Move)
        }
        (Some(number), _, Some(range)) => within(number, Some(range)),
        (None, Some(offset), Some(_)) => {
            Wanted::Find(StartPosition::AfterOffset(offset.to_owned()), PlannedEffect::Move)
        }
        _ => Wanted::Refuse("a number is missing, which only the event hub knows".to_owned()),
    }
}

/// Returns whether a checkpoint at this number is in the range, so that nothing is skipped or missing after it.
fn holds(range: &PartitionRange, number: i64) -> bool {
    number >= range.first.saturating_sub(1) && range.last.map_or(number == -1, |last| number <= last)
}

/// Returns the start after an event, or after the nearest one that a checkpoint can have.
fn within(number: i64, range: Option<&PartitionRange>) -> Wanted {
    let Some(range) = range else {
        return Wanted::Refuse("the event hub is needed to find the event".to_owned());
    };
    if holds(range, number) {
        return Wanted::Find(StartPosition::AfterSequenceNumber(number), PlannedEffect::Move);
    }
    if number < range.first {
        return Wanted::Find(StartPosition::Earliest, PlannedEffect::Expired);
    }
    Wanted::Find(StartPosition::Latest, PlannedEffect::BeyondEnd)
}

/// Returns the change of a checkpoint to a position that was found. `effect` is that of [`wanted`].
pub(super) fn change(partition: &PartitionDescription, to: Position, effect: PlannedEffect) -> PlannedChange {
    let kept = unchanged(partition);
    let from = kept.from.clone().unwrap_or_default();
    let is_there = from.sequence_number == Some(to.sequence_number);
    let is_elsewhere = from.offset.as_ref().is_some_and(|offset| continues_elsewhere(partition, offset, &to));
    let is_there_by_offset = from.sequence_number.is_none() && from.offset.as_ref() == Some(&to.offset);
    let clamped = match effect {
        PlannedEffect::Expired => Some("the requested events have expired".to_owned()),
        PlannedEffect::BeyondEnd => Some("the partition has no such event yet".to_owned()),
        _ => None,
    };
    let (effect, why) = match effect {
        _ if kept.from.is_none() => (PlannedEffect::Create, clamped),
        effect if is_there && is_elsewhere => {
            (effect, clamped.or_else(|| Some("its offset is that of another event".to_owned())))
        }
        _ if is_there && from.offset.is_some() => (PlannedEffect::NoChange, clamped),
        _ if is_there || is_there_by_offset => {
            (PlannedEffect::Complete, Some("a number of the record is missing".to_owned()))
        }
        effect => (effect, clamped),
    };
    let delta = from.sequence_number.map(|from| to.sequence_number.saturating_sub(from));
    PlannedChange { to: Some(to), delta, effect, why, ..kept }
}

/// Returns whether processing would continue elsewhere after a record with the same number and this offset. That is so
/// if the event hub was created again. Offsets that are not plain numbers change without a meaning.
fn continues_elsewhere(partition: &PartitionDescription, offset: &str, to: &Position) -> bool {
    let before_first = partition.hub.as_ref().map(|range| range.first.saturating_sub(1));
    match (offset == BEFORE_EVERYTHING, to.offset == BEFORE_EVERYTHING) {
        (true, true) => false,
        (false, false) => names_another_event(offset, &to.offset),
        _ => before_first != Some(to.sequence_number),
    }
}

/// Returns whether two offsets for one sequence number show that they belong to different events.
pub(super) fn names_another_event(one: &str, other: &str) -> bool {
    let plain = |offset: &str| offset.bytes().all(|byte| byte.is_ascii_digit()).then(|| offset.parse::<u64>().ok())?;
    plain(one).zip(plain(other)).is_some_and(|(one, other)| one != other)
}

/// Returns a checkpoint that stays as it is, for this reason.
pub(super) fn kept(partition: &PartitionDescription, why: &str) -> PlannedChange {
    PlannedChange { why: Some(why.to_owned()), ..unchanged(partition) }
}

/// Returns a checkpoint that cannot be set, for this reason.
pub(super) fn refused(partition: &PartitionDescription, why: String) -> PlannedChange {
    PlannedChange { effect: PlannedEffect::Refused, why: Some(why), ..unchanged(partition) }
}

fn unchanged(partition: &PartitionDescription) -> PlannedChange {
    let from = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.position.clone());
    PlannedChange {
        partition: partition.id.clone(),
        owner: partition.owner.clone().filter(|_| partition.state.is_live()),
        to: from.as_ref().and_then(RecordedPosition::complete),
        from,
        delta: None,
        effect: PlannedEffect::NoChange,
        why: None,
        may_advance: partition.state.is_live() && partition.state != OwnershipState::Operator,
    }
}

/// Returns the first selected partition that the group and its event hub do not have.
pub(super) fn unknown_partition(reset: &Reset, description: &GroupDescription) -> Option<PartitionId> {
    let named = reset.named();
    let selected = reset.partitions.as_ref().unwrap_or(&named);
    selected.iter().find(|partition| description.partition(partition).is_none()).cloned()
}
