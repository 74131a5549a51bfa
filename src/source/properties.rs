//! What an event hub reports about itself and about the events of a partition, and what that says about a recorded
//! position: whether it belongs to a deleted event hub with the same name, and how far the partition lags behind.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::offset_format::{BEFORE_EVERYTHING, is_text};
use crate::model::{CheckpointRecord, PartitionId, Position};

/// The largest difference between the clocks of the event hub and of the storage.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);

/// The properties of an event hub that the processor needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventHubProperties {
    /// The name of the event hub.
    pub event_hub: String,
    /// Its current partitions. Their number may grow.
    pub partitions: Vec<PartitionId>,
    /// When it was created, in whole seconds. `None` if the source does not know the time.
    pub created_at: Option<OffsetDateTime>,
}

impl EventHubProperties {
    /// Creates the properties from the name of an event hub and its partitions.
    #[must_use]
    pub fn new(event_hub: impl Into<String>, partitions: Vec<PartitionId>) -> Self {
        Self { event_hub: event_hub.into(), partitions, created_at: None }
    }

    /// Sets when the event hub was created. The fraction of the second is dropped, so that times from different
    /// requests are equal.
    ///
    /// The processor records it with each position. If the event hub later has another time, it was deleted and
    /// recreated: recorded positions then count as invalid, for
    /// [`InvalidReason::Recreated`](crate::processor::InvalidReason), however many events the new event hub has.
    /// Without it, only positions after the end of the partition are found. A source must not report a time that can
    /// change for the same events.
    #[must_use]
    pub fn with_created_at(mut self, time: OffsetDateTime) -> Self {
        self.created_at = Some(whole_seconds(time));
        self
    }
}

/// Returns whether the checkpoint is a position in a former event hub, if the event hub was created at this time.
///
/// Other SDKs do not record the creation time. Their records are judged by the time at which the position was written.
/// A record that was written in the last seconds before the creation counts as valid: the clocks may differ, and a
/// checkpoint in the first seconds of an event hub is much more frequent than an event hub that is recreated that fast.
pub(crate) fn is_of_former_hub(record: &CheckpointRecord, created_at: Option<OffsetDateTime>) -> bool {
    let Some(created_at) = created_at else { return false };
    // The position before all events is the same in every event hub.
    let is_event = record.sequence_number.is_none_or(|number| number >= 0);
    if !is_event || !record.has_position() || record.offset.as_deref() == Some(BEFORE_EVERYTHING) {
        return false;
    }
    match (record.hub_created_at, record.updated_at) {
        (Some(of), _) => of != created_at,
        (None, Some(written_at)) => written_at + CLOCK_DIFFERENCE < created_at,
        (None, None) => false,
    }
}

/// Drops the fraction of the second: records have whole seconds, and two requests may return different fractions.
pub(crate) fn whole_seconds(time: OffsetDateTime) -> OffsetDateTime {
    time.replace_nanosecond(0).unwrap_or(time)
}

/// The range of events in a partition.
///
/// Created by [`new`](Self::new) only, because event hubs report an emptied partition, in which all events have
/// expired, in two ways: with a number of the first event that is greater than the number of the last one, or with
/// equal numbers. The second report looks like a partition of one event. Here both are equal: empty, with a
/// [`beginning_sequence_number`](Self::beginning_sequence_number) after the last event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionProperties {
    first: i64,
    last: Option<Position>,
    last_enqueued_at: Option<OffsetDateTime>,
}

impl PartitionProperties {
    /// Creates properties from what an event hub reports: the number of the first available event, the position of the
    /// last event ever enqueued, and whether the partition is empty now.
    ///
    /// - `last`: `None`, or a negative number, if there never was an event. The first one will then be number 0.
    /// - `is_empty`: matters only if there was an event. If the event hub does not report it, pass `false` and, for a
    ///   partition without available events, a `beginning_sequence_number` after the number of `last`.
    ///
    /// The tests of KEDA's scaler show that an empty partition may have equal numbers other than 0 (kedacore/keda
    /// `pkg/scalers/azure_eventhub_scaler_test.go`). .NET (`EventHubMetricsProvider.cs` of the extension for Functions)
    /// and the Spark connector (`EventHubsClient.scala`) also check for emptiness before they calculate.
    ///
    /// ```
    /// use eventhubs_checkpoint::Position;
    /// use eventhubs_checkpoint::source::PartitionProperties;
    ///
    /// let last = || Some(Position::new(255, "x"));
    /// let one_event = PartitionProperties::new(255, last(), false);
    /// assert_eq!((one_event.beginning_sequence_number(), one_event.is_empty()), (255, false));
    /// let emptied = PartitionProperties::new(255, last(), true);
    /// assert_eq!((emptied.beginning_sequence_number(), emptied.is_empty()), (256, true));
    /// assert_eq!(emptied, PartitionProperties::new(256, last(), true));
    /// ```
    #[must_use]
    pub fn new(beginning_sequence_number: i64, last: Option<Position>, is_empty: bool) -> Self {
        let last = last.filter(|last| last.sequence_number >= 0);
        let next = last.as_ref().map_or(0, |last| last.sequence_number.saturating_add(1));
        Self {
            first: if is_empty { next } else { beginning_sequence_number.clamp(0, next) },
            last,
            last_enqueued_at: None,
        }
    }

    /// Sets when the last event was enqueued, expired or not. Ignored if there never was an event.
    ///
    /// The processor compares it with a start at [`EnqueuedAfter`](super::StartPosition::EnqueuedAfter). Without it,
    /// such a start takes 10 s longer in a partition that has no event after the time, and 20 s longer if the events do
    /// not carry their times either.
    #[must_use]
    pub fn with_last_enqueued_at(mut self, time: OffsetDateTime) -> Self {
        self.last_enqueued_at = self.last.is_some().then_some(time);
        self
    }

    /// Returns the sequence number of the first available event, or of the next event if none is available.
    #[must_use]
    pub fn beginning_sequence_number(&self) -> i64 {
        self.first
    }

    /// Returns the position of the last event ever enqueued, expired or not. `None` if there never was one.
    #[must_use]
    pub fn last_enqueued(&self) -> Option<&Position> {
        self.last.as_ref()
    }

    /// Returns when the last event was enqueued, expired or not, by the clock of the event hub. `None` if there never
    /// was one, or if the source does not report it.
    #[must_use]
    pub fn last_enqueued_at(&self) -> Option<OffsetDateTime> {
        self.last_enqueued_at
    }

    /// Returns whether no event is available: there never was one, or all have expired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.sequence_number < self.first)
    }

    /// Returns whether the event hub has an event with this number that is not the last one.
    pub(crate) fn holds_before_last(&self, number: i64) -> bool {
        number >= self.first && self.last.as_ref().is_some_and(|last| number < last.sequence_number)
    }

    /// Returns the same range without the events at its end that no link delivers.
    pub(crate) fn without_undelivered(&self, undelivered: Option<Undelivered>) -> Self {
        let end = self.last.as_ref().map(|last| last.sequence_number);
        let Some(undelivered) = undelivered.filter(|events| Some(events.up_to) == end) else { return self.clone() };
        let last = Position { sequence_number: undelivered.after.max(self.first - 1), offset: String::new() };
        Self { last: Some(last).filter(|last| last.sequence_number >= 0), ..self.clone() }
    }

    /// Returns the position before the first available event, as a checkpoint records it. `-1` is the offset that the
    /// service uses for the position before all events.
    pub(crate) fn beginning_position(&self) -> Position {
        Position { sequence_number: self.first - 1, offset: BEFORE_EVERYTHING.to_owned() }
    }

    /// Returns the position of the last event ever enqueued, or the position before all events, as a checkpoint records
    /// it: [without an offset](super::offset_format) if that is text.
    pub(crate) fn end_position(&self) -> Position {
        let end = self.last.clone().unwrap_or_else(|| self.beginning_position());
        if is_text(&end.offset) { Position { offset: String::new(), ..end } } else { end }
    }
}

/// Events that an event hub reports, but that no link delivers: those after the first number, up to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undelivered {
    pub(crate) after: i64,
    pub(crate) up_to: i64,
}

/// How reliable a [`Lag`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LagState {
    /// Counted from the checkpoint.
    Known,
    /// There is no checkpoint: counted from the first available event.
    NoCheckpoint,
    /// The partition has no available events.
    Empty,
    /// The last known properties of the partition are too old.
    Stale,
    /// The properties of the partition are not known.
    Unknown,
}

/// How many events of a partition wait to be processed.
///
/// It is as exact as its two numbers. The checkpoint is behind the processed events by up to
/// [`CheckpointPolicy::interval`](crate::processor::CheckpointPolicy::interval), and the properties are as old as the
/// last lag check. Serialized as `{"events": 1234, "state": "known"}`.
#[doc(alias = "consumer_lag")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Lag {
    /// The number of waiting events. Expired events do not count. `None` if unknown; the last known number if stale.
    pub events: Option<u64>,
    /// How reliable the number is.
    pub state: LagState,
}

impl Lag {
    /// Calculates the lag of a checkpoint, given by its sequence number, in a partition whose properties were read
    /// `age` ago. Properties older than `max_age` are stale.
    ///
    /// The lag of a checkpoint after the end is 0. It does not have a state of its own: checkpoints are usually newer
    /// than the properties, and then they are after the end that the properties show. If the event hub was recreated,
    /// the partition does not start there: see [`OnInvalidCheckpoint`](crate::processor::OnInvalidCheckpoint).
    ///
    /// ```
    /// use std::time::Duration;
    /// use eventhubs_checkpoint::Position;
    /// use eventhubs_checkpoint::source::{Lag, PartitionProperties};
    ///
    /// let last = Position::new(1999, "x");
    /// let properties = PartitionProperties::new(1000, Some(last), false);
    /// let lag = |checkpoint| Lag::between(checkpoint, Some(&properties), Duration::ZERO, Duration::from_secs(60));
    /// assert_eq!(lag(Some(1989)).to_string(), "10");
    /// assert_eq!(lag(None).to_string(), "1000 (no checkpoint)");
    /// ```
    #[must_use]
    pub fn between(
        checkpoint: Option<i64>,
        properties: Option<&PartitionProperties>,
        age: Duration,
        max_age: Duration,
    ) -> Self {
        let Some(properties) = properties else {
            return Self { events: None, state: LagState::Unknown };
        };
        // Offsets are not usable: they are bytes in one event hub and text in another, and only the service interprets
        // them.
        let last = properties.last_enqueued().filter(|_| !properties.is_empty()).map(|last| last.sequence_number);
        let before_first = properties.beginning_sequence_number().saturating_sub(1);
        let done = checkpoint.map_or(before_first, |checkpoint| checkpoint.max(before_first));
        let waiting = last.map_or(0, |last| last.saturating_sub(done).max(0));
        Self {
            events: Some(waiting.unsigned_abs()),
            state: match (last, checkpoint) {
                _ if age > max_age => LagState::Stale,
                (None, _) => LagState::Empty,
                (Some(_), None) => LagState::NoCheckpoint,
                (Some(_), Some(_)) => LagState::Known,
            },
        }
    }
}

/// Writes the number and, in parentheses, a state other than known: `1234`, `1234 (no checkpoint)`, `unknown`.
impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(events) = self.events else { return f.write_str("unknown") };
        write!(f, "{events}")?;
        f.write_str(match self.state {
            LagState::Known => "",
            LagState::NoCheckpoint => " (no checkpoint)",
            LagState::Empty => " (empty)",
            LagState::Stale => " (stale)",
            LagState::Unknown => " (unknown)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Duration = Duration::from_secs(60);

    fn properties(first: i64, last: impl Into<Option<i64>>, is_empty: bool) -> PartitionProperties {
        let position = |sequence_number| Position { sequence_number, offset: format!("{sequence_number}0") };
        PartitionProperties::new(first, last.into().map(position), is_empty)
    }

    fn holds(first: i64, last: impl Into<Option<i64>>) -> PartitionProperties {
        let position = |sequence_number| Position { sequence_number, offset: "x".into() };
        PartitionProperties::new(first, last.into().map(position), false)
    }

    fn shown(checkpoint: impl Into<Option<i64>>, properties: &PartitionProperties) -> String {
        Lag::between(checkpoint.into(), Some(properties), FRESH, FRESH).to_string()
    }

    #[test]
    fn reports_of_the_same_partition_are_equal() {
        let never_used = properties(0, None, true);
        for (case, reported, expected) in [
            ("never used, by its number", properties(0, -1, true), &never_used),
            ("never used, not reported as empty", properties(0, -1, false), &never_used),
            ("never used, with another beginning", properties(7, None, false), &never_used),
            ("emptied, by equal numbers", properties(255, 255, true), &properties(256, 255, true)),
            ("emptied, by the numbers alone", properties(256, 255, false), &properties(256, 255, true)),
            ("emptied, with an old beginning", properties(3, 255, true), &properties(256, 255, true)),
            ("emptied, with a beginning too far", properties(300, 255, false), &properties(256, 255, true)),
        ] {
            assert_eq!(&reported, expected, "{case}");
            assert!(reported.is_empty(), "{case}");
        }
        for (first, last) in [(0, 0), (255, 255), (5, 9), (0, i64::MAX)] {
            let holding = properties(first, last, false);
            assert_eq!((holding.beginning_sequence_number(), holding.is_empty()), (first, false), "{first} to {last}");
        }
    }

    #[test]
    fn the_last_time_is_known_only_if_there_was_an_event() {
        let time = OffsetDateTime::UNIX_EPOCH;
        assert_eq!(properties(0, None, true).with_last_enqueued_at(time).last_enqueued_at(), None);
        assert_eq!(properties(0, 0, false).with_last_enqueued_at(time).last_enqueued_at(), Some(time));
        assert_eq!(properties(0, 0, false).last_enqueued_at(), None);
    }

    #[test]
    fn a_checkpoint_is_before_the_next_event() {
        let at = |place: Position| (place.sequence_number, place.offset);
        let place = |number, offset: &str| (number, offset.to_owned());
        let unused = properties(0, None, true);
        assert_eq!((at(unused.beginning_position()), at(unused.end_position())), (place(-1, "-1"), place(-1, "-1")));
        let holding = properties(7, 9, false);
        assert_eq!((at(holding.beginning_position()), at(holding.end_position())), (place(6, "-1"), place(9, "90")));
        let replicated = PartitionProperties::new(7, Some(Position::new(9, "1:90")), false);
        assert_eq!(at(replicated.end_position()), place(9, ""), "a namespace with geo-replication rejects the offset");
    }

    #[test]
    fn available_events_after_the_checkpoint_wait() {
        let full = holds(100, 199);
        let table = [
            ("inside", shown(149, &full), "50"),
            ("all done", shown(199, &full), "0"),
            ("right before the first", shown(99, &full), "100"),
            ("long before the first", shown(3, &full), "100"),
            ("before everything", shown(-1, &full), "100"),
            ("the smallest possible number", shown(i64::MIN, &full), "100"),
            ("beyond the end", shown(200, &full), "0"),
            ("the greatest possible number", shown(i64::MAX, &full), "0"),
            ("no checkpoint", shown(None, &full), "100 (no checkpoint)"),
            ("no checkpoint, one event", shown(None, &holds(0, 0)), "1 (no checkpoint)"),
            ("never held anything", shown(None, &holds(0, None)), "0 (empty)"),
            ("before everything of nothing", shown(-1, &holds(0, None)), "0 (empty)"),
            ("emptied", shown(150, &holds(200, 199)), "0 (empty)"),
            ("emptied, no checkpoint", shown(None, &holds(200, 199)), "0 (empty)"),
            ("all possible numbers", shown(-1, &holds(0, i64::MAX)), "9223372036854775807"),
        ];
        for (case, shown, expected) in table {
            assert_eq!(shown, expected, "{case}");
        }
    }

    #[test]
    fn stale_and_unknown_lags_are_reported_as_such() {
        let of = |properties, age| Lag::between(Some(149), properties, age, FRESH);
        let full = holds(100, 199);
        let old = of(Some(&full), FRESH + Duration::from_nanos(1));
        assert_eq!((old.events, old.state, old.to_string().as_str()), (Some(50), LagState::Stale, "50 (stale)"));
        let unknown = of(None, Duration::ZERO);
        assert_eq!((unknown.state, unknown.to_string().as_str()), (LagState::Unknown, "unknown"));
        let json = |lag: Lag| serde_json::to_string(&lag).unwrap();
        assert_eq!(json(old), r#"{"events":50,"state":"stale"}"#);
        assert_eq!(json(unknown), r#"{"events":null,"state":"unknown"}"#);
        assert_eq!(json(Lag::between(None, Some(&full), FRESH, FRESH)), r#"{"events":100,"state":"no_checkpoint"}"#);
    }

    mod former_hub {
        use super::*;

        fn at(second: i64) -> OffsetDateTime {
            OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1000) + time::Duration::seconds(second)
        }

        #[test]
        fn a_position_is_of_the_hub_that_its_record_shows() {
            let shows = |number, hub: Option<i64>, written: Option<i64>| CheckpointRecord {
                hub_created_at: hub.map(at),
                updated_at: written.map(at),
                sequence_number: Some(number),
                ..CheckpointRecord::default()
            };
            for (case, record, is_of_former) in [
                ("the same hub", shows(7, Some(0), Some(-900)), false),
                ("an earlier hub", shows(7, Some(-1), Some(900)), true),
                ("a later one, by a failover", shows(7, Some(1), Some(900)), true),
                ("not shown, written long before", shows(7, None, Some(-6)), true),
                ("not shown, written just before", shows(7, None, Some(-5)), false),
                ("not shown, written after", shows(7, None, Some(1)), false),
                ("neither", shows(7, None, None), false),
                ("before all events", shows(-1, Some(-1), Some(-900)), false),
            ] {
                assert_eq!(is_of_former_hub(&record, Some(at(0))), is_of_former, "{case}");
                assert!(!is_of_former_hub(&record, None), "{case}: the source reports no creation");
            }
        }
    }

    mod defects {
        use super::*;

        #[test]
        fn an_emptied_partition_starts_at_its_last_event() {
            for begin in [199, 200] {
                let emptied = properties(begin, 199, true);
                let beginning = emptied.beginning_position();
                let end = emptied.end_position();
                assert_eq!((beginning.sequence_number, &*beginning.offset), (199, "-1"), "begins at {begin}");
                assert_eq!((end.sequence_number, &*end.offset), (199, "1990"), "begins at {begin}");
            }
        }

        /// A partition that held events up to 199 reports either 199 or 200 as the first number.
        #[test]
        fn an_emptied_partition_has_no_lag() {
            for begin in [199, 200] {
                let last = Position::new(199, "x");
                let emptied = PartitionProperties::new(begin, Some(last), true);
                for checkpoint in [None, Some(-1), Some(150), Some(198), Some(199)] {
                    assert_eq!(
                        shown(checkpoint, &emptied),
                        "0 (empty)",
                        "begins at {begin}, checkpoint {checkpoint:?}"
                    );
                }
            }
        }
    }
}
