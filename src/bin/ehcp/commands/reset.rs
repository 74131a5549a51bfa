//! The commands that set checkpoints: `ehcp reset`, `init`, `import` and `copy`.

use eventhubs_checkpoint::admin::{Export, Operator, Reset, ResetTarget};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::{InitOutcome, NameCase};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind};
use time::OffsetDateTime;

use super::positions;
use super::setting::{OneResult, Results, Task, limit_to_partitions, plan_reset, set, show_deletion, show_dry_run};
use crate::args::{self, Copy, ExactCase, Global, Import, Init, Target};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Output, note};

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
    let export = positions::read(&args.from)?;
    let taken_at = export.taken_at;
    let mut reset = Reset::to(export.into()).with_keep_existing(!args.overwrite).with_clamped(!args.unclamped);
    if let Some(time) = taken_at {
        reset = reset.with_recorded_at(time);
    }
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
        Some(ExactCase::Lower) => NameCase::Lower,
        Some(ExactCase::Verbatim) => NameCase::Verbatim,
        None => source.group.blob_name_case,
    };
    if group == connection.group && container == connection.container_name && case == source.group.blob_name_case {
        return Err(Failure::usage("the source and the destination are the same"));
    }
    let operator = connection.operator_of(&group, container, case).await?;
    let mut export = Export::from(&source);
    if let Some(hub) = connection.hub().await? {
        let known = connection.ranges(&hub).await?;
        for partition in export.partitions.iter().map(|partition| &partition.id).filter(|id| known.of(id).is_none()) {
            note(format_args!("note: partition {partition} is left out: the event hub does not have it"));
        }
        export.partitions.retain(|partition| known.of(&partition.id).is_some());
    }
    let reset = Reset::to(export.into()).with_keep_existing(!args.overwrite);
    let task = Task { reset, partitions: args.selection.partitions, permission: args.permission };
    let case = case.to_string();
    let destination =
        [("--consumer-group", group.name()), ("--container", container), ("--blob-name-case", case.as_str())];
    connection.global = connection.global.clone().with_options(&destination);
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
    let plan = plan_reset(hub.as_ref(), &operator, limit_to_partitions(reset, args.selection.partitions)).await?;
    let output = Output::new(global);
    if !args.execute {
        Results::dry_run().show(&plan, output)?;
        return Ok(show_dry_run(&plan, "create", Ok(())));
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

async fn target(target: &Target, operator: &Operator) -> Result<ResetTarget> {
    match target {
        Target { to_earliest: true, .. } => Ok(ResetTarget::Start(StartPosition::Earliest)),
        Target { to_latest: true, .. } => Ok(ResetTarget::Start(StartPosition::Latest)),
        Target { to_datetime: Some(time), .. } => start_after_time(*time),
        Target { by_duration: Some(duration), .. } => {
            let now = operator.read().await?.describe(None).taken_at;
            let duration = time::Duration::try_from(*duration).unwrap_or(time::Duration::MAX);
            start_after_time(now.checked_sub(duration).unwrap_or(OffsetDateTime::UNIX_EPOCH))
        }
        Target { shift_by: Some(events), .. } => Ok(ResetTarget::ShiftBy(*events)),
        Target { to_sequence: Some(number), .. } => Ok(ResetTarget::Start(StartPosition::AfterSequenceNumber(*number))),
        Target { to_offset: Some(offset), .. } => Ok(ResetTarget::Start(StartPosition::AfterOffset(offset.clone()))),
        Target { from_file: Some(file), .. } => positions::read(file).map(Into::into),
        _ => Ok(ResetTarget::Current),
    }
}

fn start_after_time(time: OffsetDateTime) -> Result<ResetTarget> {
    if time <= OffsetDateTime::UNIX_EPOCH {
        return Err(Failure::usage("no event was enqueued before 1970: use --to-earliest"));
    }
    Ok(ResetTarget::Start(StartPosition::EnqueuedAfter(time)))
}
