//! The result of the run.

use std::collections::BTreeMap;
use std::fmt;

use eventhubs_checkpoint::store::{RequestCounts, StorageOperation};
use serde::Serialize;

use crate::ledger::Ledger;

#[derive(Debug, Serialize)]
pub struct Report {
    /// The number of published events.
    pub sent: u32,
    /// The number of different processed events of those, or of all processed events if that cannot be counted.
    pub processed: u64,
    /// The number of published events that were never processed, if that can be counted.
    pub lost: u64,
    /// How often a published event was processed again.
    pub duplicates: u64,
    /// How often a partition moved to another owner of this process.
    pub moved: u64,
    /// The number of handoffs to instances of this process.
    pub handed_over: u64,
    /// The number of partitions of each instance at the end, before it released them.
    pub owned: BTreeMap<String, usize>,
    /// The requests of all instances to the storage, before the release.
    pub requests: RequestCounts,
}

impl Report {
    /// Creates the report. `countable` means that the events were published here and that all of them were delivered to
    /// instances of this process.
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
        let owned: Vec<_> = owned.iter().map(|(owner, partitions)| format!("{owner} {partitions}")).collect();
        let owned = owned.join(", ");
        writeln!(f, "partitions owned at the end: {owned}; moved {moved} times, handed over {handed_over}")?;
        let requests: Vec<_> = StorageOperation::ALL
            .iter()
            .map(|operation| format!("{} {}", requests.total(*operation), operation.as_str()))
            .collect();
        write!(f, "storage requests: {}", requests.join(", "))
    }
}
