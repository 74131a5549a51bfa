//! The checkpoints of a group as a document, to bring them back later or to another group.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::group_description::GroupDescription;
use super::partition_description::RecordedPosition;
use super::reset::ResetTarget;
use crate::model::PartitionId;

/// The checkpoints of a group at one moment.
///
/// It also reads the JSON of a [`GroupDescription`]. Unknown fields are ignored.
///
/// ```
/// use eventhubs_checkpoint::admin::{Export, ResetTarget};
///
/// let export: Export = serde_json::from_str(r#"{
///     "schema": "ehcp.export/1",
///     "partitions": [
///         {"id": "0", "checkpoint": {"sequence_number": 41, "offset": "4100"}},
///         {"id": "1", "checkpoint": null}
///     ]
/// }"#)?;
/// let ResetTarget::Positions(positions) = export.into() else { unreachable!() };
/// assert_eq!(positions.len(), 1);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Export {
    /// The name and version of the JSON format.
    pub schema: String,
    /// When the group was read, by the server's clock.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub taken_at: Option<OffsetDateTime>,
    /// The group, for information: `namespace/event hub/consumer group`.
    #[serde(default, skip_deserializing)]
    pub group: String,
    /// The partitions.
    pub partitions: Vec<ExportedPartition>,
}

/// The checkpoint of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExportedPartition {
    /// The partition.
    pub id: PartitionId,
    /// Its checkpoint, if it has one.
    pub checkpoint: Option<RecordedPosition>,
}

impl Export {
    const SCHEMA: &'static str = "ehcp.export/1";

    /// Creates a document from positions, for example from a CSV file.
    #[must_use]
    pub fn new(positions: impl IntoIterator<Item = (PartitionId, RecordedPosition)>) -> Self {
        Self {
            schema: Self::SCHEMA.to_owned(),
            taken_at: None,
            group: String::new(),
            partitions: positions
                .into_iter()
                .map(|(id, position)| ExportedPartition { id, checkpoint: Some(position) })
                .collect(),
        }
    }
}

impl From<&GroupDescription> for Export {
    fn from(described: &GroupDescription) -> Self {
        let group = &described.group;
        let partitions = described.partitions.iter().map(|partition| ExportedPartition {
            id: partition.id.clone(),
            checkpoint: partition.checkpoint.as_ref().map(|checkpoint| checkpoint.position.clone()),
        });
        Self {
            schema: Self::SCHEMA.to_owned(),
            taken_at: Some(described.taken_at),
            group: format!("{}/{}/{}", group.namespace, group.event_hub, group.consumer_group),
            partitions: partitions.collect(),
        }
    }
}

impl From<Export> for ResetTarget {
    fn from(export: Export) -> Self {
        let partitions = export.partitions.into_iter();
        Self::Positions(partitions.filter_map(|partition| Some((partition.id, partition.checkpoint?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::records::GroupRecords;
    use super::super::records::samples::{hub, owned};
    use super::*;
    use crate::tests::hostile::hostile_text;

    fn group() -> GroupDescription {
        let records = GroupRecords::empty().with(0, owned("a"), 0).with_checkpoint(0, 41, "410", 1);
        let records = records.with_checkpoint(2, 7, None, 1).with_checkpoint(3, None, "70", 1);
        records.describe(Some(&hub(&[(0, 99); 4])))
    }

    fn positions(export: Export) -> Vec<(String, Option<i64>, Option<String>)> {
        let ResetTarget::Positions(positions) = export.into() else { panic!("not positions") };
        let fields = |(id, position): (PartitionId, RecordedPosition)| {
            (id.to_string(), position.sequence_number, position.offset)
        };
        positions.into_iter().map(fields).collect()
    }

    fn expected() -> Vec<(String, Option<i64>, Option<String>)> {
        vec![
            ("0".to_owned(), Some(41), Some("410".to_owned())),
            ("2".to_owned(), Some(7), None),
            ("3".to_owned(), None, Some("70".to_owned())),
        ]
    }

    #[test]
    fn it_keeps_every_checkpoint() {
        let export = Export::from(&group());
        assert_eq!((export.schema.as_str(), export.group.as_str()), ("ehcp.export/1", "ns/hub/$Default"));
        assert_eq!(export.partitions.len(), 4);
        assert_eq!(export.partitions[1].checkpoint, None);
        let read: Export = serde_json::from_str(&serde_json::to_string(&export).unwrap()).unwrap();
        assert_eq!(read.taken_at, Some(group().taken_at));
        assert_eq!(read.partitions, export.partitions);
        assert_eq!(positions(read), expected());
    }

    #[test]
    fn a_description_is_read_as_an_export() {
        let read: Export = serde_json::from_str(&serde_json::to_string(&group()).unwrap()).unwrap();
        assert_eq!((read.schema.as_str(), read.taken_at), ("ehcp.group/1", Some(group().taken_at)));
        assert_eq!(positions(read), expected());
    }

    #[test]
    fn missing_and_unknown_fields_are_ignored() {
        let text = r#"{"schema": "ehcp.export/1", "later": {}, "partitions": [
            {"id": "0", "later": 1},
            {"id": "1", "checkpoint": {}},
            {"id": "2", "checkpoint": {"sequence_number": -1, "offset": "-1", "owner": "a"}}
        ]}"#;
        let read: Export = serde_json::from_str(text).unwrap();
        assert_eq!((read.taken_at, read.group.as_str()), (None, ""));
        let start = ("2".to_owned(), Some(-1), Some("-1".to_owned()));
        assert_eq!(positions(read), [("1".to_owned(), None, None), start]);
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        let read = |number: &str| {
            let checkpoint = format!(r#"{{"sequence_number": {number}, "offset": "x"}}"#);
            let text = format!(r#"{{"schema": "", "partitions": [{{"id": "0", "checkpoint": {checkpoint}}}]}}"#);
            serde_json::from_str::<Export>(&text).map(positions)
        };
        for number in [i64::MIN, i64::MAX] {
            assert_eq!(read(&number.to_string()).unwrap()[0].1, Some(number));
        }
        assert!(read("9223372036854775808").is_err() && read("1.5").is_err() && read("\"41\"").is_err());
    }

    #[test]
    fn positions_of_a_file_make_an_export() {
        let position = || RecordedPosition { sequence_number: Some(41), offset: Some("410".to_owned()) };
        let export = Export::new([(PartitionId::from(10), position()), (2.into(), position())]);
        assert_eq!(export.partitions.len(), 2);
        assert_eq!(positions(export).into_iter().map(|(id, ..)| id).collect::<Vec<_>>(), ["2", "10"]);
    }

    const SAMPLES: &[&str] = &[r#"{"schema": "ehcp.export/1", "taken_at": "2026-01-01T00:00:00Z", "partitions": [
            {"id": "0", "checkpoint": {"sequence_number": 41, "offset": "4100"}}, {"id": "1", "checkpoint": null}]}"#];

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(text in hostile_text(SAMPLES)) {
            let Ok(export) = serde_json::from_str::<Export>(&text) else { return Ok(()) };
            let again: Export = serde_json::from_str(&serde_json::to_string(&export).unwrap()).unwrap();
            prop_assert_eq!(again.partitions, export.partitions);
        }
    }
}
