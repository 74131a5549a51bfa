//! Checkpoints of other programs, and the contents of the blobs that have them: pure.
//!
//! | program | content |
//! |---|---|
//! | `EventProcessorHost` of .NET, Azure Functions | `{"Offset", "SequenceNumber", "PartitionId", "Owner", "Token", "Epoch"}` |
//! | of Java and Node.js | the same keys in camel case; Java omits keys without a value |
//! | of Python | the same keys in snake case, and `event_processor_context` |
//! | of Go | `{"partitionID", "epoch", "owner", "checkpoint": {"offset", "sequenceNumber", "enqueueTime"}, ..}` |
//!
//! So keys are compared without their case and without underscores.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::codec::is_usable_offset;
use crate::model::PartitionId;
use crate::source::{BEFORE_EVERYTHING, StartPosition};

/// The offset with which the Go SDK starts after the last event.
const AFTER_EVERYTHING: &str = "@latest";

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
        Self {
            start: start_after(sequence_number, offset.as_deref()),
            partition,
            owner,
            live: Some(live),
            sequence_number,
            offset,
        }
    }

    /// Creates the checkpoint of a Kafka consumer group. Kafka stores the offset of the *next* event to process, and
    /// counts as sequence numbers do.
    #[must_use]
    pub fn from_kafka(partition: PartitionId, offset: i64) -> Self {
        let number = offset.saturating_sub(1);
        Self {
            partition,
            owner: None,
            live: None,
            sequence_number: Some(number),
            offset: None,
            start: Some(StartPosition::AfterSequenceNumber(number)),
        }
    }

    /// Returns where the program would continue. `None` if it never wrote a checkpoint for the partition: it would then
    /// start at its configured start position, which its records do not contain.
    #[must_use]
    pub fn start_position(&self) -> Option<&StartPosition> {
        self.start.as_ref()
    }
}

/// Returns where a program continues that recorded this position. One that has never written a checkpoint has the
/// sequence number 0, or none, without an offset.
fn start_after(sequence_number: Option<i64>, offset: Option<&str>) -> Option<StartPosition> {
    match (sequence_number, offset) {
        (_, Some(AFTER_EVERYTHING)) => Some(StartPosition::Latest),
        (_, Some(BEFORE_EVERYTHING)) => Some(StartPosition::Earliest),
        (None | Some(0), None) => None,
        (Some(number), _) => Some(StartPosition::AfterSequenceNumber(number)),
        (None, Some(offset)) => Some(StartPosition::AfterOffset(offset.to_owned())),
    }
}

/// Where the position is in the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// At the top.
    Flat,
    /// In the object `checkpoint`, as the Go SDK writes it.
    Nested,
}

/// The content of a blob, as far as it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) owner: Option<String>,
    pub(super) sequence_number: Option<i64>,
    pub(super) offset: Option<String>,
}

/// Parses the content of the blob of a partition. The error says what is wrong with it.
pub(super) fn parse_record(content: &[u8], layout: Layout, partition: &PartitionId) -> Result<Body, String> {
    let value = serde_json::from_slice(content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(content))
        .map_err(|error| format!("its content is not JSON: {error}"))?;
    let fields = JsonFields::from_value(value, "its content")?;
    fields.check_partition(partition)?;
    let owner = fields.read_text("owner")?.filter(|owner| !owner.is_empty());
    let position = match (layout, fields.0.get("checkpoint")) {
        (Layout::Flat, Some(Value::Object(_))) => return Err("it is a record of the Go SDK".to_owned()),
        (Layout::Flat, _) => fields,
        (Layout::Nested, None) => return Err("it has no `checkpoint`: it is no record of the Go SDK".to_owned()),
        (Layout::Nested, Some(Value::Null)) => return Ok(Body { owner, ..Body::default() }),
        (Layout::Nested, Some(value)) => JsonFields::from_value(value.clone(), "its `checkpoint`")?,
    };
    if ["offset", "sequencenumber", "partitionid", "epoch"].iter().all(|key| !position.0.contains_key(*key)) {
        return Err("it has neither a sequence number nor an offset".to_owned());
    }
    Ok(Body { owner, sequence_number: position.read_sequence_number()?, offset: position.read_offset()? })
}

/// The fields of an object by their keys, in lower case and without underscores.
struct JsonFields(BTreeMap<String, Value>);

impl JsonFields {
    fn from_value(value: Value, what: &str) -> Result<Self, String> {
        let Value::Object(object) = value else { return Err(format!("{what} is no JSON object")) };
        let mut fields = BTreeMap::new();
        for (key, value) in object {
            let name: String = key.chars().filter(|letter| *letter != '_').flat_map(char::to_lowercase).collect();
            if fields.insert(name, value).is_some() {
                return Err(format!("{what} has the key {key:?} in two spellings"));
            }
        }
        Ok(Self(fields))
    }

    fn check_partition(&self, expected: &PartitionId) -> Result<(), String> {
        match self.read_text("partitionid")? {
            Some(partition) if partition != expected.as_str() => {
                Err(format!("its content is of partition {partition:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns a text. Numbers are texts, too.
    fn read_text(&self, key: &str) -> Result<Option<String>, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(other) => Err(format!("its {key} {other} is no text")),
        }
    }

    /// Returns the sequence number. .NET has the smallest number for none.
    fn read_sequence_number(&self) -> Result<Option<i64>, String> {
        match self.read_text("sequencenumber")?.as_deref().map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) => match text.parse() {
                Ok(i64::MIN) => Ok(None),
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!("its sequence number {text:?} is no integer of 64 bits")),
            },
        }
    }

    fn read_offset(&self) -> Result<Option<String>, String> {
        let offset = self.read_text("offset")?.filter(|offset| is_usable_offset(offset));
        match offset {
            // It becomes part of a filter expression.
            Some(offset) if offset.contains(|letter: char| letter.is_control() || letter == '\'') => {
                Err(format!("its offset {offset:?} is no offset"))
            }
            offset => Ok(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use StartPosition::{AfterOffset, AfterSequenceNumber, Earliest, Latest};
    use proptest::prelude::*;

    use super::*;

    const DOTNET: &str = r#"{"Offset":"8591964920","SequenceNumber":960180,"PartitionId":"0","Owner":"host-1","Token":"2d0c4276-827d-4ca4-a345-729caeca3b82","Epoch":386}"#;
    const JAVA: &str = r#"{"offset":"8591964920","sequenceNumber":960180,"token":"2d0c4276-827d-4ca4-a345-729caeca3b82","epoch":386,"partitionId":"0","owner":"host-1"}"#;
    const NODE: &str = r#"{"partitionId":"0","owner":"host-1","epoch":386,"sequenceNumber":960180,"token":"2d0c4276-827d-4ca4-a345-729caeca3b82","offset":"8591964920"}"#;
    const PYTHON: &str = r#"{"partition_id": "0", "sequence_number": 960180, "owner": "host-1", "token": "2d0c4276-827d-4ca4-a345-729caeca3b82", "epoch": 386, "event_processor_context": null, "offset": "8591964920"}"#;
    const GO: &str = r#"{"partitionID":"0","epoch":386,"owner":"host-1","checkpoint":{"offset":"8591964920","sequenceNumber":960180,"enqueueTime":"2021-03-04T05:06:07.089Z"},"state":"leased","token":"2d0c4276-827d-4ca4-a345-729caeca3b82"}"#;

    fn flat(content: &str) -> Result<Body, String> {
        parse_record(content.as_bytes(), Layout::Flat, &0.into())
    }

    fn nested(content: &str) -> Result<Body, String> {
        parse_record(content.as_bytes(), Layout::Nested, &0.into())
    }

    fn body(owner: Option<&str>, sequence_number: Option<i64>, offset: Option<&str>) -> Body {
        Body { owner: owner.map(str::to_owned), sequence_number, offset: offset.map(str::to_owned) }
    }

    fn position(content: &str) -> Result<(Option<i64>, Option<String>), String> {
        flat(content).map(|body| (body.sequence_number, body.offset))
    }

    #[test]
    fn all_programs_are_read() {
        let expected = body(Some("host-1"), Some(960_180), Some("8591964920"));
        for content in [DOTNET, JAVA, NODE, PYTHON] {
            assert_eq!(flat(content), Ok(expected.clone()), "{content}");
        }
        assert_eq!(nested(GO), Ok(expected));
    }

    /// As each program creates a lease.
    #[test]
    fn leases_without_a_checkpoint_have_no_position() {
        for content in [
            r#"{"Offset":null,"SequenceNumber":0,"PartitionId":"0","Owner":"","Token":"","Epoch":0}"#,
            r#"{"sequenceNumber":0,"epoch":-1,"partitionId":"0","owner":""}"#,
            r#"{"partitionId":"0","owner":"","epoch":-1,"sequenceNumber":0,"token":""}"#,
        ] {
            assert_eq!(flat(content), Ok(body(None, Some(0), None)), "{content}");
        }
        let python = r#"{"partition_id": "0", "sequence_number": null, "owner": null, "token": null, "epoch": 0, "event_processor_context": null, "offset": null}"#;
        assert_eq!(flat(python), Ok(Body::default()));
        let go = r#"{"partitionID":"0","epoch":0,"owner":"","checkpoint":null,"state":"","token":""}"#;
        assert_eq!(nested(go), Ok(Body::default()));
        let go =
            r#"{"partitionID":"0","checkpoint":{"offset":"","sequenceNumber":0,"enqueueTime":"0001-01-01T00:00:00Z"}}"#;
        assert_eq!(nested(go), Ok(body(None, Some(0), None)));
    }

    #[test]
    fn keys_in_any_case_and_a_byte_order_mark() {
        for content in [
            "\u{feff}{\"OFFSET\": \"7\", \"sequencenumber\": 3}",
            "\r\n {\"ofFset\": \"7\", \"SEQUENCE_NUMBER\": 3, \"more\": [1, {}]} ",
            "{\"Offset\": 7, \"SequenceNumber\": \"3\", \"PartitionId\": 0}",
        ] {
            assert_eq!(position(content), Ok((Some(3), Some("7".to_owned()))), "{content}");
        }
        let twice = position(r#"{"Offset": "7", "offset": "8"}"#).unwrap_err();
        assert!(twice.contains("two spellings"), "{twice}");
    }

    #[test]
    fn absent_and_null_are_the_same() {
        for content in [r#"{"epoch": 1}"#, r#"{"offset": null, "sequenceNumber": null}"#, r#"{"offset": "None"}"#] {
            assert_eq!(position(content), Ok((None, None)), "{content}");
        }
        assert_eq!(position(r#"{"sequenceNumber": "", "offset": "7"}"#), Ok((None, Some("7".to_owned()))));
    }

    #[test]
    fn numbers_have_64_bits() {
        let number = |text: &str| position(&format!(r#"{{"sequenceNumber": {text}}}"#)).map(|(number, _)| number);
        assert_eq!(number("9223372036854775807"), Ok(Some(i64::MAX)));
        assert_eq!(number("-9223372036854775807"), Ok(Some(-i64::MAX)));
        assert_eq!(number("-9223372036854775808"), Ok(None), "none in .NET");
        assert_eq!(number("\" 12 \""), Ok(Some(12)));
        for wrong in ["9223372036854775808", "1.5", "1e3", "\"x\"", "true", "[1]"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_contents_are_malformed() {
        let errors = [
            (flat(""), "not JSON"),
            (flat("<Error/>"), "not JSON"),
            (flat("{\"Offset\": \"7\""), "not JSON"),
            (flat("[]"), "no JSON object"),
            (flat("{}"), "neither a sequence number nor an offset"),
            (flat(GO), "of the Go SDK"),
            (nested(DOTNET), "no record of the Go SDK"),
            (nested(r#"{"checkpoint": 7}"#), "no JSON object"),
            (nested(r#"{"checkpoint": {}}"#), "neither"),
            (flat(r#"{"Offset": {}}"#), "is no text"),
            (flat(r#"{"Offset": "1' or '"}"#), "is no offset"),
            (flat(r#"{"Offset": "1", "PartitionId": "3"}"#), "of partition \"3\""),
        ];
        for (found, part) in errors {
            let error = found.unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let deep = "[".repeat(100_000);
        assert!(flat(&deep).is_err());
    }

    #[test]
    fn programs_continue_after_their_checkpoint() {
        assert_eq!(start_after(Some(41), Some("4100")), Some(AfterSequenceNumber(41)));
        assert_eq!(start_after(Some(41), None), Some(AfterSequenceNumber(41)));
        assert_eq!(start_after(Some(0), Some("0")), Some(AfterSequenceNumber(0)));
        assert_eq!(start_after(None, Some("4100")), Some(AfterOffset("4100".to_owned())));
    }

    #[test]
    fn offsets_may_name_an_end_of_the_partition() {
        for number in [None, Some(0), Some(41)] {
            assert_eq!(start_after(number, Some("-1")), Some(Earliest));
            assert_eq!(start_after(number, Some("@latest")), Some(Latest));
        }
    }

    #[test]
    fn no_checkpoint_is_no_position() {
        assert_eq!(start_after(None, None), None);
        assert_eq!(start_after(Some(0), None), None);
    }

    #[test]
    fn kafka_names_the_next_event() {
        let start = |offset| LegacyCheckpoint::from_kafka(0.into(), offset).start_position().cloned();
        assert_eq!(start(42), Some(AfterSequenceNumber(41)));
        assert_eq!(start(1), Some(AfterSequenceNumber(0)));
        assert_eq!(start(0), Some(AfterSequenceNumber(-1)));
        assert_eq!(start(i64::MAX), Some(AfterSequenceNumber(i64::MAX - 1)));
    }

    proptest! {
        #[test]
        fn any_content_is_read_or_rejected(content: Vec<u8>) {
            for layout in [Layout::Flat, Layout::Nested] {
                let _ = parse_record(&content, layout, &0.into());
            }
        }

        /// Contents that are nearly right.
        #[test]
        fn any_change_of_a_record_is_read_or_rejected(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            for (text, layout) in [(DOTNET, Layout::Flat), (PYTHON, Layout::Flat), (GO, Layout::Nested)] {
                let mut content = text.as_bytes().to_vec();
                content[at.index(text.len())] = byte;
                let _ = parse_record(&content, layout, &0.into());
                let _ = parse_record(&content[..cut.index(text.len())], layout, &0.into());
            }
        }

        #[test]
        fn numbers_and_offsets_are_kept(number in -i64::MAX.., offset in "[0-9a-zA-Z:@-]{1,40}") {
            let content = serde_json::json!({ "Offset": offset, "SequenceNumber": number }).to_string();
            let expected = is_usable_offset(&offset).then_some(offset);
            prop_assert_eq!(position(&content), Ok((Some(number), expected)));
        }
    }
}
