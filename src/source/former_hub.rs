//! Whether a position belongs to the event hub, or to a deleted one with the same name.

use std::time::Duration;

use time::OffsetDateTime;

use super::offset_format::BEFORE_EVERYTHING;
use crate::model::CheckpointRecord;

/// The largest difference between the clocks of the event hub and of the storage.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);

/// Returns whether the checkpoint is a position in a former event hub, if the event hub was created at this time.
///
/// Other SDKs do not record the creation time. Their records are judged by the time at which the position was written.
/// A record that was written in the last seconds before the creation counts as valid: the clocks may differ, and a
/// checkpoint in the first seconds of an event hub is much more frequent than an event hub that is recreated that fast.
pub(crate) fn is_of_former_hub(record: &CheckpointRecord, created_at: Option<OffsetDateTime>) -> bool {
    let Some(created_at) = created_at.filter(|_| has_event(record)) else { return false };
    match (record.hub_created_at, record.updated_at) {
        (Some(of), _) => of != created_at,
        (None, Some(written_at)) => written_at + CLOCK_DIFFERENCE < created_at,
        (None, None) => false,
    }
}

/// Returns whether the record names an event. The position before all events is the same in every event hub.
fn has_event(record: &CheckpointRecord) -> bool {
    let is_event = record.sequence_number.is_none_or(|number| number >= 0);
    is_event && record.has_position() && record.offset.as_deref() != Some(BEFORE_EVERYTHING)
}

/// Drops the fraction of the second: records have whole seconds, and two requests may return different fractions.
pub(crate) fn whole_seconds(time: OffsetDateTime) -> OffsetDateTime {
    time.replace_nanosecond(0).unwrap_or(time)
}

#[cfg(test)]
mod tests {
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
