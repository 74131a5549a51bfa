//! Splits a batch at the place where the partition failed.

use crate::processor::partition::attempts::Place;
use crate::source::Positioned;

/// A part of a batch. The parts keep the order of the events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<E> {
    /// The handler gets these events together. Never empty.
    Events(Vec<E>),
    /// The event at which the partition failed, alone.
    Suspect(E),
}

/// By how much a call with the failing event becomes smaller with each failure.
const NARROWING: usize = 10;

/// Splits a batch so that the next failure shows more: the failing event alone, if it is known; otherwise, from the
/// first event that it may be, calls with a tenth of the events.
pub(super) fn split<E: Positioned>(mut events: Vec<E>, place: Place) -> Vec<Part<E>> {
    let mut parts = Vec::new();
    match place {
        Place::Event(event) => {
            if let Some(index) = events.iter().position(|each| each.sequence_number() == Some(event)) {
                let after = events.split_off(index + 1);
                let suspect = events.pop();
                push(&mut parts, events);
                parts.extend(suspect.map(Part::Suspect));
                events = after;
            }
        }
        Place::From { first, events: failed } => {
            let start = events.iter().position(|each| each.sequence_number() >= Some(first)).unwrap_or(events.len());
            let mut rest = events.split_off(start);
            push(&mut parts, events);
            let size = failed.div_ceil(NARROWING);
            while rest.len() > size {
                let next = rest.split_off(size);
                push(&mut parts, std::mem::replace(&mut rest, next));
            }
            events = rest;
        }
        Place::Unknown => {}
    }
    push(&mut parts, events);
    parts
}

fn push<E>(parts: &mut Vec<Part<E>>, events: Vec<E>) {
    if !events.is_empty() {
        parts.push(Part::Events(events));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Numbered(i64);

    impl Positioned for Numbered {
        fn sequence_number(&self) -> Option<i64> {
            Some(self.0)
        }

        fn offset(&self) -> Option<&str> {
            None
        }
    }

    /// Returns the parts as numbers; the suspect is negative.
    fn parts(events: std::ops::Range<i64>, place: Place) -> Vec<Vec<i64>> {
        let parts = split(events.map(Numbered).collect(), place);
        let numbers = parts.into_iter().map(|part| match part {
            Part::Events(events) => events.into_iter().map(|event| event.0).collect(),
            Part::Suspect(event) => vec![-event.0],
        });
        numbers.collect()
    }

    #[test]
    fn a_known_event_is_alone() {
        assert_eq!(parts(1..6, Place::Event(3)), [vec![1, 2], vec![-3], vec![4, 5]]);
        assert_eq!(parts(1..3, Place::Event(1)), [vec![-1], vec![2]]);
        assert_eq!(parts(1..3, Place::Event(2)), [vec![1], vec![-2]]);
        assert_eq!(parts(1..3, Place::Event(7)), [vec![1, 2]], "another batch");
    }

    #[test]
    fn an_unknown_event_is_narrowed_down() {
        let from = |first, events| Place::From { first, events };
        assert_eq!(parts(1..8, from(3, 20)), [vec![1, 2], vec![3, 4], vec![5, 6], vec![7]]);
        assert_eq!(parts(3..6, from(3, 2)), [vec![3], vec![4], vec![5]]);
        assert_eq!(parts(1..3, from(7, 20)), [vec![1, 2]], "an earlier batch");
        assert_eq!(parts(8..10, from(7, 100)), [vec![8, 9]]);
        assert_eq!(parts(1..3, Place::Unknown), [vec![1, 2]]);
    }
}
