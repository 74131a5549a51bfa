//! The events that a handler gets.

use super::{Rule, Verdict};

/// From one start of a partition's handler to its stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    due: Option<i64>,
}

impl Delivery {
    /// Creates a delivery whose first event must be this one.
    #[must_use]
    pub fn beginning_with(due: i64) -> Self {
        Self { due: Some(due) }
    }

    /// The handler gets these events at once, while `oldest` is the oldest event of the hub: retention may remove
    /// events that were due. Returns `None` for the first batch.
    pub fn follows(&mut self, first: i64, last: i64, oldest: i64) -> Option<Verdict> {
        let due = self.due.replace(last + 1)?;
        Some(Verdict::new(Rule::Continuous, first == due || (due < first && first <= oldest), || {
            format!("got event {first} although {due} was due, and {oldest} is the oldest")
        }))
    }

    /// The next events are from another hub.
    pub fn restart(&mut self) {
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_may_be_known() {
        for (first, holds) in [(4, true), (3, false), (5, false)] {
            let verdict = Delivery::beginning_with(4).follows(first, 9, 0).unwrap();
            assert_eq!(verdict.breach.is_none(), holds, "{first}: {verdict:?}");
        }
    }

    #[test]
    fn only_retention_causes_a_gap() {
        for (first, oldest, holds) in [(4, 0, true), (5, 0, false), (3, 0, false), (6, 6, true), (7, 6, false)] {
            let mut delivery = Delivery::default();
            assert_eq!(delivery.follows(0, 3, 0), None);
            let verdict = delivery.follows(first, 9, oldest).unwrap();
            assert_eq!(verdict.breach.is_none(), holds, "{first}, {oldest}: {verdict:?}");
        }
    }
}
