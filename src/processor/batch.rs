//! Gathers events into batches: so many, so large, within such a time.

use std::time::Duration;

use tokio::time::Instant;

use super::positioned::Positioned;

/// When a batch is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLimits {
    /// So many events.
    pub(super) events: usize,
    /// So many bytes of bodies. A single larger event is a batch of its own.
    pub(super) bytes: usize,
    /// This long after the first event of it was here.
    pub(super) wait: Duration,
}

impl BatchLimits {
    pub(super) fn takes_what_is_here(&self) -> bool {
        self.bytes == usize::MAX && self.wait.is_zero()
    }

    /// How many of these make up a batch, and whether it is full with them.
    pub(super) fn measure<E: Positioned>(&self, events: &[E]) -> (usize, bool) {
        let mut bytes = 0_usize;
        for (count, event) in events.iter().take(self.events).enumerate() {
            bytes = bytes.saturating_add(event.size());
            if bytes > self.bytes && count > 0 {
                return (count, true);
            }
        }
        (events.len().min(self.events), events.len() >= self.events || bytes >= self.bytes)
    }
}

/// What came and was not handed out yet.
#[derive(Debug)]
pub(super) struct Gathered<E> {
    pub(super) events: Vec<E>,
    /// When the first of them was here.
    pub(super) since: Option<Instant>,
    /// How many events were received since that was last asked.
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
