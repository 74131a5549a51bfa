//! The epochs of one partition's ownerships.

use std::collections::BTreeMap;

use super::{Rule, Verdict};

/// Which ownerships were won, and in which of them events were processed.
#[derive(Clone, Debug, Default)]
pub struct Epochs {
    /// The epoch in the current record.
    current: Option<i64>,
    /// How many ownerships were won.
    won: u64,
    /// The number of each ownership, by its epoch.
    numbers: BTreeMap<i64, u64>,
    /// The epochs of ownerships that processed events, by their numbers.
    processed: BTreeMap<u64, i64>,
    /// Ownerships up to this number are not checked.
    forgotten: u64,
}

impl Epochs {
    /// A write of the ownership was accepted. Owners of other SDKs write no epoch.
    pub fn written(&mut self, epoch: Option<i64>) {
        if let Some(epoch) = epoch.filter(|_| epoch != self.current) {
            self.won += 1;
            self.numbers.insert(epoch, self.won);
        }
        self.current = epoch;
    }

    /// Returns whether the record shows a later epoch.
    #[must_use]
    pub fn has_later(&self, epoch: i64) -> bool {
        self.current.is_some_and(|current| current > epoch)
    }

    /// The record was deleted. Epochs after a deletion are unrelated to those before it, if it came soon after a claim.
    pub fn deleted(&mut self) {
        (self.current, self.forgotten) = (None, self.won);
    }

    /// The owner of this epoch processes events.
    pub fn processes(&mut self, epoch: i64) -> Verdict {
        let Some(number) = self.numbers.get(&epoch).copied() else {
            return Verdict::new(Rule::EpochGrows, false, || {
                format!("processes with epoch {epoch}, which was not won")
            });
        };
        if number <= self.forgotten {
            return Verdict::new(Rule::EpochGrows, true, String::new);
        }
        let before = self.processed.range(self.forgotten + 1..number).next_back();
        let after = self.processed.range(number + 1..).next();
        let grows = before.is_none_or(|(_, before)| *before < epoch) && after.is_none_or(|(_, after)| epoch < *after);
        let verdict = Verdict::new(Rule::EpochGrows, grows, || {
            format!("processes with epoch {epoch} in ownership {number}, between {before:?} and {after:?}")
        });
        self.processed.insert(number, epoch);
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn won(epochs: &[Option<i64>]) -> Epochs {
        let mut won = Epochs::default();
        for epoch in epochs {
            won.written(*epoch);
        }
        won
    }

    fn breach(epochs: &mut Epochs, epoch: i64) -> bool {
        epochs.processes(epoch).breach.is_some()
    }

    #[test]
    fn growing_epochs_are_accepted() {
        let mut epochs = won(&[Some(5), Some(5), None, Some(7), Some(8)]);
        for epoch in [5, 8, 7, 8] {
            assert!(!breach(&mut epochs, epoch), "{epoch}");
        }
    }

    #[test]
    fn an_epoch_that_does_not_grow_is_found() {
        assert!(!breach(&mut won(&[Some(7), Some(5)]), 5));
        for (claims, processing) in [([Some(7), Some(5), None], [7, 5]), ([Some(7), None, Some(7)], [7, 7])] {
            let mut epochs = won(&claims[..1]);
            assert!(!breach(&mut epochs, processing[0]));
            claims[1..].iter().for_each(|epoch| epochs.written(*epoch));
            assert!(breach(&mut epochs, processing[1]), "{claims:?}");
        }
        assert!(breach(&mut won(&[Some(7)]), 8));
    }

    #[test]
    fn a_late_start_has_the_smaller_epoch() {
        let mut epochs = won(&[Some(9), Some(8)]);
        assert!(!breach(&mut epochs, 8));
        assert!(breach(&mut epochs, 9));
    }

    #[test]
    fn a_deletion_resets_the_order() {
        let mut epochs = won(&[Some(7)]);
        assert!(!breach(&mut epochs, 7));
        epochs.deleted();
        epochs.written(Some(5));
        assert!(!breach(&mut epochs, 5) && !breach(&mut epochs, 7));
        epochs.written(Some(4));
        assert!(breach(&mut epochs, 4));
    }
}
