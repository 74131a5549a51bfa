//! `ehcp delete`.

use std::collections::BTreeSet;

use eventhubs_checkpoint::admin::{DeletableRecord, Deletion, Reader, RecordName};
use eventhubs_checkpoint::{ErrorKind, PartitionId};
use futures::FutureExt;
use serde::Serialize;

use crate::args::{Delete, Global};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone, note};
use crate::progress::Progress;
use crate::safety::{back_up, dry_run, show_undo, wait_for_interrupt};
use crate::text::{Partitions, count, quote_word};

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
    let reader = connection.reader().await?;
    let mut deletion = Deletion::default();
    deletion.checkpoints = delete.checkpoints;
    deletion.ownerships = delete.ownerships;
    deletion.heartbeats = delete.heartbeats;
    deletion.partitions = delete.selection.partitions.clone().map(|Partitions(partitions)| partitions);
    let found = reader.plan_deletion(&deletion).await?;
    let mut rows: Vec<_> =
        found.iter().map(|found| Row { record: found.record.to_string(), live: found.is_live, result: None }).collect();
    let permitted = match found.iter().find(|found| found.is_live) {
        Some(live) => Err(Failure::refused(format!("{} belongs to a live owner: stop it first", live.record))),
        None => Ok(()),
    };
    if !delete.execute {
        show(global, &rows, true)?;
        if delete.checkpoints && !found.is_empty() {
            note(
                "note: processors without a checkpoint begin at their start position, and KEDA counts the whole partition",
            );
        }
        dry_run(found.len(), &format!("delete {}", count(found.len(), "record")), permitted);
        return Ok(if found.is_empty() { Exit::Done } else { Exit::Differences });
    }
    permitted?;
    let checkpoints: BTreeSet<_> = found.iter().filter_map(checkpoint).collect();
    let backup = if checkpoints.is_empty() {
        None
    } else {
        Some(back_up(reader.read().await?.describe(None), &checkpoints, &delete.backup)?)
    };
    if found.is_empty() {
        note("nothing to do");
    }
    let exit = execute(&reader, &found, &mut rows).await;
    let shown = show(global, &rows, false);
    if let Some(backup) = backup {
        let mut checkpoints = backup.group.partitions.iter().filter_map(|partition| partition.checkpoint.as_ref());
        // The event hub may not have the partition, or no such events.
        let is_complete = checkpoints.all(|checkpoint| checkpoint.position.complete().is_some());
        let option = if is_complete && !global.no_hub { " --no-hub" } else { "" };
        let command = format!("import --from {}{option} --execute", quote_word(&backup.file.to_string_lossy()));
        show_undo(global, backup.case(), &command);
    }
    shown?;
    Ok(exit)
}

fn checkpoint(found: &DeletableRecord) -> Option<&PartitionId> {
    match &found.record {
        RecordName::Checkpoint(partition) => Some(partition),
        _ => None,
    }
}

/// Deletes one record after the other, until Ctrl-C.
async fn execute(reader: &Reader, found: &[DeletableRecord], rows: &mut [Row]) -> Exit {
    let stop = wait_for_interrupt().boxed().shared();
    let progress = Progress::of("deleting records", found.len());
    let mut exit = Exit::Done;
    for (found, row) in found.iter().zip(rows) {
        let result = match stop.clone().now_or_never() {
            Some(()) => Err("untouched: stopped before it was deleted".to_owned()),
            None => reader.delete(found).await.map_err(|error| match error.kind() {
                ErrorKind::Indeterminate => "unknown: repeat the command".to_owned(),
                _ => format!("untouched: {}", with_causes(&error)),
            }),
        };
        if result.is_err() {
            exit = Exit::Failed;
        }
        row.result = Some(result.map_or_else(|why| why, |()| "deleted".to_owned()));
        progress.done_one();
    }
    exit
}

fn show(global: &Global, rows: &[Row], dry_run: bool) -> Result<()> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        let live = if row.live { "live" } else { "" };
        let result = row.result.clone().unwrap_or_default();
        let tone = if row.live { Tone::Warning } else { Tone::Plain };
        table.add_row_in_tone([row.record.clone(), live.to_owned(), result], tone);
    }
    Output::new(global).show(&Document { schema: "ehcp.deletion/1", dry_run, records: rows }, rows, &table)
}
