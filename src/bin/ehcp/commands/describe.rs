//! `ehcp describe`.

use eventhubs_checkpoint::admin::{GroupDescription, OwnershipState, PartitionDescription};

use crate::args::{Describe, Global};
use crate::connection::Connection;
use crate::exit::{Exit, Result};
use crate::output::{Column, Output, Table, Tone, print};
use crate::text::{count, or_empty, ranges, time};

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
    Column::text("UPDATED"),
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
    Column::number("TOTAL-LAG"),
];

pub async fn run(global: &Global, describe: &Describe) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let group = connection.describe().await?;
    let output = Output::new(global);
    if describe.members {
        output.show(&group, &group.members, &members(&group, output))?;
    } else if describe.state {
        output.show(&group, &[&group.group], &state(&group))?;
    } else {
        if output.is_for_people() {
            print(&format!("{}\n\n", headline(&group)))?;
        }
        output.show(&group, &group.partitions, &partitions(&group, output))?;
    }
    Ok(Exit::Done)
}

fn headline(group: &GroupDescription) -> String {
    let summary = &group.group;
    format!(
        "{}  {}, {}, {}, {} without an owner, lag {}",
        name(group),
        summary.state,
        count(summary.members, "owner"),
        count(group.partitions.len(), "partition"),
        summary.unowned,
        summary.lag,
    )
}

fn name(group: &GroupDescription) -> String {
    let summary = &group.group;
    format!("{}/{}/{}", summary.namespace, summary.event_hub, summary.consumer_group)
}

fn partitions(group: &GroupDescription, output: Output) -> Table {
    let mut table = Table::new(PARTITIONS);
    for partition in &group.partitions {
        let owner = partition.owner.as_ref();
        let checkpoint = partition.checkpoint.as_ref();
        let position = checkpoint.map(|checkpoint| &checkpoint.position);
        let hub = partition.hub.as_ref();
        let lag_state = serde_json::to_value(partition.lag.state).ok();
        let cells = [
            partition.id.to_string(),
            partition.state.to_string(),
            or_empty(owner.map(|owner| &owner.id)),
            or_empty(owner.map(|owner| output.ago(group.taken_at, owner.renewed))),
            or_empty(owner.map(|owner| output.duration(owner.expires_in))),
            or_empty(owner.and_then(|owner| owner.since).map(time)),
            or_empty(owner.and_then(|owner| owner.epoch)),
            or_empty(position.and_then(|position| position.sequence_number)),
            or_empty(position.and_then(|position| position.offset.as_deref())),
            or_empty(hub.map(|hub| hub.first)),
            or_empty(hub.and_then(|hub| hub.last)),
            or_empty(partition.lag.events),
            lag_state.as_ref().and_then(|state| state.as_str()).unwrap_or_default().to_owned(),
            or_empty(checkpoint.map(|checkpoint| output.ago(group.taken_at, checkpoint.updated))),
        ];
        table.add_row_in_tone(cells, tone(partition));
    }
    table
}

fn tone(partition: &PartitionDescription) -> Tone {
    match partition.state {
        OwnershipState::Expired => Tone::Bad,
        OwnershipState::Unowned | OwnershipState::Released => Tone::Warning,
        _ => Tone::Plain,
    }
}

fn members(group: &GroupDescription, output: Output) -> Table {
    let mut table = Table::new(MEMBERS);
    for member in &group.members {
        table.add_row([
            member.id.to_string(),
            member.sdk.to_string(),
            ranges(&member.partitions),
            or_empty(member.load),
            or_empty(member.since.map(time)),
            output.ago(group.taken_at, member.renewed),
        ]);
    }
    table
}

fn state(group: &GroupDescription) -> Table {
    let summary = &group.group;
    let mut table = Table::new(STATE);
    table.add_row([
        name(group),
        summary.state.to_string(),
        summary.members.to_string(),
        group.partitions.len().to_string(),
        summary.unowned.to_string(),
        or_empty(summary.lag.events),
    ]);
    table
}
