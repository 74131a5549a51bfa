//! What was processed, by whom: one ledger for all instances of this process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use eventhubs_checkpoint::PartitionId;
use tokio::sync::watch;

/// Every published event carries the run and a number of its own, from 0.
#[derive(Debug)]
pub struct Ledger {
    run: String,
    entries: Mutex<Entries>,
    distinct: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct Entries {
    /// How often each number was seen.
    seen: Vec<u32>,
    distinct: u32,
    duplicates: u64,
    deliveries: u64,
    moved: u64,
    last_owner: BTreeMap<PartitionId, String>,
    last_sequence_number: BTreeMap<PartitionId, i64>,
}

impl Ledger {
    pub fn new(run: String) -> Self {
        Self { run, entries: Mutex::default(), distinct: watch::Sender::new(0) }
    }

    /// The body of the event with this number.
    pub fn body(&self, number: u32) -> String {
        format!("{} {number}", self.run)
    }

    pub fn processed(&self, partition: &PartitionId, sequence_number: Option<i64>, body: Option<&[u8]>) {
        let number = body.and_then(|body| self.number(body));
        let mut entries = self.lock();
        entries.deliveries += 1;
        if let Some(sequence_number) = sequence_number {
            entries.last_sequence_number.insert(partition.clone(), sequence_number);
        }
        if let Some(number) = number {
            entries.note(number as usize);
            self.distinct.send_replace(entries.distinct);
        }
    }

    /// Events of other producers have no number here.
    fn number(&self, body: &[u8]) -> Option<u32> {
        let (run, number) = std::str::from_utf8(body).ok()?.split_once(' ')?;
        if run == self.run { number.parse().ok() } else { None }
    }

    pub fn started(&self, partition: &PartitionId, owner: &str) {
        let mut entries = self.lock();
        let before = entries.last_owner.insert(partition.clone(), owner.to_owned());
        entries.moved += u64::from(before.is_some_and(|before| before != owner));
    }

    /// How many different events were processed so far; changes as they are.
    pub fn distinct(&self) -> watch::Receiver<u32> {
        self.distinct.subscribe()
    }

    pub fn duplicates(&self) -> u64 {
        self.lock().duplicates
    }

    /// How many events were delivered, whoever published them.
    pub fn deliveries(&self) -> u64 {
        self.lock().deliveries
    }

    /// How often a partition came to another owner than the one before.
    pub fn moved(&self) -> u64 {
        self.lock().moved
    }

    pub fn last_sequence_numbers(&self) -> BTreeMap<PartitionId, i64> {
        self.lock().last_sequence_number.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn note(&mut self, number: usize) {
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
