//! The commands that set checkpoints: `ehcp reset`, `init`, `import` and `copy`.

use std::collections::BTreeMap;
use std::pin::pin;

use eventhubs_checkpoint::admin::{
    Export, NotDone, Operator, PartitionDescription, Plan, PlannedChange, PlannedEffect, Reset, ResetOptions,
    ResetOutcome, ResetTarget,
};
use eventhubs_checkpoint::processor::StartPosition;
use eventhubs_checkpoint::store::{BlobNameCase, InitOutcome};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, EventHubSource, PartitionId};
use futures::StreamExt;
use serde::Serialize;
use time::OffsetDateTime;

use super::positions;
use crate::args::{self, Copy, ExactCase, Global, Import, Init, Permission, Target};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone, note};
use crate::progress::Progress;
use crate::safety::{self, Allowed, Backup, back_up, check_live, dry_run, exit_of, interrupted};
use crate::text::{self, Partitions, count, or_empty, quoted};

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
    let task = Task { reset, partitions: args.selection.partitions, permission: args.permission };
    set(&connection, &operator, task).await
}

pub async fn import(global: &Global, args: Import) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    let reset = Reset::to(positions::read(&args.from)?);
    let reset = reset.with_keep_existing(!args.overwrite).with_clamped(!args.unclamped);
    let operator = connection.operator().await?;
    set(&connection, &operator, Task { reset, partitions: args.selection.partitions, permission: args.permission })
        .await
}

pub async fn copy(global: &Global, args: Copy) -> Result<Exit> {
    let mut connection = Connection::resolve(global)?;
    let source = connection.records().await?;
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
    let mut export = Export::from(&source);
    if let Some(hub) = connection.hub().await? {
        let known = connection.ranges(&hub).await?;
        let is_known = |id: &PartitionId| known.of(id).is_some();
        let unknown = export.partitions.iter().map(|partition| &partition.id).filter(|id| !is_known(id));
        for partition in unknown {
            note(format_args!("note: partition {partition} is left out: the event hub does not have it"));
        }
        export.partitions.retain(|partition| is_known(&partition.id));
    }
    let reset = Reset::to(export.into()).with_keep_existing(!args.overwrite);
    let task = Task { reset, partitions: args.selection.partitions, permission: args.permission };
    let case = case.to_string();
    let destination =
        [("--consumer-group", group.name()), ("--container", container), ("--blob-name-case", case.as_str())];
    connection.global = connection.global.clone().redirected(&destination);
    set(&connection, &operator, task).await
}

pub async fn init(global: &Global, args: Init) -> Result<Exit> {
    if args.target.shift_by.is_some() || args.target.to_current {
        return Err(Failure::usage("--shift-by and --to-current move checkpoints that exist: see `ehcp reset`"));
    }
    let connection = Connection::resolve(global)?;
    let operator = connection.operator().await?;
    let reset = Reset::to(target(&args.target, &operator).await?).with_keep_existing(true);
    let hub = connection.hub().await?;
    let plan = planned(hub.as_ref(), &operator, limited(reset, args.selection.partitions)).await?;
    let output = Output::new(global);
    if !args.execute {
        return show_dry_run(&plan, output, "create", Ok(()));
    }
    let mut results = Results::default();
    for (partition, outcome) in plan.init(&operator).await {
        results.add(
            partition,
            match outcome {
                Ok(InitOutcome::Written) => OneResult::done(),
                Ok(_) => OneResult::kept("it got a checkpoint in the meantime"),
                Err(error) if error.kind() == ErrorKind::Indeterminate => OneResult::unknown(),
                Err(error) => OneResult::failed(&with_causes(&error)),
            },
        );
    }
    let shown = results.show(&plan, output);
    let created = plan.changes.iter().map(|change| &change.partition).filter(|id| results.is_done(id));
    show_deletion(global, operator.read().await?.describe(None).group.blob_name_case, created.collect());
    shown?;
    Ok(results.exit())
}

/// Plans, and if permitted, executes.
async fn set(connection: &Connection, operator: &Operator, task: Task) -> Result<Exit> {
    let Task { reset, partitions, permission } = task;
    let hub = connection.hub().await?;
    let plan = planned(hub.as_ref(), operator, limited(reset, partitions)).await?;
    let output = Output::new(&connection.global);
    let allowed = Allowed { live: permission.live, foreign: permission.force };
    let owned = plan.writes().filter_map(|change| Some((&change.partition, change.owner.as_ref()?)));
    let permitted = check_live(owned, allowed);
    if !permission.execute {
        return show_dry_run(&plan, output, "set", permitted);
    }
    permitted?;
    if plan.writes().next().is_none() {
        Results::default().show(&plan, output)?;
        return Ok(if has_refusals(&plan) { Exit::Failed } else { Exit::Done });
    }
    let records = operator.read().await?;
    let ranges = match &hub {
        Some(hub) => Some(connection.ranges(hub).await?),
        None => None,
    };
    let partitions = plan.writes().map(|change| &change.partition).collect();
    let backup = back_up(records.describe(ranges.as_ref()), &partitions, &permission.backup)?;
    let results = execute(&plan, operator, &permission).await?;
    let shown = results.show(&plan, output);
    show_undo(connection, &permission, &plan, &results, &backup);
    shown?;
    Ok(if has_refusals(&plan) && results.exit() == Exit::Done { Exit::Failed } else { results.exit() })
}

async fn target(target: &Target, operator: &Operator) -> Result<ResetTarget> {
    let start = |start| Ok(ResetTarget::Start(start));
    match target {
        Target { to_earliest: true, .. } => start(StartPosition::Earliest),
        Target { to_latest: true, .. } => start(StartPosition::Latest),
        Target { to_datetime: Some(time), .. } => enqueued_after(*time),
        Target { by_duration: Some(duration), .. } => {
            let now = operator.read().await?.describe(None).taken_at;
            let duration = time::Duration::try_from(*duration).unwrap_or(time::Duration::MAX);
            enqueued_after(now.checked_sub(duration).unwrap_or(OffsetDateTime::UNIX_EPOCH))
        }
        Target { shift_by: Some(events), .. } => Ok(ResetTarget::ShiftBy(*events)),
        Target { to_sequence: Some(number), .. } => start(StartPosition::AfterSequenceNumber(*number)),
        Target { to_offset: Some(offset), .. } => start(StartPosition::AfterOffset(offset.clone())),
        Target { from_file: Some(file), .. } => positions::read(file),
        _ => Ok(ResetTarget::Current),
    }
}

fn enqueued_after(time: OffsetDateTime) -> Result<ResetTarget> {
    if time <= OffsetDateTime::UNIX_EPOCH {
        return Err(Failure::usage("no event was enqueued before 1970: use --to-earliest"));
    }
    Ok(ResetTarget::Start(StartPosition::EnqueuedAfter(time)))
}

fn limited(reset: Reset, partitions: Option<Partitions>) -> Reset {
    match partitions {
        Some(Partitions(partitions)) => reset.with_partitions(partitions),
        None => reset,
    }
}

async fn planned(hub: Option<&EventHubSource>, operator: &Operator, reset: Reset) -> Result<Plan> {
    let _progress = Progress::spinner("looking up the positions");
    match hub {
        Some(hub) => Ok(operator.plan(hub, &reset).await?),
        None => Ok(operator.plan_without_hub(&reset).await?),
    }
}

fn show_dry_run(plan: &Plan, output: Output, verb: &str, permitted: Result<()>) -> Result<Exit> {
    Results::dry_run().show(plan, output)?;
    let changes = plan.writes().count();
    dry_run(changes, &format!("{verb} {}", count(changes, "checkpoint")), permitted);
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

    /// It must be undone, too.
    fn unknown() -> Self {
        let text = "unknown: old or new position; look at it, or repeat the command".to_owned();
        Self { text, exit: Exit::Failed, is_done: true }
    }

    fn of(outcome: &ResetOutcome) -> Self {
        match outcome {
            ResetOutcome::Done => Self::done(),
            ResetOutcome::NotDone(NotDone::Failed(error)) => Self::failed(&with_causes(error)),
            ResetOutcome::NotDone(reason) => Self { exit: exit_of(reason), ..Self::failed(&reason.to_string()) },
            ResetOutcome::Indeterminate { written: true, .. } => Self {
                text: "set, but not released: it is claimed after the lease duration".to_owned(),
                ..Self::unknown()
            },
            ResetOutcome::Indeterminate { written: false, .. } => Self::unknown(),
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

    /// Returns whether the partition must be undone.
    fn is_done(&self, partition: &PartitionId) -> bool {
        self.by_partition.get(partition).is_some_and(|result| result.is_done)
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
                    or_empty(owner.as_ref().map(|owner| &owner.id)),
                    or_empty(from.as_ref().and_then(|from| from.sequence_number)),
                    or_empty(to.as_ref().map(|to| to.sequence_number)),
                    or_empty(delta.map(|delta| format!("{delta:+}"))),
                    or_empty(to.as_ref().map(|to| &to.offset)),
                    effect,
                    or_empty(row.result),
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
fn show_undo(connection: &Connection, permission: &Permission, plan: &Plan, results: &Results, backup: &Backup) {
    let global = &connection.global;
    let saved = || backup.group.partitions.iter().filter(|partition| partition.checkpoint.is_some());
    let moved: Vec<_> = saved().filter(|partition| results.is_done(&partition.id)).collect();
    if !moved.is_empty() {
        let mut words = vec!["import", "--from"];
        let file = quoted(&backup.file.to_string_lossy());
        words.extend([file.as_str(), "--overwrite"]);
        if moved.iter().any(|partition| is_outside(partition)) {
            words.push("--unclamped");
        }
        let partitions = text::ranges(moved.iter().map(|partition| &partition.id));
        if moved.len() < saved().count() {
            words.extend(["-p", &partitions]);
        }
        words.push("--execute");
        if permission.live {
            words.push("--live");
        }
        if permission.force {
            words.push("--force");
        }
        safety::show_undo(global, backup.case(), &words.join(" "));
    }
    let is_new = |id: &&PartitionId| results.is_done(id) && saved().all(|partition| partition.id != **id);
    show_deletion(global, backup.case(), plan.writes().map(|change| &change.partition).filter(is_new).collect());
}

/// Shows the command that deletes checkpoints that did not exist.
fn show_deletion(global: &Global, case: BlobNameCase, created: Vec<&PartitionId>) {
    if !created.is_empty() {
        let created = text::ranges(created);
        safety::show_undo(global, case, &format!("delete --checkpoints -p {created} --execute"));
    }
}

/// Returns whether an import would move a checkpoint to the nearest end of its partition.
fn is_outside(partition: &PartitionDescription) -> bool {
    let number = partition.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.sequence_number);
    number
        .zip(partition.hub.as_ref())
        .is_some_and(|(number, range)| number < range.first.saturating_sub(1) || number > range.last.unwrap_or(-1))
}
