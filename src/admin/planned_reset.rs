//! A reset in two steps: an operator plans it, and executes the plan.

use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, FuturesUnordered, Stream, StreamExt, TryStreamExt};

use super::group_description::GroupDescription;
use super::new_position::{NewPosition, effect_of_search, new_position_of, unknown_partition};
use super::operator::Operator;
use super::partition_description::PartitionDescription;
use super::plan::{NO_SUCH_PARTITION, Plan, PlannedChange, plan_no_change, plan_refusal, plan_reset};
use super::records::{HubRanges, OwnerRecords};
use super::reset::{Reset, ResetError, ResetOptions, ResetOutcome, ResetTarget};
use super::session::{CheckpointChange, ResetOrder};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::source::{EventSource, NO_EPOCH, OffsetFormat, resolve_start};
use crate::store::InitOutcome;

/// How many partitions are searched for an event at the same time.
const CONCURRENT_SEARCHES: usize = 16;

/// How many times a partition is searched if its link or its connection breaks meanwhile.
const MAX_SEARCHES: u32 = 3;

/// How many times a partition is reset if another owner claims it in the meantime, as processors of other SDKs do.
const MAX_RESETS: u32 = 3;

impl Operator {
    /// Plans a reset: reads the group and the ranges of the event hub, and finds the events at the new positions, so
    /// that both numbers of each checkpoint are known. Writes nothing.
    ///
    /// To find an event, it opens receivers without an owner level, which displace no other receiver. The broker
    /// rejects them while a processor reads the partition in the same consumer group. So read for another consumer
    /// group of the event hub: positions are the same for all.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the event hub has no such partition, or
    ///   the start is before 1970: correct the request.
    /// - [`ErrorKind::Fenced`](crate::ErrorKind::Fenced) if the broker rejects a receiver: read for another group.
    /// - Otherwise the error of the storage or of the source.
    pub async fn plan(&self, source: &impl EventSource, reset: &Reset) -> Result<Plan> {
        match &reset.target {
            ResetTarget::Start(start) => start.check_time("the position")?,
            ResetTarget::Starts(starts) => starts.values().try_for_each(|start| start.check_time("the position"))?,
            _ => {}
        }
        let records = self.read().await?;
        let hub = HubRanges::read(source).await?;
        let group = records.describe(Some(&hub));
        let partitions = select_partitions(reset, &group)?;
        let format = OffsetFormat::default();
        for checkpoint in group.partitions.iter().filter_map(|partition| partition.checkpoint.as_ref()) {
            format.record_offset(checkpoint.position.offset.as_deref());
        }
        let changes = stream::iter(partitions).map(|partition| plan_partition(source, &hub, reset, partition, &format));
        let mut changes: Vec<_> = changes.buffer_unordered(CONCURRENT_SEARCHES).try_collect().await?;
        changes.sort_by(|one, other| one.partition.cmp(&other.partition));
        Ok(Plan::new(reset, hub.created_at(), changes))
    }

    /// Plans a reset without the event hub. Only positions with both numbers can be planned; others are refused. They
    /// are not compared with the range of the partition.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if a partition has no record and no new
    /// position: correct the request. Otherwise the error of the storage.
    pub async fn plan_without_hub(&self, reset: &Reset) -> Result<Plan> {
        let group = self.read().await?.describe_with(None, &reset.partitions_with_position());
        let changes =
            select_partitions(reset, &group)?.into_iter().map(|partition| match new_position_of(reset, partition) {
                NewPosition::At(position, effect) => plan_reset(partition, position, effect),
                NewPosition::Keep(why) => plan_no_change(partition, why),
                NewPosition::Refuse(why) => plan_refusal(partition, why),
                NewPosition::Find(..) => {
                    plan_refusal(partition, "the event hub is needed to find the event".to_owned())
                }
            });
        Ok(Plan::new(reset, None, changes.collect()))
    }
}

impl Plan {
    /// Executes the changes that write something, concurrently, as [`Operator::reset`] does. Returns the outcome of
    /// each partition when it is known.
    ///
    /// A checkpoint that is not as it was when the reset was planned stays as it is:
    /// [`ResetError::Changed`](super::ResetError). If the partition had a live owner, that owner may have advanced it.
    ///
    /// When `stop` ends, no further checkpoint is written: partitions that are not done yet report
    /// [`ResetError::Stopped`](super::ResetError). Still poll the stream to its end, because the operator releases the
    /// partitions that it took over.
    ///
    /// # Errors
    ///
    /// The error of the storage, if the group could not be listed: nothing was written.
    pub async fn execute<'a>(
        &'a self,
        operator: &'a Operator,
        options: &'a ResetOptions,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<impl Stream<Item = (&'a PartitionId, ResetOutcome)> + 'a> {
        let survey = Arc::new(OwnerRecords::read(operator.store()).await?);
        let stop = stop.boxed().shared();
        let resets = self.writes().filter_map(move |change| {
            let order = ResetOrder {
                change: CheckpointChange::Position(change.to.clone()?),
                hub_created_at: self.hub_created_at,
                expected: change.expected_checkpoint(),
                attempts: MAX_RESETS,
                stop: stop.clone(),
            };
            let survey = Arc::clone(&survey);
            let partition = &change.partition;
            Some(async move {
                // Its owner keeps the partition.
                if change.own_position && !options.allow_own_positions {
                    return (partition, ResetOutcome::NotDone(ResetError::OwnPosition));
                }
                (partition, operator.reset_one(&survey, partition, &order, options).await)
            })
        });
        Ok(resets.collect::<FuturesUnordered<_>>())
    }

    /// Writes the planned positions as initial checkpoints, where there is no checkpoint yet. Takes no partition over:
    /// a checkpoint of an owner replaces an initial one. See
    /// [`GroupStore::init_checkpoint`](crate::store::GroupStore::init_checkpoint).
    ///
    /// # Errors
    ///
    /// Each partition has its own result, with the error of the storage. Repeat the call: it changes no checkpoint that
    /// it has written.
    pub async fn init(&self, operator: &Operator) -> Vec<(&PartitionId, Result<InitOutcome>)> {
        let store = operator.store().for_hub_created_at(self.hub_created_at);
        let mut outcomes = Vec::new();
        for PlannedChange { partition, to, .. } in self.writes().filter(|change| change.from.is_none()) {
            if let Some(to) = to {
                outcomes.push((partition, store.init_checkpoint(partition, to).await));
            }
        }
        outcomes
    }
}

fn select_partitions<'a>(reset: &Reset, group: &'a GroupDescription) -> Result<Vec<&'a PartitionDescription>> {
    if let Some(unknown) = unknown_partition(reset, group) {
        let known: Vec<_> = group.partitions.iter().map(|partition| partition.id.as_str()).collect();
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("there is no partition {unknown}: the partitions are {}", known.join(", ")),
        ));
    }
    let mut partitions: Vec<_> = group.partitions.iter().collect();
    partitions.retain(|partition| reset.partitions.as_ref().is_none_or(|selected| selected.contains(&partition.id)));
    Ok(partitions)
}

async fn plan_partition(
    source: &impl EventSource,
    hub: &HubRanges,
    reset: &Reset,
    partition: &PartitionDescription,
    format: &OffsetFormat,
) -> Result<PlannedChange> {
    if reset.recorded_at.zip(hub.created_at()).is_some_and(|(recorded_at, created_at)| recorded_at < created_at) {
        return Ok(plan_refusal(partition, "the event hub was created after the positions were recorded".to_owned()));
    }
    let (start, effect) = match new_position_of(reset, partition) {
        NewPosition::At(position, effect) => return Ok(plan_reset(partition, position, effect)),
        NewPosition::Keep(why) => return Ok(plan_no_change(partition, why)),
        NewPosition::Refuse(why) => return Ok(plan_refusal(partition, why)),
        NewPosition::Find(start, effect) => (start, effect),
    };
    let Some(properties) = hub.get(&partition.id) else {
        return Ok(plan_refusal(partition, NO_SUCH_PARTITION.to_owned()));
    };
    let mut searches_left = MAX_SEARCHES;
    let position = loop {
        match resolve_start(source, &partition.id, &start, properties, NO_EPOCH).await {
            Err(error) if error.kind() == ErrorKind::EventSource && searches_left > 1 => searches_left -= 1,
            found => break found?,
        }
    };
    let effect = effect_of_search(&start, &position, effect);
    Ok(plan_reset(partition, format.to_recordable(position), effect))
}
