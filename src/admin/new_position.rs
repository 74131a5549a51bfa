//! Where a reset puts the checkpoint of a partition, decided by the range of its events: pure.

use super::group_description::GroupDescription;
use super::partition_description::{PartitionDescription, PartitionRange, RecordedPosition};
use super::plan::PlannedEffect;
use super::reset::{Reset, ResetTarget};
use crate::codec::is_usable_offset;
use crate::model::{PartitionId, Position};
use crate::source::{BEFORE_EVERYTHING, StartPosition, names_another_event};

/// A requested position, before the offset of its event is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NewPosition {
    /// The position is known.
    At(Position, PlannedEffect),
    /// The event at this start must be found.
    Find(StartPosition, PlannedEffect),
    /// The checkpoint stays as it is.
    Keep(&'static str),
    /// The checkpoint cannot be reset.
    Refuse(String),
}

/// Returns where a reset puts the checkpoint of a partition. The offset of a clamped position is not known yet. The
/// effect is [`PlannedEffect::Move`], unless the position is clamped.
pub(super) fn new_position_of(reset: &Reset, partition: &PartitionDescription) -> NewPosition {
    let current = partition.checkpoint.as_ref();
    if reset.keep_existing && current.is_some() {
        return NewPosition::Keep("it has a checkpoint");
    }
    let range = partition.hub.as_ref();
    match &reset.target {
        ResetTarget::Start(start) => new_position_at(start, range),
        ResetTarget::Starts(starts) => match starts.get(&partition.id) {
            Some(start) => new_position_at(start, range),
            None => NewPosition::Keep("no position is given"),
        },
        ResetTarget::ShiftBy(_) | ResetTarget::Current if current.is_some_and(|current| current.of_former_hub) => {
            NewPosition::Refuse("its checkpoint is a position in a deleted event hub: reset it to a start".to_owned())
        }
        ResetTarget::ShiftBy(events) => match current.and_then(|current| current.position.sequence_number) {
            Some(number) => new_position_after(number.saturating_add(*events), range),
            None => NewPosition::Refuse("there is no sequence number to shift".to_owned()),
        },
        ResetTarget::Current => match current {
            Some(current) => new_position_as_recorded(&current.position, range, reset.clamped),
            None => NewPosition::Keep("it has no checkpoint"),
        },
        ResetTarget::Positions(positions) => match positions.get(&partition.id) {
            Some(position) => new_position_as_recorded(position, range, reset.clamped),
            None => NewPosition::Keep("no position is given"),
        },
    }
}

fn new_position_at(start: &StartPosition, range: Option<&PartitionRange>) -> NewPosition {
    match start {
        StartPosition::AfterSequenceNumber(number) => new_position_after(*number, range),
        start => NewPosition::Find(start.clone(), PlannedEffect::Move),
    }
}

/// Returns a position whose numbers are given.
fn new_position_as_recorded(position: &RecordedPosition, range: Option<&PartitionRange>, clamped: bool) -> NewPosition {
    let number = position.sequence_number.filter(|number| *number != i64::MIN);
    let offset = position.offset.as_deref().filter(|offset| is_usable_offset(offset));
    match (number, offset, range) {
        (None, None, _) => NewPosition::Keep("no position is given"),
        (Some(number), Some(offset), None) => NewPosition::At(Position::new(number, offset), PlannedEffect::Move),
        (Some(number), Some(offset), Some(range)) if !clamped || is_in_range(range, number) => {
            NewPosition::At(Position::new(number, offset), PlannedEffect::Move)
        }
        (Some(number), _, Some(range)) => new_position_after(number, Some(range)),
        (None, Some(offset), Some(_)) => {
            NewPosition::Find(StartPosition::AfterOffset(offset.to_owned()), PlannedEffect::Move)
        }
        _ => NewPosition::Refuse("a number is missing, which only the event hub knows".to_owned()),
    }
}

/// Returns whether a checkpoint at this number is in the range, so that nothing is skipped or missing after it.
fn is_in_range(range: &PartitionRange, number: i64) -> bool {
    number >= range.first.saturating_sub(1) && range.last.map_or(number == -1, |last| number <= last)
}

/// Returns the start after an event, or after the nearest one that a checkpoint can have.
fn new_position_after(number: i64, range: Option<&PartitionRange>) -> NewPosition {
    let Some(range) = range else {
        return NewPosition::Refuse("the event hub is needed to find the event".to_owned());
    };
    if is_in_range(range, number) {
        return NewPosition::Find(StartPosition::AfterSequenceNumber(number), PlannedEffect::Move);
    }
    if number < range.first {
        return NewPosition::Find(StartPosition::Earliest, PlannedEffect::Expired);
    }
    NewPosition::Find(StartPosition::Latest, PlannedEffect::BeyondEnd)
}

/// Returns the effect of a search that began with this one. The event may have expired since the range was read, and an
/// offset can be compared with the range only by a search.
pub(super) fn effect_of_search(start: &StartPosition, found: &Position, effect: PlannedEffect) -> PlannedEffect {
    match start {
        StartPosition::AfterSequenceNumber(number) if *number < found.sequence_number => PlannedEffect::Expired,
        StartPosition::AfterSequenceNumber(number) if *number > found.sequence_number => PlannedEffect::BeyondEnd,
        StartPosition::AfterOffset(offset) if offset == BEFORE_EVERYTHING => effect,
        StartPosition::AfterOffset(_) if found.offset == BEFORE_EVERYTHING => PlannedEffect::Expired,
        StartPosition::AfterOffset(offset) if names_another_event(offset, &found.offset) => PlannedEffect::BeyondEnd,
        _ => effect,
    }
}

/// Returns the first selected partition that the group and its event hub do not have.
pub(super) fn unknown_partition(reset: &Reset, description: &GroupDescription) -> Option<PartitionId> {
    let named = reset.partitions_with_position();
    let selected = reset.partitions.as_ref().unwrap_or(&named);
    selected.iter().find(|partition| description.partition(partition).is_none()).cloned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::OffsetDateTime;

    use super::super::partition_description::{CheckpointDescription, OwnerDescription, OwnershipState, Sdk};
    use super::super::plan::{Plan, PlannedChange, plan_no_change, plan_refusal, plan_reset};
    use super::*;
    use crate::model::{CheckpointRecord, ETag, OwnerId, OwnershipRecord};
    use crate::source::{Lag, LagState, PartitionProperties};
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
            paused: None,
            own_position: false,
            of_former_hub: false,
            owner: None,
            updated: OffsetDateTime::UNIX_EPOCH,
            resumed: None,
            etag: ETag::new("x"),
        };
        PartitionDescription {
            id: 0.into(),
            checkpoint: found.map(described),
            hub: hub.into(),
            lag: Lag { events: None, state: LagState::Unknown },
            state: OwnershipState::Unowned,
            owner: None,
            released_at: None,
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
        match (new_position_of(reset, partition), &partition.hub) {
            (NewPosition::At(position, effect), _) => plan_reset(partition, position, effect),
            (NewPosition::Keep(why), _) => plan_no_change(partition, why),
            (NewPosition::Refuse(why), _) => plan_refusal(partition, why),
            (NewPosition::Find(start, effect), Some(hub)) => plan_reset(partition, searched(&start, hub), effect),
            (NewPosition::Find(..), None) => panic!("nothing can be found"),
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
    fn a_plan_writes_only_what_would_change() {
        let plan_of = |found| planned(&after(149), &partition(found, full()));
        let refused = plan_refusal(&partition(AT_149, full()), "no".to_owned());
        let plan = Plan::new(&after(149), None, vec![plan_of(AT_149), plan_of(None), refused]);
        assert_eq!(plan.writes().map(|change| change.effect).collect::<Vec<_>>(), [Create]);
    }

    #[test]
    fn effects_are_shown_as_they_are_serialized() {
        for effect in [Move, Create, Complete, Expired, BeyondEnd, NoChange, Refused] {
            assert_eq!(serde_json::to_value(effect).unwrap(), effect.as_str());
        }
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
        assert!(matches!(new_position_of(&earliest(), &partition(AT_149, None)), NewPosition::Find(..)));
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
            assert_eq!(moved.why.as_deref(), Some("its offset belongs to another event"));
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
            let moved = plan_reset(&start, Position::new(149, ""), Move);
            assert_eq!(moved.effect, Move, "processing would begin at the first event");
            assert!(moved.why.unwrap().contains("offset is not known"), "other SDKs cannot continue there");
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
        use super::super::records::GroupRecords;
        use super::super::records::samples::hub;
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
        let ended = |start, number, offset| effect_of_search(&start, &Position::new(number, offset), Move);
        assert_eq!(ended(AfterSequenceNumber(149), 149, "1490"), Move);
        assert_eq!(ended(AfterSequenceNumber(149), 160, "-1"), Expired, "since the range was read");
        assert_eq!(ended(AfterSequenceNumber(149), -1, "-1"), BeyondEnd, "the hub was recreated");
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
        use super::super::super::records::samples;
        use super::*;

        fn checkpoint((number, offset): Found) -> CheckpointRecord {
            let offset = offset.map(str::to_owned);
            CheckpointRecord { sequence_number: number, offset, ..CheckpointRecord::default() }
        }

        /// Returns whether a plan for this partition permits a checkpoint with this number, after this takeover.
        fn permits(partition: &PartitionDescription, found: Option<i64>, displaced: Option<&OwnershipRecord>) -> bool {
            let offset = found.map(|_| "x");
            planned(&earliest(), partition).expected_checkpoint().may_replace(&checkpoint((found, offset)), displaced)
        }

        #[test]
        fn without_an_owner_nothing_may_change() {
            let expected = planned(&earliest(), &partition(AT_149, full())).expected_checkpoint();
            assert!(expected.may_replace(&checkpoint((Some(149), Some("1490"))), None));
            let owner = samples::owned("a");
            for found in [(Some(150), Some("1500")), (Some(148), Some("1480")), (Some(149), Some("x")), (None, None)] {
                assert!(!expected.may_replace(&checkpoint(found), None), "{found:?}");
                assert!(!expected.may_replace(&checkpoint(found), Some(&owner)), "{found:?}");
            }
            let created = planned(&earliest(), &partition(None, full())).expected_checkpoint();
            assert!(created.may_replace(&CheckpointRecord::default(), None));
            assert!(!created.may_replace(&checkpoint((Some(3), Some("30"))), Some(&owner)));
        }

        #[test]
        fn its_live_owner_may_advance() {
            for state in [OwnershipState::Owned, OwnershipState::HandingOver] {
                let owner = samples::owned("a");
                assert!(permits(&owned(state, "a"), Some(150), Some(&owner)));
                assert!(!permits(&owned(state, "a"), Some(148), Some(&owner)), "that is no progress");
                assert!(!permits(&owned(state, "a"), Some(149), Some(&owner)), "that is another event");
                assert!(!permits(&owned(state, "a"), None, Some(&owner)), "it was deleted");
            }
            let first = PartitionDescription { checkpoint: None, ..owned(OwnershipState::Owned, "a") };
            assert!(permits(&first, Some(0), Some(&samples::owned("a"))));
            let keeps = planned(&earliest().with_keep_existing(true), &first);
            let plan = Plan::new(&earliest().with_keep_existing(true), None, vec![keeps]);
            let found = checkpoint((Some(0), Some("0")));
            assert!(
                !plan.changes[0].expected_checkpoint().may_replace(&found, Some(&samples::owned("a"))),
                "it is to stay"
            );
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
