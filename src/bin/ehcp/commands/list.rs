//! `ehcp list`.

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::admin::describe::{GroupDescription, GroupSummary};
use eventhubs_checkpoint::admin::list_groups;
use eventhubs_checkpoint::store::NameCase;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use crate::args::{Global, ListArgs};
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
const CONCURRENT_READS: usize = 8;

#[derive(Serialize)]
struct GroupsDocument<'a> {
    schema: &'static str,
    groups: &'a [GroupDescription],
}

pub async fn run(global: &Global, list: &ListArgs) -> Result<Exit> {
    if let Some(state) = list.state.as_deref().filter(|state| !STATES.contains(state)) {
        return Err(Failure::usage(format!("{state:?} is no state: use one of {}", STATES.join(", "))));
    }
    let storage = StorageConnection::resolve(global)?;
    let progress = Progress::spinner("reading the groups");
    let container = storage.open_container(&storage.container_name)?;
    let found = list_groups(&container, &list.prefix, global.listing_timeout()).await?;
    let mut groups: Vec<_> = stream::iter(found)
        .map(|group| describe_exactly(&storage, group))
        .buffered(CONCURRENT_READS)
        .try_collect()
        .await?;
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
            or_empty(updated.map(|updated| output.format_ago(described.taken_at, updated))),
        ]);
    }
    output.show_document(&GroupsDocument { schema: "ehcp.groups/1", groups: &groups }, &groups, &table)?;
    Ok(Exit::Done)
}

/// Reads a group under its exact names, and notes in which casing these names are.
async fn describe_exactly(storage: &StorageConnection, group: ConsumerGroup) -> Result<GroupDescription> {
    let mut described = storage.connect_exact_reader(&group).await?.read().await?.describe(None);
    let GroupSummary { namespace, event_hub, consumer_group, blob_name_case, .. } = &mut described.group;
    if [namespace, event_hub, consumer_group].into_iter().all(|name| *name == name.to_lowercase()) {
        *blob_name_case = NameCase::Lower;
    }
    Ok(described)
}
