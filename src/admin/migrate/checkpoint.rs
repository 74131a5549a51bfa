//! Checkpoints of other programs: pure.

use serde::Serialize;

use super::body::Body;
use crate::model::PartitionId;
use crate::source::{BEFORE_EVERYTHING, StartPosition};

/// The offset with which the Go SDK starts after the last event.
const AFTER_EVERYTHING: &str = "@latest";

/// The checkpoint of one partition, as another program recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LegacyCheckpoint {
    /// The partition.
    pub partition: PartitionId,
    /// The program that processed it last.
    pub owner: Option<String>,
    /// Whether a program processes it: its blob has an active lease. `None` if the source does not show that.
    pub live: Option<bool>,
    /// The sequence number of the last processed event.
    pub sequence_number: Option<i64>,
    /// The offset of the last processed event.
    pub offset: Option<String>,
    /// Where the program would continue.
    #[serde(skip)]
    start: Option<StartPosition>,
}

/// A record of another program that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MalformedLegacyRecord {
    /// The partition.
    pub partition: PartitionId,
    /// Whether a program processes it.
    pub live: Option<bool>,
    /// What is wrong with the record.
    pub problem: String,
}

impl LegacyCheckpoint {
    pub(super) fn new(partition: PartitionId, live: bool, body: Body) -> Self {
        let Body { owner, sequence_number, offset } = body;
        let start = start(sequence_number, offset.as_deref());
        Self { partition, owner, live: Some(live), sequence_number, offset, start }
    }

    /// Creates the checkpoint of a Kafka consumer group. Its offset is that of the *next* event to process, and counts
    /// as sequence numbers do.
    #[must_use]
    pub fn from_kafka(partition: PartitionId, offset: i64) -> Self {
        let number = offset.saturating_sub(1);
        let start = Some(StartPosition::AfterSequenceNumber(number));
        Self { partition, owner: None, live: None, sequence_number: Some(number), offset: None, start }
    }

    /// Returns where the program would continue. `None` if it has never written a checkpoint of the partition: then the
    /// start position decides with which it was configured, and its records do not have that.
    #[must_use]
    pub fn start_position(&self) -> Option<&StartPosition> {
        self.start.as_ref()
    }
}

/// Returns where a program continues that recorded this position. One that has never written a checkpoint has the
/// sequence number 0, or none, without an offset.
fn start(sequence_number: Option<i64>, offset: Option<&str>) -> Option<StartPosition> {
    match (sequence_number, offset) {
        (_, Some(AFTER_EVERYTHING)) => Some(StartPosition::Latest),
        (_, Some(BEFORE_EVERYTHING)) => Some(StartPosition::Earliest),
        (None | Some(0), None) => None,
        (Some(number), _) => Some(StartPosition::AfterSequenceNumber(number)),
        (None, Some(offset)) => Some(StartPosition::AfterOffset(offset.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use StartPosition::{AfterOffset, AfterSequenceNumber, Earliest, Latest};

    use super::*;

    #[test]
    fn programs_continue_after_their_checkpoint() {
        assert_eq!(start(Some(41), Some("4100")), Some(AfterSequenceNumber(41)));
        assert_eq!(start(Some(41), None), Some(AfterSequenceNumber(41)));
        assert_eq!(start(Some(0), Some("0")), Some(AfterSequenceNumber(0)));
        assert_eq!(start(None, Some("4100")), Some(AfterOffset("4100".to_owned())));
    }

    #[test]
    fn offsets_may_name_an_end_of_the_partition() {
        for number in [None, Some(0), Some(41)] {
            assert_eq!(start(number, Some("-1")), Some(Earliest));
            assert_eq!(start(number, Some("@latest")), Some(Latest));
        }
    }

    #[test]
    fn no_checkpoint_is_no_position() {
        assert_eq!(start(None, None), None);
        assert_eq!(start(Some(0), None), None);
    }

    #[test]
    fn kafka_names_the_next_event() {
        let start = |offset| LegacyCheckpoint::from_kafka(0.into(), offset).start_position().cloned();
        assert_eq!(start(42), Some(AfterSequenceNumber(41)));
        assert_eq!(start(1), Some(AfterSequenceNumber(0)));
        assert_eq!(start(0), Some(AfterSequenceNumber(-1)));
        assert_eq!(start(i64::MAX), Some(AfterSequenceNumber(i64::MAX - 1)));
    }
}
