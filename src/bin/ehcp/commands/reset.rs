//! The commands that set checkpoints: `ehcp reset`, `init`, `import` and `copy`.

use eventhubs_checkpoint::admin::{Export, Operator, Reset, ResetTarget};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::NameCase;
use eventhubs_checkpoint::store::protocol::InitOutcome;
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind};
use time::OffsetDateTime;

use super::positions::read_positions;
use super::setting::{
    PartitionResult, PartitionResults, ResetRequest, end_without_writes, limit_to_partitions, plan_reset,
    set_checkpoints, show_deletion, show_dry_run,
};
use crate::args::{CopyArgs, ExactCase, Global, ImportArgs, InitArgs, ResetArgs, TargetArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Output, print_note};

pub async fn run_reset(global: &Global, args: ResetArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    let operator = connection.connect_operator().await?;
    let request = ResetRequest {
        reset: Reset::to(resolve_target(&args.target, &operator).await?).with_clamped(!args.unclamped),
        partitions: args.selection.partitions,
        permission: args.permission,
    };
    set_checkpoints(&connection, &operator, request).await
}

pub async fn run_import(global: &Global, args: ImportArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    let export = read_positions(&args.from)?;
    let taken_at = export.taken_at;
    let mut reset = Reset::to(export.into()).with_keep_existing(!args.overwrite).with_clamped(!args.unclamped);
    if let Some(time) = taken_at {
        reset = reset.with_recorded_at(time);
    }
    let request = ResetRequest { reset, partitions: args.selection.partitions, permission: args.permission };
    set_checkpoints(&connection, &connection.connect_operator().await?, request).await
}

pub async fn run_copy(global: &Global, args: CopyArgs) -> Result<Exit> {
    let mut connection = GroupConnection::resolve(global)?;
    let source = connection.describe_records().await?;
    let group = match &args.to_group {
        Some(name) => ConsumerGroup::new(connection.group.namespace(), connection.group.event_hub(), name.as_str())?,
        None => connection.group.clone(),
    };
    let container = args.to_container.as_deref().unwrap_or(&connection.container_name);
    let case = match args.to_case {
        Some(ExactCase::Lower) => NameCase::Lower,
        Some(ExactCase::Verbatim) => NameCase::Verbatim,
        None => source.group.blob_name_case,
    };
    if group == connection.group && container == connection.container_name && case == source.group.blob_name_case {
        return Err(Failure::usage("the source and the destination are the same"));
    }
    let operator = connection.connect_operator_of(&group, container, case).await?;
    let mut export = Export::from(&source);
    if let Some(hub) = connection.connect_hub().await? {
        let known = connection.read_ranges(&hub).await?;
        for partition in export.partitions.iter().map(|partition| &partition.id).filter(|id| known.get(id).is_none()) {
            print_note(format_args!("note: partition {partition} is left out: the event hub does not have it"));
        }
        export.partitions.retain(|partition| known.get(&partition.id).is_some());
    }
    let request = ResetRequest {
        reset: Reset::to(export.into()).with_keep_existing(!args.overwrite),
        partitions: args.selection.partitions,
        permission: args.permission,
    };
    connection.global = connection.global.clone().with_options(&[
        ("--consumer-group", group.name()),
        ("--container", container),
        ("--blob-name-case", case.to_string().as_str()),
    ]);
    set_checkpoints(&connection, &operator, request).await
}

pub async fn run_init(global: &Global, args: InitArgs) -> Result<Exit> {
    if args.target.shift_by.is_some() || args.target.to_current {
        return Err(Failure::usage("--shift-by and --to-current move checkpoints that exist: see `ehcp reset`"));
    }
    let connection = GroupConnection::resolve(global)?;
    let operator = connection.connect_operator().await?;
    let reset = Reset::to(resolve_target(&args.target, &operator).await?).with_keep_existing(true);
    let hub = connection.connect_hub().await?;
    let plan = plan_reset(hub.as_ref(), &operator, limit_to_partitions(reset, args.selection.partitions)).await?;
    let output = Output::new(global);
    if !args.execute {
        PartitionResults::of_dry_run().show_plan(&plan, output)?;
        return Ok(show_dry_run(&plan, "create", Ok(())));
    }
    let mut results = PartitionResults::default();
    if plan.writes().next().is_none() {
        results.show_plan(&plan, output)?;
        return Ok(end_without_writes(&plan, "nothing to do"));
    }
    for (partition, outcome) in plan.init(&operator).await {
        results.add(
            partition,
            match outcome {
                Ok(InitOutcome::Written) => PartitionResult::done(),
                Ok(_) => PartitionResult::kept("it got a checkpoint in the meantime"),
                Err(error) if error.kind() == ErrorKind::Indeterminate => PartitionResult::unknown(),
                Err(error) => PartitionResult::failed(&with_causes(&error)),
            },
        );
    }
    let shown = results.show_plan(&plan, output);
    let created = plan.changes.iter().map(|change| &change.partition).filter(|id| results.is_done(id));
    show_deletion(global, operator.read().await?.describe(None).group.blob_name_case, created.collect());
    shown?;
    Ok(results.exit_of(&plan))
}

async fn resolve_target(target: &TargetArgs, operator: &Operator) -> Result<ResetTarget> {
    match target {
        TargetArgs { to_earliest: true, .. } => Ok(ResetTarget::Start(StartPosition::Earliest)),
        TargetArgs { to_latest: true, .. } => Ok(ResetTarget::Start(StartPosition::Latest)),
        TargetArgs { to_datetime: Some(time), .. } => start_after_time(*time),
        TargetArgs { by_duration: Some(duration), .. } => {
            let now = operator.read().await?.describe(None).taken_at;
            let duration = time::Duration::try_from(*duration).unwrap_or(time::Duration::MAX);
            start_after_time(now.checked_sub(duration).unwrap_or(OffsetDateTime::UNIX_EPOCH))
        }
        TargetArgs { shift_by: Some(events), .. } => Ok(ResetTarget::ShiftBy(*events)),
        TargetArgs { to_sequence: Some(number), .. } => {
            Ok(ResetTarget::Start(StartPosition::AfterSequenceNumber(*number)))
        }
        TargetArgs { to_offset: Some(offset), .. } => {
            Ok(ResetTarget::Start(StartPosition::AfterOffset(offset.clone())))
        }
        TargetArgs { from_file: Some(file), .. } => read_positions(file).map(Into::into),
        _ => Ok(ResetTarget::Current),
    }
}

fn start_after_time(time: OffsetDateTime) -> Result<ResetTarget> {
    if time <= OffsetDateTime::UNIX_EPOCH {
        return Err(Failure::usage("no event was enqueued before 1970: use --to-earliest"));
    }
    Ok(ResetTarget::Start(StartPosition::EnqueuedAfter(time)))
}
