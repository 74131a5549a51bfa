//! `ehcp list`.

use eventhubs_checkpoint::admin::{GroupDescription, Reader, list_groups};
use eventhubs_checkpoint::store::NameCase;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use crate::args::{Global, List};
use crate::connection::StorageConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table};
use crate::progress::Progress;
use crate::text::or_empty;

const COLUMNS: &[Column] = &[
    Column::text("NAMESPACE"),
    Column::text("EVENT-HUB"),
    Column::text("GROUP"),
    Column::text("CASE"),
    Column::text("STATE"),
    Column::number("OWNERS"),
    Column::number("PARTITIONS"),
    Column::number("CHECKPOINTS"),
    Column::text("UPDATED"),
];

const STATES: &[&str] = &["empty", "dead", "stable", "moving", "mixed"];

/// How many groups are read at the same time.
const CONCURRENT: usize = 8;

#[derive(Serialize)]
struct Groups<'a> {
    schema: &'static str,
    groups: &'a [GroupDescription],
}

pub async fn run(global: &Global, list: &List) -> Result<Exit> {
    if let Some(state) = list.state.as_deref().filter(|state| !STATES.contains(state)) {
        return Err(Failure::usage(format!("{state:?} is no state: use one of {}", STATES.join(", "))));
    }
    let storage = StorageConnection::resolve(global)?;
    let progress = Progress::spinner("reading the groups");
    let container = storage.container(&storage.container_name)?;
    let found = list_groups(&container, &list.prefix, global.listing_timeout()).await?;
    let read = stream::iter(found).map(|group| {
        let storage = &storage;
        async move {
            let reader = Reader::connect(storage.exact_store(&group)?).await?;
            Ok::<_, Failure>(reader.read().await?.describe(None))
        }
    });
    let mut groups: Vec<_> = read.buffered(CONCURRENT).try_collect().await?;
    groups.iter_mut().for_each(show_case);
    groups.retain(|group| list.state.as_ref().is_none_or(|state| group.group.state.as_str() == state));
    drop(progress);

    let output = Output::new(global);
    let mut table = Table::new(COLUMNS);
    for described in &groups {
        let group = &described.group;
        let checkpoints: Vec<_> =
            described.partitions.iter().filter_map(|partition| partition.checkpoint.as_ref()).collect();
        let updated = checkpoints.iter().map(|checkpoint| checkpoint.updated).max();
        table.add_row([
            group.namespace.clone(),
            group.event_hub.clone(),
            group.consumer_group.clone(),
            group.blob_name_case.to_string(),
            group.state.to_string(),
            group.members.to_string(),
            described.partitions.len().to_string(),
            checkpoints.len().to_string(),
            or_empty(updated.map(|updated| output.ago(described.taken_at, updated))),
        ]);
    }
    output.show(&Groups { schema: "ehcp.groups/1", groups: &groups }, &groups, &table)?;
    Ok(Exit::Done)
}

/// Groups are read under their exact names. Shows which case these names are.
fn show_case(described: &mut GroupDescription) {
    let group = &mut described.group;
    let names = [&group.namespace, &group.event_hub, &group.consumer_group];
    if names.iter().all(|name| **name == name.to_lowercase()) {
        group.blob_name_case = NameCase::Lower;
    }
}
