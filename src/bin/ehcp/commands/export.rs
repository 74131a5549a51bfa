//! `ehcp export`.

use eventhubs_checkpoint::admin;

use super::positions::{to_csv, to_json};
use crate::args::{Export, FileFormat, Format, Global};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{note, print};
use crate::text::count;

pub async fn run(global: &Global, export: &Export) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let group = connection.records().await?;
    let document = admin::Export::from(&group);
    let text = match (export.format, global.output) {
        (Some(FileFormat::Csv), _) | (None, Format::Csv) => to_csv(&document)?,
        _ => to_json(&document)?,
    };
    let Some(file) = &export.to else {
        print(&text)?;
        return Ok(Exit::Done);
    };
    // An export may be the only copy.
    let created = std::fs::OpenOptions::new().write(true).create_new(true).open(file);
    let written = created.and_then(|mut created| std::io::Write::write_all(&mut created, text.as_bytes()));
    written.map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))?;
    let positions = document.partitions.iter().filter(|partition| partition.checkpoint.is_some()).count();
    note(format_args!("wrote {} to {}", count(positions, "checkpoint"), file.display()));
    Ok(Exit::Done)
}
