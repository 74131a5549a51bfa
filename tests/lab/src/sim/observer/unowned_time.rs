//! How long the partitions of an owner that died may be without another.

use std::time::Duration;

use tokio::time::Instant;

use super::State;
use crate::sim::invariant::Invariant;

/// A partition that somebody has to claim in time.
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
        let bound = self.bounds.unowned_time(self.partitions.len(), survivors, foreign);
        let left = self.partitions.iter().enumerate().filter(|(_, book)| book.holder() == Some(incarnation));
        for partition in left.map(|(partition, _)| partition).collect::<Vec<_>>() {
            self.watch(partition, bound);
        }
    }

    fn watch(&mut self, partition: usize, bound: Duration) {
        let since = Instant::now();
        self.watches.push(Watch { partition, since, deadline: since + bound });
    }

    /// It is told to end. If all is well now, what it releases has to be claimed in time.
    pub(in super::super) fn leaves(&mut self, incarnation: usize) {
        let is_settled = self.is_settled();
        let held = self.partitions.iter().filter(|book| book.holder() == Some(incarnation)).count();
        self.disturbed();
        self.incarnations[incarnation].leaves = is_settled.then_some(held);
    }

    pub(super) fn is_settled(&self) -> bool {
        let quiet = !self.disrupted && self.disturbed_at.elapsed() >= 2 * self.expiry;
        quiet && !self.has_foreign_owner() && self.problem().is_none()
    }

    /// Released, for somebody else.
    pub(super) fn is_free(&mut self, partition: usize, before: usize) {
        if self.is_operator(before) {
            return self.is_back_unowned(partition);
        }
        let survivors = self.survivors().iter().filter(|incarnation| **incarnation != before).count();
        if let Some(left) = self.incarnations[before].leaves.filter(|_| survivors > 0) {
            self.watch(partition, self.bounds.free(left, survivors));
        }
    }

    /// Released by an operator. In calm its former owner lives.
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

    /// Something else goes wrong, or ends: the bounds do not hold now. As long as a trouble goes on they do not hold
    /// either: an instance whose requests are throttled claims later than they say.
    pub(in super::super) fn disturbed(&mut self) {
        self.watches.clear();
        self.owners_before_reset = None;
        self.incarnations.iter_mut().for_each(|incarnation| incarnation.leaves = None);
        self.disturbed_at = Instant::now();
    }

    pub(in super::super) fn disrupted(&mut self, disrupted: bool) {
        self.disrupted = disrupted;
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
