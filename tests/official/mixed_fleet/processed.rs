//! What all processors of a fleet have processed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The processor of each event of each partition, the last one if there were several.
type Events = BTreeMap<String, BTreeMap<i64, String>>;

#[derive(Clone, Default)]
pub struct Processed(Arc<Mutex<Events>>);

impl Processed {
    pub fn add(&self, owner: &str, partition: &str, sequence_numbers: &[i64]) {
        let mut all = self.events();
        let events = all.entry(partition.to_owned()).or_default();
        events.extend(sequence_numbers.iter().map(|number| (*number, owner.to_owned())));
    }

    /// Returns the events from `first` to `last` that no owner has processed.
    pub fn missing(&self, partition: &str, first: i64, last: i64) -> Vec<i64> {
        let all = self.events();
        let is_missing = |number: &i64| !all.get(partition).is_some_and(|events| events.contains_key(number));
        (first..=last).filter(is_missing).collect()
    }

    /// Returns the oldest processed event.
    pub fn oldest(&self, partition: &str) -> Option<i64> {
        Some(*self.events().get(partition)?.first_key_value()?.0)
    }

    /// Forgets all processed events.
    pub fn clear(&self) {
        self.events().clear();
    }

    /// Returns the newest processed event, and its processor.
    pub fn newest(&self, partition: &str) -> Option<(i64, String)> {
        let all = self.events();
        let (number, owner) = all.get(partition)?.last_key_value()?;
        Some((*number, owner.clone()))
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[test]
fn missing_events_are_found() {
    let processed = Processed::default();
    processed.add("a", "0", &[0, 1]);
    processed.add("b", "0", &[1, 3]);
    assert_eq!(processed.missing("0", 0, 4), [2, 4]);
    assert_eq!(processed.missing("1", 0, 0), [0]);
    assert_eq!(processed.newest("0"), Some((3, "b".to_owned())));
    assert_eq!(processed.newest("1"), None);
    assert_eq!((processed.oldest("0"), processed.oldest("1")), (Some(0), None));
    processed.clear();
    assert_eq!(processed.oldest("0"), None);
}
