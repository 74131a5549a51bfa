//! Responses of `$management` about the hubs and their partitions.

use fe2o3_amqp_types::primitives::{Array, OrderedMap, Value};
use time::OffsetDateTime;

use super::hub::Hub;
use super::message::{AnyMessage, Response, application_property, missing, timestamp};
use super::namespace::Namespace;
use super::partition::PartitionProperties;

/// Responds to a READ of a hub or of a partition.
pub(super) fn read(namespace: &Namespace, request: &AnyMessage) -> Response {
    let property = |name| application_property(request, name).unwrap_or_default();
    if property("operation") != "READ" {
        return Response::status(400, "Only the operation 'READ' is supported.");
    }
    let Some(hub) = namespace.hub(property("name")) else {
        return not_found(property("name"));
    };
    match property("type") {
        "com.microsoft:eventhub" => found(hub_properties(hub)),
        "com.microsoft:partition" => match hub.partition(property("partition")) {
            Some(partition) => found(partition_properties(hub, partition.properties())),
            None => not_found(&format!("{}/Partitions/{}", hub.name, property("partition"))),
        },
        other => Response::status(400, format!("The type '{other}' is not supported.")),
    }
}

fn not_found(what: &str) -> Response {
    Response::status(404, missing(what))
}

fn found<const N: usize>(properties: [(&str, Value); N]) -> Response {
    let mut map = OrderedMap::new();
    for (name, value) in properties {
        map.insert(Value::String(name.to_owned()), value);
    }
    Response { code: 200, description: "OK".to_owned(), body: Value::Map(map) }
}

fn hub_properties(hub: &Hub) -> [(&str, Value); 6] {
    let ids: Vec<Value> = hub.partition_ids().into_iter().map(Value::String).collect();
    [
        ("name", Value::String(hub.name.clone())),
        ("type", Value::String("com.microsoft:eventhub".to_owned())),
        ("created_at", timestamp(hub.created_at)),
        ("partition_count", Value::Int(i32::try_from(ids.len()).unwrap_or(i32::MAX))),
        ("partition_ids", Value::Array(Array::from(ids))),
        ("georeplication_factor", Value::Int(1)),
    ]
}

fn partition_properties(hub: &Hub, partition: PartitionProperties) -> [(&str, Value); 10] {
    // There are no epochs of sequence numbers without replication.
    const NO_EPOCH: Value = Value::Int(-1);
    [
        ("name", Value::String(hub.name.clone())),
        ("type", Value::String("com.microsoft:partition".to_owned())),
        ("partition", Value::String(partition.partition_id)),
        ("begin_sequence_number", Value::Long(partition.beginning_sequence_number)),
        ("begin_sequence_number_epoch", NO_EPOCH),
        ("last_enqueued_sequence_number", Value::Long(partition.last_enqueued_sequence_number)),
        ("last_enqueued_sequence_number_epoch", NO_EPOCH),
        ("last_enqueued_offset", Value::String(partition.last_enqueued_offset)),
        ("last_enqueued_time_utc", timestamp(partition.last_enqueued_time.unwrap_or(OffsetDateTime::UNIX_EPOCH))),
        ("is_partition_empty", Value::Bool(partition.is_empty)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::event_hub::sas::SasKey;
    use crate::testing::event_hub::settings::HubSettings;
    use std::sync::Arc;

    use fe2o3_amqp_types::messaging::{ApplicationProperties, Body, Message};

    fn request(operation: &str, kind: &str, name: &str, partition: &str) -> Response {
        let hub = Arc::new(Hub::new(HubSettings::new("hub").with_partitions(2)));
        let namespace = Namespace::new(SasKey { name: "name".into(), secret: "key".into() }, vec![hub]);
        let properties = ApplicationProperties::builder()
            .insert("operation", operation)
            .insert("type", kind)
            .insert("name", name)
            .insert("partition", partition)
            .build();
        read(&namespace, &Message::builder().application_properties(properties).body(Body::Empty).build())
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
    fn missing_is_404_and_unsupported_is_400() {
        assert_eq!(request("READ", "com.microsoft:eventhub", "nohub", "").code, 404);
        assert_eq!(request("READ", "com.microsoft:partition", "hub", "2").code, 404);
        assert_eq!(request("READ", "com.microsoft:topic", "hub", "").code, 400);
        assert_eq!(request("DELETE", "com.microsoft:eventhub", "hub", "").code, 400);
    }
}
