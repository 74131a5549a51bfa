//! The events that a receiver has, and that no batch contains yet.

use tokio::time::Instant;

use super::event::Positioned;

/// The received events that no batch contains yet.
#[derive(Debug)]
pub(crate) struct Gathered<E> {
    pub(crate) events: Vec<E>,
    /// When the first of them was received.
    pub(crate) since: Option<Instant>,
    /// How many events were received since the caller last took this number.
    pub(crate) received: u64,
}

impl<E> Default for Gathered<E> {
    fn default() -> Self {
        Self { events: Vec::new(), since: None, received: 0 }
    }
}

impl<E: Positioned> Gathered<E> {
    pub(crate) fn count(&mut self, events: &[E]) {
        self.received = self.received.saturating_add(events.len() as u64);
    }

    pub(crate) fn add(&mut self, events: Vec<E>) {
        self.count(&events);
        self.since.get_or_insert_with(Instant::now);
        if self.events.is_empty() {
            self.events = events;
        } else {
            self.events.extend(events);
        }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<E> {
        let rest = self.events.split_off(count);
        self.since = self.since.filter(|_| !rest.is_empty());
        std::mem::replace(&mut self.events, rest)
    }
}
