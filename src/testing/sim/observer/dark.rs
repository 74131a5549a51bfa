//! How long the partitions of an owner that died may be without another.

use tokio::time::Instant;

use super::State;
use crate::testing::sim::invariant::Invariant;

/// A partition that somebody has to claim in time.
pub(super) struct Watch {
    partition: usize,
    since: Instant,
    deadline: Instant,
}

impl State {
    pub(super) fn watch_what_is_left_by(&mut self, life: usize) {
        let survivors = self.survivors().len();
        if survivors == 0 {
            return;
        }
        let foreign = self.foreigners_alive() || !self.lives[life].ours;
        let (since, bound) = (Instant::now(), self.bounds.dark(self.partitions.len(), survivors, foreign));
        let left = self.partitions.iter().enumerate().filter(|(_, book)| book.holder == Some(life));
        let watches = left.map(|(partition, _)| Watch { partition, since, deadline: since + bound });
        self.watches.extend(watches.collect::<Vec<_>>());
    }

    pub(super) fn is_claimed(&mut self, partition: usize) {
        let Some(index) = self.watches.iter().position(|watch| watch.partition == partition) else { return };
        let watch = self.watches.swap_remove(index);
        self.judge(&watch);
    }

    fn judge(&mut self, watch: &Watch) {
        let (partition, took) = (watch.partition, watch.since.elapsed());
        let bound = watch.deadline - watch.since;
        self.check(Invariant::NotDark, took <= bound, || {
            format!("partition {partition} has had no owner for {took:?}, but the bound is {bound:?}")
        });
    }

    /// Something else goes wrong: the bounds do not hold now.
    pub(in super::super) fn disturbed(&mut self) {
        self.watches.clear();
    }

    pub(in super::super) fn look_at_the_time(&mut self) {
        let now = Instant::now();
        let late: Vec<_> = self.watches.extract_if(.., |watch| watch.deadline < now).collect();
        for watch in &late {
            self.judge(watch);
        }
    }
}
