//! The partitions that this instance has asked for.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use crate::model::{OwnerId, PartitionId};
use crate::store::Handoff;

/// What this instance has asked for and not got yet.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The mark is being written.
    marking: BTreeSet<PartitionId>,
    standing: BTreeMap<PartitionId, Standing>,
}

#[derive(Debug)]
struct Standing {
    handoff: Handoff,
    /// When to look at it again; nothing while that is being done.
    next: Option<Instant>,
    /// How many looks have failed in a row.
    failures: u32,
}

impl Asked {
    /// The mark is being written from now on.
    pub(super) fn begin(&mut self, partition: PartitionId) {
        self.marking.insert(partition);
    }

    /// The write of the mark has ended.
    pub(super) fn end(&mut self, partition: &PartitionId) {
        self.marking.remove(partition);
    }

    /// How many looks at it have failed in a row; `None` if it is not asked for.
    pub(super) fn failures(&self, partition: &PartitionId) -> Option<u32> {
        self.standing.get(partition).map(|standing| standing.failures)
    }

    /// The mark of this handoff stands; it is looked at again at `next`.
    pub(super) fn stands(&mut self, handoff: Handoff, next: Instant, failures: u32) {
        self.standing.insert(handoff.partition().clone(), Standing { handoff, next: Some(next), failures });
    }

    /// Those to look at now; they count as being looked at from here on.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Handoff> {
        let due = self.standing.values_mut().filter(|standing| standing.next.is_some_and(|next| next <= now));
        due.map(|standing| {
            standing.next = None;
            standing.handoff.clone()
        })
        .collect()
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        self.standing.values().filter_map(|standing| standing.next).min()
    }

    /// The partitions asked for, and from whom, where the mark stands.
    pub(super) fn owners(&self) -> BTreeMap<PartitionId, OwnerId> {
        let standing = self.standing.iter();
        standing.map(|(partition, standing)| (partition.clone(), standing.handoff.owner().clone())).collect()
    }

    /// Whether it is asked for, or about to be.
    pub(super) fn contains(&self, partition: &PartitionId) -> bool {
        self.marking.contains(partition) || self.standing.contains_key(partition)
    }

    pub(super) fn marking(&self) -> &BTreeSet<PartitionId> {
        &self.marking
    }

    pub(super) fn remove(&mut self, partition: &PartitionId) -> Option<Handoff> {
        self.standing.remove(partition).map(|standing| standing.handoff)
    }

    /// The storage is back: those whose looks have failed are looked at by this moment.
    pub(super) fn look_by(&mut self, soon: Instant) {
        for standing in self.standing.values_mut().filter(|standing| standing.failures > 0) {
            (standing.next, standing.failures) = (standing.next.map(|next| next.min(soon)), 0);
        }
    }

    /// A mark cannot be taken back. What is released for this instance goes to others when the reservation has lapsed.
    pub(super) fn clear(&mut self) {
        self.standing.clear();
    }
}
