//! A record of the processed events and their owners, shared by all instances of this process.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use eventhubs_checkpoint::PartitionId;
use tokio::sync::watch;

use crate::journal::Journal;

/// Identifies events: each published event contains the id of the run and its own number, starting at 0.
#[derive(Debug)]
pub struct Ledger {
    run: String,
    event_size: usize,
    journal: Option<Journal>,
    entries: Mutex<Entries>,
    distinct: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct Entries {
    /// The number of deliveries of each event.
    seen: Vec<u32>,
    distinct: u32,
    duplicates: u64,
    deliveries: u64,
    moved: u64,
    last_owner: BTreeMap<PartitionId, String>,
    last_sequence_number: BTreeMap<PartitionId, i64>,
}

impl Ledger {
    pub fn new(run: String, event_size: usize, journal: Option<Journal>) -> Self {
        Self { run, event_size, journal, entries: Mutex::default(), distinct: watch::Sender::new(0) }
    }

    /// Returns the body of the event with this number, padded to the minimum size.
    pub fn body(&self, number: u32) -> String {
        let body = format!("{} {number}", self.run);
        let padding = self.event_size.saturating_sub(body.len());
        body + &" ".repeat(padding)
    }

    pub fn note_processed(&self, partition: &PartitionId, sequence_number: Option<i64>, body: Option<&[u8]>) {
        let number = body.and_then(|body| self.event_number(body));
        let mut entries = self.lock_entries();
        entries.deliveries += 1;
        if let Some(sequence_number) = sequence_number {
            entries.last_sequence_number.insert(partition.clone(), sequence_number);
        }
        if let Some(number) = number {
            entries.count(number as usize);
            self.distinct.send_replace(entries.distinct);
        }
    }

    /// Writes a processed batch to the journal, if there is one. Call this before the batch is checkpointed.
    pub fn journal(
        &self,
        partition: &PartitionId,
        sequence_numbers: impl IntoIterator<Item = i64>,
        owner: &str,
    ) -> io::Result<()> {
        self.journal.as_ref().map_or(Ok(()), |journal| journal.append(partition, sequence_numbers, owner))
    }

    /// Returns the number of an event. Events of other producers have none.
    fn event_number(&self, body: &[u8]) -> Option<u32> {
        let (run, number) = std::str::from_utf8(body).ok()?.trim_end().split_once(' ')?;
        if run == self.run { number.parse().ok() } else { None }
    }

    pub fn note_start(&self, partition: &PartitionId, owner: &str) {
        let mut entries = self.lock_entries();
        let previous = entries.last_owner.insert(partition.clone(), owner.to_owned());
        entries.moved += u64::from(previous.is_some_and(|previous| previous != owner));
    }

    /// Removes the partition: other instances process it, and their progress is unknown here.
    pub fn note_stop(&self, partition: &PartitionId) {
        self.lock_entries().last_sequence_number.remove(partition);
    }

    /// Returns a receiver of the number of different processed events.
    pub fn distinct(&self) -> watch::Receiver<u32> {
        self.distinct.subscribe()
    }

    pub fn duplicates(&self) -> u64 {
        self.lock_entries().duplicates
    }

    /// Returns the number of delivered events of all producers.
    pub fn deliveries(&self) -> u64 {
        self.lock_entries().deliveries
    }

    /// Returns how often a partition moved to another owner.
    pub fn moved(&self) -> u64 {
        self.lock_entries().moved
    }

    pub fn last_sequence_numbers(&self) -> BTreeMap<PartitionId, i64> {
        self.lock_entries().last_sequence_number.clone()
    }

    fn lock_entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn count(&mut self, number: usize) {
        if self.seen.len() <= number {
            self.seen.resize(number + 1, 0);
        }
        self.seen[number] += 1;
        if self.seen[number] == 1 {
            self.distinct += 1;
        } else {
            self.duplicates += 1;
        }
    }
}
