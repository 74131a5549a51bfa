//! `ehcp delete`.

use eventhubs_checkpoint::admin::{DeletableRecord, Deletion, RecordName};
use serde::Serialize;

use crate::args::{Delete, Global};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone};
use crate::progress::Progress;
use crate::safety::{back_up, dry_run, show_undo};
use crate::text::{Partitions, count, quoted};

const COLUMNS: &[Column] = &[Column::text("RECORD"), Column::text("LIVE"), Column::text("RESULT")];

#[derive(Serialize)]
struct Row {
    record: String,
    live: bool,
    result: Option<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    dry_run: bool,
    records: &'a [Row],
}

pub async fn run(global: &Global, delete: &Delete) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let operator = connection.operator().await?;
    let mut deletion = Deletion::default();
    (deletion.checkpoints, deletion.ownerships) = (delete.checkpoints, delete.ownerships);
    deletion.heartbeats = delete.heartbeats;
    deletion.partitions = delete.partitions.clone().map(|Partitions(partitions)| partitions);
    let found = operator.plan_deletion(&deletion).await?;
    let mut rows: Vec<_> =
        found.iter().map(|found| Row { record: found.record.to_string(), live: found.is_live, result: None }).collect();
    if !delete.execute {
        show(global, &rows, true)?;
        if delete.checkpoints && !found.is_empty() {
            eprintln!(
                "note: processors without a checkpoint begin at their start position, and KEDA counts the whole partition"
            );
        }
        dry_run(found.len(), &format!("delete {}", count(found.len(), "record")));
        return Ok(if found.is_empty() { Exit::Done } else { Exit::Differences });
    }
    if let Some(live) = found.iter().find(|found| found.is_live) {
        return Err(Failure::refused(format!("{} belongs to a live owner: stop it first", live.record)));
    }
    let is_checkpoint = |found: &DeletableRecord| matches!(found.record, RecordName::Checkpoint(_));
    let backup = if found.iter().any(is_checkpoint) {
        Some(back_up(&operator.read().await?.describe(None), &delete.backup)?)
    } else {
        None
    };
    let progress = Progress::of("deleting records", found.len());
    let mut exit = Exit::Done;
    for (found, row) in found.iter().zip(&mut rows) {
        row.result = Some(match operator.delete(found).await {
            Ok(()) => "deleted".to_owned(),
            Err(error) => {
                exit = Exit::Failed;
                format!("untouched: {}", with_causes(&error))
            }
        });
        progress.done_one();
    }
    drop(progress);
    show(global, &rows, false)?;
    if let Some(backup) = backup {
        show_undo(global, &format!("import --from {} --execute", quoted(&backup.to_string_lossy())));
    }
    Ok(exit)
}

fn show(global: &Global, rows: &[Row], dry_run: bool) -> Result<()> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        let live = if row.live { "live" } else { "-" };
        let result = row.result.clone().unwrap_or_else(|| "-".to_owned());
        let tone = if row.live { Tone::Warning } else { Tone::Plain };
        table.toned([row.record.clone(), live.to_owned(), result], tone);
    }
    Output::new(global).show(&Document { schema: "ehcp.deletion/1", dry_run, records: rows }, rows, &table)
}
