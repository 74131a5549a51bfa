//! What a reset would change, decided before anything is written: pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use time::OffsetDateTime;

use super::description::{
    GroupDescription, OwnerDescription, OwnershipState, PartitionDescription, PartitionRange, RecordedPosition,
};
use crate::codec::is_usable_offset;
use crate::model::{CheckpointRecord, OwnerId, OwnershipRecord, PartitionId, Position};
use crate::source::{BEFORE_EVERYTHING, StartPosition, names_another_event};

/// Which checkpoints to set, and where to. See [`Operator::plan`](super::Operator::plan).
#[derive(Clone, Debug)]
#[must_use = "nothing is planned yet"]
pub struct Reset {
    pub(super) target: ResetTarget,
    pub(super) partitions: Option<BTreeSet<PartitionId>>,
    pub(super) keep_existing: bool,
    pub(super) clamped: bool,
    pub(super) recorded_at: Option<OffsetDateTime>,
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
    /// To where these starts are. Other partitions stay as they are. Partitions that the event hub does not have are
    /// ignored.
    Starts(BTreeMap<PartitionId, StartPosition>),
}

impl Reset {
    /// Describes a reset of all partitions.
    pub fn to(target: ResetTarget) -> Self {
        Self { target, partitions: None, keep_existing: false, clamped: true, recorded_at: None }
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

    /// Sets when the positions of [`ResetTarget::Positions`] were recorded, as [`Export::taken_at`](super::Export) says.
    /// If the event hub was created later, they mean nothing in it, and [`plan`](super::Operator::plan) refuses them.
    pub fn with_recorded_at(mut self, time: OffsetDateTime) -> Self {
        self.recorded_at = Some(time);
        self
    }

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
    /// When the event hub was created in which the positions were found.
    #[serde(skip)]
    pub(super) hub_created_at: Option<OffsetDateTime>,
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

    /// Creates the plan of a reset, by what was read.
    pub(super) fn of(reset: &Reset, hub_created_at: Option<OffsetDateTime>, mut changes: Vec<PlannedChange>) -> Self {
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

/// Why a partition has no event to find.
pub(super) const NO_SUCH_PARTITION: &str = "the event hub has no such partition";

/// Why a position has no offset: the event is missing or cannot be decoded, or the namespace rejects the offset that it
/// reports.
const NO_OFFSET: &str = "its offset is not known, so SDKs that start by the offset cannot continue there";

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
        ResetTarget::Start(start) => starting(start, range),
        ResetTarget::Starts(starts) => match starts.get(&partition.id) {
            Some(start) => starting(start, range),
            None => Wanted::Keep("no position is given"),
        },
        ResetTarget::ShiftBy(_) | ResetTarget::Current if current.is_some_and(|current| current.of_former_hub) => {
            Wanted::Refuse("its checkpoint is a position in a deleted event hub: reset it to a start".to_owned())
        }
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

fn starting(start: &StartPosition, range: Option<&PartitionRange>) -> Wanted {
    match start {
        StartPosition::AfterSequenceNumber(number) => within(*number, range),
        start => Wanted::Find(start.clone(), PlannedEffect::Move),
    }
}

/// Returns a position whose numbers are given.
fn recorded(position: &RecordedPosition, range: Option<&PartitionRange>, clamped: bool) -> Wanted {
    let number = position.sequence_number.filter(|number| *number != i64::MIN);
    let offset = position.offset.as_deref().filter(|offset| is_usable_offset(offset));
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

/// Returns the effect of a search that began with this one. The event may have expired since the range was read, and an
/// offset can be compared with the range only by a search.
pub(super) fn found(start: &StartPosition, found: &Position, effect: PlannedEffect) -> PlannedEffect {
    match start {
        StartPosition::AfterSequenceNumber(number) if *number < found.sequence_number => PlannedEffect::Expired,
        StartPosition::AfterSequenceNumber(number) if *number > found.sequence_number => PlannedEffect::BeyondEnd,
        StartPosition::AfterOffset(offset) if offset == BEFORE_EVERYTHING => effect,
        StartPosition::AfterOffset(_) if found.offset == BEFORE_EVERYTHING => PlannedEffect::Expired,
        StartPosition::AfterOffset(offset) if names_another_event(offset, &found.offset) => PlannedEffect::BeyondEnd,
        _ => effect,
    }
}

/// Returns the change of a checkpoint to a position that was found. `effect` is that of [`wanted`].
pub(super) fn change(partition: &PartitionDescription, to: Position, effect: PlannedEffect) -> PlannedChange {
    let kept = unchanged(partition);
    let from = kept.from.clone().unwrap_or_default();
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
        _ if kept.from.is_none() => (PlannedEffect::Create, clamped),
        effect if is_there && of_former_hub => {
            (effect, clamped.or_else(|| Some("it was recorded before the event hub was recreated".to_owned())))
        }
        effect if is_there && is_elsewhere => {
            (effect, clamped.or_else(|| Some("its offset is that of another event".to_owned())))
        }
        _ if is_there && (from.offset.is_some() || to.offset.is_empty()) => (PlannedEffect::NoChange, clamped),
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
pub(super) fn kept(partition: &PartitionDescription, why: &str) -> PlannedChange {
    PlannedChange { why: Some(why.to_owned()), ..unchanged(partition) }
}

/// Returns a checkpoint that cannot be set, because the event hub does not have the partition.
#[cfg(feature = "azure")]
pub(super) fn unknown(partition: PartitionId) -> PlannedChange {
    PlannedChange {
        partition,
        state: OwnershipState::Unowned,
        owner: None,
        from: None,
        to: None,
        delta: None,
        effect: PlannedEffect::Refused,
        why: Some(NO_SUCH_PARTITION.to_owned()),
        may_advance: false,
    }
}

/// Returns a checkpoint that cannot be set, for this reason.
pub(super) fn refused(partition: &PartitionDescription, why: String) -> PlannedChange {
    PlannedChange { effect: PlannedEffect::Refused, why: Some(why), ..unchanged(partition) }
}

fn unchanged(partition: &PartitionDescription) -> PlannedChange {
    let from = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.position.clone());
    PlannedChange {
        partition: partition.id.clone(),
        state: partition.state,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::OffsetDateTime;

    use super::super::description::{CheckpointDescription, Sdk};
    use super::*;
    use crate::model::ETag;
    use crate::source::PartitionProperties;
    use crate::source::{Lag, LagState};
    use PlannedEffect::{BeyondEnd, Complete, Create, Expired, Move, NoChange, Refused};

    type Found = (Option<i64>, Option<&'static str>);

    fn recorded_at((number, offset): Found) -> RecordedPosition {
        RecordedPosition { sequence_number: number, offset: offset.map(str::to_owned) }
    }

    /// Returns a range as an event hub reports it. Offsets are ten times the numbers.
    fn range(first: i64, last: Option<i64>, is_empty: bool) -> PartitionRange {
        let last = last.map(|last| Position::new(last, last.saturating_mul(10).to_string()));
        PartitionRange::from(&PartitionProperties::new(first, last, is_empty))
    }

    /// Events 100 to 199.
    fn full() -> PartitionRange {
        range(100, Some(199), false)
    }

    fn partition(found: Option<Found>, hub: impl Into<Option<PartitionRange>>) -> PartitionDescription {
        let described = |found| CheckpointDescription {
            position: recorded_at(found),
            initial: false,
            of_former_hub: false,
            owner: None,
            updated: OffsetDateTime::UNIX_EPOCH,
            etag: ETag::new("x"),
        };
        PartitionDescription {
            id: 0.into(),
            checkpoint: found.map(described),
            hub: hub.into(),
            lag: Lag { events: None, state: LagState::Unknown },
            state: OwnershipState::Unowned,
            owner: None,
        }
    }

    fn owned(state: OwnershipState, id: &str) -> PartitionDescription {
        let owner = OwnerDescription {
            id: OwnerId::new(id).unwrap(),
            sdk: Sdk::ThisCrate,
            since: None,
            renewed: OffsetDateTime::UNIX_EPOCH,
            lease_duration: Duration::from_secs(60),
            expires_in: Duration::ZERO,
            epoch: Some(7),
            load: None,
            handoff_to: None,
        };
        PartitionDescription { state, owner: Some(owner), ..partition(Some((Some(149), Some("1490"))), full()) }
    }

    /// Returns the event that a search finds, as the search of the processor does.
    fn searched(start: &StartPosition, hub: &PartitionRange) -> Position {
        let beginning = || Position::new(hub.first - 1, "-1");
        let end = || hub.last.map_or_else(beginning, |last| Position::new(last, (last * 10).to_string()));
        match start {
            StartPosition::Earliest => beginning(),
            StartPosition::AfterSequenceNumber(number) if hub.last.is_none_or(|last| *number >= last) => end(),
            StartPosition::AfterSequenceNumber(number) if *number < hub.first => beginning(),
            StartPosition::AfterSequenceNumber(number) => Position::new(*number, (number * 10).to_string()),
            StartPosition::AfterOffset(offset) => Position::new(offset.parse::<i64>().unwrap() / 10, offset),
            _ => end(),
        }
    }

    fn planned(reset: &Reset, partition: &PartitionDescription) -> PlannedChange {
        match (wanted(reset, partition), &partition.hub) {
            (Wanted::At(position, effect), _) => change(partition, position, effect),
            (Wanted::Keep(why), _) => kept(partition, why),
            (Wanted::Refuse(why), _) => refused(partition, why),
            (Wanted::Find(start, effect), Some(hub)) => change(partition, searched(&start, hub), effect),
            (Wanted::Find(..), None) => panic!("nothing can be found"),
        }
    }

    fn after(number: i64) -> Reset {
        Reset::to(ResetTarget::Start(StartPosition::AfterSequenceNumber(number)))
    }

    fn to(found: Found) -> Reset {
        Reset::to(ResetTarget::Positions([(0.into(), recorded_at(found))].into()))
    }

    fn earliest() -> Reset {
        Reset::to(ResetTarget::Start(StartPosition::Earliest))
    }

    fn latest() -> Reset {
        Reset::to(ResetTarget::Start(StartPosition::Latest))
    }

    fn shift(events: i64) -> Reset {
        Reset::to(ResetTarget::ShiftBy(events))
    }

    fn current() -> Reset {
        Reset::to(ResetTarget::Current)
    }

    /// Fails unless each reset of the partition has this effect, number and offset.
    fn check(hub: &PartitionRange, table: &[(&str, Option<Found>, Reset, PlannedEffect, Found)]) {
        for (case, found, reset, effect, expected) in table {
            let planned = planned(reset, &partition(*found, hub.clone()));
            let to = planned.to.as_ref().map_or((None, None), |to| (Some(to.sequence_number), Some(&*to.offset)));
            assert_eq!((planned.effect, to), (*effect, *expected), "{case}");
            assert_eq!(planned.from, found.map(recorded_at), "{case}");
            let delta = found.and_then(|(from, _)| Some(expected.0?.saturating_sub(from?)));
            let is_set = effect.writes() || (planned.delta.is_some() && *effect == NoChange);
            assert_eq!(planned.delta, delta.filter(|_| is_set), "{case}");
        }
    }

    const AT_149: Option<Found> = Some((Some(149), Some("1490")));
    const FIRST: Found = (Some(99), Some("-1"));
    const LAST: Found = (Some(199), Some("1990"));

    #[test]
    fn a_reset_has_one_of_these_effects() {
        let at = |number, offset| (Some(number), Some(offset));
        check(
            &full(),
            &[
                ("back", AT_149, after(120), Move, at(120, "1200")),
                ("forward", AT_149, after(180), Move, at(180, "1800")),
                ("to the first", AT_149, earliest(), Move, FIRST),
                ("to the last", AT_149, latest(), Move, LAST),
                ("without a checkpoint", None, after(120), Create, at(120, "1200")),
                ("before the first, without a checkpoint", None, after(3), Create, FIRST),
                ("without an offset", Some((Some(149), None)), current(), Complete, at(149, "1490")),
                ("without a number", Some((None, Some("1490"))), current(), Complete, at(149, "1490")),
                (
                    "to the number of a record without offset",
                    Some((Some(149), None)),
                    after(149),
                    Complete,
                    at(149, "1490"),
                ),
                ("expired", AT_149, after(98), Expired, FIRST),
                ("not there yet", AT_149, after(200), BeyondEnd, LAST),
                ("the same", AT_149, after(149), NoChange, at(149, "1490")),
                ("by nothing", AT_149, shift(0), NoChange, at(149, "1490")),
                ("as it is", AT_149, current(), NoChange, at(149, "1490")),
                ("as it is, without a checkpoint", None, current(), NoChange, (None, None)),
                ("by some, without a checkpoint", None, shift(1), Refused, (None, None)),
            ],
        );
    }

    #[test]
    fn positions_are_clamped_at_both_ends() {
        let at = |number, offset| (Some(number), Some(offset));
        check(
            &full(),
            &[
                ("the smallest number", AT_149, after(i64::MIN), Expired, FIRST),
                ("before everything", AT_149, after(-1), Expired, FIRST),
                ("one too far", AT_149, after(98), Expired, FIRST),
                ("before the first", AT_149, after(99), Move, FIRST),
                ("the first", AT_149, after(100), Move, at(100, "1000")),
                ("the last", AT_149, after(199), Move, LAST),
                ("one too far forward", AT_149, after(200), BeyondEnd, LAST),
                ("the greatest number", AT_149, after(i64::MAX), BeyondEnd, LAST),
                ("all the way back", AT_149, shift(i64::MIN), Expired, FIRST),
                ("all the way forward", AT_149, shift(i64::MAX), BeyondEnd, LAST),
                ("back by one too many", AT_149, shift(-51), Expired, FIRST),
                ("back to the first", AT_149, shift(-50), Move, FIRST),
                ("forward to the last", AT_149, shift(50), Move, LAST),
                ("an expired checkpoint", Some(at(3, "30")), current(), Expired, FIRST),
                ("a checkpoint of another hub", Some(at(900, "9000")), current(), BeyondEnd, LAST),
                ("the greatest checkpoint", Some(at(i64::MAX, "9")), shift(1), BeyondEnd, LAST),
                ("an expired file", AT_149, to(at(3, "30")), Expired, FIRST),
                ("a file of another hub", AT_149, to(at(900, "9000")), BeyondEnd, LAST),
                ("already at the end", Some(LAST), after(500), NoChange, LAST),
                ("already at the beginning", Some(FIRST), after(3), NoChange, FIRST),
                ("at the beginning, by its number", Some(at(99, "990")), after(3), NoChange, FIRST),
            ],
        );
        let kept = planned(&after(500), &partition(Some(LAST), full()));
        assert_eq!(kept.why.as_deref(), Some("it is after the last event"));
    }

    #[test]
    fn unclamped_positions_are_written_as_they_are() {
        for (number, offset) in [(3, "30"), (98, "980"), (200, "2000"), (i64::MAX, "9")] {
            let written = planned(&to((Some(number), Some(offset))).with_clamped(false), &partition(AT_149, full()));
            assert_eq!((written.effect, written.to), (Move, Some(Position::new(number, offset))));
        }
        let kept = planned(&current().with_clamped(false), &partition(Some((Some(900), Some("9000"))), full()));
        assert_eq!(kept.effect, NoChange);
    }

    #[test]
    fn existing_checkpoints_stay_if_wanted() {
        let keeping = |found| planned(&earliest().with_keep_existing(true), &partition(found, full())).effect;
        assert_eq!(keeping(AT_149), NoChange);
        assert_eq!(keeping(Some((None, Some("1490")))), NoChange, "it has only an offset");
        assert_eq!(keeping(None), Create);
    }

    #[test]
    fn missing_numbers_are_found_in_the_event_hub() {
        let at = |number, offset| (Some(number), Some(offset));
        check(
            &full(),
            &[
                ("no offset", AT_149, to((Some(120), None)), Move, at(120, "1200")),
                ("an empty offset", AT_149, to((Some(120), Some(""))), Move, at(120, "1200")),
                ("no number", AT_149, to((None, Some("1200"))), Move, at(120, "1200")),
                ("an offset of Python", AT_149, to((Some(120), Some("None"))), Move, at(120, "1200")),
                ("an offset of .NET", AT_149, to((Some(120), Some("No Offset"))), Move, at(120, "1200")),
                ("a number of .NET", AT_149, to((Some(i64::MIN), Some("1200"))), Move, at(120, "1200")),
                ("nothing", AT_149, to((None, None)), NoChange, at(149, "1490")),
                ("only an empty offset", AT_149, to((None, Some(""))), NoChange, at(149, "1490")),
                ("an expired number", AT_149, to((Some(3), None)), Expired, FIRST),
                ("a number too far", AT_149, to((Some(900), None)), BeyondEnd, LAST),
                ("a record without a position", Some((None, None)), to(at(120, "1200")), Move, at(120, "1200")),
            ],
        );
    }

    #[test]
    fn without_the_event_hub_both_numbers_are_needed() {
        let effect = |reset: &Reset| planned(reset, &partition(AT_149, None)).effect;
        assert_eq!(effect(&to((Some(3), Some("30")))), Move);
        assert_eq!(effect(&to((Some(149), Some("1490")))), NoChange);
        let unreadable = [to((Some(3), Some("None"))), to((Some(i64::MIN), Some("30")))];
        for refused in [to((Some(3), None)), to((None, Some("30"))), after(3), shift(1)].into_iter().chain(unreadable) {
            assert_eq!(effect(&refused), Refused, "{refused:?}");
        }
        assert_eq!(effect(&current()), NoChange);
        assert!(matches!(wanted(&earliest(), &partition(AT_149, None)), Wanted::Find(..)));
    }

    #[test]
    fn other_partitions_of_a_file_stay() {
        let other = Reset::to(ResetTarget::Positions([(1.into(), recorded_at((Some(3), Some("30"))))].into()));
        let stays = planned(&other, &partition(AT_149, full()));
        assert_eq!((stays.effect, stays.why.as_deref()), (NoChange, Some("no position is given")));
    }

    mod emptied_partitions {
        use super::*;

        /// A partition whose events up to 199 have expired reports 199 or 200 as its first one.
        #[test]
        fn both_ends_are_the_last_event() {
            for first in [199, 200] {
                let end = (Some(199), Some("-1"));
                check(
                    &range(first, Some(199), true),
                    &[
                        ("to the first", AT_149, earliest(), Move, end),
                        ("to the last", AT_149, latest(), Move, LAST),
                        ("processed", Some(LAST), current(), NoChange, LAST),
                        ("processed, and to the first", Some(LAST), earliest(), NoChange, end),
                        ("the last event", AT_149, after(199), Move, LAST),
                        ("the event before", AT_149, after(198), Expired, end),
                        ("not processed", AT_149, current(), Expired, end),
                        ("the next event", AT_149, after(200), BeyondEnd, LAST),
                        ("no checkpoint", None, latest(), Create, LAST),
                    ],
                );
            }
        }

        #[test]
        fn one_event_is_not_none() {
            let hub = range(199, Some(199), false);
            let first = (Some(198), Some("-1"));
            check(
                &hub,
                &[
                    ("to the first", AT_149, earliest(), Move, first),
                    ("before it", AT_149, after(198), Move, first),
                    ("after it", AT_149, after(199), Move, LAST),
                ],
            );
        }

        #[test]
        fn a_partition_without_any_event_starts_at_0() {
            let start = (Some(-1), Some("-1"));
            check(
                &range(0, None, true),
                &[
                    ("to the first", None, earliest(), Create, start),
                    ("to the last", None, latest(), Create, start),
                    ("at the start", Some(start), latest(), NoChange, start),
                    ("of another hub", AT_149, current(), BeyondEnd, start),
                    ("before everything", AT_149, after(-1), Move, start),
                ],
            );
        }
    }

    mod recreated_event_hubs {
        use super::*;

        const OTHER_EVENT: Option<Found> = Some((Some(199), Some("1994")));

        #[test]
        fn an_offset_of_another_event_is_replaced() {
            check(
                &full(),
                &[
                    ("to the last", OTHER_EVENT, latest(), Move, LAST),
                    ("to its number", OTHER_EVENT, after(199), Move, LAST),
                    ("too far", OTHER_EVENT, after(500), BeyondEnd, LAST),
                    ("read from the start", Some((Some(149), Some("-1"))), after(149), Move, (Some(149), Some("1490"))),
                ],
            );
            let moved = planned(&latest(), &partition(OTHER_EVENT, full()));
            assert_eq!(moved.why.as_deref(), Some("its offset is that of another event"));
        }

        #[test]
        fn a_position_of_the_former_one_is_written_again() {
            let mut former = partition(Some(LAST), full());
            former.checkpoint.as_mut().unwrap().of_former_hub = true;
            let planned = planned(&latest(), &former);
            assert_eq!((planned.effect, planned.delta), (Move, Some(0)));
            assert_eq!(planned.why.as_deref(), Some("it was recorded before the event hub was recreated"));
        }

        #[test]
        fn positions_relative_to_the_former_one_are_refused() {
            let mut former = partition(AT_149, full());
            former.checkpoint.as_mut().unwrap().of_former_hub = true;
            for reset in [current(), shift(1)] {
                let planned = planned(&reset, &former);
                let why = planned.why.unwrap();
                assert!(planned.effect == Refused && why.contains("in a deleted event hub"), "{why}");
            }
        }

        /// The service may reject the offset, or the event cannot be decoded.
        #[test]
        fn a_start_record_is_replaced_without_an_offset() {
            let start = partition(Some((Some(149), Some("-1"))), full());
            let moved = change(&start, Position::new(149, ""), Move);
            assert_eq!(moved.effect, Move, "processing would begin at the first event");
        }

        /// With geo-replication, offsets depend on the replica.
        #[test]
        fn text_offsets_show_nothing() {
            for offset in ["a:1994", "x", "01990"] {
                check(&full(), &[(offset, Some((Some(199), Some(offset))), latest(), NoChange, LAST)]);
            }
        }
    }

    #[test]
    fn the_first_unknown_partition_is_found() {
        use super::super::survey::GroupRecords;
        use super::super::survey::samples::hub;
        let group = GroupRecords::empty().describe(Some(&hub(&[(0, 9), (0, 9)])));
        let at = |partition: u32| (partition.into(), recorded_at((Some(3), Some("30"))));
        let unknown = |reset: Reset| unknown_partition(&reset, &group).map(|unknown| unknown.to_string());
        assert_eq!(unknown(earliest()), None);
        assert_eq!(unknown(earliest().with_partitions([1.into(), 7.into()])).as_deref(), Some("7"));
        let file = || Reset::to(ResetTarget::Positions([at(0), at(9)].into()));
        assert_eq!(unknown(file()).as_deref(), Some("9"), "it would be left out silently");
        assert_eq!(unknown(file().with_partitions([0.into()])), None);
    }

    #[test]
    fn a_search_may_end_elsewhere() {
        use StartPosition::{AfterOffset, AfterSequenceNumber, Earliest};
        let ended = |start, number, offset| found(&start, &Position::new(number, offset), Move);
        assert_eq!(ended(AfterSequenceNumber(149), 149, "1490"), Move);
        assert_eq!(ended(AfterSequenceNumber(149), 160, "-1"), Expired, "since the range was read");
        assert_eq!(ended(AfterSequenceNumber(149), -1, "-1"), BeyondEnd, "the hub was created again");
        assert_eq!(ended(AfterSequenceNumber(99), 99, "-1"), Move);
        assert_eq!(ended(Earliest, 99, "-1"), Move);
        let after = |offset: &str| AfterOffset(offset.to_owned());
        assert_eq!(ended(after("1490"), 149, "1490"), Move);
        assert_eq!(ended(after("a:1490"), 149, "1490"), Move);
        assert_eq!(ended(after("-1"), 99, "-1"), Move);
        assert_eq!(ended(after("30"), 99, "-1"), Expired);
        assert_eq!(ended(after("5000"), 199, "1990"), BeyondEnd);
    }

    mod expectations {
        use super::super::super::survey::samples;
        use super::*;

        fn checkpoint((number, offset): Found) -> CheckpointRecord {
            let offset = offset.map(str::to_owned);
            CheckpointRecord { sequence_number: number, offset, ..CheckpointRecord::default() }
        }

        /// Returns whether a plan for this partition permits a checkpoint with this number, after this takeover.
        fn permits(partition: &PartitionDescription, found: Option<i64>, displaced: Option<&OwnershipRecord>) -> bool {
            let offset = found.map(|_| "x");
            planned(&earliest(), partition).expected().permits(&checkpoint((found, offset)), displaced)
        }

        #[test]
        fn without_an_owner_nothing_may_change() {
            let expected = planned(&earliest(), &partition(AT_149, full())).expected();
            assert!(expected.permits(&checkpoint((Some(149), Some("1490"))), None));
            let owner = samples::owned("a");
            for found in [(Some(150), Some("1500")), (Some(148), Some("1480")), (Some(149), Some("x")), (None, None)] {
                assert!(!expected.permits(&checkpoint(found), None), "{found:?}");
                assert!(!expected.permits(&checkpoint(found), Some(&owner)), "{found:?}");
            }
            let created = planned(&earliest(), &partition(None, full())).expected();
            assert!(created.permits(&CheckpointRecord::default(), None));
            assert!(!created.permits(&checkpoint((Some(3), Some("30"))), Some(&owner)));
        }

        #[test]
        fn its_live_owner_may_advance() {
            for state in [OwnershipState::Owned, OwnershipState::HandingOver] {
                let owner = samples::owned("a");
                assert!(permits(&owned(state, "a"), Some(150), Some(&owner)));
                assert!(!permits(&owned(state, "a"), Some(148), Some(&owner)), "that is no progress");
                assert!(!permits(&owned(state, "a"), None, Some(&owner)), "it was deleted");
            }
            let first = PartitionDescription { checkpoint: None, ..owned(OwnershipState::Owned, "a") };
            assert!(permits(&first, Some(0), Some(&samples::owned("a"))));
            let keeps = planned(&earliest().with_keep_existing(true), &first);
            let plan = Plan::of(&earliest().with_keep_existing(true), None, vec![keeps]);
            let found = checkpoint((Some(0), Some("0")));
            assert!(!plan.changes[0].expected().permits(&found, Some(&samples::owned("a"))), "it is to stay");
        }

        /// Another operator may have set it.
        #[test]
        fn only_the_planned_owner_may_advance() {
            let planned = owned(OwnershipState::Owned, "a");
            let later = OwnershipRecord { epoch: Some(8), ..samples::owned("a") };
            let returned = OwnershipRecord { operator: OwnerId::new("operator-1").ok(), ..OwnershipRecord::default() };
            for displaced in [Some(&later), Some(&samples::owned("b")), Some(&returned), None] {
                assert!(!permits(&planned, Some(150), displaced), "{displaced:?}");
            }
            let operated = owned(OwnershipState::Operator, "operator-1");
            assert!(!permits(&operated, Some(150), Some(&samples::owned("operator-1"))));
        }
    }
}
