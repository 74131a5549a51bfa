//! The commands that set checkpoints: `ehcp reset`, `init`, `import` and `copy`.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::{
    Export, NotDone, Operator, Plan, PlannedChange, PlannedEffect, Reset, ResetOptions, ResetOutcome, ResetTarget,
};
use eventhubs_checkpoint::processor::StartPosition;
use eventhubs_checkpoint::store::{BlobNameCase, InitOutcome};
use futures::StreamExt;
use serde::Serialize;

use super::positions;
use crate::args::{self, Copy, ExactCase, Global, Import, Init, Permission, Target};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone};
use crate::progress::Progress;
use crate::safety::{self, Allowed, back_up, check_live, dry_run};
use crate::text::{Partitions, count, or_dash, quoted};

const COLUMNS: &[Column] = &[
    Column::text("PARTITION"),
    Column::text("OWNER"),
    Column::number("FROM"),
    Column::number("TO"),
    Column::number("DELTA"),
    Column::text("OFFSET").wide(),
    Column::text("EFFECT"),
    Column::text("RESULT"),
];

/// What a command wants, and what it may do.
struct Task {
    reset: Reset,
    partitions: Option<Partitions>,
    permission: Permission,
}

pub async fn reset(global: &Global, args: args::Reset) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let operator = connection.operator().await?;
    let target = target(&args.target, &operator).await?;
    let reset = Reset::to(target).with_clamped(!args.unclamped);
    let task = Task { reset, partitions: args.partitions, permission: args.permission };
    set(&connection, &operator, task).await
}

pub async fn import(global: &Global, args: Import) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let reset = Reset::to(positions::read(&args.from)?);
    let reset = reset.with_keep_existing(!args.overwrite).with_clamped(!args.unclamped);
    let operator = connection.operator().await?;
    set(&connection, &operator, Task { reset, partitions: args.partitions, permission: args.permission }).await
}

pub async fn copy(global: &Global, args: Copy) -> Result<Exit> {
    let mut connection = Connection::resolve(global)?;
    let source = connection.operator().await?.read().await?.describe(None);
    let group = match &args.to_group {
        Some(name) => ConsumerGroup::new(connection.group.namespace(), connection.group.event_hub(), name.as_str())?,
        None => connection.group.clone(),
    };
    let container = args.to_container.unwrap_or_else(|| connection.container_name.clone());
    let container = container.as_str();
    let case = match args.to_case {
        Some(ExactCase::Lower) => BlobNameCase::Lower,
        Some(ExactCase::Verbatim) => BlobNameCase::Verbatim,
        None => source.group.blob_name_case,
    };
    if group == connection.group && container == connection.container_name && case == source.group.blob_name_case {
        return Err(Failure::usage("the source and the destination are the same"));
    }
    let operator = connection.operator_of(&group, container, case).await?;
    let reset = Reset::to(Export::from(&source).into()).with_keep_existing(!args.overwrite);
    let task = Task { reset, partitions: args.partitions, permission: args.permission };
    let case = case.to_string();
    let destination =
        [("--consumer-group", group.name()), ("--container", container), ("--blob-name-case", case.as_str())];
    connection.global = connection.global.clone().redirected(&destination);
    set(&connection, &operator, task).await
}

pub async fn init(global: &Global, args: Init) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let operator = connection.operator().await?;
    let reset = Reset::to(target(&args.target, &operator).await?).with_keep_existing(true);
    let plan = planned(&connection, &operator, limited(reset, args.partitions)).await?;
    let output = Output::new(global);
    if !args.execute {
        return show_dry_run(&plan, output, "create");
    }
    let mut results = Results::default();
    for (partition, outcome) in plan.init(&operator).await {
        results.add(
            partition,
            match outcome {
                Ok(InitOutcome::Written) => OneResult::done(),
                Ok(_) => OneResult::kept("it has a checkpoint meanwhile"),
                Err(error) => OneResult::failed(&with_causes(&error)),
            },
        );
    }
    results.show(&plan, output)?;
    Ok(results.exit())
}

/// Plans, and if permitted, executes.
async fn set(connection: &Connection, operator: &Operator, task: Task) -> Result<Exit> {
    let Task { reset, partitions, permission } = task;
    let plan = planned(connection, operator, limited(reset, partitions)).await?;
    let output = Output::new(&connection.global);
    if !permission.execute {
        return show_dry_run(&plan, output, "set");
    }
    let allowed = Allowed { live: permission.live, foreign: permission.force };
    let owned = plan.writes().filter_map(|change| Some((&change.partition, change.owner.as_ref()?)));
    check_live(owned, allowed)?;
    if plan.writes().next().is_none() {
        Results::default().show(&plan, output)?;
        return Ok(if has_refusals(&plan) { Exit::Failed } else { Exit::Done });
    }
    let backup = back_up(&operator.read().await?.describe(None), &permission.backup)?;
    let results = execute(&plan, operator, &permission).await?;
    results.show(&plan, output)?;
    show_undo(&connection.global, &plan, &results, &backup);
    Ok(if has_refusals(&plan) && results.exit() == Exit::Done { Exit::Failed } else { results.exit() })
}

async fn target(target: &Target, operator: &Operator) -> Result<ResetTarget> {
    let start = |start| Ok(ResetTarget::Start(start));
    match target {
        Target { to_earliest: true, .. } => start(StartPosition::Earliest),
        Target { to_latest: true, .. } => start(StartPosition::Latest),
        Target { to_datetime: Some(time), .. } => start(StartPosition::EnqueuedAfter(*time)),
        Target { by_duration: Some(duration), .. } => {
            let now = operator.read().await?.describe(None).taken_at;
            start(StartPosition::EnqueuedAfter(now - *duration))
        }
        Target { shift_by: Some(events), .. } => Ok(ResetTarget::ShiftBy(*events)),
        Target { to_sequence: Some(number), .. } => start(StartPosition::AfterSequenceNumber(*number)),
        Target { to_offset: Some(offset), .. } => start(StartPosition::AfterOffset(offset.clone())),
        Target { from_file: Some(file), .. } => positions::read(file),
        _ => Ok(ResetTarget::Current),
    }
}

fn limited(reset: Reset, partitions: Option<Partitions>) -> Reset {
    match partitions {
        Some(Partitions(partitions)) => reset.with_partitions(partitions),
        None => reset,
    }
}

async fn planned(connection: &Connection, operator: &Operator, reset: Reset) -> Result<Plan> {
    let _progress = Progress::spinner("looking up the positions");
    match connection.hub().await? {
        Some(hub) => Ok(operator.plan(&hub, &reset).await?),
        None => Ok(operator.plan_without_hub(&reset).await?),
    }
}

fn show_dry_run(plan: &Plan, output: Output, verb: &str) -> Result<Exit> {
    Results::dry_run().show(plan, output)?;
    let changes = plan.writes().count();
    dry_run(changes, &format!("{verb} {}", count(changes, "checkpoint")));
    Ok(match changes {
        0 if has_refusals(plan) => Exit::Failed,
        0 => Exit::Done,
        _ => Exit::Differences,
    })
}

fn has_refusals(plan: &Plan) -> bool {
    plan.changes.iter().any(|change| change.effect == PlannedEffect::Refused)
}

async fn execute(plan: &Plan, operator: &Operator, permission: &Permission) -> Result<Results> {
    let options = ResetOptions::default()
        .with_allow_live(permission.live)
        .with_allow_foreign(permission.force)
        .with_settle(permission.settle);
    let progress = Progress::of("setting checkpoints", plan.writes().count());
    let mut outcomes = pin!(plan.execute(operator, &options, interrupted()).await?);
    let mut results = Results::default();
    while let Some((partition, outcome)) = outcomes.next().await {
        results.add(partition, OneResult::of(&outcome));
        progress.done_one();
    }
    Ok(results)
}

/// Ends with the first Ctrl-C. Partitions that are being set are then finished first.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_ok() {
        eprintln!("stopping: checkpoints that are being written are finished first");
    }
}

/// What became of each partition.
#[derive(Default)]
struct Results {
    dry_run: bool,
    by_partition: BTreeMap<PartitionId, OneResult>,
}

struct OneResult {
    text: String,
    exit: Exit,
    is_done: bool,
}

impl OneResult {
    fn done() -> Self {
        Self { text: "done".to_owned(), exit: Exit::Done, is_done: true }
    }

    fn kept(why: &str) -> Self {
        Self { text: format!("untouched: {why}"), exit: Exit::Done, is_done: false }
    }

    fn failed(why: &str) -> Self {
        Self { text: format!("untouched: {why}"), exit: Exit::Failed, is_done: false }
    }

    fn of(outcome: &ResetOutcome) -> Self {
        match outcome {
            ResetOutcome::Done => Self::done(),
            ResetOutcome::NotDone(NotDone::Failed(error)) => Self::failed(&with_causes(error)),
            ResetOutcome::NotDone(reason) => {
                let is_refusal =
                    matches!(reason, NotDone::Foreign { .. } | NotDone::Live { .. } | NotDone::OtherNameCase { .. });
                let exit = if is_refusal { Exit::Refused } else { Exit::Failed };
                Self { exit, ..Self::failed(&reason.to_string()) }
            }
            ResetOutcome::Indeterminate { written, .. } => Self {
                text: if *written {
                    "set, but not released: it is claimed after the lease duration".to_owned()
                } else {
                    "unknown: old or new position; look at it, or repeat the command".to_owned()
                },
                exit: Exit::Failed,
                is_done: true,
            },
            other => Self::failed(&format!("{other:?}")),
        }
    }
}

impl Results {
    fn dry_run() -> Self {
        Self { dry_run: true, ..Self::default() }
    }

    fn add(&mut self, partition: &PartitionId, result: OneResult) {
        self.by_partition.insert(partition.clone(), result);
    }

    fn exit(&self) -> Exit {
        let exits = self.by_partition.values().map(|result| result.exit);
        exits.max_by_key(|exit| exit.code()).unwrap_or(Exit::Done)
    }

    fn show(&self, plan: &Plan, output: Output) -> Result<()> {
        let rows: Vec<_> = plan.changes.iter().map(|change| self.row(change)).collect();
        // A dry run has no results.
        let mut table = Table::new(if self.dry_run { &COLUMNS[..COLUMNS.len() - 1] } else { COLUMNS });
        for row in &rows {
            let PlannedChange { partition, owner, from, to, delta, effect, why, .. } = row.change;
            let why = why.iter().map(|why| format!(": {why}"));
            let effect = std::iter::once(effect.as_str().replace('_', " ")).chain(why).collect();
            table.toned(
                [
                    partition.to_string(),
                    or_dash(owner.as_ref().map(|owner| &owner.id)),
                    or_dash(from.as_ref().and_then(|from| from.sequence_number)),
                    or_dash(to.as_ref().map(|to| to.sequence_number)),
                    or_dash(delta.map(|delta| format!("{delta:+}"))),
                    or_dash(to.as_ref().map(|to| &to.offset)),
                    effect,
                    or_dash(row.result),
                ],
                row.tone,
            );
        }
        output.show(&Document { schema: plan.schema, dry_run: self.dry_run, changes: &rows }, &rows, &table)
    }

    fn row<'a>(&'a self, change: &'a PlannedChange) -> Row<'a> {
        let result = self.by_partition.get(&change.partition);
        let tone = match result {
            Some(result) if result.exit != Exit::Done => Tone::Bad,
            Some(_) => Tone::Good,
            None if change.effect == PlannedEffect::Refused => Tone::Bad,
            None => Tone::Plain,
        };
        Row { change, result: result.map(|result| result.text.as_str()), tone }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    dry_run: bool,
    changes: &'a [Row<'a>],
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    change: &'a PlannedChange,
    result: Option<&'a str>,
    #[serde(skip)]
    tone: Tone,
}

/// Shows the commands that bring the checkpoints back.
fn show_undo(global: &Global, plan: &Plan, results: &Results, backup: &Path) {
    let is_done = |change: &&PlannedChange| results.by_partition.get(&change.partition).is_some_and(|one| one.is_done);
    let (created, moved): (Vec<_>, Vec<_>) = plan.writes().filter(is_done).partition(|change| change.from.is_none());
    if !moved.is_empty() {
        let backup = quoted(&backup.to_string_lossy());
        safety::show_undo(global, &format!("import --from {backup} --overwrite --execute"));
    }
    if !created.is_empty() {
        let created = crate::text::ranges(created.iter().map(|change| &change.partition));
        safety::show_undo(global, &format!("delete --checkpoints -p {created} --execute"));
    }
}
