//! What must hold after the last fault and at the end.

use std::collections::{BTreeMap, BTreeSet};

use super::{Partition, State};
use crate::sim::invariant::Invariant;
use eventhubs_checkpoint::internal::postconditions::check_fairness;

/// The key of a record that its owner reserved for its own restart.
const AWAY: &str = "ehcaway";

impl State {
    /// Returns `None` if every partition is owned by a survivor whose handler runs, in fair shares; otherwise, what is
    /// wrong.
    pub(in super::super) fn problem(&self) -> Option<String> {
        let survivors = self.survivors();
        let mut counts: BTreeMap<usize, usize> = survivors.iter().map(|incarnation| (*incarnation, 0)).collect();
        for (index, book) in self.partitions.iter().enumerate() {
            let Some(holder) = book.holder() else { return Some(format!("partition {index} has no owner")) };
            let Some(count) = counts.get_mut(&holder) else {
                return Some(format!("partition {index} belongs to {}, which has ended", self.name_of(holder)));
            };
            *count += 1;
            let incarnation = &self.incarnations[holder];
            if incarnation.crate_processor && !incarnation.sessions.contains_key(&index) {
                return Some(format!("partition {index} is not processed by {}", self.name_of(holder)));
            }
        }
        let held: Vec<_> = counts.values().copied().collect();
        let shares = if self.by_load { Ok(()) } else { check_fairness(self.partitions.len(), &held) };
        let superseded = self
            .incarnations
            .iter()
            .enumerate()
            .find(|(incarnation, book)| book.alive && book.member.is_some() && !survivors.contains(incarnation));
        if let Some((incarnation, _)) = superseded {
            return Some(format!("{} still runs although a later incarnation runs", self.name_of(incarnation)));
        }
        shares.err().map(|violation| format!("{violation}: {held:?}"))
    }

    /// Returns the partitions for which no handler of a running incarnation runs.
    pub(in super::super) fn unread(&self) -> BTreeSet<usize> {
        let alive = self.incarnations.iter().filter(|incarnation| incarnation.alive);
        let read: BTreeSet<_> = alive.flat_map(|incarnation| incarnation.sessions.keys().copied()).collect();
        (0..self.partitions.len()).filter(|partition| !read.contains(partition)).collect()
    }

    /// Returns whether all events have been processed.
    pub(in super::super) fn is_processed(&self) -> bool {
        self.partitions.iter().all(|book| book.history.lost().breach.is_none())
    }

    /// Returns how often a partition went to another owner.
    pub(in super::super) fn ownership_count(&self) -> u64 {
        self.partitions.iter().map(|book| book.history.ownership_count()).sum()
    }

    pub(in super::super) fn is_quiescent(&self) -> bool {
        self.problem().is_none() && self.is_processed()
    }

    pub(in super::super) fn must_be_caught_up(&mut self) {
        for index in 0..self.partitions.len() {
            let verdict = self.partitions[index].history.lost();
            let holds = verdict.breach.is_none();
            self.check(verdict.rule.into(), holds, || {
                format!("the group {} of partition {index}", verdict.breach.unwrap_or_default())
            });
        }
    }

    /// Except where an owner of another SDK has set the checkpoint back: it is written again with the next event.
    pub(in super::super) fn must_be_checkpointed(&mut self) {
        for index in 0..self.partitions.len() {
            let book = &self.partitions[index];
            if book.history.is_stale() || book.set_back {
                continue;
            }
            let (last, stored) = (book.history.end() - 1, book.history.stored().unwrap_or(-1));
            self.check(Invariant::CaughtUp, stored == last, || {
                format!("partition {index} is published up to {last}, but its checkpoint is {stored}")
            });
        }
    }

    /// Checks that all partitions are released after all instances have ended, except those reserved for a restart.
    pub(in super::super) fn must_be_released(&mut self) {
        let is_owned = |book: &Partition| book.holder().is_some() && !book.record.contains_key(AWAY);
        let owned: Vec<_> = self.partitions.iter().enumerate().filter(|(_, book)| is_owned(book)).collect();
        let owned: Vec<_> = owned.into_iter().map(|(index, _)| index).collect();
        self.check(Invariant::CleanShutdown, owned.is_empty(), || {
            format!("the partitions {owned:?} were not released")
        });
    }
}
