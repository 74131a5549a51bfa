//! `ehcp keda`.

use std::collections::BTreeMap;

use eventhubs_checkpoint::admin::describe::{GroupDescription, GroupSummary};
use eventhubs_checkpoint::admin::keda::{KedaPartition, KedaPoll, KedaReason, KedaScale};
use serde::Serialize;

use crate::args::{Global, KedaArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, Tone, print_note, print_text};
use crate::pauses::{group_pauses, pause_name};
use crate::text::{join_ranges, or_empty};

const COLUMNS: &[Column] = &[
    Column::text("PARTITION"),
    Column::number("SEQUENCE"),
    Column::number("FIRST"),
    Column::number("LAST"),
    Column::number("KEDA"),
    Column::number("LAG"),
    Column::text("WHY"),
];

#[derive(Serialize)]
struct KedaDocument<'a> {
    schema: &'static str,
    group: &'a GroupSummary,
    #[serde(flatten)]
    poll: &'a KedaPoll,
    threshold: i64,
    /// `null` if the poll fails.
    scale: Option<KedaScale>,
}

pub async fn run(global: &Global, keda: &KedaArgs) -> Result<Exit> {
    if global.no_hub {
        return Err(Failure::usage("KEDA counts the events of the event hub: remove --no-hub"));
    }
    let connection = GroupConnection::resolve(global)?;
    let records = connection.connect_reader().await?.read().await?;
    let ranges = connection.read_ranges(&connection.require_hub().await?).await?;
    let described = connection.require_records(records.describe(Some(&ranges)))?;
    let poll = records.keda(&ranges);
    show_poll(global, keda, &described, &poll)?;
    let problems = list_problems(&poll, &described);
    problems.iter().for_each(print_note);
    pause_notes(&poll).for_each(print_note);
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Differences })
}

fn show_poll(global: &Global, keda: &KedaArgs, described: &GroupDescription, poll: &KedaPoll) -> Result<()> {
    let scale = poll.scale(keda.threshold, keda.max_replicas.map(u64::from));
    let output = Output::new(global);
    if output.is_for_people() {
        print_text(&format!("{}\n\n", format_headline(described, poll, scale, keda.threshold)))?;
    }
    let mut table = Table::new(COLUMNS);
    for partition in &poll.partitions {
        table.add_row_in_tone(
            partition_cells(partition),
            if partition.is_wrong() { Tone::Warning } else { Tone::Plain },
        );
    }
    let document =
        KedaDocument { schema: "ehcp.keda/1", group: &described.group, poll, threshold: keda.threshold, scale };
    output.show_document(&document, &poll.partitions, &table)
}

fn format_headline(described: &GroupDescription, poll: &KedaPoll, scale: Option<KedaScale>, threshold: i64) -> String {
    let group = &described.group;
    let name = format!("{}/{}/{}", group.namespace, group.event_hub, group.consumer_group);
    match (poll.total, scale) {
        (Some(total), Some(KedaScale { active, replicas, .. })) => {
            let active = if active { "active" } else { "not active" };
            let replicas = format!("{replicas} replica{}", if replicas == 1 { "" } else { "s" });
            format!("{name}  KEDA counts {total}, lag {}, {active}, {replicas} at {threshold} events each", group.lag)
        }
        _ => format!("{name}  KEDA's poll fails, lag {}: it starts no replica from zero, and stops none", group.lag),
    }
}

fn partition_cells(partition: &KedaPartition) -> [String; 7] {
    let why = partition.count.why;
    [
        partition.id.to_string(),
        or_empty(partition.sequence_number),
        partition.first.to_string(),
        or_empty(partition.last),
        or_empty(partition.count.events),
        or_empty(partition.lag.events),
        partition.paused.as_ref().map_or_else(|| why.to_string(), |pause| format!("{why}; {}", pause_name(pause))),
    ]
}

/// Returns what is wrong, and the remedies: one line for each reason.
fn list_problems(poll: &KedaPoll, described: &GroupDescription) -> Vec<String> {
    let mut wrong = BTreeMap::<KedaReason, Vec<_>>::new();
    for partition in poll.wrong() {
        wrong.entry(partition.count.why).or_default().push(&partition.id);
    }
    let mut problems = Vec::new();
    if !poll.names.finds_checkpoints {
        problems.push(format!(
            "KEDA finds no checkpoint of {}: it converts the consumer group to lower case, and the names of the blobs \
             have capital letters: use a consumer group without capital letters, or the blob-name casing lower, to which \
             `ehcp copy --to-case lower` copies the checkpoints",
            described.group.consumer_group
        ));
    }
    for (why, partitions) in wrong {
        let remedy = why.remedy().unwrap_or("compare with `ehcp describe`");
        problems.push(format!("partition {}: {why}: {remedy}", join_ranges(partitions)));
    }
    problems
}

/// Returns which partitions with events are paused. That is no fault of KEDA's count, which is the lag.
fn pause_notes(poll: &KedaPoll) -> impl Iterator<Item = String> {
    let counted = poll.partitions.iter().filter(|partition| partition.count.events.is_some_and(|events| events > 0));
    let paused = counted.filter_map(|partition| Some((&partition.id, partition.paused.as_ref()?)));
    group_pauses(paused).into_iter().map(|(pause, partitions)| {
        let partitions = join_ranges(partitions);
        format!("note: KEDA counts the events of partition {partitions}, although no replica processes them: {pause}")
    })
}
