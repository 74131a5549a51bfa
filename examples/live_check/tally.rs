//! What the journal says about the published events.

use std::collections::{BTreeMap, BTreeSet};

use crate::journal::{Entry, Happened};

/// The last sequence number of each partition.
pub type LastNumbers = BTreeMap<String, i64>;

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub published: usize,
    /// The number of different published events that were handled.
    pub handled: usize,
    /// How often a published event was handled again.
    pub twice: usize,
    /// How many events a worker handled under a win of the partition that it had already stopped.
    pub after_stop: usize,
}

impl Tally {
    /// Counts the events after the first and up to the last numbers.
    pub fn of(entries: &[Entry], first: &LastNumbers, last: &LastNumbers) -> Self {
        let start = |partition: &str| first.get(partition).map_or(0, |number| number + 1);
        let published: usize = last.iter().map(|(partition, last)| (start(partition)..=*last).count()).sum();
        let mut tally = Self { published, ..Self::default() };
        let mut seen = BTreeSet::new();
        let mut stopped = BTreeSet::new();
        for entry in entries {
            let (from, to) = match entry.happened {
                Happened::Started => continue,
                Happened::Stopped => {
                    stopped.insert(entry.win());
                    continue;
                }
                Happened::Handled(from, to) => (from, to),
            };
            let end = last.get(&entry.partition).copied().unwrap_or(-1);
            for number in from.max(start(&entry.partition))..=to.min(end) {
                let is_new = seen.insert((&entry.partition, number));
                tally.handled += usize::from(is_new);
                tally.twice += usize::from(!is_new);
            }
            if stopped.contains(&entry.win()) {
                tally.after_stop += (from..=to).count();
            }
        }
        tally
    }

    pub fn lost(&self) -> usize {
        self.published - self.handled
    }
}

/// Returns how often an event was handled again in these entries.
pub fn count_repetitions(entries: &[Entry]) -> usize {
    let mut seen = BTreeSet::new();
    let mut repetitions = 0;
    for entry in entries {
        if let Happened::Handled(from, to) = entry.happened {
            repetitions += (from..=to).filter(|number| !seen.insert((&entry.partition, *number))).count();
        }
    }
    repetitions
}

/// Returns the last owner that started each partition and has not stopped it.
pub fn find_readers(entries: &[Entry]) -> BTreeMap<&str, &str> {
    let mut wins = BTreeMap::new();
    for entry in entries {
        match entry.happened {
            Happened::Started => {
                wins.insert(entry.partition.as_str(), entry);
            }
            Happened::Stopped => {
                wins.retain(|_, reader| reader.win() != entry.win());
            }
            Happened::Handled(..) => {}
        }
    }
    wins.into_iter().map(|(partition, entry)| (partition, entry.owner.as_str())).collect()
}

/// Returns the longest time, in milliseconds, that one of the partitions that started after this time had no reader. A
/// reader that did not stop was lost at this time.
pub fn longest_unread(entries: &[Entry], since: i64) -> i64 {
    let mut stopped_at = BTreeMap::new();
    let mut longest = 0;
    for entry in entries {
        match entry.happened {
            Happened::Stopped => {
                stopped_at.insert(&entry.partition, entry.at);
            }
            Happened::Started if entry.at >= since => {
                let unread_from = stopped_at.get(&entry.partition).copied().unwrap_or(since).max(since);
                longest = longest.max(entry.at - unread_from);
            }
            _ => {}
        }
    }
    longest
}
