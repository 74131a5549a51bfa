//! Determines where a partition is read from, and what to do about a checkpoint that does not fit the partition.
//!
//! The broker reports too little. It silently omits events that have expired. It rejects a position after the end, but
//! when a recreated event hub again has that many events, it delivers different events from there. So before it reads,
//! the processor compares the checkpoint with the creation of the event hub and with the range of the partition.

use std::cmp::Ordering;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::error::{Error, Result};
use crate::model::{CheckpointRecord, PartitionId, Position};
use crate::source::StartPosition;
use crate::source::offset_format::{BEFORE_EVERYTHING, is_offset_beyond_end, names_another_event, plain_number};
use crate::source::properties::PartitionProperties;

/// Why a checkpoint is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidReason {
    /// Events after the checkpoint expired before they were processed: the partition was not read for longer than the
    /// retention of the event hub.
    Expired,
    /// The event hub was recreated under the same name after the checkpoint was written. Recognized by the time of its
    /// creation, so only if the source [reports](crate::source::EventHubProperties::created_at) that.
    Recreated,
    /// The checkpoint is after the end of the partition. It is another event hub's, or the event hub has lost its last
    /// events, for example by the forced promotion of a replica; or it was recreated, and the source does not report
    /// when.
    BeyondEnd,
    /// The broker rejected the position.
    Rejected,
}

impl InvalidReason {
    /// Returns the name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Recreated => "recreated",
            Self::BeyondEnd => "beyond_end",
            Self::Rejected => "rejected",
        }
    }
}

impl fmt::Display for InvalidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "events after it expired before they were processed",
            Self::Recreated => "the event hub was recreated after the checkpoint was written",
            Self::BeyondEnd => {
                "the event hub has lost its last events, or was recreated, or the checkpoint belongs to another event \
                 hub"
            }
            Self::Rejected => "the broker rejects the position",
        })
    }
}

/// A checkpoint after which a partition cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidCheckpoint {
    /// The partition.
    pub partition: PartitionId,
    /// The content of the checkpoint, or the position that the [application
    /// returned](crate::processor::Handler::start_position).
    pub checkpoint: CheckpointRecord,
    /// The range of events that the partition holds.
    pub properties: PartitionProperties,
    /// Why the checkpoint does not fit the partition.
    pub reason: InvalidReason,
}

/// Writes both positions and the reason, for a log.
impl fmt::Display for InvalidCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, checkpoint, properties, reason } = self;
        write!(f, "the checkpoint of partition {partition} is at ")?;
        match (checkpoint.sequence_number, &checkpoint.offset) {
            (Some(number), Some(offset)) => write!(f, "sequence number {number}, offset {offset:?}")?,
            (Some(number), None) => write!(f, "sequence number {number}")?,
            (None, offset) => write!(f, "offset {:?}", offset.as_deref().unwrap_or_default())?,
        }
        match properties.last_enqueued() {
            None => f.write_str(", but the partition never held an event")?,
            Some(last) if properties.is_empty() => {
                write!(f, ", but the partition is empty and ended at {}", At(last))?;
            }
            Some(last) => {
                write!(f, ", but the partition holds {} to {}", properties.beginning_sequence_number(), At(last))?;
            }
        }
        write!(f, ": {reason}")
    }
}

struct At<'a>(&'a Position);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, offset {:?}", self.0.sequence_number, self.0.offset)
    }
}

type Choose = dyn Fn(&InvalidCheckpoint) -> StartPosition + Send + Sync;

/// What the processor does if a partition cannot be read from its checkpoint.
///
/// No choice is right for every application. The processor logs and counts every invalid checkpoint.
#[doc(alias = "auto.offset.reset")]
#[doc(alias = "offset_reset")]
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnInvalidCheckpoint {
    /// End the processor with an error that names the partition and both positions, so that an operator decides.
    Fail,
    /// Start at the first available event. The default, because no available event is lost: after expiry, these are
    /// exactly the events that were not processed yet; in a new event hub, all events are new.
    #[default]
    Earliest,
    /// Start after the last event; skip the backlog.
    Latest,
    /// Let the application choose: see [`custom`](Self::custom).
    #[serde(skip)]
    Custom(Arc<Choose>),
}

impl OnInvalidCheckpoint {
    /// Lets the application choose. The function must not block: the processor calls it before it reads the partition.
    /// The processor records the chosen position before it reads from there, and calls the function again if that
    /// fails.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::{InvalidReason, OnInvalidCheckpoint};
    /// use eventhubs_checkpoint::source::StartPosition;
    ///
    /// let policy = OnInvalidCheckpoint::custom(|invalid| match invalid.reason {
    ///     InvalidReason::Expired => StartPosition::Earliest,
    ///     _ => StartPosition::Latest,
    /// });
    /// # let _ = policy;
    /// ```
    pub fn custom(choose: impl Fn(&InvalidCheckpoint) -> StartPosition + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(choose))
    }
}

/// Two choices of the application are equal if one is a clone of the other.
impl PartialEq for OnInvalidCheckpoint {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Custom(choose), Self::Custom(other)) => Arc::ptr_eq(choose, other),
            (Self::Custom(_), _) | (_, Self::Custom(_)) => false,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl Eq for OnInvalidCheckpoint {}

impl fmt::Debug for OnInvalidCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fail => "Fail",
            Self::Earliest => "Earliest",
            Self::Latest => "Latest",
            Self::Custom(_) => "Custom(..)",
        })
    }
}

/// Returns where to continue after a checkpoint. A recorded offset of `-1` is the position before all events.
pub(crate) fn resume_position(record: &CheckpointRecord, start: &StartPosition) -> StartPosition {
    match (record.sequence_number, &record.offset) {
        (_, Some(offset)) if offset == BEFORE_EVERYTHING => StartPosition::Earliest,
        (Some(sequence_number), _) => StartPosition::AfterSequenceNumber(sequence_number),
        (None, Some(offset)) => StartPosition::AfterOffset(offset.clone()),
        (None, None) => start.clone(),
    }
}

/// Returns whether the checkpoint is at the event that the start names. The checkpoint also has the offset of that
/// event, which shows if the event hub was recreated.
pub(crate) fn is_at(record: &CheckpointRecord, start: &StartPosition) -> bool {
    record.offset.as_deref().is_some_and(|offset| offset != BEFORE_EVERYTHING)
        && matches!(start, StartPosition::AfterSequenceNumber(number) if record.sequence_number == Some(*number))
}

/// Returns the position of a start as a checkpoint would record it, as far as the start names one. It is compared with
/// the partition as a checkpoint is.
pub(crate) fn record_of_start(start: &StartPosition) -> CheckpointRecord {
    match start {
        StartPosition::AfterSequenceNumber(number) => {
            CheckpointRecord { sequence_number: Some(*number), ..CheckpointRecord::default() }
        }
        StartPosition::AfterOffset(offset) => {
            CheckpointRecord { offset: Some(offset.clone()), ..CheckpointRecord::default() }
        }
        _ => CheckpointRecord::default(),
    }
}

/// Returns why a checkpoint is invalid, as far as the properties show. They must have been read after the checkpoint:
/// compared with older ones, a checkpoint that was written meanwhile appears to be after the end.
pub(crate) fn invalid_reason(record: &CheckpointRecord, properties: &PartitionProperties) -> Option<InvalidReason> {
    let offset = record.offset.as_deref();
    if offset == Some(BEFORE_EVERYTHING) {
        return None;
    }
    match record.sequence_number {
        Some(number) if number < 0 => None,
        Some(number) if is_beyond_end(number, offset, properties.last_enqueued()) => Some(InvalidReason::BeyondEnd),
        Some(number) if number.saturating_add(1) < properties.beginning_sequence_number() => {
            Some(InvalidReason::Expired)
        }
        Some(_) => None,
        None => offset
            .and_then(plain_number)
            .is_some_and(|offset| is_offset_beyond_end(offset, properties.last_enqueued()))
            .then_some(InvalidReason::BeyondEnd),
    }
}

/// Returns the same position with the sequence number that the checkpoint should have, if it has another one or none.
/// Other readers use only the number: KEDA's scaler counts the events after it, and fails for all partitions if one
/// checkpoint lacks it. The next checkpoint would correct it, but a partition without events gets none. The properties
/// must have been read after the checkpoint.
///
/// - The position before all events has the number before the first event. A different number counts events that have
///   expired, or belongs to another event hub and would hold back smaller checkpoints. It is the same position in every
///   event hub, so the record may show an earlier creation than `hub_created_at`.
/// - A record without a number gets the number of the last event if it has the offset of that event. Any other number
///   would be a guess, and reading continues by the number.
pub(crate) fn find_correction(
    record: &CheckpointRecord,
    hub_created_at: Option<OffsetDateTime>,
    properties: &PartitionProperties,
) -> Option<Position> {
    let offset = record.offset.as_deref()?;
    if offset == BEFORE_EVERYTHING {
        let beginning = properties.beginning_position();
        let is_current = match (record.hub_created_at, record.updated_at, hub_created_at) {
            (Some(recorded), _, Some(current)) => recorded == current,
            (None, Some(written_at), Some(current)) => written_at >= current,
            (_, _, None) | (None, None, Some(_)) => true,
        };
        return (record.sequence_number != Some(beginning.sequence_number) || !is_current).then_some(beginning);
    }
    properties.last_enqueued().filter(|last| record.sequence_number.is_none() && last.offset == offset).cloned()
}

/// Returns whether a checkpoint is after the end. If a recreated event hub already has as many events, the offset shows
/// it.
fn is_beyond_end(number: i64, offset: Option<&str>, last: Option<&Position>) -> bool {
    let Some(last) = last else { return true };
    match number.cmp(&last.sequence_number) {
        Ordering::Less => false,
        Ordering::Equal => offset.is_some_and(|offset| names_another_event(offset, &last.offset)),
        Ordering::Greater => true,
    }
}

/// Why a partition restarts although its checkpoint looked valid. Each variant has the position where reading could not
/// continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResumeFailure {
    /// The broker rejected the position.
    Rejected(StartPosition),
    /// Lag checks found the position after the end of the event hub. Their properties may have been old.
    BeyondEnd(StartPosition),
}

/// Returns why a checkpoint that looks valid is invalid: the broker rejected it, or the event hub ends before events
/// that were delivered since. The properties decide the latter, and must be newer than the failure.
pub(crate) fn confirm_reason(
    record: &CheckpointRecord,
    failure: &ResumeFailure,
    properties: &PartitionProperties,
) -> Option<InvalidReason> {
    match failure {
        ResumeFailure::Rejected(place) if *place == resume_position(record, place) && record.has_position() => {
            Some(InvalidReason::Rejected)
        }
        ResumeFailure::Rejected(StartPosition::AfterSequenceNumber(delivered))
        | ResumeFailure::BeyondEnd(StartPosition::AfterSequenceNumber(delivered)) => {
            let end = properties.last_enqueued().map_or(-1, |last| last.sequence_number);
            (end < *delivered).then_some(InvalidReason::BeyondEnd)
        }
        _ => None,
    }
}

/// Returns where to start instead.
///
/// # Errors
///
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if the policy is to fail, or if the application's function panics.
pub(crate) fn choose_start(policy: &OnInvalidCheckpoint, invalid: &InvalidCheckpoint) -> Result<StartPosition> {
    match policy {
        OnInvalidCheckpoint::Earliest => Ok(StartPosition::Earliest),
        OnInvalidCheckpoint::Latest => Ok(StartPosition::Latest),
        OnInvalidCheckpoint::Custom(choose) => catch_unwind(AssertUnwindSafe(|| choose(invalid))).map_err(|_| {
            Error::config(format!(
                "{invalid}; the function of the application that chooses another start position panicked"
            ))
        }),
        OnInvalidCheckpoint::Fail => Err(Error::config(format!(
            "{invalid}; delete the checkpoint, or set `with_on_invalid_checkpoint` to a policy other than `Fail`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn record(sequence_number: impl Into<Option<i64>>, offset: impl Into<Option<&'static str>>) -> CheckpointRecord {
        let offset = offset.into().map(str::to_owned);
        CheckpointRecord { sequence_number: sequence_number.into(), offset, ..Default::default() }
    }

    fn holds(first: i64, last: impl Into<Option<(i64, &'static str)>>) -> PartitionProperties {
        let last = last.into().map(|(sequence_number, offset)| Position { sequence_number, offset: offset.to_owned() });
        PartitionProperties::new(first, last, false)
    }

    #[test]
    fn a_rejected_position_blames_only_its_checkpoint() {
        let holds = |last: i64| {
            let last = Position { sequence_number: last, offset: (last * 10).to_string() };
            PartitionProperties::new(0, Some(last), false)
        };
        let record = CheckpointRecord { sequence_number: Some(9), offset: Some("90".into()), ..Default::default() };
        let rejected = |number| ResumeFailure::Rejected(StartPosition::AfterSequenceNumber(number));
        assert_eq!(confirm_reason(&record, &rejected(9), &holds(50)), Some(InvalidReason::Rejected));
        assert_eq!(confirm_reason(&record, &rejected(30), &holds(20)), Some(InvalidReason::BeyondEnd));
        assert_eq!(confirm_reason(&record, &rejected(30), &holds(30)), None, "the properties were only a little old");
        assert_eq!(confirm_reason(&record, &ResumeFailure::Rejected(StartPosition::Earliest), &holds(30)), None);
    }

    #[test]
    fn a_start_without_a_position_is_not_blamed() {
        let start = StartPosition::Latest;
        let failure = ResumeFailure::Rejected(start);
        assert_eq!(confirm_reason(&record(None, None), &failure, &holds(0, (9, "90"))), None);
    }

    #[test]
    fn reasons_have_their_documented_names() {
        for (reason, name) in [
            (InvalidReason::Expired, "expired"),
            (InvalidReason::Recreated, "recreated"),
            (InvalidReason::BeyondEnd, "beyond_end"),
            (InvalidReason::Rejected, "rejected"),
        ] {
            assert_eq!(reason.name(), name);
        }
    }

    /// It is compared with the partition like a checkpoint.
    #[test]
    fn a_start_has_the_position_that_it_names() {
        for (start, expected) in [
            (StartPosition::AfterSequenceNumber(7), record(7, None)),
            (StartPosition::AfterOffset("70".into()), record(None, "70")),
            (StartPosition::Latest, record(None, None)),
        ] {
            assert_eq!(record_of_start(&start), expected);
        }
    }

    #[test]
    fn processing_continues_after_the_checkpoint() {
        let start = StartPosition::Latest;
        assert_eq!(resume_position(&record(None, None), &start), start);
        assert_eq!(resume_position(&record(7, "o"), &start), StartPosition::AfterSequenceNumber(7));
        assert_eq!(resume_position(&record(None, "o"), &start), StartPosition::AfterOffset("o".into()));
        assert_eq!(resume_position(&record(-1, "-1"), &start), StartPosition::Earliest);
        assert_eq!(resume_position(&record(6, "-1"), &start), StartPosition::Earliest);
    }

    #[test]
    fn a_chosen_start_may_agree_with_the_checkpoint() {
        let after = StartPosition::AfterSequenceNumber;
        assert!(is_at(&record(7, "70"), &after(7)));
        assert!(!is_at(&record(7, "70"), &after(8)));
        assert!(!is_at(&record(7, None), &after(7)), "the record needs the offset");
        assert!(!is_at(&record(7, "-1"), &after(7)), "it starts at the first event, whichever that is");
        assert!(!is_at(&record(None, None), &StartPosition::Earliest));
    }

    #[test]
    fn a_checkpoint_is_compared_with_the_partition() {
        use InvalidReason::{BeyondEnd, Expired};
        let full = || holds(5, (9, "90"));
        let emptied = || holds(10, (9, "90"));
        let table = [
            ("no position", record(None, None), full(), None),
            ("inside", record(7, "70"), full(), None),
            ("at the end", record(9, "90"), full(), None),
            ("at the end, without offset", record(9, None), full(), None),
            ("right before the first", record(4, "40"), full(), None),
            ("one event lost", record(3, "30"), full(), Some(Expired)),
            ("the smallest possible number", record(i64::MIN, "x"), full(), None),
            ("the greatest possible number", record(i64::MAX, "x"), full(), Some(BeyondEnd)),
            ("one too far", record(10, "100"), full(), Some(BeyondEnd)),
            ("too far, with text for an offset", record(10, "a:1"), full(), Some(BeyondEnd)),
            ("recreated with as many events", record(9, "94"), full(), Some(BeyondEnd)),
            ("the same offset, in another notation", record(9, "090"), full(), None),
            ("a text offset in the checkpoint", record(9, "a:94"), full(), None),
            ("a text offset in the partition", record(9, "94"), holds(5, (9, "a:90")), None),
            ("an unknown offset in the partition", record(9, "94"), holds(5, (9, "-1")), None),
            ("an empty offset", record(9, ""), full(), None),
            ("before everything", record(-1, "-1"), full(), None),
            ("before everything, by the number", record(-1, None), full(), None),
            ("before everything, by the offset", record(None, "-1"), full(), None),
            ("a recorded start", record(3, "-1"), full(), None),
            ("before everything, in a new hub", record(-1, "-1"), holds(0, None), None),
            ("a new hub", record(0, "0"), holds(0, None), Some(BeyondEnd)),
            ("emptied, and all was processed", record(9, "90"), emptied(), None),
            ("emptied, and one was not", record(8, "80"), emptied(), Some(Expired)),
            ("emptied, and recreated", record(10, "100"), emptied(), Some(BeyondEnd)),
            ("an offset inside", record(None, "70"), full(), None),
            ("an offset at the end", record(None, "90"), full(), None),
            ("an offset too far", record(None, "91"), full(), Some(BeyondEnd)),
            ("an offset of a new hub", record(None, "0"), holds(0, None), Some(BeyondEnd)),
            ("an offset that is text", record(None, "a:91"), full(), None),
            ("an offset that is text, of a new hub", record(None, "a:91"), holds(0, None), None),
            ("an offset before text", record(None, "91"), holds(5, (9, "a:90")), None),
        ];
        for (case, record, properties, expected) in table {
            assert_eq!(invalid_reason(&record, &properties), expected, "{case}");
        }
    }

    #[test]
    fn a_corrected_number_keeps_the_position() {
        let full = || holds(5, (9, "90"));
        let emptied = || holds(10, (9, "90"));
        let unused = || holds(0, None);
        let before = |number| Some((number, "-1"));
        let table = [
            ("everything, some of it expired", record(-1, "-1"), full(), before(4)),
            ("everything, all of it expired", record(3, "-1"), emptied(), before(9)),
            ("everything, nothing expired", record(4, "-1"), full(), None),
            ("everything, never used", record(-1, "-1"), unused(), None),
            ("everything, without a number", record(None, "-1"), full(), before(4)),
            ("everything, of another hub", record(70, "-1"), full(), before(4)),
            ("everything, of another hub, never used", record(70, "-1"), unused(), before(-1)),
            ("the last event", record(None, "90"), full(), Some((9, "90"))),
            ("the last event, expired", record(None, "90"), emptied(), Some((9, "90"))),
            ("the last event, as text", record(None, "a:90"), holds(5, (9, "a:90")), Some((9, "a:90"))),
            ("the last event, with its number", record(9, "90"), full(), None),
            ("the last event, with another number", record(8, "90"), full(), None),
            ("another event", record(None, "80"), full(), None),
            ("the same offset, in another notation", record(None, "090"), full(), None),
            ("an offset of a hub that was never used", record(None, "90"), unused(), None),
            ("no offset", record(7, None), full(), None),
            ("no position", record(None, None), full(), None),
        ];
        for (case, record, properties, expected) in table {
            let corrected = find_correction(&record, None, &properties);
            let place = corrected.as_ref().map(|place| (place.sequence_number, place.offset.as_str()));
            assert_eq!(place, expected, "{case}");
        }
    }

    fn at(second: i64) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + std::time::Duration::from_secs(1000) + time::Duration::seconds(second)
    }

    /// Positions of the application are judged by the record.
    #[test]
    fn a_start_record_shows_the_current_hub() {
        let everything = |hub: Option<i64>, written: Option<i64>| CheckpointRecord {
            hub_created_at: hub.map(at),
            updated_at: written.map(at),
            ..record(4, "-1")
        };
        let range = holds(5, (9, "90"));
        for (case, record, is_kept) in [
            ("the same hub", everything(Some(0), Some(-900)), true),
            ("an earlier hub", everything(Some(-1), Some(900)), false),
            ("a later hub", everything(Some(1), Some(900)), false),
            ("not shown, written before", everything(None, Some(-1)), false),
            ("not shown, written after", everything(None, Some(0)), true),
        ] {
            assert_eq!(find_correction(&record, Some(at(0)), &range).is_none(), is_kept, "{case}");
            assert!(find_correction(&record, None, &range).is_none(), "{case}: the source reports no creation");
        }
    }

    fn invalid() -> InvalidCheckpoint {
        InvalidCheckpoint {
            partition: 3.into(),
            checkpoint: record(70, "700"),
            properties: holds(5, (9, "90")),
            reason: InvalidReason::BeyondEnd,
        }
    }

    #[test]
    fn the_policy_chooses_another_start() {
        let chosen = |policy| choose_start(&policy, &invalid()).unwrap();
        assert_eq!(chosen(OnInvalidCheckpoint::default()), StartPosition::Earliest);
        assert_eq!(chosen(OnInvalidCheckpoint::Latest), StartPosition::Latest);
        let custom = OnInvalidCheckpoint::custom(|invalid| {
            StartPosition::AfterSequenceNumber(invalid.properties.beginning_sequence_number())
        });
        assert_eq!(format!("{custom:?}"), "Custom(..)");
        assert_eq!(chosen(custom.clone()), StartPosition::AfterSequenceNumber(5));
    }

    #[test]
    fn the_error_names_both_positions_and_the_remedy() {
        let error = choose_start(&OnInvalidCheckpoint::Fail, &invalid()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let message = error.to_string();
        for named in ["partition 3", "number 70", "offset \"700\"", "5 to 9", "offset \"90\"", "recreated", "delete"] {
            assert!(message.contains(named), "{named} is missing: {message}");
        }
    }

    #[test]
    fn the_message_describes_an_empty_partition() {
        let shown = |properties| InvalidCheckpoint { properties, ..invalid() }.to_string();
        assert!(shown(holds(0, None)).contains("never held an event"));
        assert!(shown(holds(10, (9, "90"))).contains("is empty and ended at 9"));
        let by_offset = InvalidCheckpoint { checkpoint: record(None, "700"), ..invalid() }.to_string();
        assert!(by_offset.contains("is at offset \"700\""), "{by_offset}");
    }

    mod defects {
        use super::*;

        /// A failure by old properties is dropped if newer properties refute it.
        #[test]
        fn new_properties_must_confirm_the_end() {
            let beyond_end = |number| ResumeFailure::BeyondEnd(StartPosition::AfterSequenceNumber(number));
            assert_eq!(confirm_reason(&record(9, "90"), &beyond_end(9), &holds(0, (50, "500"))), None);
            assert_eq!(confirm_reason(&record(9, "90"), &beyond_end(9), &holds(0, (9, "90"))), None);
            let reason = confirm_reason(&record(9, "90"), &beyond_end(30), &holds(0, (20, "200")));
            assert_eq!(reason, Some(InvalidReason::BeyondEnd), "fresh properties confirm it");
            let reason = confirm_reason(&record(None, None), &beyond_end(0), &holds(0, None));
            assert_eq!(reason, Some(InvalidReason::BeyondEnd), "the event hub has no event anymore");
        }

        #[test]
        fn expiry_of_the_last_event_is_detected() {
            for begin in [9, 10] {
                let last = Position { sequence_number: 9, offset: "90".into() };
                let emptied = PartitionProperties::new(begin, Some(last), true);
                assert_eq!(
                    invalid_reason(&record(8, "80"), &emptied),
                    Some(InvalidReason::Expired),
                    "begins at {begin}"
                );
                assert_eq!(invalid_reason(&record(9, "90"), &emptied), None, "begins at {begin}");
                let invalid = InvalidCheckpoint { properties: emptied, ..invalid() };
                assert!(invalid.to_string().contains("is empty and ended at 9"), "{invalid}");
            }
        }
    }
}
