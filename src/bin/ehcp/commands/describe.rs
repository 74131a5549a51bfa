//! `ehcp describe`.

use std::collections::BTreeMap;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::describe::{GroupDescription, OwnershipState, PartitionDescription};
use serde::Serialize;

use crate::args::{DescribeArgs, Global};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Result};
use crate::output::{Column, Output, Table, Tone, print_text};
use crate::pauses::{count_pauses, format_pause, pause_name};
use crate::text::{format_count, format_time, join_ranges, or_empty};
use crate::watching::{GroupHistory, WaitingTime};

const PARTITIONS: &[Column] = &[
    Column::text("PARTITION"),
    Column::text("STATE"),
    Column::text("OWNER"),
    Column::text("RENEWED"),
    Column::text("EXPIRES").wide(),
    Column::text("SINCE").wide(),
    Column::number("EPOCH").wide(),
    Column::number("SEQUENCE"),
    Column::text("OFFSET").wide(),
    Column::number("FIRST"),
    Column::number("LAST"),
    Column::number("LAG"),
    Column::text("LAG-STATE").wide(),
    Column::text("BEHIND"),
    Column::text("UPDATED"),
    Column::text("PAUSED").wide(),
    Column::text("POSITIONS").wide(),
];

const MEMBERS: &[Column] = &[
    Column::text("OWNER"),
    Column::text("SDK"),
    Column::text("PARTITIONS"),
    Column::number("LOAD"),
    Column::text("SINCE"),
    Column::text("RENEWED"),
];

const STATE: &[Column] = &[
    Column::text("GROUP"),
    Column::text("STATE"),
    Column::number("OWNERS"),
    Column::number("PARTITIONS"),
    Column::number("UNOWNED"),
    Column::number("PAUSED"),
    Column::number("PARKED"),
    Column::number("TOTAL-LAG"),
];

#[derive(Serialize)]
struct GroupDocument<'a> {
    #[serde(flatten)]
    group: &'a GroupDescription,
    /// How long the event after each checkpoint has waited, as far as one look can know it.
    behind: BTreeMap<&'a PartitionId, WaitingTime>,
}

#[derive(Serialize)]
struct PartitionRow<'a> {
    #[serde(flatten)]
    partition: &'a PartitionDescription,
    behind: Option<WaitingTime>,
}

pub async fn run(global: &Global, describe: &DescribeArgs) -> Result<Exit> {
    let mut group = GroupConnection::resolve(global)?.describe_group().await?;
    describe.selection.check_partitions(&group)?;
    let output = Output::new(global);
    let headline = format_headline(&group);
    group.partitions.retain(|partition| describe.selection.includes(&partition.id));
    let history = GroupHistory::of_look(group.clone());
    let document = GroupDocument { group: &group, behind: history.waiting_times() };
    if describe.members {
        output.show_document(&document, &group.members, &member_table(&group, output))?;
    } else if describe.state {
        output.show_document(&document, &[&group.group], &state_table(&group))?;
    } else {
        if output.is_for_people() {
            print_text(&format!("{headline}\n\n"))?;
        }
        let row = |partition| PartitionRow { partition, behind: history.waiting_time(partition) };
        let rows: Vec<_> = group.partitions.iter().map(row).collect();
        output.show_document(&document, &rows, &partition_table(&group, &rows, output))?;
    }
    Ok(Exit::Done)
}

fn format_headline(group: &GroupDescription) -> String {
    let summary = &group.group;
    let counts = [
        summary.state.to_string(),
        format_count(summary.members, "owner"),
        format_count(group.partitions.len(), "partition"),
        format!("{} without an owner", summary.unowned),
    ];
    let counts: Vec<_> = counts.into_iter().chain(count_pauses(&group.partitions)).collect();
    let mut checkpoints = group.partitions.iter().filter_map(|partition| partition.checkpoint.as_ref());
    let own_positions = if checkpoints.any(|checkpoint| checkpoint.own_position) {
        ", the application keeps its own positions"
    } else {
        ""
    };
    format!("{}  {}, lag {}{own_positions}", group_name(group), counts.join(", "), summary.lag)
}

fn group_name(group: &GroupDescription) -> String {
    let summary = &group.group;
    format!("{}/{}/{}", summary.namespace, summary.event_hub, summary.consumer_group)
}

fn partition_table(group: &GroupDescription, rows: &[PartitionRow<'_>], output: Output) -> Table {
    let mut table = Table::new(PARTITIONS);
    for PartitionRow { partition, behind } in rows {
        let owner = partition.owner.as_ref();
        let checkpoint = partition.checkpoint.as_ref();
        let position = checkpoint.map(|checkpoint| &checkpoint.position);
        let hub = partition.hub.as_ref();
        let lag_state = serde_json::to_value(partition.lag.state).ok();
        let pause = partition.active_pause();
        let tone = match partition.state {
            OwnershipState::Expired => Tone::Bad,
            _ if pause.is_some_and(|pause| pause.parked) => Tone::Bad,
            OwnershipState::Unowned | OwnershipState::Released => Tone::Warning,
            _ if pause.is_some() => Tone::Warning,
            _ => Tone::Plain,
        };
        let cells = [
            partition.id.to_string(),
            pause.map_or_else(
                || partition.state.to_string(),
                |pause| format!("{}, {}", partition.state, pause_name(pause)),
            ),
            or_empty(owner.map(|owner| &owner.id)),
            or_empty(owner.map(|owner| output.format_ago(group.taken_at, owner.renewed))),
            or_empty(owner.map(|owner| output.format_duration(owner.expires_in))),
            or_empty(owner.and_then(|owner| owner.since).map(format_time)),
            or_empty(owner.and_then(|owner| owner.epoch)),
            or_empty(position.and_then(|position| position.sequence_number)),
            or_empty(position.and_then(|position| position.offset.as_deref())),
            or_empty(hub.map(|hub| hub.first)),
            or_empty(hub.and_then(|hub| hub.last)),
            or_empty(partition.lag.events),
            lag_state.as_ref().and_then(|state| state.as_str()).unwrap_or_default().to_owned(),
            or_empty(behind.map(|behind| output.format_waiting(behind))),
            or_empty(checkpoint.map(|checkpoint| output.format_ago(group.taken_at, checkpoint.updated))),
            or_empty(pause.map(format_pause)),
            or_empty(checkpoint.filter(|checkpoint| checkpoint.own_position).map(|_| "application")),
        ];
        table.add_row_in_tone(cells, tone);
    }
    table
}

fn member_table(group: &GroupDescription, output: Output) -> Table {
    let mut table = Table::new(MEMBERS);
    for member in &group.members {
        table.add_row([
            member.id.to_string(),
            member.sdk.to_string(),
            join_ranges(&member.partitions),
            or_empty(member.load),
            or_empty(member.since.map(format_time)),
            output.format_ago(group.taken_at, member.renewed),
        ]);
    }
    table
}

fn state_table(group: &GroupDescription) -> Table {
    let summary = &group.group;
    let mut table = Table::new(STATE);
    table.add_row([
        group_name(group),
        summary.state.to_string(),
        summary.members.to_string(),
        group.partitions.len().to_string(),
        summary.unowned.to_string(),
        summary.paused.to_string(),
        summary.parked.to_string(),
        or_empty(summary.lag.events),
    ]);
    table
}
