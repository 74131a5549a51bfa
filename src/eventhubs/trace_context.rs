//! The trace context in the properties of an event.

use azure_messaging_eventhubs::models::{AmqpSimpleValue, ReceivedEventData};

use crate::processor::TraceContext;

/// Returns the trace context that the producer sent with an event: of the property `traceparent` (with `tracestate`),
/// or of `Diagnostic-Id`, which the official SDKs sent before.
///
/// A `Diagnostic-Id` in the older hierarchical form is no trace context. The order is that of the SDK for Java
/// (`EventHubsTracer` in Azure/azure-sdk-for-java).
#[must_use]
pub fn trace_context(event: &ReceivedEventData) -> Option<TraceContext> {
    let properties = event.event_data().properties()?;
    let text = |name: &str| match properties.get(name) {
        Some(AmqpSimpleValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let traceparent = text("traceparent").or_else(|| text("Diagnostic-Id"))?;
    is_traceparent(traceparent).then(|| TraceContext::new(traceparent, text("tracestate").map(str::to_owned)))
}

/// Returns whether text has the form of W3C: `00-{32 hexadecimal digits}-{16}-{2}`. Later versions may append fields.
fn is_traceparent(text: &str) -> bool {
    let mut fields = text.split('-');
    let is_hexadecimal = |field: &str| field.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    [2, 32, 16, 2]
        .iter()
        .all(|digits| fields.next().is_some_and(|field| field.len() == *digits && is_hexadecimal(field)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_forms_are_no_trace_context() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(is_traceparent(valid) && is_traceparent(&format!("{valid}-later")));
        for other in ["", "|0af76519.b7ad6b71.", &valid[..54], &valid.to_uppercase().replace('0', "A"), "00-g-h-01"] {
            assert!(!is_traceparent(other), "{other}");
        }
    }
}
