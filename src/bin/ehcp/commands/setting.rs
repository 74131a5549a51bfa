//! Sets checkpoints by a plan: refuses live owners, saves what is there, executes, shows the results and how to undo
//! them.

use std::collections::BTreeMap;
use std::pin::pin;

use eventhubs_checkpoint::admin::describe::PartitionDescription;
use eventhubs_checkpoint::admin::{
    Operator, Plan, PlannedChange, PlannedEffect, Reset, ResetError, ResetOptions, ResetOutcome,
};
use eventhubs_checkpoint::store::NameCase;
use eventhubs_checkpoint::{EventHubSource, PartitionId};
use futures::StreamExt;
use serde::Serialize;

use crate::args::{Global, Permission};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone, print_note};
use crate::progress::Progress;
use crate::safety::{
    Backup, DisplacePermission, back_up, check_live, exit_of, note_dry_run, show_undo, wait_for_interrupt,
};
use crate::text::{PartitionList, format_count, join_ranges, or_empty, quote_word};

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
pub struct ResetRequest {
    pub reset: Reset,
    pub partitions: Option<PartitionList>,
    pub permission: Permission,
}

/// Plans, and if permitted, executes.
pub async fn set_checkpoints(connection: &GroupConnection, operator: &Operator, request: ResetRequest) -> Result<Exit> {
    let ResetRequest { reset, partitions, permission } = request;
    let hub = connection.connect_hub().await?;
    let plan = plan_reset(hub.as_ref(), operator, limit_to_partitions(reset, partitions)).await?;
    let execution = PlanExecution { connection, operator, hub: hub.as_ref(), plan: &plan, permission: &permission };
    execution.run(Ok(()), |results| results.show_plan(&plan, Output::new(&connection.global))).await
}

/// A plan, and what may be done with it.
pub struct PlanExecution<'a> {
    pub connection: &'a GroupConnection,
    pub operator: &'a Operator,
    pub hub: Option<&'a EventHubSource>,
    pub plan: &'a Plan,
    pub permission: &'a Permission,
}

impl PlanExecution<'_> {
    /// Executes the plan if that is permitted, also by `permitted`. `show` shows the results.
    pub async fn run(&self, permitted: Result<()>, show: impl Fn(&PartitionResults) -> Result<()>) -> Result<Exit> {
        let Self { connection, operator, hub, plan, permission } = self;
        let has_writes = plan.writes().next().is_some();
        let permitted = if has_writes {
            let owned = plan.writes().filter_map(|change| Some((&change.partition, change.owner.as_ref()?)));
            permitted.and_then(|()| check_own_positions(plan, permission)).and_then(|()| {
                check_live(owned, DisplacePermission { live: permission.live, foreign: permission.force })
            })
        } else {
            Ok(())
        };
        if !permission.execute {
            show(&PartitionResults::of_dry_run())?;
            return Ok(show_dry_run(plan, "set", permitted));
        }
        permitted?;
        if !has_writes {
            show(&PartitionResults::default())?;
            return Ok(end_without_writes(plan, "nothing to do"));
        }
        let records = operator.read().await?;
        let ranges = match hub {
            Some(hub) => Some(connection.read_ranges(hub).await?),
            None => None,
        };
        let partitions = plan.writes().map(|change| &change.partition).collect();
        let backup = back_up(records.describe(ranges.as_ref()), &partitions, &permission.backup)?;
        let results = execute_plan(plan, operator, permission).await?;
        let shown = show(&results);
        show_undo_commands(&connection.global, permission, plan, &results, &backup);
        shown?;
        Ok(results.exit_of(plan))
    }
}

pub fn limit_to_partitions(reset: Reset, partitions: Option<PartitionList>) -> Reset {
    match partitions {
        Some(PartitionList(partitions)) => reset.with_partitions(partitions),
        None => reset,
    }
}

pub async fn plan_reset(hub: Option<&EventHubSource>, operator: &Operator, reset: Reset) -> Result<Plan> {
    let _progress = Progress::spinner("looking up the positions");
    match hub {
        Some(hub) => Ok(operator.plan(hub, &reset).await?),
        None => Ok(operator.plan_without_hub(&reset).await?),
    }
}

/// Shows what a dry run would do.
pub fn show_dry_run(plan: &Plan, verb: &str, permitted: Result<()>) -> Exit {
    match plan.writes().count() {
        0 => end_without_writes(plan, "dry run: nothing to do"),
        changes => {
            note_dry_run(changes, &format!("{verb} {}", format_count(changes, "checkpoint")), permitted);
            Exit::Differences
        }
    }
}

/// Notes that a plan without writes is done, unless partitions were refused.
pub fn end_without_writes(plan: &Plan, note: &str) -> Exit {
    if has_refusals(plan) {
        return Exit::Failed;
    }
    print_note(note);
    Exit::Done
}

/// Fails if the application keeps its own position of a partition, unless the command line allows it to write the
/// checkpoint nevertheless.
fn check_own_positions(plan: &Plan, permission: &Permission) -> Result<()> {
    let kept = plan.writes().filter(|change| change.own_position && !permission.own_positions);
    let kept = join_ranges(kept.map(|change| &change.partition));
    if kept.is_empty() {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "the application keeps its own position of partition {kept}, and starts there whatever the checkpoint says: change \
         that position, and release the partition; `reset`, `import` and `copy` have --own-positions for an application \
         that stops keeping positions; to process events again with `OnEarlierStart::Fail`, change the position and \
         reset with --own-positions"
    )))
}

fn has_refusals(plan: &Plan) -> bool {
    plan.changes.iter().any(|change| change.effect == PlannedEffect::Refused)
}

async fn execute_plan(plan: &Plan, operator: &Operator, permission: &Permission) -> Result<PartitionResults> {
    let options = ResetOptions::default()
        .with_allow_live(permission.live)
        .with_allow_foreign(permission.force)
        .with_allow_own_positions(permission.own_positions)
        .with_settle(permission.settle);
    let progress = Progress::of("setting checkpoints", plan.writes().count());
    let mut outcomes = pin!(plan.execute(operator, &options, wait_for_interrupt()).await?);
    let mut results = PartitionResults::default();
    while let Some((partition, outcome)) = outcomes.next().await {
        results.add(partition, PartitionResult::from_outcome(&outcome));
        progress.advance();
    }
    Ok(results)
}

/// What became of each partition.
#[derive(Default)]
pub struct PartitionResults {
    pub dry_run: bool,
    by_partition: BTreeMap<PartitionId, PartitionResult>,
}

pub struct PartitionResult {
    text: String,
    exit: Exit,
    is_done: bool,
}

impl PartitionResult {
    pub fn done() -> Self {
        Self { text: "done".to_owned(), exit: Exit::Done, is_done: true }
    }

    pub fn kept(why: &str) -> Self {
        Self { text: format!("untouched: {why}"), exit: Exit::Done, is_done: false }
    }

    pub fn failed(why: &str) -> Self {
        Self { text: format!("untouched: {why}"), exit: Exit::Failed, is_done: false }
    }

    /// It must be undone, too.
    pub fn unknown() -> Self {
        Self {
            text: "unknown: old or new position; look at it, or repeat the command".to_owned(),
            exit: Exit::Failed,
            is_done: true,
        }
    }

    fn from_outcome(outcome: &ResetOutcome) -> Self {
        match outcome {
            ResetOutcome::Done => Self::done(),
            ResetOutcome::NotDone(ResetError::Failed(error)) => Self::failed(&with_causes(error)),
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

impl PartitionResults {
    pub fn of_dry_run() -> Self {
        Self { dry_run: true, ..Self::default() }
    }

    pub fn add(&mut self, partition: &PartitionId, result: PartitionResult) {
        self.by_partition.insert(partition.clone(), result);
    }

    /// Returns whether the partition must be undone.
    pub fn is_done(&self, partition: &PartitionId) -> bool {
        self.by_partition.get(partition).is_some_and(|result| result.is_done)
    }

    /// Returns the exit status: a failure also if the plan refused a partition.
    pub fn exit_of(&self, plan: &Plan) -> Exit {
        match self.exit() {
            Exit::Done if has_refusals(plan) => Exit::Failed,
            exit => exit,
        }
    }

    pub fn exit(&self) -> Exit {
        self.by_partition.values().map(|result| result.exit).max_by_key(|exit| exit.code()).unwrap_or(Exit::Done)
    }

    pub fn show_plan(&self, plan: &Plan, output: Output) -> Result<()> {
        let rows: Vec<_> = plan.changes.iter().map(|change| self.row_of(change)).collect();
        // A dry run has no results.
        let mut table = Table::new(if self.dry_run { &COLUMNS[..COLUMNS.len() - 1] } else { COLUMNS });
        for row in &rows {
            let PlannedChange { partition, owner, from, to, delta, .. } = row.change;
            table.add_row_in_tone(
                [
                    partition.to_string(),
                    or_empty(owner.as_ref().map(|owner| &owner.id)),
                    or_empty(from.as_ref().and_then(|from| from.sequence_number)),
                    or_empty(to.as_ref().map(|to| to.sequence_number)),
                    or_empty(delta.map(|delta| format!("{delta:+}"))),
                    or_empty(to.as_ref().map(|to| &to.offset)),
                    row.format_effect(),
                    or_empty(row.result),
                ],
                row.tone,
            );
        }
        output.show_document(
            &ResetDocument { schema: plan.schema, dry_run: self.dry_run, changes: &rows },
            &rows,
            &table,
        )
    }

    pub fn row_of<'a>(&'a self, change: &'a PlannedChange) -> ChangeRow<'a> {
        let result = self.by_partition.get(&change.partition);
        ChangeRow {
            change,
            result: result.map(|result| result.text.as_str()),
            tone: match result {
                Some(result) if result.exit != Exit::Done => Tone::Bad,
                Some(_) => Tone::Good,
                None if change.effect == PlannedEffect::Refused => Tone::Bad,
                None => Tone::Plain,
            },
        }
    }
}

#[derive(Serialize)]
struct ResetDocument<'a> {
    schema: &'static str,
    dry_run: bool,
    changes: &'a [ChangeRow<'a>],
}

/// A change, and what became of it.
#[derive(Serialize)]
pub struct ChangeRow<'a> {
    #[serde(flatten)]
    pub change: &'a PlannedChange,
    pub result: Option<&'a str>,
    #[serde(skip)]
    pub tone: Tone,
}

impl ChangeRow<'_> {
    /// Returns what would happen, and why.
    pub fn format_effect(&self) -> String {
        let PlannedChange { effect, why, .. } = self.change;
        let name = effect.as_str().replace('_', " ");
        match why {
            Some(why) => format!("{name}: {why}"),
            None => name,
        }
    }
}

/// Shows the commands that bring the checkpoints back.
fn show_undo_commands(
    global: &Global,
    permission: &Permission,
    plan: &Plan,
    results: &PartitionResults,
    backup: &Backup,
) {
    let mut saved: Vec<_> = backup.group.partitions.iter().collect();
    saved.retain(|partition| partition.checkpoint.is_some());
    let moved: Vec<_> = saved.iter().copied().filter(|partition| results.is_done(&partition.id)).collect();
    if !moved.is_empty() {
        let mut words = vec!["import", "--from"];
        let file = quote_word(&backup.file.to_string_lossy());
        words.extend([file.as_str(), "--overwrite"]);
        if moved.iter().any(|partition| is_outside_of_range(partition)) {
            words.push("--unclamped");
        }
        let partitions = join_ranges(moved.iter().map(|partition| &partition.id));
        if moved.len() < saved.len() {
            words.extend(["-p", &partitions]);
        }
        words.push("--execute");
        if permission.live {
            words.push("--live");
        }
        if permission.force {
            words.push("--force");
        }
        if permission.own_positions {
            words.push("--own-positions");
        }
        show_undo(global, backup.name_case(), &words.join(" "));
    }
    let mut created: Vec<_> = plan.writes().map(|change| &change.partition).collect();
    created.retain(|id| results.is_done(id) && saved.iter().all(|partition| partition.id != **id));
    show_deletion(global, backup.name_case(), created);
}

/// Shows the command that deletes checkpoints that did not exist.
pub fn show_deletion(global: &Global, case: NameCase, created: Vec<&PartitionId>) {
    if !created.is_empty() {
        show_undo(global, case, &format!("delete --checkpoints -p {} --execute", join_ranges(created)));
    }
}

/// Returns whether an import would move a checkpoint to the nearest end of its partition.
fn is_outside_of_range(partition: &PartitionDescription) -> bool {
    let number = partition.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.sequence_number);
    number
        .zip(partition.hub.as_ref())
        .is_some_and(|(number, range)| number < range.first.saturating_sub(1) || number > range.last.unwrap_or(-1))
}
