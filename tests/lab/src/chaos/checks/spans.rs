//! When and in which session the events of a partition were processed.

use std::collections::BTreeMap;

use crate::chaos::clock::Moment;

/// Consecutive events that one session processed in one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: i64,
    pub last: i64,
    pub session: usize,
    pub at: Moment,
}

impl Span {
    pub fn length(&self) -> u64 {
        u64::try_from(self.last - self.first + 1).unwrap_or_default()
    }
}

/// Spans that do not overlap, by their first event.
#[derive(Debug, Default)]
pub struct Spans(BTreeMap<i64, Span>);

impl Spans {
    /// Puts a span on top of the others, and returns the parts of them that it covers.
    pub fn cover(&mut self, span: Span) -> Vec<Span> {
        let below: Vec<_> = self
            .0
            .range(..=span.last)
            .rev()
            .map(|(_, below)| *below)
            .take_while(|below| below.last >= span.first)
            .collect();
        let mut covered = Vec::new();
        for below in below {
            self.0.remove(&below.first);
            if below.first < span.first {
                self.0.insert(below.first, Span { last: span.first - 1, ..below });
            }
            if below.last > span.last {
                self.0.insert(span.last + 1, Span { first: span.last + 1, ..below });
            }
            covered.push(Span { first: below.first.max(span.first), last: below.last.min(span.last), ..below });
        }
        self.0.insert(span.first, span);
        covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: i64, last: i64, session: usize) -> Span {
        Span { first, last, session, at: Moment::ZERO }
    }

    #[test]
    fn covered_parts_are_returned_and_the_rest_remains() {
        let mut spans = Spans::default();
        for below in [span(0, 9, 1), span(10, 19, 2), span(20, 29, 3)] {
            assert!(spans.cover(below).is_empty());
        }
        let mut covered = spans.cover(span(5, 22, 4));
        covered.sort_by_key(|span| span.first);
        assert_eq!(covered, [span(5, 9, 1), span(10, 19, 2), span(20, 22, 3)]);
        assert_eq!(spans.cover(span(23, 23, 5)), [span(23, 23, 3)]);
        assert_eq!(spans.cover(span(4, 5, 6)).len(), 2);
    }
}
