//! `ehcp release`.

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::ResetOptions;
use eventhubs_checkpoint::admin::describe::PartitionDescription;
use serde::Serialize;

use crate::args::{Global, ReleaseArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, Tone, print_note};
use crate::safety::{DisplacePermission, check_live, exit_of, note_dry_run};
use crate::text::{format_count, or_empty};

const COLUMNS: &[Column] =
    &[Column::text("PARTITION"), Column::text("OWNER"), Column::text("STATE"), Column::text("RESULT")];

#[derive(Serialize)]
struct ReleaseRow {
    partition: PartitionId,
    owner: Option<String>,
    state: String,
    result: Option<String>,
}

impl ReleaseRow {
    fn new(partition: &PartitionDescription) -> Self {
        Self {
            partition: partition.id.clone(),
            owner: partition.owner.as_ref().map(|owner| owner.id.to_string()),
            state: partition.state.to_string(),
            result: None,
        }
    }
}

#[derive(Serialize)]
struct ReleaseDocument<'a> {
    schema: &'static str,
    dry_run: bool,
    partitions: &'a [ReleaseRow],
}

pub async fn run(global: &Global, release: &ReleaseArgs) -> Result<Exit> {
    let operator = GroupConnection::resolve(global)?.connect_operator().await?;
    let group = operator.read().await?.describe(None);
    let mut selected = release.partitions.iter().flat_map(|partitions| &partitions.0);
    if let Some(unknown) = selected.find(|id| group.partition(id).is_none()) {
        return Err(Failure::usage(format!("partition {unknown} has no record")));
    }
    let mut owned: Vec<_> = group.partitions.iter().filter(|partition| partition.owner.is_some()).collect();
    owned.retain(|partition| {
        release.partitions.as_ref().is_some_and(|partitions| partitions.0.contains(&partition.id))
            || partition.owner.as_ref().map(|owner| &owner.id).is_some_and(|id| release.owner.as_ref() == Some(id))
    });
    let mut rows: Vec<_> = owned.iter().map(|partition| ReleaseRow::new(partition)).collect();
    let live = owned
        .iter()
        .filter(|partition| partition.state.is_live())
        .filter_map(|partition| Some((&partition.id, partition.owner.as_ref()?)));
    let permitted = check_live(live, DisplacePermission { live: release.live, foreign: release.force });
    if !release.execute {
        show_partitions(global, &rows, true)?;
        note_dry_run(rows.len(), &format!("release {}", format_count(rows.len(), "partition")), permitted);
        return Ok(if rows.is_empty() { Exit::Done } else { Exit::Differences });
    }
    permitted?;
    let options = ResetOptions::default().with_allow_live(release.live).with_allow_foreign(release.force);
    let partitions = owned.iter().map(|partition| partition.id.clone()).collect();
    let mut exit = Exit::Done;
    for (partition, released) in operator.release(partitions, &options).await? {
        let result = match released {
            Ok(()) => "released".to_owned(),
            Err(reason) => {
                exit = [exit, exit_of(&reason)].into_iter().max_by_key(|exit| exit.code()).unwrap_or(exit);
                format!("untouched: {reason}")
            }
        };
        rows.iter_mut().filter(|row| row.partition == partition).for_each(|row| row.result = Some(result.clone()));
    }
    show_partitions(global, &rows, false)?;
    if rows.is_empty() {
        print_note("nothing to do: none of these partitions has an owner");
    }
    Ok(exit)
}

fn show_partitions(global: &Global, rows: &[ReleaseRow], dry_run: bool) -> Result<()> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        let result = row.result.as_deref();
        table.add_row_in_tone(
            [row.partition.to_string(), or_empty(row.owner.as_deref()), row.state.clone(), or_empty(result)],
            if result.is_some_and(|result| result != "released") { Tone::Bad } else { Tone::Plain },
        );
    }
    Output::new(global).show_document(
        &ReleaseDocument { schema: "ehcp.release/1", dry_run, partitions: rows },
        rows,
        &table,
    )
}
