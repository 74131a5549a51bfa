//! Files with positions.

use std::fs;
use std::path::Path;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::Export;
use eventhubs_checkpoint::admin::describe::RecordedPosition;
use serde::{Deserialize, Serialize};

use crate::exit::{Failure, Result};
use crate::output::json_text;

/// The documents that can be imported.
const SCHEMAS: &[&str] = &["ehcp.export/1", "ehcp.group/1"];

/// Editors of other systems write it.
pub const BYTE_ORDER_MARK: char = '\u{feff}';

/// A line of a CSV file.
#[derive(Debug, Serialize, Deserialize)]
struct PositionLine {
    partition: PartitionId,
    sequence_number: Option<i64>,
    #[serde(default)]
    offset: Option<String>,
}

/// Reads the positions of a file in JSON or CSV, whichever it is.
pub fn read_positions(file: &Path) -> Result<Export> {
    let failed = |error: &dyn std::fmt::Display| Failure::usage(format!("cannot read {}: {error}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    let export = if text.trim_start().starts_with('{') {
        let export = serde_json::from_str::<Export>(text).map_err(|error| failed(&error))?;
        if !SCHEMAS.contains(&export.schema.as_str()) {
            return Err(failed(&format!("its schema is {:?}, not one of {}", export.schema, SCHEMAS.join(", "))));
        }
        export
    } else {
        from_csv(text).map_err(|error| failed(&error))?
    };
    let mut positions = export.partitions.iter().filter_map(|partition| partition.checkpoint.as_ref());
    if positions.all(|position| position.sequence_number.is_none() && position.offset.is_none()) {
        return Err(failed(
            &"it has no positions: it must be a file that `export` wrote, or lines of \
              partition,sequence_number,offset below that header",
        ));
    }
    let mut ids: Vec<_> = export.partitions.iter().map(|partition| &partition.id).collect();
    ids.sort();
    if let Some((twice, _)) = ids.iter().zip(ids.iter().skip(1)).find(|(one, next)| one == next) {
        return Err(failed(&format!("partition {twice} is in it twice")));
    }
    Ok(export)
}

fn from_csv(text: &str) -> csv::Result<Export> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let positions: csv::Result<Vec<_>> = reader
        .deserialize()
        .map(|line| {
            let PositionLine { partition, sequence_number, offset } = line?;
            Ok((partition, RecordedPosition { sequence_number, offset }))
        })
        .collect();
    Ok(Export::new(positions?))
}

pub fn to_json(export: &Export) -> Result<String> {
    json_text(serde_json::to_string_pretty(export))
}

/// Writes the partitions that have a checkpoint.
pub fn to_csv(export: &Export) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for partition in &export.partitions {
        let Some(position) = partition.checkpoint.clone() else { continue };
        writer
            .serialize(PositionLine {
                partition: partition.id.clone(),
                sequence_number: position.sequence_number,
                offset: position.offset,
            })
            .map_err(|error| Failure::failed(error.to_string()))?;
    }
    let bytes = writer.into_inner().map_err(|error| Failure::failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| Failure::failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn position(sequence_number: i64, offset: Option<&str>) -> RecordedPosition {
        RecordedPosition { sequence_number: Some(sequence_number), offset: offset.map(str::to_owned) }
    }

    #[test]
    fn csv_files_are_read_back() {
        let export = Export::new([(0.into(), position(41, Some("41,0"))), (1.into(), position(-1, None))]);
        let text = to_csv(&export).unwrap();
        assert_eq!(text, "partition,sequence_number,offset\n0,41,\"41,0\"\n1,-1,\n");
        assert_eq!(from_csv(&text).unwrap().partitions, export.partitions);
        assert!(from_csv("partition,sequence_number\n0,7\n").unwrap().partitions[0].checkpoint.is_some());
        assert!(from_csv("partition,sequence_number\n0,seven\n").is_err());
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_rejected(lines in "partition,sequence_number,offset\n([0-9]{0,20},-?[0-9]{0,20},\"?[ -~]{0,9}\n){0,4}|\\PC{0,60}") {
            if let Ok(export) = from_csv(&lines) {
                prop_assert_eq!(from_csv(&to_csv(&export).unwrap()).unwrap().partitions, export.partitions);
            }
        }
    }
}
