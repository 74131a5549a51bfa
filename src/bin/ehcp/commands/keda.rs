//! `ehcp keda`.

use std::collections::BTreeMap;

use eventhubs_checkpoint::admin::{GroupDescription, GroupSummary, KedaPartition, KedaPoll, KedaReason, KedaScale};
use serde::Serialize;

use crate::args::{Global, Keda};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, Tone, note, print};
use crate::text::{or_empty, ranges};

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
struct Document<'a> {
    schema: &'static str,
    group: &'a GroupSummary,
    #[serde(flatten)]
    poll: &'a KedaPoll,
    threshold: i64,
    /// `null` if the poll fails.
    scale: Option<KedaScale>,
}

pub async fn run(global: &Global, keda: &Keda) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let records = connection.reader().await?.read().await?;
    if global.no_hub {
        return Err(Failure::usage("KEDA counts the events of the event hub: remove --no-hub"));
    }
    let ranges = connection.ranges(&connection.require_hub().await?).await?;
    let described = connection.with_records(records.describe(Some(&ranges)))?;
    let poll = records.keda(&ranges);
    show(global, keda, &described, &poll)?;
    let problems = problems(&poll, &described);
    problems.iter().for_each(note);
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Differences })
}

fn show(global: &Global, keda: &Keda, described: &GroupDescription, poll: &KedaPoll) -> Result<()> {
    let scale = poll.scale(keda.threshold, keda.max_replicas.map(u64::from));
    let output = Output::new(global);
    if output.is_for_people() {
        print(&format!("{}\n\n", headline(described, poll, scale, keda.threshold)))?;
    }
    let mut table = Table::new(COLUMNS);
    for partition in &poll.partitions {
        table.add_row_in_tone(cells(partition), if partition.is_wrong() { Tone::Warning } else { Tone::Plain });
    }
    let document = Document { schema: "ehcp.keda/1", group: &described.group, poll, threshold: keda.threshold, scale };
    output.show(&document, &poll.partitions, &table)
}

fn headline(described: &GroupDescription, poll: &KedaPoll, scale: Option<KedaScale>, threshold: i64) -> String {
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

fn cells(partition: &KedaPartition) -> [String; 7] {
    [
        partition.id.to_string(),
        or_empty(partition.sequence_number),
        partition.first.to_string(),
        or_empty(partition.last),
        or_empty(partition.count.events),
        or_empty(partition.lag.events),
        partition.count.why.to_string(),
    ]
}

/// Returns what is wrong, and the remedies: one line for each reason.
fn problems(poll: &KedaPoll, described: &GroupDescription) -> Vec<String> {
    let mut wrong = BTreeMap::<KedaReason, Vec<_>>::new();
    for partition in poll.wrong() {
        wrong.entry(partition.count.why).or_default().push(&partition.id);
    }
    let names = (!poll.names.finds_checkpoints).then(|| {
        format!(
            "KEDA finds no checkpoint of {}: it converts the consumer group to lower case, and the names of the blobs \
             have capital letters: use a consumer group without capital letters, or the blob-name case lower, to which \
             `ehcp copy --to-case lower` copies the checkpoints",
            described.group.consumer_group
        )
    });
    let reasons = wrong.into_iter().map(|(why, partitions)| {
        let remedy = why.remedy().unwrap_or("compare with `ehcp describe`");
        format!("partition {}: {why}: {remedy}", ranges(partitions))
    });
    names.into_iter().chain(reasons).collect()
}
