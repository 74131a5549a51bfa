//! `ehcp migrate`.

use std::collections::BTreeMap;
use std::path::Path;

use eventhubs_checkpoint::admin::migrate::{LegacyCheckpoint, LegacyListing, LegacyProgram, read};
use eventhubs_checkpoint::admin::{Plan, PlannedChange};
use eventhubs_checkpoint::{ConsumerGroup, PartitionId};
use serde::Serialize;

use super::kafka;
use super::setting::{ChangeRow, PartitionResults, PlanExecution};
use crate::args::{Global, LegacySource, MigrateArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, print_note, printable_text};
use crate::progress::Progress;
use crate::text::{PartitionList, or_empty, quote_word};

/// The container of Azure Functions.
const FUNCTIONS_CONTAINER: &str = "azure-webjobs-eventhub";

const COLUMNS: &[Column] = &[
    Column::text("PARTITION"),
    Column::text("SOURCE-OWNER"),
    Column::text("LIVE"),
    Column::number("SEQUENCE"),
    Column::text("OFFSET"),
    Column::number("FROM").wide(),
    Column::number("TO"),
    Column::text("TO-OFFSET").wide(),
    Column::text("EFFECT"),
    Column::text("RESULT"),
];

pub async fn run(global: &Global, args: &MigrateArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    check_options(args)?;
    let hub = connection.require_hub().await?;
    let mut source = MigrationSource::read(&connection, args).await?;
    let operator = connection.connect_operator().await?;
    let mut plan = {
        let _progress = Progress::spinner("looking up the positions");
        operator.plan_migration(&hub, &source.listing, args.overwrite).await?
    };
    if let Some(PartitionList(selected)) = &args.selection.partitions {
        if let Some(unknown) = selected.iter().find(|id| plan.changes.iter().all(|change| change.partition != **id)) {
            return Err(Failure::usage(format!("neither the event hub nor the source has a partition {unknown}")));
        }
        plan.changes.retain(|change| selected.contains(&change.partition));
        source.listing.retain(|partition| selected.contains(partition));
    }
    let permission = args.permission();
    let permitted = if args.force { Ok(()) } else { source.check_idle(&connection) };
    let execution = PlanExecution {
        connection: &connection,
        operator: &operator,
        hub: Some(&hub),
        plan: &plan,
        permission: &permission,
    };
    execution.run(permitted, |results| source.show_results(&plan, results, Output::new(global))).await
}

/// Fails if options of different sources are given.
fn check_options(args: &MigrateArgs) -> Result<()> {
    match (args.from == LegacySource::KafkaCsv, &args.file) {
        (true, None) => {
            Err(Failure::usage("no file given: pass --file with the output of `kafka-consumer-groups --export`"))
        }
        (true, _) if args.source_container.is_some() || args.prefix.is_some() => {
            Err(Failure::usage("--source-container and --prefix are not for --from kafka-csv: pass --file"))
        }
        (false, Some(_)) => {
            Err(Failure::usage("--file is for --from kafka-csv: the others are read from --source-container"))
        }
        _ => Ok(()),
    }
}

/// The records of the other program, and where they were found.
#[derive(Serialize)]
struct MigrationSource {
    container: Option<String>,
    prefix: Option<String>,
    #[serde(skip)]
    listing: LegacyListing,
}

impl MigrationSource {
    async fn read(connection: &GroupConnection, args: &MigrateArgs) -> Result<Self> {
        let program = match args.from {
            LegacySource::Eph => LegacyProgram::EventProcessorHost,
            LegacySource::Functions => LegacyProgram::Functions,
            LegacySource::GoEph => LegacyProgram::GoEventProcessorHost,
            LegacySource::Dapr => LegacyProgram::Dapr,
            LegacySource::KafkaCsv => return Self::read_kafka_file(connection, args),
        };
        let container = args.source_container.as_deref().unwrap_or(match program {
            LegacyProgram::Functions => FUNCTIONS_CONTAINER,
            _ => &connection.container_name,
        });
        let group = match &args.source_group {
            Some(name) => ConsumerGroup::new(connection.group.namespace(), connection.group.event_hub(), name)?,
            None => connection.group.clone(),
        };
        let prefix = args.prefix.as_deref();
        let listing = {
            let _progress = Progress::spinner("reading the records");
            let blobs = connection.open_container(container)?;
            read(&blobs, program, &group, prefix, connection.global.listing_timeout())
                .await
                .map_err(|error| Failure::from(error).context("the source"))?
        };
        if listing.is_empty() {
            let places: Vec<_> = program.prefixes(&group, prefix).iter().map(|prefix| quote_word(prefix)).collect();
            return Err(Failure::failed(format!(
                "container {container:?} has no blob that is named by a partition after {}: check --from, \
                 --source-container, --source-group and --prefix",
                places.join(", ")
            )));
        }
        if program == LegacyProgram::EventProcessorHost && listing.prefix.is_empty() {
            print_note(
                "note: the records are at the root of the container, as Python writes them, for any consumer group",
            );
        }
        Ok(Self { container: Some(container.to_owned()), prefix: Some(listing.prefix.clone()), listing })
    }

    fn read_kafka_file(connection: &GroupConnection, args: &MigrateArgs) -> Result<Self> {
        let file = args.file.as_deref().unwrap_or(Path::new(""));
        let listing = kafka::read_offsets(file, connection.group.event_hub(), args.source_group.as_deref())?;
        print_note(
            "note: the file does not show whether the consumers were stopped before it was written: they must be",
        );
        Ok(Self { container: None, prefix: None, listing })
    }

    /// Fails if the program is running, or if there are newer records.
    fn check_idle(&self, connection: &GroupConnection) -> Result<()> {
        let container = self.container.as_deref().unwrap_or_default();
        if self.listing.has_current_checkpoints && container != connection.container_name {
            return Err(Failure::refused(format!(
                "container {container:?} also has checkpoints of the group in the current format, which may be newer: \
                 see `ehcp copy -c {container} --to-container {}`; or use --force",
                connection.container_name
            )));
        }
        let live = self.listing.checkpoints.iter().map(|found| (&found.partition, found.live, found.owner.as_deref()));
        let malformed = self.listing.malformed.iter().map(|found| (&found.partition, found.live, None));
        match live.chain(malformed).find(|(_, live, _)| *live == Some(true)) {
            Some((partition, _, owner)) => Err(Failure::refused(format!(
                "{} is processing partition {partition} of the source, whose blob is leased: stop it, and wait until its \
                 lease has expired; or use --force",
                printable_text(owner.unwrap_or("a program"))
            ))),
            None => Ok(()),
        }
    }

    fn show_results(&self, plan: &Plan, results: &PartitionResults, output: Output) -> Result<()> {
        let found: BTreeMap<&PartitionId, &LegacyCheckpoint> =
            self.listing.checkpoints.iter().map(|found| (&found.partition, found)).collect();
        let rows: Vec<_> = plan
            .changes
            .iter()
            .map(|change| MigratedChange { source: found.get(&change.partition).copied(), row: results.row_of(change) })
            .collect();
        // A dry run has no results.
        let mut table = Table::new(if results.dry_run { &COLUMNS[..COLUMNS.len() - 1] } else { COLUMNS });
        for MigratedChange { source, row } in &rows {
            let PlannedChange { partition, from, to, .. } = row.change;
            let cells = [
                partition.to_string(),
                or_empty(source.and_then(|found| found.owner.as_ref())),
                or_empty(source.and_then(|found| found.live).map(|live| if live { "yes" } else { "no" })),
                or_empty(source.and_then(|found| found.sequence_number)),
                or_empty(source.and_then(|found| found.offset.as_ref())),
                or_empty(from.as_ref().and_then(|from| from.sequence_number)),
                or_empty(to.as_ref().map(|to| to.sequence_number)),
                or_empty(to.as_ref().map(|to| &to.offset)),
                row.format_effect(),
                or_empty(row.result),
            ];
            table.add_row_in_tone(cells, row.tone);
        }
        let document =
            MigrationDocument { schema: "ehcp.migration/1", dry_run: results.dry_run, source: self, changes: &rows };
        output.show_document(&document, &rows, &table)
    }
}

#[derive(Serialize)]
struct MigrationDocument<'a> {
    schema: &'static str,
    dry_run: bool,
    source: &'a MigrationSource,
    changes: &'a [MigratedChange<'a>],
}

#[derive(Serialize)]
struct MigratedChange<'a> {
    source: Option<&'a LegacyCheckpoint>,
    #[serde(flatten)]
    row: ChangeRow<'a>,
}
