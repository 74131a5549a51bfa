//! Plans a reset: reads the group and the event hub, and finds the events that are asked for.

use futures::stream::{self, StreamExt, TryStreamExt};

use super::description::{GroupDescription, PartitionDescription};
use super::hub::HubRanges;
use super::operator::Operator;
use super::plan::{
    NO_SUCH_PARTITION, Plan, PlannedChange, Reset, ResetTarget, Wanted, change, found, kept, refused,
    unknown_partition, wanted,
};
use crate::error::{Error, ErrorKind, Result};
use crate::source::{EventSource, NO_EPOCH};
use crate::source::{OffsetFormat, position_of};

/// How many partitions are searched for an event at the same time.
const CONCURRENT_SEARCHES: usize = 16;

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
        let starts: Vec<_> = match &reset.target {
            ResetTarget::Start(start) => vec![start],
            ResetTarget::Starts(starts) => starts.values().collect(),
            _ => Vec::new(),
        };
        starts.into_iter().try_for_each(|start| start.check("the position"))?;
        let records = self.read().await?;
        let hub = HubRanges::read(source).await?;
        let group = records.describe(Some(&hub));
        let partitions = selected(reset, &group)?;
        let format = OffsetFormat::default();
        for checkpoint in group.partitions.iter().filter_map(|partition| partition.checkpoint.as_ref()) {
            format.seen(checkpoint.position.offset.as_deref());
        }
        let changes = stream::iter(partitions).map(|partition| planned(source, &hub, reset, partition, &format));
        let mut changes: Vec<_> = changes.buffer_unordered(CONCURRENT_SEARCHES).try_collect().await?;
        changes.sort_by(|one, other| one.partition.cmp(&other.partition));
        Ok(Plan::of(reset, hub.created_at(), changes))
    }

    /// Plans a reset without the event hub. Only positions with both numbers can be planned; others are refused. They
    /// are not compared with the range of the partition.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if a partition has no record and no new
    /// position: correct the request. Otherwise the error of the storage.
    pub async fn plan_without_hub(&self, reset: &Reset) -> Result<Plan> {
        let records = self.read().await?;
        let group = records.describe_with(None, &reset.named());
        let changes = selected(reset, &group)?.into_iter().map(|partition| match wanted(reset, partition) {
            Wanted::At(position, effect) => change(partition, position, effect),
            Wanted::Keep(why) => kept(partition, why),
            Wanted::Refuse(why) => refused(partition, why),
            Wanted::Find(..) => refused(partition, "the event hub is needed to find the event".to_owned()),
        });
        Ok(Plan::of(reset, None, changes.collect()))
    }
}

fn selected<'a>(reset: &Reset, group: &'a GroupDescription) -> Result<Vec<&'a PartitionDescription>> {
    if let Some(unknown) = unknown_partition(reset, group) {
        let known: Vec<_> = group.partitions.iter().map(|partition| partition.id.as_str()).collect();
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("there is no partition {unknown}: the partitions are {}", known.join(", ")),
        ));
    }
    let is_selected = |partition: &&PartitionDescription| {
        reset.partitions.as_ref().is_none_or(|selected| selected.contains(&partition.id))
    };
    Ok(group.partitions.iter().filter(is_selected).collect())
}

async fn planned(
    source: &impl EventSource,
    hub: &HubRanges,
    reset: &Reset,
    partition: &PartitionDescription,
    format: &OffsetFormat,
) -> Result<PlannedChange> {
    if reset.recorded_at.zip(hub.created_at()).is_some_and(|(recorded_at, created_at)| recorded_at < created_at) {
        return Ok(refused(partition, "the event hub was created after the positions were recorded".to_owned()));
    }
    let (start, effect) = match wanted(reset, partition) {
        Wanted::At(position, effect) => return Ok(change(partition, position, effect)),
        Wanted::Keep(why) => return Ok(kept(partition, why)),
        Wanted::Refuse(why) => return Ok(refused(partition, why)),
        Wanted::Find(start, effect) => (start, effect),
    };
    let Some(properties) = hub.of(&partition.id) else {
        return Ok(refused(partition, NO_SUCH_PARTITION.to_owned()));
    };
    let position = position_of(source, &partition.id, &start, properties, NO_EPOCH).await?;
    let effect = found(&start, &position, effect);
    Ok(change(partition, format.recordable(position), effect))
}
