//! Conversions between the types of the official client and the types of the event source.

use azure_messaging_eventhubs::models::{AmqpSimpleValue, EventHubPartitionProperties, ReceivedEventData};
use azure_messaging_eventhubs::{StartLocation, StartPosition as ClientPosition};
use time::OffsetDateTime;

use crate::model::Position;
use crate::source::{PartitionProperties, Positioned, StartPosition, TraceContext};

impl Positioned for ReceivedEventData {
    fn sequence_number(&self) -> Option<i64> {
        self.sequence_number()
    }

    fn offset(&self) -> Option<&str> {
        self.offset().as_deref()
    }

    fn enqueued_at(&self) -> Option<OffsetDateTime> {
        self.enqueued_time().map(OffsetDateTime::from)
    }

    /// The size of the body. Properties are not counted.
    fn byte_size(&self) -> usize {
        self.event_data().body().map_or(0, <[u8]>::len)
    }

    fn trace_context(&self) -> Option<TraceContext> {
        trace_context(self)
    }
}

/// Returns the trace context that the producer sent with an event: of the property `traceparent` (with `tracestate`),
/// or else of `Diagnostic-Id`, which the official SDKs also send.
///
/// Text that is no valid `traceparent` of W3C is ignored, such as a `Diagnostic-Id` in the older hierarchical form.
#[must_use]
pub fn trace_context(event: &ReceivedEventData) -> Option<TraceContext> {
    let properties = event.event_data().properties()?;
    let [traceparent, diagnostic_id, tracestate] =
        ["traceparent", "Diagnostic-Id", "tracestate"].map(|name| match properties.get(name) {
            Some(AmqpSimpleValue::String(text)) => Some(text.as_str()),
            _ => None,
        });
    let traceparent = [traceparent, diagnostic_id].into_iter().flatten().find(|text| is_traceparent(text))?;
    Some(TraceContext::new(traceparent, tracestate.filter(|state| state.len() <= MAX_TRACESTATE).map(str::to_owned)))
}

/// How many bytes of a `tracestate` are passed on: W3C requires 512.
const MAX_TRACESTATE: usize = 4096;
/// The length of a `traceparent` of version 00.
const TRACEPARENT_LENGTH: usize = 55;

/// Returns whether text is a `traceparent` of W3C: `00-{32 hexadecimal digits}-{16}-{2}`. Later versions may append
/// fields. Ids that are zero, and the version ff, are invalid.
fn is_traceparent(text: &str) -> bool {
    let is_too_long = text.len() > if text.starts_with("00") { TRACEPARENT_LENGTH } else { MAX_TRACESTATE };
    if is_too_long || text.starts_with("ff") {
        return false;
    }
    for id in [text.get(3..35), text.get(36..52)] {
        if id.is_none_or(|id| id.bytes().all(|byte| byte == b'0')) {
            return false;
        }
    }
    let mut fields = text.split('-');
    [2, 32, 16, 2].iter().all(|digits| {
        let Some(field) = fields.next() else { return false };
        field.len() == *digits && field.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

pub(super) fn to_partition_properties(properties: EventHubPartitionProperties) -> PartitionProperties {
    let last =
        Position { sequence_number: properties.last_enqueued_sequence_number, offset: properties.last_enqueued_offset };
    let reported = PartitionProperties::new(properties.beginning_sequence_number, Some(last), properties.is_empty);
    match properties.last_enqueued_time_utc {
        Some(time) => reported.with_last_enqueued_at(time.into()),
        None => reported,
    }
}

pub(super) fn to_client_position(from: StartPosition) -> ClientPosition {
    ClientPosition {
        location: match from {
            StartPosition::Earliest => StartLocation::Earliest,
            StartPosition::Latest => StartLocation::Latest,
            StartPosition::AfterSequenceNumber(number) => StartLocation::SequenceNumber(number),
            StartPosition::AfterOffset(offset) => StartLocation::Offset(offset),
            StartPosition::EnqueuedAfter(time) => StartLocation::EnqueuedTime(time.into()),
        },
        inclusive: false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::hostile::hostile_text;

    #[test]
    fn other_forms_are_no_trace_context() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let later = format!("{valid}-later").replacen("00", "01", 1);
        assert!(is_traceparent(valid) && is_traceparent(&later));
        let zero = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let invalid = [format!("{valid}-later"), valid.replacen("00", "ff", 1), zero, format!("{valid}é")];
        assert!(invalid.iter().all(|text| !is_traceparent(text)));
        for other in ["", "|0af76519.b7ad6b71.", &valid[..54], &valid.to_uppercase().replace('0', "A"), "00-g-h-01"] {
            assert!(!is_traceparent(other), "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_trace_context_is_ascii_and_short(
            text in hostile_text(&["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"])
        ) {
            let is_plain = text.get(..TRACEPARENT_LENGTH).is_some_and(str::is_ascii) && text.len() <= MAX_TRACESTATE;
            prop_assert!(is_plain || !is_traceparent(&text), "{}", text);
        }
    }
}
