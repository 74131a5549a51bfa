//! `ehcp pause` and `ehcp resume`.

use eventhubs_checkpoint::admin::describe::{GroupDescription, PartitionDescription};
use eventhubs_checkpoint::admin::{ResetOptions, ResetOutcome};
use eventhubs_checkpoint::{PartitionId, Pause};
use serde::Serialize;
use time::OffsetDateTime;

use crate::args::{Global, PauseArgs, ResumeArgs, Selection};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone, print_note};
use crate::pauses::format_pause;
use crate::safety::{DisplacePermission, check_live, exit_of, note_dry_run};
use crate::text::{format_count, or_empty};

const COLUMNS: &[Column] = &[
    Column::text("PARTITION"),
    Column::text("STATE"),
    Column::text("OWNER"),
    Column::text("PAUSED-BEFORE"),
    Column::text("RESULT"),
];

#[derive(Serialize)]
struct PauseRow {
    partition: PartitionId,
    state: String,
    owner: Option<String>,
    /// The pause that the command replaces or ends.
    paused_before: Option<Pause>,
    result: Option<String>,
}

impl PauseRow {
    fn new(partition: &PartitionDescription) -> Self {
        Self {
            partition: partition.id.clone(),
            state: partition.state.to_string(),
            owner: partition.owner.as_ref().map(|owner| owner.id.to_string()),
            paused_before: partition.active_pause().cloned(),
            result: None,
        }
    }
}

#[derive(Serialize)]
struct PauseDocument<'a> {
    schema: &'static str,
    dry_run: bool,
    partitions: &'a [PauseRow],
}

pub async fn run_pause(global: &Global, pause: &PauseArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    let operator = connection.connect_operator().await?;
    let group = connection.require_records(operator.read().await?.describe(None))?;
    let until = resolve_end(pause, group.taken_at)?;
    let selected = select(&group, &pause.selection)?;
    let permitted = check_owners(&selected, pause.takeover.live);
    let rows: Vec<_> = selected.iter().map(|partition| PauseRow::new(partition)).collect();
    if !pause.takeover.execute {
        return show_dry_run(global, &rows, "ehcp.pause/1", "pause", permitted);
    }
    permitted?;
    let options = ResetOptions::default().with_allow_live(pause.takeover.live);
    let outcomes = operator.pause(ids(&selected), until, pause.reason.as_deref(), &options).await?;
    show_outcomes(global, rows, "ehcp.pause/1", "paused", outcomes)
}

/// Returns when the pause ends, if it ends by itself.
fn resolve_end(pause: &PauseArgs, now: OffsetDateTime) -> Result<Option<OffsetDateTime>> {
    match (pause.for_duration, pause.until) {
        (Some(duration), _) => time::Duration::try_from(duration)
            .ok()
            .and_then(|duration| now.checked_add(duration))
            .map(Some)
            .ok_or_else(|| Failure::usage("--for is too long")),
        (None, Some(until)) if until <= now => Err(Failure::usage("--until is in the past")),
        (None, until) => Ok(until),
    }
}

pub async fn run_resume(global: &Global, resume: &ResumeArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    let operator = connection.connect_operator().await?;
    let group = connection.require_records(operator.read().await?.describe(None))?;
    let mut selected = select(&group, &resume.selection)?;
    selected.retain(|partition| partition.active_pause().is_some());
    let permitted = check_owners(&selected, resume.takeover.live);
    let rows: Vec<_> = selected.iter().map(|partition| PauseRow::new(partition)).collect();
    if !resume.takeover.execute {
        return show_dry_run(global, &rows, "ehcp.resume/1", "resume", permitted);
    }
    permitted?;
    let options = ResetOptions::default().with_allow_live(resume.takeover.live);
    let outcomes = operator.resume(ids(&selected), &options).await?;
    show_outcomes(global, rows, "ehcp.resume/1", "resumed", outcomes)
}

fn ids(selected: &[&PartitionDescription]) -> Vec<PartitionId> {
    selected.iter().map(|partition| partition.id.clone()).collect()
}

/// Returns the partitions of the command line, or all.
fn select<'a>(group: &'a GroupDescription, selection: &Selection) -> Result<Vec<&'a PartitionDescription>> {
    selection.check_partitions(group)?;
    Ok(group.partitions.iter().filter(|partition| selection.includes(&partition.id)).collect())
}

fn check_owners(selected: &[&PartitionDescription], live: bool) -> Result<()> {
    let owned = selected.iter().filter(|partition| partition.state.is_live());
    let owned = owned.filter_map(|partition| Some((&partition.id, partition.owner.as_ref()?)));
    check_live(owned, DisplacePermission { live, foreign: false })
}

fn show_dry_run(
    global: &Global,
    rows: &[PauseRow],
    schema: &'static str,
    verb: &str,
    permitted: Result<()>,
) -> Result<Exit> {
    show_partitions(global, rows, schema, true)?;
    note_dry_run(rows.len(), &format!("{verb} {}", format_count(rows.len(), "partition")), permitted);
    Ok(if rows.is_empty() { Exit::Done } else { Exit::Differences })
}

fn show_outcomes(
    global: &Global,
    mut rows: Vec<PauseRow>,
    schema: &'static str,
    done: &str,
    outcomes: Vec<(PartitionId, ResetOutcome)>,
) -> Result<Exit> {
    let mut exit = Exit::Done;
    for (partition, outcome) in outcomes {
        let (result, ended) = match outcome {
            ResetOutcome::Done => (done.to_owned(), Exit::Done),
            ResetOutcome::NotDone(reason) => (format!("untouched: {reason}"), exit_of(&reason)),
            ResetOutcome::Indeterminate { written: true, error } => {
                let why = error.map_or_else(String::new, |error| format!(": {}", with_causes(&error)));
                (format!("{done}, but not released{why}"), Exit::Failed)
            }
            _ => ("unknown: run the command again".to_owned(), Exit::Failed),
        };
        exit = [exit, ended].into_iter().max_by_key(|exit| exit.code()).unwrap_or(exit);
        rows.iter_mut().filter(|row| row.partition == partition).for_each(|row| row.result = Some(result.clone()));
    }
    show_partitions(global, &rows, schema, false)?;
    if rows.is_empty() {
        print_note("nothing to do: none of these partitions is paused");
    }
    Ok(exit)
}

fn show_partitions(global: &Global, rows: &[PauseRow], schema: &'static str, dry_run: bool) -> Result<()> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        let result = row.result.as_deref();
        let cells = [
            row.partition.to_string(),
            row.state.clone(),
            or_empty(row.owner.as_deref()),
            or_empty(row.paused_before.as_ref().map(format_pause)),
            or_empty(result),
        ];
        let failed = result.is_some_and(|result| !["paused", "resumed"].contains(&result));
        table.add_row_in_tone(cells, if failed { Tone::Bad } else { Tone::Plain });
    }
    Output::new(global).show_document(&PauseDocument { schema, dry_run, partitions: rows }, rows, &table)
}
