//! `ehcp delete`.

use std::collections::BTreeSet;
use std::path::Path;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::admin::{DeletableRecord, Deletion, Reader, RecordName};
use futures::FutureExt;
use serde::Serialize;

use crate::args::{DeleteArgs, Global};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone, print_note};
use crate::progress::Progress;
use crate::safety::{Backup, back_up, note_dry_run, show_undo, wait_for_interrupt};
use crate::text::{PartitionList, format_count, or_empty, quote_word};

const COLUMNS: &[Column] = &[Column::text("RECORD"), Column::text("LIVE"), Column::text("RESULT")];

#[derive(Serialize)]
struct DeletionRow {
    record: String,
    live: bool,
    result: Option<String>,
}

#[derive(Serialize)]
struct DeletionDocument<'a> {
    schema: &'static str,
    dry_run: bool,
    records: &'a [DeletionRow],
}

pub async fn run(global: &Global, delete: &DeleteArgs) -> Result<Exit> {
    let reader = GroupConnection::resolve(global)?.connect_reader().await?;
    let mut deletion = Deletion::default();
    deletion.checkpoints = delete.checkpoints;
    deletion.ownerships = delete.ownerships;
    deletion.heartbeats = delete.heartbeats;
    deletion.partitions = delete.selection.partitions.clone().map(|PartitionList(partitions)| partitions);
    let found = reader.plan_deletion(&deletion).await?;
    let mut rows: Vec<_> = found
        .iter()
        .map(|found| DeletionRow { record: found.record.to_string(), live: found.is_live, result: None })
        .collect();
    let permitted = match found.iter().find(|found| found.is_live) {
        Some(live) => Err(Failure::refused(format!("{} belongs to a live owner: stop it first", live.record))),
        None => Ok(()),
    };
    if !delete.execute {
        show_records(global, &rows, true)?;
        if delete.checkpoints && !found.is_empty() {
            print_note(
                "note: processors without a checkpoint begin at their start position, and KEDA counts the whole partition",
            );
        }
        note_dry_run(found.len(), &format!("delete {}", format_count(found.len(), "record")), permitted);
        return Ok(if found.is_empty() { Exit::Done } else { Exit::Differences });
    }
    permitted?;
    let backup = back_up_checkpoints(&reader, &found, &delete.backup).await?;
    if found.is_empty() {
        print_note("nothing to do");
    }
    let exit = delete_records(&reader, &found, &mut rows).await;
    let shown = show_records(global, &rows, false);
    if let Some(backup) = backup {
        show_import(global, &backup);
    }
    shown?;
    Ok(exit)
}

/// Saves the checkpoints that are among the records.
async fn back_up_checkpoints(reader: &Reader, found: &[DeletableRecord], folder: &Path) -> Result<Option<Backup>> {
    let partitions: BTreeSet<_> = found
        .iter()
        .filter_map(|found| match &found.record {
            RecordName::Checkpoint(partition) => Some(partition),
            _ => None,
        })
        .collect();
    if partitions.is_empty() {
        return Ok(None);
    }
    back_up(reader.read().await?.describe(None), &partitions, folder).map(Some)
}

/// Shows the command that brings the checkpoints back.
fn show_import(global: &Global, backup: &Backup) {
    let mut checkpoints = backup.group.partitions.iter().filter_map(|partition| partition.checkpoint.as_ref());
    // The event hub may not have the partition, or no such events.
    let is_complete = checkpoints.all(|checkpoint| checkpoint.position.complete().is_some());
    let option = if is_complete && !global.no_hub { " --no-hub" } else { "" };
    let file = quote_word(&backup.file.to_string_lossy());
    show_undo(global, backup.name_case(), &format!("import --from {file}{option} --execute"));
}

/// Deletes one record after the other, until Ctrl-C.
async fn delete_records(reader: &Reader, found: &[DeletableRecord], rows: &mut [DeletionRow]) -> Exit {
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
        progress.advance();
    }
    exit
}

fn show_records(global: &Global, rows: &[DeletionRow], dry_run: bool) -> Result<()> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        let live = if row.live { "live" } else { "" };
        table.add_row_in_tone(
            [row.record.clone(), live.to_owned(), or_empty(row.result.as_ref())],
            if row.live { Tone::Warning } else { Tone::Plain },
        );
    }
    Output::new(global).show_document(
        &DeletionDocument { schema: "ehcp.deletion/1", dry_run, records: rows },
        rows,
        &table,
    )
}
