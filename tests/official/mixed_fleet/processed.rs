//! What all processors of a fleet have processed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of each partition which event was processed by whom, the last one if there were several.
type Events = BTreeMap<String, BTreeMap<i64, String>>;

#[derive(Clone, Default)]
pub struct Processed(Arc<Mutex<Events>>);

impl Processed {
    pub fn add(&self, owner: &str, partition: &str, sequence_numbers: &[i64]) {
        let mut all = self.events();
        let events = all.entry(partition.to_owned()).or_default();
        events.extend(sequence_numbers.iter().map(|number| (*number, owner.to_owned())));
    }

    /// Those of the events up to `last` that nobody has processed.
    pub fn missing(&self, partition: &str, last: i64) -> Vec<i64> {
        let all = self.events();
        let is_missing = |number: &i64| !all.get(partition).is_some_and(|events| events.contains_key(number));
        (0..=last).filter(is_missing).collect()
    }

    /// Who processed the newest event that was processed, and which it is.
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
fn what_is_missing_is_found() {
    let processed = Processed::default();
    processed.add("a", "0", &[0, 1]);
    processed.add("b", "0", &[1, 3]);
    assert_eq!(processed.missing("0", 4), [2, 4]);
    assert_eq!(processed.missing("1", 0), [0]);
    assert_eq!(processed.newest("0"), Some((3, "b".to_owned())));
    assert_eq!(processed.newest("1"), None);
}
