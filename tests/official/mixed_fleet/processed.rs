//! What all processors of a fleet have processed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Default)]
pub struct Processed(Arc<Mutex<BTreeMap<String, Partition>>>);

#[derive(Default)]
struct Partition {
    /// The processors of each event, the last one last.
    events: BTreeMap<i64, Vec<String>>,
    starts: Vec<Start>,
}

/// One processor has started to read, and has read up to `last`.
struct Start {
    owner: String,
    /// Distinguishes the starts of this owner, if it counts them.
    number: Option<u64>,
    /// The checkpoint that it found, or -1.
    after: i64,
    last: i64,
    /// How many events it got a second time, although it did not start again.
    redelivered: usize,
}

impl Processed {
    /// Records that a processor starts to read after this checkpoint, or from the first event.
    pub fn start(&self, owner: &str, partition: &str, number: Option<u64>, checkpoint: Option<i64>) {
        let after = checkpoint.unwrap_or(-1);
        let start = Start { owner: owner.to_owned(), number, after, last: after, redelivered: 0 };
        self.all().entry(partition.to_owned()).or_default().starts.push(start);
    }

    /// Records that a processor has processed these events, since its last start with this number.
    pub fn add(&self, owner: &str, partition: &str, number: Option<u64>, sequence_numbers: &[i64]) {
        let mut all = self.all();
        let partition = all.entry(partition.to_owned()).or_default();
        for number in sequence_numbers {
            partition.events.entry(*number).or_default().push(owner.to_owned());
        }
        let start = partition.starts.iter_mut().rfind(|start| start.owner == owner && start.number == number);
        if let Some(start) = start {
            start.add(sequence_numbers);
        }
    }

    /// Returns how often an event was processed again: as counted, and as it is if each processor reads on exactly
    /// after the checkpoint that it found.
    pub fn repeated(&self) -> (usize, usize) {
        let all = self.all();
        let counted = all.values().flat_map(|partition| partition.events.values()).map(|owners| owners.len() - 1).sum();
        (counted, all.values().map(Partition::repeated_by_checkpoints).sum())
    }

    /// Returns the events from `first` to `last` that no owner has processed.
    pub fn missing(&self, partition: &str, first: i64, last: i64) -> Vec<i64> {
        let all = self.all();
        let is_missing = |number: &i64| !all.get(partition).is_some_and(|it| it.events.contains_key(number));
        (first..=last).filter(is_missing).collect()
    }

    /// Returns the oldest processed event.
    pub fn oldest(&self, partition: &str) -> Option<i64> {
        Some(*self.all().get(partition)?.events.first_key_value()?.0)
    }

    /// Forgets all processed events.
    pub fn clear(&self) {
        self.all().clear();
    }

    /// Returns the newest processed event, and its processor.
    pub fn newest(&self, partition: &str) -> Option<(i64, String)> {
        let all = self.all();
        let (number, owners) = all.get(partition)?.events.last_key_value()?;
        Some((*number, owners.last()?.clone()))
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Partition>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Start {
    /// Only the client of the Rust SDK, whose starts have numbers, may deliver events again without a new start: if it
    /// repairs a link, it reads again from where the link started.
    fn add(&mut self, sequence_numbers: &[i64]) {
        if self.number.is_some() {
            self.redelivered += sequence_numbers.iter().filter(|number| **number <= self.last).count();
        }
        self.last = sequence_numbers.iter().copied().fold(self.last, i64::max);
    }
}

impl Partition {
    fn repeated_by_checkpoints(&self) -> usize {
        let covered =
            |event: i64| self.starts.iter().filter(|start| start.after < event && event <= start.last).count();
        let last = self.starts.iter().map(|start| start.last).max().unwrap_or(-1);
        let redelivered: usize = self.starts.iter().map(|start| start.redelivered).sum();
        redelivered + (0..=last).map(|event| covered(event).saturating_sub(1)).sum::<usize>()
    }
}

#[test]
fn repeated_events_are_counted() {
    let processed = Processed::default();
    processed.start("a", "0", None, None);
    processed.add("a", "0", None, &[0, 1, 2, 3]);
    processed.start("b", "0", None, Some(1));
    processed.add("b", "0", None, &[2, 3, 4]);
    assert_eq!(processed.repeated(), (2, 2));
    processed.add("a", "0", None, &[4]);
    assert_eq!(processed.repeated(), (3, 3));
    processed.start("a", "0", None, Some(4));
    processed.add("a", "0", None, &[4]);
    assert_eq!(processed.repeated(), (4, 3), "not from its checkpoint on");

    let processed = Processed::default();
    processed.start("a", "0", Some(0), None);
    processed.add("a", "0", Some(0), &[0, 1, 2]);
    processed.add("a", "0", Some(0), &[0]);
    processed.start("b", "0", None, Some(0));
    processed.add("b", "0", None, &[1, 2, 3]);
    assert_eq!(processed.repeated(), (3, 3));
}

#[test]
fn missing_events_are_found() {
    let processed = Processed::default();
    processed.add("a", "0", None, &[0, 1]);
    processed.add("b", "0", None, &[1, 3]);
    assert_eq!(processed.missing("0", 0, 4), [2, 4]);
    assert_eq!(processed.missing("1", 0, 0), [0]);
    assert_eq!(processed.newest("0"), Some((3, "b".to_owned())));
    assert_eq!(processed.newest("1"), None);
    assert_eq!((processed.oldest("0"), processed.oldest("1")), (Some(0), None));
    processed.clear();
    assert_eq!(processed.oldest("0"), None);
}
