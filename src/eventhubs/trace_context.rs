//! The trace context in the properties of an event.

use azure_messaging_eventhubs::models::{AmqpSimpleValue, ReceivedEventData};

use crate::source::TraceContext;

/// Returns the trace context that the producer sent with an event: of the property `traceparent` (with `tracestate`),
/// or else of `Diagnostic-Id`, which the official SDKs also send.
///
/// Text that is no valid `traceparent` of W3C is ignored, such as a `Diagnostic-Id` in the older hierarchical form.
#[must_use]
pub fn trace_context(event: &ReceivedEventData) -> Option<TraceContext> {
    let properties = event.event_data().properties()?;
    let text = |name: &str| match properties.get(name) {
        Some(AmqpSimpleValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let traceparent =
        ["traceparent", "Diagnostic-Id"].into_iter().filter_map(text).find(|text| is_traceparent(text))?;
    let tracestate = text("tracestate").filter(|state| state.len() <= MAX_TRACESTATE);
    Some(TraceContext::new(traceparent, tracestate.map(str::to_owned)))
}

/// How many bytes of a `tracestate` are passed on: W3C requires 512.
const MAX_TRACESTATE: usize = 4096;
/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// Returns whether text is a `traceparent` of W3C: `00-{32 hexadecimal digits}-{16}-{2}`. Later versions may append
/// fields. Ids that are zero, and the version ff, are invalid.
fn is_traceparent(text: &str) -> bool {
    let is_too_long = text.len() > if text.starts_with("00") { LENGTH } else { MAX_TRACESTATE };
    let is_zero = |id: Option<&str>| id.is_none_or(|id| id.bytes().all(|byte| byte == b'0'));
    if is_too_long || text.starts_with("ff") || is_zero(text.get(3..35)) || is_zero(text.get(36..52)) {
        return false;
    }
    let mut fields = text.split('-');
    let is_hexadecimal = |field: &str| field.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    [2, 32, 16, 2]
        .iter()
        .all(|digits| fields.next().is_some_and(|field| field.len() == *digits && is_hexadecimal(field)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hostile::hostile_text;

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
            let is_plain = text.get(..LENGTH).is_some_and(str::is_ascii) && text.len() <= MAX_TRACESTATE;
            prop_assert!(is_plain || !is_traceparent(&text), "{}", text);
        }
    }
}
