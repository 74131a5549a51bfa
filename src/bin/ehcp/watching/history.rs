//! The last hour of a group, by the looks at it: pure.

use std::collections::{BTreeMap, VecDeque};

use eventhubs_checkpoint::admin::{GroupDescription, OwnershipState, PartitionDescription};
use eventhubs_checkpoint::{OwnerId, PartitionId};
use serde::Serialize;
use time::{Duration, OffsetDateTime};

use super::changes::{Change, between};

/// How far the history goes back.
const KEPT: Duration = Duration::HOUR;
/// The time that one slot stands for.
const SLOT: Duration = Duration::seconds(30);
/// The time over which a rate is measured: longer than the interval of checkpoints.
const RATE_WINDOW: Duration = Duration::seconds(30);
/// How many changes are kept.
const MAX_CHANGES: usize = 500;
/// How many checkpoints of a partition are kept.
const MAX_CHECKPOINTS: usize = 200;

/// The last hour of a group.
#[derive(Debug, Default)]
pub struct History {
    last: Option<GroupDescription>,
    partitions: BTreeMap<PartitionId, PartitionHistory>,
    changes: VecDeque<Change>,
}

#[derive(Debug, Default)]
struct PartitionHistory {
    /// The checkpoints and the last events of the last seconds, for rates.
    recent: VecDeque<Sample>,
    /// When which event was the last one, for the time that the checkpoint lags behind.
    ends: VecDeque<End>,
    slots: VecDeque<Slot>,
    checkpoints: VecDeque<RecordedCheckpoint>,
}

/// A checkpoint as one look or more found it. Those that were replaced between two looks are not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCheckpoint {
    /// When it was written, by the server's clock.
    pub updated: OffsetDateTime,
    pub sequence_number: Option<i64>,
    pub offset: Option<String>,
    /// The owner that wrote it, if it is of this crate.
    pub owner: Option<OwnerId>,
}

/// The end of a partition, as one look or more found it.
#[derive(Debug)]
struct End {
    last: i64,
    /// The first and the last of these looks. The event was enqueued before the first one, and the next event after the
    /// last one.
    first_seen: OffsetDateTime,
    last_seen: OffsetDateTime,
}

#[derive(Debug)]
struct Sample {
    at: OffsetDateTime,
    checkpoint: Option<i64>,
    last: Option<i64>,
}

/// How a partition was for a part of the last hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// When the part began.
    #[serde(with = "time::serde::rfc3339")]
    pub from: OffsetDateTime,
    /// The owner in the record, alive or not.
    pub owner: Option<OwnerId>,
    pub state: OwnershipState,
    pub lag: Option<u64>,
}

/// A group as it is, and as it was in the last hour. Serialized as `ehcp.watch/1`.
#[derive(Debug, Serialize)]
pub struct Watched<'a> {
    pub schema: &'static str,
    #[serde(flatten)]
    pub group: Described<'a>,
    pub rates: BTreeMap<&'a PartitionId, Rates>,
    pub history: BTreeMap<&'a PartitionId, &'a VecDeque<Slot>>,
    /// The latest one last.
    pub changes: &'a VecDeque<Change>,
}

/// The fields of a description, without its schema.
#[derive(Debug, Serialize)]
pub struct Described<'a> {
    #[serde(with = "time::serde::rfc3339")]
    pub taken_at: OffsetDateTime,
    pub group: &'a eventhubs_checkpoint::admin::GroupSummary,
    pub partitions: &'a [PartitionDescription],
    pub members: &'a [eventhubs_checkpoint::admin::Member],
}

/// How fast a partition is processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Events per second by which the checkpoint advanced. Unknown until there are two looks, and if it went back.
    pub processed: Option<f64>,
    /// Events per second that were enqueued.
    pub enqueued: Option<f64>,
    /// How long ago the event after the checkpoint was enqueued, in seconds; 0 if no event waits. Unknown if that was
    /// before the first look.
    pub behind_s: Option<f64>,
}

impl History {
    /// Adds a look, and returns what changed since the look before.
    pub fn add(&mut self, group: GroupDescription) -> Vec<Change> {
        let changes = self.last.as_ref().map(|last| between(last, &group)).unwrap_or_default();
        self.partitions.retain(|id, _| group.partition(id).is_some());
        for partition in &group.partitions {
            let history = self.partitions.entry(partition.id.clone()).or_default();
            history.add(partition, group.taken_at);
        }
        self.changes.extend(changes.iter().cloned());
        let too_many = self.changes.len().saturating_sub(MAX_CHANGES);
        self.changes.drain(..too_many);
        self.last = Some(group);
        changes
    }

    /// Returns the latest look.
    pub fn last(&self) -> Option<&GroupDescription> {
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
        self.partitions.get(partition).into_iter().flat_map(|history| &history.slots)
    }

    /// Returns the checkpoints of a partition that were seen, the latest one last.
    pub fn checkpoints(&self, partition: &PartitionId) -> impl DoubleEndedIterator<Item = &RecordedCheckpoint> {
        self.partitions.get(partition).into_iter().flat_map(|history| &history.checkpoints)
    }

    /// Returns how many seconds at least the event after the checkpoint has waited: since the first look, if it was
    /// there before. Then [`Rates::behind_s`] is unknown.
    pub fn behind_at_least(&self, partition: &PartitionDescription) -> Option<f64> {
        let end = self.partitions.get(&partition.id)?.ends.front()?;
        let now = self.last.as_ref()?.taken_at;
        (number(partition)? < end.last).then(|| (now - end.first_seen).as_seconds_f64().max(0.0))
    }

    /// Returns the latest changes, the latest one last.
    pub fn changes(&self) -> &VecDeque<Change> {
        &self.changes
    }

    /// Returns everything, if there was a look.
    pub fn watched(&self) -> Option<Watched<'_>> {
        let last = self.last.as_ref()?;
        let group = Described {
            taken_at: last.taken_at,
            group: &last.group,
            partitions: &last.partitions,
            members: &last.members,
        };
        Some(Watched {
            schema: "ehcp.watch/1",
            group,
            rates: last.partitions.iter().map(|partition| (&partition.id, self.rates(partition))).collect(),
            history: self.partitions.iter().map(|(id, history)| (id, &history.slots)).collect(),
            changes: &self.changes,
        })
    }
}

impl PartitionHistory {
    fn add(&mut self, partition: &PartitionDescription, at: OffsetDateTime) {
        let checkpoint = number(partition);
        let last = partition.hub.as_ref().map(|hub| hub.last.unwrap_or(-1));
        self.recent.push_back(Sample { at, checkpoint, last });
        // One sample before the window, so that it is covered completely.
        while self.recent.get(1).is_some_and(|next| at - next.at >= RATE_WINDOW) {
            self.recent.pop_front();
        }
        match (last, self.ends.back_mut()) {
            (Some(last), Some(end)) if end.last == last => end.last_seen = at,
            (Some(last), _) => self.ends.push_back(End { last, first_seen: at, last_seen: at }),
            (None, _) => {}
        }
        while self.ends.get(1).is_some_and(|next| at - next.first_seen >= KEPT) {
            self.ends.pop_front();
        }
        self.add_checkpoint(partition);
        let owner = partition.owner.as_ref().map(|owner| owner.id.clone());
        let slot = Slot { from: at, owner, state: partition.state, lag: partition.lag.events };
        match self.slots.back_mut() {
            // A slot shows how it was at its end.
            Some(open) if at - open.from < SLOT => *open = Slot { from: open.from, ..slot },
            _ => self.slots.push_back(slot),
        }
        while self.slots.front().is_some_and(|first| at - first.from > KEPT) {
            self.slots.pop_front();
        }
    }

    fn add_checkpoint(&mut self, partition: &PartitionDescription) {
        let Some(checkpoint) = &partition.checkpoint else { return };
        let recorded = RecordedCheckpoint {
            updated: checkpoint.updated,
            sequence_number: checkpoint.position.sequence_number,
            offset: checkpoint.position.offset.clone(),
            owner: checkpoint.owner.clone(),
        };
        if self.checkpoints.back() != Some(&recorded) {
            self.checkpoints.push_back(recorded);
        }
        if self.checkpoints.len() > MAX_CHECKPOINTS {
            self.checkpoints.pop_front();
        }
    }

    fn rates(&self, partition: &PartitionDescription, now: OffsetDateTime) -> Rates {
        Rates {
            processed: self.rate(|sample| sample.checkpoint).filter(|rate| *rate >= 0.0),
            enqueued: self.rate(|sample| sample.last).filter(|rate| *rate >= 0.0),
            behind_s: self.behind(partition, now),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate has three digits")]
    fn rate(&self, number: impl Fn(&Sample) -> Option<i64>) -> Option<f64> {
        let (first, last) = (self.recent.front()?, self.recent.back()?);
        let seconds = (last.at - first.at).as_seconds_f64();
        let events = number(last)?.saturating_sub(number(first)?) as f64;
        (seconds > 0.0).then(|| events / seconds)
    }

    /// Returns how long ago the event after the checkpoint became the last one.
    #[expect(clippy::cast_precision_loss, reason = "an estimate has two digits")]
    fn behind(&self, partition: &PartitionDescription, now: OffsetDateTime) -> Option<f64> {
        if partition.lag.events? == 0 {
            return Some(0.0);
        }
        let checkpoint = number(partition)?;
        let passed = self.ends.iter().position(|end| end.last > checkpoint)?;
        // Before the first look it is unknown when the event came.
        let before = self.ends.get(passed.checked_sub(1)?)?;
        let after = self.ends.get(passed)?;
        let part = (checkpoint + 1).saturating_sub(before.last) as f64 / after.last.saturating_sub(before.last) as f64;
        let enqueued = before.last_seen + (after.first_seen - before.last_seen) * part;
        Some((now - enqueued).as_seconds_f64().max(0.0))
    }
}

fn number(partition: &PartitionDescription) -> Option<i64> {
    partition.checkpoint.as_ref()?.position.sequence_number
}

#[cfg(test)]
mod tests;
