//! `ehcp export`.

use eventhubs_checkpoint::admin;

use super::positions::{to_csv, to_json};
use crate::args::{Export, FileFormat, Global};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result};
use crate::output::print;
use crate::text::count;

pub async fn run(global: &Global, export: &Export) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let group = connection.operator().await?.read().await?.describe(None);
    let document = admin::Export::from(&group);
    let text = match export.format {
        FileFormat::Json => to_json(&document)?,
        FileFormat::Csv => to_csv(&document)?,
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
    eprintln!("wrote {} to {}", count(positions, "checkpoint"), file.display());
    Ok(Exit::Done)
}
