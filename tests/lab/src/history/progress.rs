//! Which events of a partition are processed.

use std::collections::BTreeMap;

/// A processed prefix, and processed ranges beyond it.
#[derive(Clone, Debug)]
pub struct Progress {
    prefix: i64,
    /// First and last of each range; ranges do not touch.
    beyond: BTreeMap<i64, i64>,
}

impl Progress {
    /// Everything up to this event is processed.
    pub fn up_to(prefix: i64) -> Self {
        Self { prefix, beyond: BTreeMap::new() }
    }

    /// Returns the last event of the prefix.
    pub fn prefix(&self) -> i64 {
        self.prefix
    }

    /// Returns how many of these events are processed.
    pub fn count(&self, first: i64, last: i64) -> u64 {
        let all = last.saturating_add(1).saturating_sub(first).max(0);
        let missing: i64 = self.gaps(first, last).into_iter().map(|(first, last)| last - first + 1).sum();
        u64::try_from(all - missing).unwrap_or_default()
    }

    /// Returns which of these events are not processed, as pairs of first and last.
    pub fn gaps(&self, first: i64, last: i64) -> Vec<(i64, i64)> {
        let mut next = first.max(self.prefix.saturating_add(1));
        let mut gaps = Vec::new();
        for (start, end) in self.beyond.range(..=last) {
            if *start > next {
                gaps.push((next, start - 1));
            }
            next = next.max(end + 1);
        }
        if next <= last {
            gaps.push((next, last));
        }
        gaps
    }

    pub fn add(&mut self, first: i64, last: i64) {
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

    /// Everything up to this event counts as processed.
    pub fn raise(&mut self, to: i64) {
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
    fn gaps_hold_back_the_prefix_until_they_are_filled() {
        let mut done = Progress::up_to(-1);
        done.add(2, 3);
        done.add(6, 6);
        assert_eq!(done.prefix(), -1);
        assert_eq!((done.gaps(0, 9), done.count(0, 9)), (vec![(0, 1), (4, 5), (7, 9)], 3));
        assert_eq!((done.gaps(3, 4), done.count(3, 4)), (vec![(4, 4)], 1));
        done.add(0, 1);
        assert_eq!(done.prefix(), 3);
        done.add(4, 5);
        assert_eq!(done.prefix(), 6);
        done.add(9, 9);
        done.raise(8);
        assert_eq!(done.prefix(), 9);
    }
}
