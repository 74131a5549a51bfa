//! How many events a partition lags behind, counted in sequence numbers.
//!
//! Offsets are not usable: they are bytes in one event hub and text in another, and only the service interprets them.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::properties::PartitionProperties;

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
    use crate::model::Position;

    const FRESH: Duration = Duration::from_secs(60);

    fn holds(first: i64, last: impl Into<Option<i64>>) -> PartitionProperties {
        let position = |sequence_number| Position { sequence_number, offset: "x".into() };
        PartitionProperties::new(first, last.into().map(position), false)
    }

    fn shown(checkpoint: impl Into<Option<i64>>, properties: &PartitionProperties) -> String {
        Lag::between(checkpoint.into(), Some(properties), FRESH, FRESH).to_string()
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

    mod defects {
        use super::*;

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
