//! Changes of the hub.

use std::time::Duration;

use time::OffsetDateTime;

use super::{Partition, State};

/// By how much the clocks of the hub and of the storage may differ for the crate, and the second to which the storage
/// rounds.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(6);

impl State {
    pub(in super::super) fn published(&mut self, partition: usize, end: i64) {
        if let Some(book) = self.partitions.get_mut(partition) {
            self.totals.published += u64::try_from(end - book.history.end()).unwrap_or(0);
            book.history.published(end);
        }
    }

    pub(in super::super) fn end_of(&self, partition: usize) -> i64 {
        self.partitions.get(partition).map_or(0, |book| book.history.end())
    }

    /// Returns the sequence numbers of the oldest event and of the next event.
    pub(in super::super) fn range_of(&self, partition: usize) -> Option<(i64, i64)> {
        let history = &self.partitions.get(partition)?.history;
        Some((history.oldest(), history.end()))
    }

    pub(in super::super) fn expired(&mut self, partition: usize, first: i64) {
        if let Some(book) = self.partitions.get_mut(partition) {
            book.history.expired(first);
        }
    }

    pub(in super::super) fn grown_to(&mut self, partitions: usize) {
        while self.partitions.len() < partitions {
            self.partitions.push(Partition { added: true, ..Partition::new() });
        }
        self.disturbed();
    }

    pub(in super::super) fn hub_recreated(&mut self, generation: u32, created_at: OffsetDateTime) {
        self.generation = generation.to_string();
        // Records show whole seconds.
        self.recreated_at = created_at.replace_nanosecond(0).ok();
        let sessions = self.incarnations.iter_mut().flat_map(|incarnation| incarnation.sessions.values_mut());
        sessions.for_each(|session| session.delivery.restart());
        for book in &mut self.partitions {
            book.history.recreated();
            (book.begun_at, book.put_to) = (None, None);
            // Such a record shows no creation, and its time is too close to that of the new hub.
            if book.undated.is_some_and(|written| written.elapsed() <= CLOCK_DIFFERENCE) {
                book.history.set_stale();
            }
        }
    }

    pub(in super::super) fn partition_count(&self) -> usize {
        self.partitions.len()
    }
}
