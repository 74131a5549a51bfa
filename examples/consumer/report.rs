//! What became of the run.

use std::collections::BTreeMap;
use std::fmt;

use eventhubs_checkpoint::store::{RequestCounts, StorageOperation};
use serde::Serialize;

use crate::ledger::Ledger;

#[derive(Debug, Serialize)]
pub struct Report {
    /// How many events were published here.
    pub sent: u32,
    /// How many different ones of them were processed; all that were processed, if that cannot be told.
    pub processed: u64,
    /// How many of those published here were never processed, if that can be told.
    pub lost: u64,
    /// How often an event published here was processed again.
    pub duplicates: u64,
    /// How often a partition came to another owner of this process.
    pub moved: u64,
    /// How many partitions came to instances of this process by a handoff: they were asked for, and released for them.
    pub handed_over: u64,
    /// How many partitions each instance held at the end, before it released them.
    pub owned: BTreeMap<String, usize>,
    /// Requests to the storage, of all instances, before the release.
    pub requests: RequestCounts,
}

impl Report {
    /// `countable`: the events were published here, and all of them came to instances of this process.
    pub fn new(
        sent: u32,
        countable: bool,
        ledger: &Ledger,
        handed_over: u64,
        owned: BTreeMap<String, usize>,
        requests: &RequestCounts,
    ) -> Self {
        let distinct = u64::from(*ledger.distinct().borrow());
        Self {
            sent,
            processed: if countable { distinct } else { ledger.deliveries() },
            lost: if countable { u64::from(sent).saturating_sub(distinct) } else { 0 },
            duplicates: ledger.duplicates(),
            moved: ledger.moved(),
            handed_over,
            owned,
            requests: requests.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, processed, lost, duplicates, moved, handed_over, owned, requests } = self;
        writeln!(f, "sent {sent}, processed {processed}, lost {lost}, processed again {duplicates}")?;
        let owned: Vec<_> = owned.iter().map(|(owner, held)| format!("{owner} {held}")).collect();
        let owned = owned.join(", ");
        writeln!(f, "partitions held at the end: {owned}; moved {moved} times, handed over {handed_over}")?;
        let requests = StorageOperation::ALL.map(|purpose| format!("{} {}", requests.total(purpose), purpose.name()));
        write!(f, "storage requests: {}", requests.join(", "))
    }
}
