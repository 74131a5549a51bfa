//! Responses of `$management` about the hubs and their partitions.

use fe2o3_amqp_types::primitives::{Array, OrderedMap, Value};
use time::OffsetDateTime;
use tokio::time::Instant;

use super::hub::Hub;
use super::message::{ARGUMENT_OUT_OF_RANGE, AnyMessage, Response, application_property, timestamp};
use super::namespace::Namespace;
use super::partition::Partition;
use super::token_check::BadToken;

/// Responds to a READ of a hub or of a partition.
///
/// Each request carries a token of its own, `security_token`, besides the link's authorization. The service checks it:
/// in a live test of Azure/azure-sdk-for-js, the key is replaced, and the next READ over the open link is rejected
/// without another put-token (`EventHubConsumerClient $management calls`). Azure Stack rejects a request without it
/// (Azure/azure-sdk-for-js#7463).
pub(super) fn read(namespace: &Namespace, request: &AnyMessage) -> Response {
    let property = |name| application_property(request, name).unwrap_or_default();
    if !namespace.management_quota.admit(Instant::now()) {
        let text = "The namespace gets more requests for properties than it allows per second. Wait for 2 seconds.";
        return Response::error(503, "com.microsoft:server-busy", text);
    }
    if namespace.limits.checks_management_tokens
        && let Err(bad) = check_token(namespace, request)
    {
        return Response::bad_token(bad);
    }
    if property("operation") != "READ" {
        return Response::not_supported("Only the operation 'READ' is supported.");
    }
    let Some(hub) = namespace.hub(property("name")) else {
        return Response::not_found(property("name"));
    };
    match property("type") {
        "com.microsoft:eventhub" => found(hub_properties(&hub)),
        "com.microsoft:partition" => match hub.partition(property("partition")) {
            Some(partition) => found(partition_properties(&hub, &partition)),
            None => Response::error(400, ARGUMENT_OUT_OF_RANGE, hub.unknown_partition()),
        },
        other => Response::not_supported(format!("The type '{other}' is not supported.")),
    }
}

fn check_token(namespace: &Namespace, request: &AnyMessage) -> Result<(), BadToken> {
    let token = application_property(request, "security_token").ok_or(BadToken::Missing)?;
    namespace.tokens.check(token, namespace.clock.now()).map(|_verified| ())
}

fn found<const N: usize>(properties: [(&str, Value); N]) -> Response {
    let mut map = OrderedMap::new();
    for (name, value) in properties {
        map.insert(Value::String(name.to_owned()), value);
    }
    Response::found(Value::Map(map))
}

fn hub_properties(hub: &Hub) -> [(&str, Value); 6] {
    let regions = if hub.settings().is_geo_replicated { 2 } else { 1 };
    let ids: Vec<Value> = hub.partition_ids().into_iter().map(Value::String).collect();
    [
        ("name", Value::String(hub.name.clone())),
        ("type", Value::String("com.microsoft:eventhub".to_owned())),
        ("created_at", timestamp(hub.created_at)),
        ("partition_count", Value::Int(i32::try_from(ids.len()).unwrap_or(i32::MAX))),
        ("partition_ids", Value::Array(Array::from(ids))),
        ("georeplication_factor", Value::Int(regions)),
    ]
}

fn partition_properties<'a>(hub: &Hub, partition: &Partition) -> [(&'a str, Value); 10] {
    // There are no epochs of sequence numbers without replication.
    const NO_EPOCH: i32 = -1;
    let epoch = partition.epoch().unwrap_or(NO_EPOCH);
    let partition = partition.properties();
    [
        ("name", Value::String(hub.name.clone())),
        ("type", Value::String("com.microsoft:partition".to_owned())),
        ("partition", Value::String(partition.partition_id)),
        ("begin_sequence_number", Value::Long(partition.beginning_sequence_number)),
        ("begin_sequence_number_epoch", Value::Int(epoch)),
        ("last_enqueued_sequence_number", Value::Long(partition.last_enqueued_sequence_number)),
        ("last_enqueued_sequence_number_epoch", Value::Int(epoch)),
        ("last_enqueued_offset", Value::String(partition.last_enqueued_offset)),
        ("last_enqueued_time_utc", timestamp(partition.last_enqueued_time.unwrap_or(OffsetDateTime::UNIX_EPOCH))),
        ("is_partition_empty", Value::Bool(partition.is_empty)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::sas::SasKey;
    use crate::settings::HubSettings;

    use fe2o3_amqp_types::messaging::{ApplicationProperties, Body, Message};
    use time::Duration;

    fn namespace() -> Namespace {
        let key = SasKey { name: "name".into(), secret: "key".into() };
        Namespace::new(key, Limits::default(), vec![HubSettings::new("hub").with_partitions(2)])
    }

    fn request_with(token: Option<&str>, [operation, kind, name, partition]: [&str; 4]) -> AnyMessage {
        let mut properties = ApplicationProperties::builder()
            .insert("operation", operation)
            .insert("type", kind)
            .insert("name", name)
            .insert("partition", partition);
        if let Some(token) = token {
            properties = properties.insert("security_token", token);
        }
        Message::builder().application_properties(properties.build()).body(Body::Empty).build()
    }

    fn request(operation: &str, kind: &str, name: &str, partition: &str) -> Response {
        let namespace = namespace();
        let token = namespace.tokens.issue(namespace.clock.now() + Duration::HOUR);
        read(&namespace, &request_with(Some(&token), [operation, kind, name, partition]))
    }

    fn field(response: &Response, name: &str) -> Value {
        let Value::Map(map) = &response.body else { panic!("no map: {response:?}") };
        map.get(&Value::String(name.into())).cloned().expect("the field")
    }

    #[test]
    fn read_returns_properties() {
        let hub = request("READ", "com.microsoft:eventhub", "hub", "");
        assert_eq!((hub.code, field(&hub, "partition_count")), (200, Value::Int(2)));
        let partition = request("READ", "com.microsoft:partition", "hub", "1");
        assert_eq!((partition.code, field(&partition, "partition")), (200, Value::String("1".into())));
        assert_eq!(field(&partition, "last_enqueued_sequence_number"), Value::Long(-1));
    }

    #[test]
    fn requests_above_the_quota_are_rejected_as_busy() {
        let namespace = namespace();
        let responses: Vec<_> = (0..51).map(|_| read(&namespace, &request_with(None, [""; 4]))).collect();
        assert_eq!(responses[49].code, 401);
        assert_eq!((responses[50].code, responses[50].condition), (503, Some("com.microsoft:server-busy")));
    }

    #[test]
    fn every_request_needs_a_valid_token() {
        let mut namespace = namespace();
        let read_hub = |token| request_with(token, ["READ", "com.microsoft:eventhub", "hub", ""]);
        let expired = namespace.tokens.issue(namespace.clock.now());
        for token in [None, Some("forged"), Some(&expired)] {
            let response = read(&namespace, &read_hub(token));
            assert_eq!((response.code, response.condition), (401, Some("amqp:unauthorized-access")), "{token:?}");
        }
        namespace.limits.checks_management_tokens = false;
        assert_eq!(read(&namespace, &read_hub(None)).code, 200);
    }

    #[test]
    fn what_cannot_be_read_has_a_status_and_a_condition() {
        assert_eq!(request("READ", "com.microsoft:eventhub", "nohub", "").code, 404);
        let unknown = request("READ", "com.microsoft:partition", "hub", "2");
        assert_eq!((unknown.code, unknown.condition), (400, Some("com.microsoft:argument-out-of-range")));
        assert_eq!(request("READ", "com.microsoft:topic", "hub", "").code, 400);
        assert_eq!(request("DELETE", "com.microsoft:eventhub", "hub", "").code, 400);
    }
}
