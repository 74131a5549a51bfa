//! The contents of blobs, byte for byte as the programs write them. All hosts have been shut down gracefully: those of
//! .NET and Java remove the owner then, those of Node.js, Python and Go do not.

use super::OWNER;

/// The sequence number of an event, and its offset.
pub type Offset = (i64, String);

const TOKEN: &str = "2d0c4276-827d-4ca4-a345-729caeca3b82";

/// Json.NET writes the properties of the class, in the order of their declaration.
pub fn dotnet(partition: &str, position: Option<&Offset>) -> String {
    let (number, offset) = position.map_or((0, "null".to_owned()), |(number, offset)| (*number, format!("{offset:?}")));
    format!(
        r#"{{"Offset":{offset},"SequenceNumber":{number},"PartitionId":"{partition}","Owner":"","Token":"","Epoch":3}}"#
    )
}

/// Gson writes the fields of a class before those of its base class, and none that are null.
pub fn java(partition: &str, position: Option<&Offset>) -> String {
    let position = position.map_or_else(
        || r#""sequenceNumber":0"#.to_owned(),
        |(number, offset)| format!(r#""offset":"{offset}","sequenceNumber":{number}"#),
    );
    format!(r#"{{{position},"token":"","epoch":3,"partitionId":"{partition}","owner":""}}"#)
}

pub fn node(partition: &str, position: Option<&Offset>) -> String {
    let (number, offset) =
        position.map_or((0, String::new()), |(number, offset)| (*number, format!(r#","offset":"{offset}""#)));
    format!(
        r#"{{"partitionId":"{partition}","owner":"{OWNER}","epoch":3,"sequenceNumber":{number},"token":"{TOKEN}"{offset}}}"#
    )
}

/// `json.dumps` writes spaces.
pub fn python(partition: &str, position: Option<&Offset>) -> String {
    let (number, offset) = position
        .map_or(("null".to_owned(), "null".to_owned()), |(number, offset)| (number.to_string(), format!("{offset:?}")));
    format!(
        r#"{{"partition_id": "{partition}", "sequence_number": {number}, "owner": "{OWNER}", "token": "{TOKEN}", "epoch": 3, "event_processor_context": null, "offset": {offset}}}"#
    )
}

/// Dapr uses the SDK for Go.
pub fn dapr_or_go(partition: &str, position: Option<&Offset>) -> String {
    let checkpoint = position.map_or("null".to_owned(), |(number, offset)| {
        format!(r#"{{"offset":"{offset}","sequenceNumber":{number},"enqueueTime":"2021-03-04T05:06:07.089Z"}}"#)
    });
    format!(
        r#"{{"partitionID":"{partition}","epoch":3,"owner":"{OWNER}","checkpoint":{checkpoint},"state":"available","token":"{TOKEN}"}}"#
    )
}
