//! Events that the source cannot decode.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use crate::error::{Error, ErrorKind};
use crate::model::{ConsumerGroup, PartitionId};

/// What the processor does with an event that the source cannot decode.
///
/// The official client cannot decode some events that other SDKs write and read, for example an event with a list among
/// its application properties (Azure/azure-sdk-for-js#31067), or with `null` as its body. Such an event comes back
/// whenever the partition is read, and no event after it arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnUndecodable {
    /// The partition fails until the event expires, or an operator moves the checkpoint behind it. It is retried with
    /// growing waits; the error names the event and the command. The default: no event is skipped unless the application
    /// says so.
    ///
    /// The official client does not report the number of the event, so it is inferred: two links in a row must end
    /// before the same event.
    #[default]
    Fail,
    /// Skip the event. The processor logs and counts it, and [dead letters](super::DeadLetters) store what is known of
    /// it; a handler of [`Processor::streams`](super::Processor::streams) does not learn of it. Then the checkpoint passes
    /// it, once it covers all events before, with an empty offset: other SDKs may not be able to start there.
    ///
    /// In an event hub with compaction, the numbers before the event may be skipped one after the other, each as an
    /// event of its own: nothing tells a number that compaction has removed from one that cannot be decoded.
    Skip,
}

/// An event that the source cannot decode, and that is about to be skipped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UndecodableEvent {
    /// The consumer group that reads it.
    pub group: Arc<ConsumerGroup>,
    /// The partition of the event.
    pub partition_id: PartitionId,
    /// The epoch in which this instance owns the partition; see
    /// [`PartitionContext::epoch`](super::PartitionContext::epoch).
    pub epoch: i64,
    /// The sequence number.
    pub sequence_number: i64,
    /// Why the source cannot decode it, with its causes.
    pub error: Arc<Error>,
}

/// Adds to the error of the source which event it is, and what helps.
pub(super) fn named(partition: &PartitionId, number: Option<i64>, error: Error) -> Error {
    let message = match number {
        Some(number) => format!(
            "cannot decode event {number} of partition {partition}: `OnUndecodable::Skip` skips such events, and \
             `ehcp reset -p {partition} --to-sequence {number} --live --execute` skips this one"
        ),
        None => format!(
            "cannot decode the next event of partition {partition}, whose sequence number is not known: reset the \
             partition to a sequence number"
        ),
    };
    Error::new(ErrorKind::Undecodable, message).with_source(error)
}

/// Why an event was not skipped. It says nothing about the events that the handler got.
#[derive(Debug)]
pub(super) struct NotSkipped {
    sequence_number: i64,
    cause: Error,
}

impl fmt::Display for NotSkipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} cannot be decoded, and was not skipped", self.sequence_number)
    }
}

impl StdError for NotSkipped {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.cause)
    }
}

/// The error of a handler that did not allow an event to be skipped.
pub(super) fn skip_refused(sequence_number: i64, cause: Error) -> Error {
    let message = format!("the handler did not allow event {sequence_number} to be skipped");
    Error::new(ErrorKind::Handler, message).with_source(NotSkipped { sequence_number, cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::undecodable::{reported_number, undecodable};

    #[test]
    fn the_error_names_the_event_and_the_remedy() {
        let error = undecodable(Some(42), "a list");
        let named = named(&3.into(), Some(42), error);
        assert_eq!((named.kind(), reported_number(&named)), (ErrorKind::Undecodable, Some(42)));
        let message = named.to_string();
        for part in
            ["event 42", "partition 3", "OnUndecodable::Skip", "ehcp reset -p 3 --to-sequence 42 --live --execute"]
        {
            assert!(message.contains(part), "{part} is missing: {message}");
        }
    }
}
