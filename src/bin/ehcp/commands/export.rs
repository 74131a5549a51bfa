//! `ehcp export`.

use std::fs::OpenOptions;
use std::io::Write;

use eventhubs_checkpoint::admin::Export;

use super::positions::{to_csv, to_json};
use crate::args::{ExportArgs, FileFormat, Format, Global};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{print_note, print_text};
use crate::text::format_count;

pub async fn run(global: &Global, export: &ExportArgs) -> Result<Exit> {
    let document = Export::from(&GroupConnection::resolve(global)?.describe_records().await?);
    let text = match (export.format, global.output) {
        (Some(FileFormat::Csv), _) | (None, Format::Csv) => to_csv(&document)?,
        _ => to_json(&document)?,
    };
    let Some(file) = &export.to else {
        print_text(&text)?;
        return Ok(Exit::Done);
    };
    // An export may be the only copy.
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)
        .and_then(|mut created| created.write_all(text.as_bytes()))
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))?;
    let positions = document.partitions.iter().filter(|partition| partition.checkpoint.is_some()).count();
    print_note(format_args!("wrote {} to {}", format_count(positions, "checkpoint"), file.display()));
    Ok(Exit::Done)
}
