//! The last hour of a group, by the looks at it: pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::describe::{GroupDescription, GroupSummary, Member, PartitionDescription};
use serde::Serialize;
use time::OffsetDateTime;

use super::changes::{ChangeKind, GroupChange, find_changes};
use super::partition::{PartitionHistory, Rates, RecordedCheckpoint, Slot, Span, WaitingTime};

/// How many changes are kept.
const MAX_CHANGES: usize = 500;

/// The last hour of a group.
#[derive(Debug, Default)]
pub struct GroupHistory {
    last: Option<GroupDescription>,
    partitions: BTreeMap<PartitionId, PartitionHistory>,
    changes: VecDeque<GroupChange>,
}

/// A group as it is, and as it was in the last hour. Serialized as `ehcp.watch/1`.
#[derive(Debug, Serialize)]
pub struct GroupSnapshot<'a> {
    pub schema: &'static str,
    #[serde(flatten)]
    pub group: DescribedGroup<'a>,
    pub rates: BTreeMap<&'a PartitionId, Rates>,
    /// How long the event after each checkpoint has waited, as far as the looks can know it.
    pub behind: BTreeMap<&'a PartitionId, WaitingTime>,
    pub history: BTreeMap<&'a PartitionId, Vec<&'a Slot>>,
    pub spans: BTreeMap<&'a PartitionId, Vec<&'a Span>>,
    /// The latest one last.
    pub changes: Vec<&'a GroupChange>,
}

/// The fields of a description, without its schema.
#[derive(Debug, Serialize)]
pub struct DescribedGroup<'a> {
    #[serde(with = "time::serde::rfc3339")]
    pub taken_at: OffsetDateTime,
    pub group: &'a GroupSummary,
    pub partitions: &'a [PartitionDescription],
    pub members: &'a [Member],
}

impl GroupHistory {
    /// Returns the history of a single look.
    pub fn of_look(group: GroupDescription) -> Self {
        let mut history = Self::default();
        history.add_look(group, true);
        history
    }

    /// Adds a look, and returns what changed since the look before. If the event hub was not read for it, its ranges of
    /// events come from an earlier look, and do not count for rates.
    pub fn add_look(&mut self, mut group: GroupDescription, is_hub_read: bool) -> Vec<GroupChange> {
        if let Some(last) = &self.last {
            // The time of the storage is known to the second, so it may seem to go back.
            group.taken_at = group.taken_at.max(last.taken_at);
        }
        let mut changes = self.last.as_ref().map(|last| find_changes(last, &group)).unwrap_or_default();
        for change in &mut changes {
            self.complete_handoff(change);
        }
        let present: BTreeSet<_> = group.partitions.iter().map(|partition| &partition.id).collect();
        self.partitions.retain(|id, _| present.contains(id));
        for partition in &group.partitions {
            let history = self.partitions.entry(partition.id.clone()).or_default();
            let mut resets = changes.iter().filter(|change| change.kind == ChangeKind::Reset);
            if resets.any(|reset| reset.partition.as_ref() == Some(&partition.id)) {
                history.restart_rate();
            }
            history.add_look(partition, group.taken_at, is_hub_read);
        }
        self.changes.extend(changes.iter().cloned());
        self.changes.drain(..self.changes.len().saturating_sub(MAX_CHANGES));
        self.last = Some(group);
        changes
    }

    /// A handoff that an earlier look found half done: the partition was released for the member that claims it now.
    fn complete_handoff(&self, change: &mut GroupChange) {
        if change.kind != ChangeKind::Claimed || change.from.is_some() {
            return;
        }
        let earlier = self.changes.iter().rev().find(|earlier| earlier.partition == change.partition);
        if let Some(released) = earlier.filter(|earlier| earlier.kind == ChangeKind::Released)
            && released.to.is_some()
            && released.to == change.to
        {
            change.kind = ChangeKind::HandedOver;
            change.from.clone_from(&released.from);
        }
    }

    /// Returns the latest look.
    pub fn last_look(&self) -> Option<&GroupDescription> {
        self.last.as_ref()
    }

    /// Returns how fast a partition is processed, as of the latest look.
    pub fn rates(&self, partition: &PartitionDescription) -> Rates {
        let history = self.partitions.get(&partition.id);
        history
            .zip(self.last.as_ref())
            .map(|(history, last)| history.rates(partition, last.taken_at))
            .unwrap_or_default()
    }

    /// Returns the last hour of a partition.
    pub fn slots(&self, partition: &PartitionId) -> impl Iterator<Item = &Slot> {
        self.partitions.get(partition).into_iter().flat_map(PartitionHistory::slots)
    }

    /// Returns the checkpoints of a partition that were seen, the latest one last.
    pub fn checkpoints(&self, partition: &PartitionId) -> impl DoubleEndedIterator<Item = &RecordedCheckpoint> {
        self.partitions.get(partition).into_iter().flat_map(PartitionHistory::recorded_checkpoints)
    }

    /// Returns how long the event after the checkpoint has waited, as of the latest look.
    pub fn waiting_time(&self, partition: &PartitionDescription) -> Option<WaitingTime> {
        let history = self.partitions.get(&partition.id);
        history.zip(self.last.as_ref()).and_then(|(history, last)| history.waiting_time(partition, last.taken_at))
    }

    /// Returns how many seconds at least the event after the checkpoint has waited, as of the latest look.
    pub fn waited_at_least(&self, partition: &PartitionDescription) -> Option<f64> {
        let history = self.partitions.get(&partition.id);
        history.zip(self.last.as_ref()).and_then(|(history, last)| history.waited_at_least(partition, last.taken_at))
    }

    /// Returns how long the event after each checkpoint has waited, as of the latest look.
    pub fn waiting_times(&self) -> BTreeMap<&PartitionId, WaitingTime> {
        let partitions = self.last.iter().flat_map(|last| &last.partitions);
        partitions.filter_map(|partition| Some((&partition.id, self.waiting_time(partition)?))).collect()
    }

    /// Returns the latest changes, the latest one last.
    pub fn changes(&self) -> &VecDeque<GroupChange> {
        &self.changes
    }

    /// Returns everything, if there was a look.
    pub fn snapshot(&self) -> Option<GroupSnapshot<'_>> {
        self.snapshot_of_end(usize::MAX, self.changes.len())
    }

    /// Returns the latest look with this many of the latest changes, and with the ends of the histories that a reader
    /// needs who has everything up to the look before.
    pub fn latest_snapshot(&self, changes: usize) -> Option<GroupSnapshot<'_>> {
        self.snapshot_of_end(2, changes)
    }

    fn snapshot_of_end(&self, parts: usize, changes: usize) -> Option<GroupSnapshot<'_>> {
        let last = self.last.as_ref()?;
        Some(GroupSnapshot {
            schema: "ehcp.watch/1",
            group: DescribedGroup {
                taken_at: last.taken_at,
                group: &last.group,
                partitions: &last.partitions,
                members: &last.members,
            },
            rates: last.partitions.iter().map(|partition| (&partition.id, self.rates(partition))).collect(),
            behind: self.waiting_times(),
            history: self.partitions.iter().map(|(id, history)| (id, tail(history.slots(), parts))).collect(),
            spans: self.partitions.iter().map(|(id, history)| (id, tail(history.spans(), parts))).collect(),
            changes: tail(&self.changes, changes),
        })
    }
}

fn tail<T>(values: &VecDeque<T>, count: usize) -> Vec<&T> {
    values.range(values.len().saturating_sub(count)..).collect()
}

#[cfg(test)]
mod tests;
