//! Describes what a run does to a partition, in the words of the exploration.

use std::collections::BTreeMap;

use eventhubs_checkpoint::store::{CheckpointRecord, OwnershipRecord};
use eventhubs_checkpoint::{Incarnation, OwnerId};

use super::{Actor, Checkpoint, Epoch, Move, Owner, Ownership, Position, Requester, Step};

/// The two records of a partition, and what its writers have done. `W` identifies a writer: a process, from its start
/// to its end.
#[derive(Clone, Debug)]
pub struct PartitionRecords<W> {
    ownership: Option<OwnershipRecord>,
    checkpoint: Option<CheckpointRecord>,
    writers: BTreeMap<W, Writer>,
}

/// What is known about a writer.
#[derive(Clone, Debug, Default)]
struct Writer {
    owner: Option<OwnerId>,
    incarnation: Option<Incarnation>,
    /// It has started the partition in its last ownership, and not stopped it.
    runs: bool,
    /// What it has written to the checkpoint since it last claimed the partition.
    adopted: Option<Position>,
}

impl<W> Default for PartitionRecords<W> {
    fn default() -> Self {
        Self { ownership: None, checkpoint: None, writers: BTreeMap::new() }
    }
}

impl<W: Clone + Ord> PartitionRecords<W> {
    /// An instance of another SDK wrote the ownership.
    pub fn foreign_ownership(&mut self, record: OwnershipRecord) {
        self.ownership = Some(record);
    }

    /// An instance of another SDK wrote the checkpoint.
    pub fn foreign_checkpoint(&mut self, record: CheckpointRecord) {
        self.checkpoint = Some(record);
    }

    /// A writer of this crate wrote the ownership, under a condition.
    pub fn ownership_written(&mut self, (by, actor): (&W, Actor), record: OwnershipRecord) -> Step {
        let before = self.ownership.take();
        let writer = self.writers.entry(by.clone()).or_default();
        writer.identify(before.as_ref(), &record);
        let epoch_before = before.as_ref().filter(|before| is_owned(before)).and_then(|before| before.epoch);
        let step = Step::Ownership {
            actor,
            before: before.as_ref().map(|before| writer.sees(before)),
            after: writer.sees(&record),
            epoch: Epoch::between(epoch_before, record.epoch, is_owned(&record)),
        };
        let is_own = writer.relation_to(&record) == Owner::Own;
        let continues =
            before.is_some_and(|before| writer.relation_to(&before) == Owner::Own && before.epoch == record.epoch);
        if is_own && !continues {
            (writer.runs, writer.adopted) = (false, None);
        }
        self.ownership = Some(record);
        step
    }

    /// A writer of this crate wrote the checkpoint, under a condition.
    pub fn checkpoint_written(&mut self, (by, actor): (&W, Actor), record: CheckpointRecord) -> Step {
        let before = self.checkpoint.take();
        let writer = self.writers.entry(by.clone()).or_default();
        let after = checkpoint(&record);
        writer.adopted = Some(after.position);
        let step = Step::Checkpoint {
            actor,
            owner: self.ownership.as_ref().map(|ownership| writer.relation_to(ownership)),
            runs: writer.runs,
            before: before.as_ref().map(checkpoint),
            after,
            moves: Move::between(before.and_then(|before| before.sequence_number), record.sequence_number),
        };
        self.checkpoint = Some(record);
        step
    }

    /// An instance of this crate has started the partition.
    pub fn started(&mut self, by: &W) -> Step {
        let writer = self.writers.entry(by.clone()).or_default();
        writer.runs = true;
        Step::Start { adopted: writer.adopted }
    }

    /// An instance of this crate has stopped the partition. Its last checkpoint may follow.
    pub fn stopped(&mut self, by: &W) {
        if let Some(writer) = self.writers.get_mut(by) {
            writer.runs = false;
        }
    }
}

impl Writer {
    /// Finds out who the writer is. A claim names it; a handoff request names it as the requester, and keeps the owner.
    fn identify(&mut self, before: Option<&OwnershipRecord>, after: &OwnershipRecord) {
        let keeps_owner =
            before.is_some_and(|before| (&before.owner, &before.incarnation) == (&after.owner, &after.incarnation));
        if !keeps_owner && after.owner.is_some() {
            self.owner.clone_from(&after.owner);
            self.incarnation.clone_from(&after.incarnation);
        } else if self.owner.is_none() && before.is_some_and(|before| before.handoff_to != after.handoff_to) {
            self.owner.clone_from(&after.handoff_to);
        }
    }

    fn sees(&self, record: &OwnershipRecord) -> Ownership {
        Ownership {
            owner: self.relation_to(record),
            requester: match &record.handoff_to {
                None => Requester::None,
                requester if *requester == self.owner => Requester::Own,
                Some(_) => Requester::Other,
            },
            draining: record.draining,
            operator: record.operator.is_some(),
        }
    }

    fn relation_to(&self, record: &OwnershipRecord) -> Owner {
        match (&record.owner, &record.incarnation) {
            (None, _) => Owner::Unowned,
            (Some(_), None) => Owner::OtherSdk,
            (owner, incarnation) if *owner == self.owner => {
                if *incarnation == self.incarnation {
                    Owner::Own
                } else {
                    Owner::SameName
                }
            }
            _ => Owner::Other,
        }
    }
}

fn is_owned(record: &OwnershipRecord) -> bool {
    record.owner.is_some() && record.incarnation.is_some()
}

fn checkpoint(record: &CheckpointRecord) -> Checkpoint {
    let position = match record.sequence_number {
        None => Position::Nowhere,
        Some(_) if record.initial => Position::Initial,
        Some(_) => Position::Processed,
    };
    // The exploration does not know pauses that end by themselves. Their owner removes them.
    let paused = record.paused.as_ref().is_some_and(|pause| pause.until.is_none() && !pause.parked);
    Checkpoint { position, paused }
}
