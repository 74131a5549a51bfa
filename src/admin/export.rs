//! The checkpoints of a group as a document, to bring them back later or to another group.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::description::{GroupDescription, RecordedPosition};
use super::plan::ResetTarget;
use crate::model::PartitionId;

/// The checkpoints of a group at one moment.
///
/// It reads the JSON of a [`GroupDescription`], too. Unknown fields are ignored.
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
        let exported = |(id, position)| ExportedPartition { id, checkpoint: Some(position) };
        Self {
            schema: Self::SCHEMA.to_owned(),
            taken_at: None,
            group: String::new(),
            partitions: positions.into_iter().map(exported).collect(),
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
        let positions =
            export.partitions.into_iter().filter_map(|partition| Some((partition.id, partition.checkpoint?)));
        Self::Positions(positions.collect::<BTreeMap<_, _>>())
    }
}
