//! Names and records that other programs write in the format of the SDKs: this crate uses the same names, and reads
//! their records.

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::{BlobNames, NameCase, RecordKind, decode_checkpoint, decode_ownership};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};

/// A program, as it is configured in these tests.
struct Program {
    name: &'static str,
    namespace: &'static str,
    event_hub: &'static str,
    consumer_group: &'static str,
    case: NameCase,
    ownership: &'static str,
    checkpoint: &'static str,
}

const FUNCTIONS: &str = "Azure Functions, extension 5 and newer";
const DAPR: &str = "Dapr 1.10 and newer";
const COLLECTOR: &str = "OpenTelemetry Collector";
const BEATS: &str = "Beats, input v2";

/// The sources:
///
/// - Functions: `BlobCheckpointStoreInternal.cs` in `Azure.Messaging.EventHubs.Shared` (azure-sdk-for-net), which
///   lower-cases all three names, in the container `EventHubOptions.LeaseContainerName`.
/// - The others use `checkpoints/blob_store.go` of azeventhubs (azure-sdk-for-go), which uses the names as given: Dapr
///   in `common/component/azure/eventhubs/eventhubs.go`, the Collector in
///   `receiver/azureeventhubreceiver/eventhubhandler_azeventhub.go` (`createProcessor`), Beats in
///   `x-pack/filebeat/input/azureeventhub/v2_input.go`.
///
/// The namespace is the host of the connection string, the consumer group of the Collector and of Beats is `$Default`
/// if none is set, and Dapr uses the `consumerID`.
const PROGRAMS: [Program; 4] = [
    Program {
        name: FUNCTIONS,
        namespace: "Example.servicebus.windows.net",
        event_hub: "Orders",
        consumer_group: "$Default",
        case: NameCase::Lower,
        ownership: "example.servicebus.windows.net/orders/$default/ownership/3",
        checkpoint: "example.servicebus.windows.net/orders/$default/checkpoint/3",
    },
    Program {
        name: DAPR,
        namespace: "Example.servicebus.windows.net",
        event_hub: "Orders",
        consumer_group: "myApp",
        case: NameCase::Verbatim,
        ownership: "Example.servicebus.windows.net/Orders/myApp/ownership/3",
        checkpoint: "Example.servicebus.windows.net/Orders/myApp/checkpoint/3",
    },
    Program {
        name: COLLECTOR,
        namespace: "example.servicebus.windows.net",
        event_hub: "otel-logs",
        consumer_group: "$Default",
        case: NameCase::Verbatim,
        ownership: "example.servicebus.windows.net/otel-logs/$Default/ownership/3",
        checkpoint: "example.servicebus.windows.net/otel-logs/$Default/checkpoint/3",
    },
    Program {
        name: BEATS,
        namespace: "mbranca-general.servicebus.windows.net",
        event_hub: "mbrancalogs",
        consumer_group: "$Default",
        case: NameCase::Verbatim,
        ownership: "mbranca-general.servicebus.windows.net/mbrancalogs/$Default/ownership/3",
        checkpoint: "mbranca-general.servicebus.windows.net/mbrancalogs/$Default/checkpoint/3",
    },
];

fn metadata(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().copied().collect()
}

#[test]
fn names_are_theirs() {
    for program in PROGRAMS {
        let Program { name, namespace, event_hub, consumer_group, case, ownership, checkpoint } = program;
        let group = ConsumerGroup::new(namespace, event_hub, consumer_group).unwrap();
        let names = BlobNames::new(&group, case);
        for (kind, theirs) in [(RecordKind::Ownership, ownership), (RecordKind::Checkpoint, checkpoint)] {
            assert_eq!(names.record_name(kind, &3.into()), theirs, "{name}");
            assert_eq!(names.parse_partition(kind, theirs).unwrap(), 3.into(), "{name}");
        }
        let other = BlobNames::new(&group, case.other());
        let has_capitals = [namespace, event_hub, consumer_group].concat().chars().any(char::is_uppercase);
        let differs = other.record_name(RecordKind::Ownership, &3.into()) != ownership;
        assert_eq!(differs, has_capitals, "{name}: only capitals make two names");
    }
}

/// Go writes header names in title case, which the storage may keep.
#[test]
fn ownerships_are_read() {
    for (program, pairs, owner) in [
        (
            FUNCTIONS,
            [("ownerid", "5f1c3c3e-8a0f-4e64-a0ef-6f1b1e0a1c22")],
            Some("5f1c3c3e-8a0f-4e64-a0ef-6f1b1e0a1c22"),
        ),
        (FUNCTIONS, [("ownerid", "")], None),
        (DAPR, [("ownerid", "d5a7d0d4")], Some("d5a7d0d4")),
        (COLLECTOR, [("Ownerid", "d5a7d0d4")], Some("d5a7d0d4")),
        (BEATS, [("ownerid", "")], None),
    ] {
        let (record, problem) = decode_ownership("b", &metadata(&pairs));
        assert_eq!((record.owner.as_ref().map(OwnerId::as_str), problem), (owner, None), "{program}");
        assert_eq!((record.incarnation, record.epoch), (None, None), "{program}: a foreign owner");
    }
}

/// Functions add the writer since Azure.Messaging.EventHubs 5.11. Version 1 of azeventhubs has offsets that are
/// numbers, version 2 texts, which a geo-replicated namespace needs.
#[test]
fn checkpoints_are_read() {
    for (program, pairs, offset) in [
        (FUNCTIONS, &[("offset", "1832"), ("sequencenumber", "41"), ("clientidentifier", "5f1c3c3e")][..], "1832"),
        (DAPR, &[("sequencenumber", "41"), ("offset", "1832")], "1832"),
        (COLLECTOR, &[("Sequencenumber", "41"), ("Offset", "3:1:1832")], "3:1:1832"),
        (BEATS, &[("sequencenumber", "41"), ("offset", "1832")], "1832"),
    ] {
        let (record, problem) = decode_checkpoint("b", &metadata(pairs));
        let position = (record.sequence_number, record.offset.as_deref());
        assert_eq!((position, problem), ((Some(41), Some(offset)), None), "{program}");
        assert_eq!((record.owner, record.initial), (None, false), "{program}");
    }
}
