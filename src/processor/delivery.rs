//! Which events of a partition are new.

use super::source::{Positioned, StartPosition};

/// How far a partition was delivered since its handler started. A link that re-attaches by itself starts at its original
/// place again; what comes twice is left out.
///
/// It belongs to one start of the handler: what was delivered before a failure has to come again.
#[derive(Debug)]
pub(super) struct Delivered {
    /// Where reading began.
    from: StartPosition,
    last: Option<i64>,
}

impl Delivered {
    pub(super) fn new(from: StartPosition) -> Self {
        let last = match &from {
            StartPosition::AfterSequenceNumber(seen) => Some(*seen),
            _ => None,
        };
        Self { from, last }
    }

    /// Where to open the next link.
    pub(super) fn next(&self) -> StartPosition {
        self.last.map_or_else(|| self.from.clone(), StartPosition::AfterSequenceNumber)
    }

    /// Leaves out what was delivered already. What is left only grows.
    pub(super) fn keep_new<E: Positioned>(&mut self, batch: &mut Vec<E>) {
        batch.retain(|event| {
            let number = event.sequence_number();
            let new = number.is_none() || number > self.last;
            if new {
                self.last = number.or(self.last);
            }
            new
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Numbered(i64);

    impl Positioned for Numbered {
        fn sequence_number(&self) -> Option<i64> {
            Some(self.0)
        }

        fn offset(&self) -> Option<&str> {
            None
        }
    }

    fn kept(delivered: &mut Delivered, numbers: &[i64]) -> Vec<i64> {
        let mut batch = numbers.iter().copied().map(Numbered).collect();
        delivered.keep_new(&mut batch);
        batch.iter().map(|event| event.0).collect()
    }

    #[test]
    fn what_comes_twice_is_left_out() {
        let mut delivered = Delivered::new(StartPosition::AfterSequenceNumber(6));
        assert_eq!(kept(&mut delivered, &[5, 6, 7, 8]), [7, 8]);
        assert_eq!(kept(&mut delivered, &[7, 8, 9]), [9]);
        assert_eq!(delivered.next(), StartPosition::AfterSequenceNumber(9));
        let mut delivered = Delivered::new(StartPosition::Earliest);
        assert_eq!(delivered.next(), StartPosition::Earliest);
        assert_eq!(kept(&mut delivered, &[0, 1, 2, 0, 1, 2, 3]), [0, 1, 2, 3]);
    }
}
