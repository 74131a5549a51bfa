//! Migrates a consumer group from another program: reads the checkpoints of legacy SDKs and of Kafka, and plans to
//! write them as checkpoints of this crate.
//!
//! | step | call |
//! |---|---|
//! | read the records, below the prefix that the program uses | [`read`] |
//! | or name the positions of a Kafka consumer group | [`LegacyCheckpoint::from_kafka`], [`LegacyListing::of`] |
//! | find their events, compare them with the group | [`Operator::plan_migration`](super::Operator::plan_migration) |
//! | write them | [`Plan::execute`](super::Plan::execute) |
//!
//! The source is never written, so the other program can continue where it stopped. Stop it first: a record whose blob
//! has an active lease ([`LegacyCheckpoint::live`]) may advance, and events after it would be processed twice.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use eventhubs_checkpoint::admin::{Operator, ResetOptions};
//! use eventhubs_checkpoint::admin::migrate::{LegacyProgram, read};
//! use eventhubs_checkpoint::blob::azure::AzureContainer;
//! # use eventhubs_checkpoint::source::EventSource;
//! # use eventhubs_checkpoint::{ConsumerGroup, Result};
//! use futures::StreamExt;
//!
//! # async fn migrate(operator: &Operator, hub: &impl EventSource, group: &ConsumerGroup) -> Result<()> {
//! let source = AzureContainer::from_connection_string("UseDevelopmentStorage=true", "eph-leases")?;
//! let timeout = Duration::from_secs(30);
//! let listing = read(&source, LegacyProgram::EventProcessorHost, group, None, timeout).await?;
//! let plan = operator.plan_migration(hub, &listing, false).await?;
//! let options = ResetOptions::default();
//! let outcomes: Vec<_> = plan.execute(operator, &options, std::future::pending()).await?.collect().await;
//! # Ok(())
//! # }
//! ```

mod checkpoint;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use super::operator::Operator;
use super::plan::{Plan, PlannedChange, PlannedEffect, refuse_unknown};
use super::reset::{Reset, ResetTarget};
use crate::error::Result;
use crate::model::PartitionId;
use crate::source::{EventSource, names_another_event};

pub use self::checkpoint::{LegacyCheckpoint, MalformedLegacyRecord};
pub use self::source::{LegacyListing, LegacyProgram, read};
pub use crate::blob::{BlobContent, BlobContents};

impl Operator {
    /// Plans to write the checkpoints of another program as checkpoints of this group: reads the group and the ranges
    /// of the event hub, and the event at each checkpoint, so that both numbers are known. Writes nothing: see
    /// [`Plan::execute`]. The plan has all partitions of the event hub and of the listing.
    ///
    /// A partition that has a checkpoint stays as it is, unless `overwrite` is set. A number outside of the partition's
    /// range is moved to its nearest end. These partitions are refused, and have no new position:
    ///
    /// - Its record is malformed.
    /// - The event with its sequence number has another offset: the record belongs to another event hub.
    /// - The event hub does not have the partition.
    ///
    /// A partition for which the program never wrote a checkpoint stays as it is: the start position of the group's
    /// processors decides, as the start position of the program did.
    ///
    /// # Errors
    ///
    /// The errors of [`plan`](Self::plan).
    pub async fn plan_migration(
        &self,
        source: &impl EventSource,
        listing: &LegacyListing,
        overwrite: bool,
    ) -> Result<Plan> {
        let starts = listing
            .checkpoints
            .iter()
            .filter_map(|found| Some((found.partition.clone(), found.start_position()?.clone())));
        let reset = Reset::to(ResetTarget::Starts(starts.collect())).with_keep_existing(!overwrite);
        let mut plan = self.plan(source, &reset).await?;
        plan.changes = judge_changes(plan.changes, listing, overwrite);
        Ok(plan)
    }
}

/// Returns the changes as the records of the source permit them, with the partitions that the event hub does not have.
fn judge_changes(changes: Vec<PlannedChange>, listing: &LegacyListing, overwrite: bool) -> Vec<PlannedChange> {
    let found = listing.checkpoints.iter().map(|found| (&found.partition, Ok(found)));
    let malformed = listing.malformed.iter().map(|found| (&found.partition, Err(&found.problem)));
    let records: BTreeMap<&PartitionId, Result<&LegacyCheckpoint, &String>> = found.chain(malformed).collect();
    let known: BTreeSet<_> = changes.iter().map(|change| change.partition.clone()).collect();
    let mut judged: Vec<_> = changes
        .into_iter()
        .map(|change| match records.get(&change.partition) {
            _ if !overwrite && change.from.is_some() => change,
            None => with_reason(change, "the source has no record of it"),
            Some(Err(problem)) => refuse_change(change, problem),
            Some(Ok(found)) => compare_offsets(change, found),
        })
        .collect();
    let unknown = records.into_keys().filter(|partition| !known.contains(*partition));
    judged.extend(unknown.map(|partition| refuse_unknown(partition.clone())));
    judged.sort_by(|one, other| one.partition.cmp(&other.partition));
    judged
}

fn compare_offsets(change: PlannedChange, found: &LegacyCheckpoint) -> PlannedChange {
    if found.start_position().is_none() {
        return with_reason(change, "the source has no checkpoint of it, so the start position decides");
    }
    match (&change.to, found.sequence_number, &found.offset) {
        (Some(to), Some(number), Some(offset))
            if to.sequence_number == number && names_another_event(offset, &to.offset) =>
        {
            let why =
                format!("the offset of event {number} is {}, not {offset}: it is of another event hub", to.offset);
            refuse_change(change, &why)
        }
        _ => change,
    }
}

fn with_reason(change: PlannedChange, why: &str) -> PlannedChange {
    PlannedChange { why: Some(why.to_owned()), ..change }
}

fn refuse_change(change: PlannedChange, why: &str) -> PlannedChange {
    PlannedChange { to: None, delta: None, effect: PlannedEffect::Refused, ..with_reason(change, why) }
}

#[cfg(test)]
mod tests {
    use super::super::partition_description::RecordedPosition;
    use super::checkpoint::Body;
    use super::*;
    use crate::model::Position;

    /// The change that the search for an event has found.
    fn created(partition: u32, to: Option<(i64, &str)>) -> PlannedChange {
        let to = to.map(|(number, offset)| Position::new(number, offset));
        let effect = if to.is_some() { PlannedEffect::Create } else { PlannedEffect::NoChange };
        PlannedChange { to, effect, why: None, ..refuse_unknown(partition.into()) }
    }

    fn checkpoint(partition: u32, number: Option<i64>, offset: Option<&str>) -> LegacyCheckpoint {
        let body = Body { owner: None, sequence_number: number, offset: offset.map(str::to_owned) };
        LegacyCheckpoint::new(partition.into(), false, body)
    }

    fn one(change: PlannedChange, found: LegacyCheckpoint) -> (PlannedEffect, String) {
        let judged = judge_changes(vec![change], &LegacyListing::of([found]), false);
        let [change] = judged.as_slice() else { panic!("{judged:?}") };
        (change.effect, change.why.clone().unwrap_or_default())
    }

    #[test]
    fn offsets_of_other_events_are_refused() {
        let judged = |offset: &str, to| one(created(0, Some(to)), checkpoint(0, Some(41), Some(offset)));
        assert_eq!(judged("4100", (41, "4100")), (PlannedEffect::Create, String::new()));
        let (effect, why) = judged("77", (41, "4100"));
        assert_eq!(effect, PlannedEffect::Refused);
        assert_eq!(why, "the offset of event 41 is 4100, not 77: it is of another event hub");
        // A clamped position has other numbers, and offsets that are no numbers change without a meaning.
        assert_eq!(judged("77", (99, "9900")).0, PlannedEffect::Create);
        assert_eq!(judged("1:77:x", (41, "4100")).0, PlannedEffect::Create);
    }

    #[test]
    fn partitions_without_a_position_have_a_reason() {
        let (effect, why) = one(created(0, None), checkpoint(0, Some(0), None));
        assert_eq!((effect, why.contains("start position decides")), (PlannedEffect::NoChange, true));
        let listing =
            LegacyListing { malformed: vec![malformed(0)], ..LegacyListing::of([checkpoint(7, Some(1), None)]) };
        let all = judge_changes(vec![created(0, None), created(1, None)], &listing, false);
        let shown: Vec<_> =
            all.iter().map(|it| (it.partition.as_str(), it.effect, it.why.as_deref().unwrap())).collect();
        assert_eq!(
            shown,
            [
                ("0", PlannedEffect::Refused, "it is empty"),
                ("1", PlannedEffect::NoChange, "the source has no record of it"),
                ("7", PlannedEffect::Refused, "the event hub has no such partition"),
            ]
        );
    }

    #[test]
    fn checkpoints_that_exist_stay() {
        let position = RecordedPosition { sequence_number: Some(5), offset: None };
        let kept =
            PlannedChange { from: Some(position), why: Some("it has a checkpoint".to_owned()), ..created(0, None) };
        let listing = LegacyListing { malformed: vec![malformed(0)], ..LegacyListing::default() };
        let judge = |overwrite| judge_changes(vec![kept.clone()], &listing, overwrite).remove(0);
        assert_eq!(judge(false).why.as_deref(), Some("it has a checkpoint"));
        assert_eq!(judge(true).effect, PlannedEffect::Refused);
    }

    fn malformed(partition: u32) -> MalformedLegacyRecord {
        MalformedLegacyRecord { partition: partition.into(), live: Some(false), problem: "it is empty".to_owned() }
    }
}
