//! Which events of a partition are processed.

use std::collections::BTreeMap;

/// Everything up to a place, and ranges beyond it.
#[derive(Clone, Debug)]
pub(super) struct Done {
    prefix: i64,
    /// First and last of each; they do not touch.
    beyond: BTreeMap<i64, i64>,
}

impl Done {
    /// Everything up to this is.
    pub(super) fn up_to(prefix: i64) -> Self {
        Self { prefix, beyond: BTreeMap::new() }
    }

    /// The last of those that are processed without a gap.
    pub(super) fn prefix(&self) -> i64 {
        self.prefix
    }

    pub(super) fn contains(&self, number: i64) -> bool {
        number <= self.prefix || self.beyond.range(..=number).next_back().is_some_and(|(_, last)| *last >= number)
    }

    pub(super) fn add(&mut self, first: i64, last: i64) {
        let (mut first, mut last) = (first, last);
        while let Some((start, end)) = self.touching(first, last) {
            self.beyond.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        if first <= self.prefix.saturating_add(1) {
            self.prefix = self.prefix.max(last);
        } else {
            self.beyond.insert(first, last);
        }
    }

    /// Everything up to this counts as processed.
    pub(super) fn raise(&mut self, to: i64) {
        self.add(i64::MIN, to);
    }

    fn touching(&self, first: i64, last: i64) -> Option<(i64, i64)> {
        let (start, end) = self.beyond.range(..=last.saturating_add(1)).next_back()?;
        (*end >= first.saturating_sub(1)).then_some((*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_hold_the_prefix_back_until_they_are_filled() {
        let mut done = Done::up_to(-1);
        done.add(2, 3);
        done.add(6, 6);
        assert_eq!(done.prefix(), -1);
        assert!(done.contains(3) && !done.contains(4) && !done.contains(1));
        done.add(0, 1);
        assert_eq!(done.prefix(), 3);
        done.add(4, 5);
        assert_eq!(done.prefix(), 6);
        done.add(9, 9);
        done.raise(8);
        assert_eq!(done.prefix(), 9);
    }
}
