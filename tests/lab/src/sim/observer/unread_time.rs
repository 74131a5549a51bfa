//! How long partitions may be unread while some of the requests fail, or while runtimes are blocked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{Partition, State};
use crate::sim::invariant::Invariant;

/// By how much the current faults slow a group down.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Slowdown {
    /// How many times as long everything may take.
    pub(in super::super) factor: f64,
    /// The waits for which the service asks, in addition to that.
    pub(in super::super) waits: Duration,
    /// Partitions whose ownership records cannot be written.
    pub(in super::super) unwritable: BTreeSet<usize>,
}

impl Slowdown {
    /// Nothing goes wrong.
    pub(in super::super) fn none() -> Self {
        Self { factor: 1.0, waits: Duration::ZERO, unwritable: BTreeSet::new() }
    }
}

impl State {
    /// Records which partitions no handler reads although they are not paused, and checks that none has been unread for
    /// too long since the last change to the faults or to the group.
    pub(in super::super) fn check_unread_time(&mut self) {
        let now = self.server_time();
        let mut unread = self.unread();
        unread.retain(|partition| !self.partitions[*partition].is_paused(now));
        self.unread_since.retain(|partition, _| unread.contains(partition));
        for partition in unread {
            self.unread_since.entry(partition).or_insert_with(Instant::now);
        }
        let Some(bound) = self.unread_bound() else {
            // Once something is promised again, the group has the whole time.
            return self.unread_since.clear();
        };
        if self.disturbed_at.elapsed() <= bound {
            return;
        }
        let late = self.unread_for_longer_than(bound);
        self.check(Invariant::NoUnreadPartition, late.is_empty(), || {
            format!("these partitions have had no reader for longer than {bound:.1?}: {late:.1?}")
        });
        if !late.is_empty() {
            // The group gets the same time again.
            self.disturbed();
        }
    }

    /// Returns the time within which the instances that can start partitions must read all of them. Nothing is promised
    /// for owners of other SDKs.
    fn unread_bound(&self) -> Option<Duration> {
        let slowdown = self.slowdown.as_ref()?;
        let survivors = self.survivors();
        let can_start = |incarnation: &&usize| self.incarnations[**incarnation].blocked_since.is_none();
        let able = survivors.iter().filter(can_start).count();
        if able == 0 || self.has_foreign_owner() {
            return None;
        }
        let bound = self.bounds.convergence(self.partitions.len(), able, false);
        Some(bound.mul_f64(slowdown.factor) + slowdown.waits)
    }

    fn unread_for_longer_than(&self, bound: Duration) -> BTreeMap<usize, Duration> {
        let ages = self.unread_since.iter().map(|(partition, since)| (*partition, since.elapsed()));
        let bound_of = |partition: usize| {
            let Partition { added, record, .. } = &self.partitions[partition];
            let must_be_found = *added && record.is_empty();
            if must_be_found { bound + self.bounds.discovery() } else { bound }
        };
        let can_be_owned = |partition: &usize| {
            let unwritable = self.slowdown.as_ref().is_some_and(|slowdown| slowdown.unwritable.contains(partition));
            let holder = self.partitions[*partition].holder().filter(|holder| self.incarnations[*holder].alive);
            let is_kept = |holder| self.is_operator(holder) || self.incarnations[holder].blocked_since.is_some();
            !unwritable && !holder.is_some_and(is_kept)
        };
        ages.filter(|(partition, age)| *age > bound_of(*partition) && can_be_owned(partition)).collect()
    }
}
