//! Which events were published and delivered, and when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::internal::lock::lock;
use tokio::time::Instant;

/// The events of all partitions, for the publisher and for all instances. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Reading(Arc<Mutex<BTreeMap<String, Partition>>>);

#[derive(Default)]
struct Partition {
    /// When the event with this index as its sequence number was published.
    published: Vec<Instant>,
    /// The number of the next event to be delivered for the first time.
    next: usize,
    skipped: usize,
    repeated: usize,
    longest_unread: Option<Unread>,
}

/// The time between the publication and the delivery of an event.
#[derive(Clone, Copy)]
struct Unread {
    lasted: Duration,
    until: Instant,
}

/// The sum over all partitions, and the longest time for which one was unread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) published: usize,
    pub(super) undelivered: usize,
    pub(super) skipped: usize,
    pub(super) repeated: usize,
    pub(super) longest_unread: Duration,
    /// When that ended, since the beginning.
    pub(super) longest_until: Duration,
}

impl Reading {
    /// Records a published event.
    pub(super) fn published(&self, partition: &str) {
        lock(&self.0).entry(partition.to_owned()).or_default().published.push(Instant::now());
    }

    /// Records a delivered event.
    pub(super) fn delivered(&self, partition: &str, sequence_number: i64) {
        let mut partitions = lock(&self.0);
        let (Some(partition), Ok(number)) = (partitions.get_mut(partition), usize::try_from(sequence_number)) else {
            return;
        };
        if number < partition.next {
            partition.repeated += 1;
            return;
        }
        partition.skipped += number - partition.next;
        partition.next = number + 1;
        partition.longest_unread = longer(partition.longest_unread, partition.waiting_for(number));
    }

    /// Returns the sums. An event that was not delivered counts as unread until now.
    pub(super) fn totals(&self, began: Instant) -> Totals {
        let mut totals = Totals::default();
        let mut longest = None;
        for partition in lock(&self.0).values() {
            totals.published += partition.published.len();
            totals.undelivered += partition.published.len().saturating_sub(partition.next);
            totals.skipped += partition.skipped;
            totals.repeated += partition.repeated;
            longest = longer(longest, longer(partition.longest_unread, partition.waiting_for(partition.next)));
        }
        if let Some(Unread { lasted, until }) = longest {
            (totals.longest_unread, totals.longest_until) = (lasted, until.saturating_duration_since(began));
        }
        totals
    }
}

impl Partition {
    /// Returns for how long an event has been waiting to be delivered.
    fn waiting_for(&self, number: usize) -> Option<Unread> {
        let published = self.published.get(number)?;
        Some(Unread { lasted: published.elapsed(), until: Instant::now() })
    }
}

fn longer(one: Option<Unread>, other: Option<Unread>) -> Option<Unread> {
    one.into_iter().chain(other).max_by_key(|unread| unread.lasted)
}
