//! How long partitions may be unowned after their owner has ended.

use std::time::Duration;

use tokio::time::Instant;

use super::{Slowdown, State};
use crate::sim::invariant::Invariant;

/// A partition that an instance must claim before the deadline.
pub(super) struct Watch {
    partition: usize,
    since: Instant,
    deadline: Instant,
}

impl State {
    pub(super) fn watch_partitions_of(&mut self, incarnation: usize) {
        let survivors = self.survivors().len();
        if survivors == 0 || self.disrupted {
            return;
        }
        let foreign = self.has_foreign_owner() || !self.incarnations[incarnation].crate_processor;
        let mut bound = self.bounds.unowned_time(self.partitions.len(), survivors, foreign);
        if self.is_operator(incarnation) {
            bound += self.bounds.unnoticed_claim();
        }
        let left = self.partitions.iter().enumerate().filter(|(_, book)| book.holder() == Some(incarnation));
        for partition in left.map(|(partition, _)| partition).collect::<Vec<_>>() {
            self.watch(partition, bound);
        }
    }

    fn watch(&mut self, partition: usize, bound: Duration) {
        let since = Instant::now();
        self.watches.push(Watch { partition, since, deadline: since + bound });
    }

    /// The incarnation gets a shutdown request. If the group is settled now, the partitions that it releases must be
    /// claimed within the bound.
    pub(in super::super) fn shuts_down(&mut self, incarnation: usize) {
        let is_settled = self.is_settled();
        let held = self.partitions.iter().filter(|book| book.holder() == Some(incarnation)).count();
        self.disturbed();
        self.incarnations[incarnation].held_at_shutdown = is_settled.then_some(held);
    }

    pub(super) fn is_settled(&self) -> bool {
        let quiet = !self.disrupted && self.disturbed_at.elapsed() >= 2 * self.longest_expiry;
        quiet && !self.has_foreign_owner() && self.problem().is_none()
    }

    /// An owner released the partition for other instances.
    pub(super) fn is_free(&mut self, partition: usize, before: usize) {
        if self.is_operator(before) {
            return self.is_back_unowned(partition);
        }
        let survivors = self.survivors().iter().filter(|incarnation| **incarnation != before).count();
        if let Some(left) = self.incarnations[before].held_at_shutdown.filter(|_| survivors > 0) {
            self.watch(partition, self.bounds.free(left, survivors));
        }
    }

    /// An operator released the partition. If the group was settled, its former owner is running and must claim it.
    fn is_back_unowned(&mut self, partition: usize) {
        if self.owners_before_reset.is_some() {
            self.watch(partition, self.bounds.free(0, 1));
        }
    }

    pub(super) fn is_claimed(&mut self, partition: usize) {
        let Some(index) = self.watches.iter().position(|watch| watch.partition == partition) else { return };
        let watch = self.watches.swap_remove(index);
        self.judge(&watch);
    }

    fn judge(&mut self, watch: &Watch) {
        let (partition, took) = (watch.partition, watch.since.elapsed());
        let bound = watch.deadline - watch.since;
        self.check(Invariant::NoUnownedPartition, took <= bound, || {
            format!("partition {partition} has had no owner for {took:?}, but the bound is {bound:?}")
        });
    }

    /// Another fault begins or ends, so the bounds do not apply now. They do not apply while a fault lasts either: for
    /// example, an instance whose requests are throttled claims later.
    pub(in super::super) fn disturbed(&mut self) {
        self.watches.clear();
        self.owners_before_reset = None;
        self.incarnations.iter_mut().for_each(|incarnation| incarnation.held_at_shutdown = None);
        self.disturbed_at = Instant::now();
    }

    /// Faults begin or end. With `slowdown`, everything still happens while they last, only later.
    pub(in super::super) fn disrupted(&mut self, disrupted: bool, slowdown: Option<Slowdown>) {
        self.disrupted = disrupted;
        self.slowdown = slowdown;
        self.disturbed();
    }

    pub(in super::super) fn check_deadlines(&mut self) {
        let now = Instant::now();
        let late: Vec<_> = self.watches.extract_if(.., |watch| watch.deadline < now).collect();
        for watch in &late {
            self.judge(watch);
        }
    }
}
