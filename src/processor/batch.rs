//! Gathers events into batches that are limited by number and waiting time.

use std::time::Duration;

use tokio::time::Instant;

use super::positioned::Positioned;

/// When a batch is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLimits {
    /// The most events.
    pub(super) events: usize,
    /// The longest wait after the first event of the batch was received.
    pub(super) wait: Duration,
}

/// The received events that no batch contains yet.
#[derive(Debug)]
pub(super) struct Gathered<E> {
    pub(super) events: Vec<E>,
    /// When the first of them was received.
    pub(super) since: Option<Instant>,
    /// How many events were received since the caller last took this number.
    pub(super) received: u64,
}

impl<E> Default for Gathered<E> {
    fn default() -> Self {
        Self { events: Vec::new(), since: None, received: 0 }
    }
}

impl<E: Positioned> Gathered<E> {
    pub(super) fn count(&mut self, events: &[E]) {
        self.received = self.received.saturating_add(events.len() as u64);
    }

    pub(super) fn add(&mut self, events: Vec<E>) {
        self.count(&events);
        self.since.get_or_insert_with(Instant::now);
        if self.events.is_empty() {
            self.events = events;
        } else {
            self.events.extend(events);
        }
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<E> {
        let rest = self.events.split_off(count);
        self.since = self.since.filter(|_| !rest.is_empty());
        std::mem::replace(&mut self.events, rest)
    }
}
