//! Which events of a partition are new.

use super::positioned::Positioned;
use super::properties::PartitionProperties;
use super::source::StartPosition;

/// How far a partition was delivered since its handler started. What comes twice is left out.
///
/// The numbers that come through a link only grow. Where one does not, the link has begun again: the official client
/// re-attaches a link at the place where it was opened, and everything since then would come before the next new event.
/// Such a link must be closed, and another one opened after the last event that was delivered.
///
/// It belongs to one start of the handler: what was delivered before a failure has to come again.
#[derive(Debug)]
pub(super) struct Delivered {
    /// Where reading began.
    from: StartPosition,
    last: Option<i64>,
    /// No event has come since a link was opened.
    opened: bool,
    /// The gap for which the last link was closed.
    refused: Option<Gap>,
    /// The last event that came through the link, whether it was new or not.
    came: Option<i64>,
    begun_again: Option<Restarted>,
}

/// The first event that a link delivered again, and the one that came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restarted {
    pub(super) came: i64,
    pub(super) after: i64,
}

/// The events between the one that is due after the opening of a link, and the first one that came through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// The event that is due: after the last one that was delivered; or the first that there ever was, where reading
    /// begins with the earliest one.
    pub(super) due: i64,
    pub(super) came: i64,
}

impl Gap {
    /// Whether retention has taken the events in between.
    pub(super) fn is_expired(self, properties: &PartitionProperties) -> bool {
        self.came <= properties.beginning_sequence_number()
    }
}

impl Delivered {
    pub(super) fn new(from: StartPosition) -> Self {
        let last = match &from {
            StartPosition::AfterSequenceNumber(seen) => Some(*seen),
            _ => None,
        };
        Self { from, last, opened: false, refused: None, came: None, begun_again: None }
    }

    /// A link was opened at [`next`](Self::inject).
    pub(super) fn opened(&mut self) {
        (self.opened, self.came, self.begun_again) = (true, None, None);
    }

    /// What a link leaves out with the first events that come through it.
    pub(super) fn gap<E: Positioned>(&mut self, batch: &[E]) -> Option<Gap> {
        if !std::mem::take(&mut self.opened) {
            return None;
        }
        let due = match self.next() {
            StartPosition::AfterSequenceNumber(last) => last.saturating_add(1),
            StartPosition::Earliest => 0,
            StartPosition::Latest | StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) => return None,
        };
        let came = batch.first()?.sequence_number()?;
        (came > due).then_some(Gap { due, came })
    }

    /// Whether the last link left out something else at the same place. Retention may be taking events all the time,
    /// and the hub's reports are a little old.
    pub(super) fn refused_another(&self, gap: Gap) -> bool {
        self.refused.is_some_and(|refused| refused.due == gap.due && refused != gap)
    }

    /// Whether to open another link instead: what is left out is still there, as far as the hub says. A gap that comes
    /// again through the next link is one of the hub's, as those that compaction leaves.
    pub(super) fn refuses(&mut self, gap: Gap, properties: &PartitionProperties) -> bool {
        if gap.is_expired(properties) || self.refused == Some(gap) {
            return false;
        }
        self.refused = Some(gap);
        true
    }

    /// Where to open the next link.
    pub(super) fn next(&self) -> StartPosition {
        self.last.map_or_else(|| self.from.clone(), StartPosition::AfterSequenceNumber)
    }

    /// Leaves out what was delivered already, and all from where the link began again. What is left only grows. Returns
    /// how many events were left out.
    pub(super) fn keep_new<E: Positioned>(&mut self, batch: &mut Vec<E>) -> usize {
        let came = batch.len();
        if let Some(first) = batch.iter().position(|event| self.begins_again(event)) {
            batch.truncate(first);
        }
        batch.retain(|event| {
            let number = event.sequence_number();
            let new = number.is_none() || number > self.last;
            if new {
                self.last = number.or(self.last);
            }
            new
        });
        came - batch.len()
    }

    fn begins_again<E: Positioned>(&mut self, event: &E) -> bool {
        let Some(number) = event.sequence_number() else { return false };
        match self.came {
            Some(after) if number <= after => self.begun_again = Some(Restarted { came: number, after }),
            _ => self.came = Some(number),
        }
        self.begun_again.is_some()
    }

    /// Set once the link has begun again: nothing more is to be read from it.
    pub(super) fn restarted(&self) -> Option<Restarted> {
        self.begun_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Position;

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
        delivered.opened();
        assert_eq!(kept(&mut delivered, &[7, 8, 9]), [9]);
        assert_eq!(delivered.next(), StartPosition::AfterSequenceNumber(9));
        assert_eq!(delivered.restarted(), None);
        assert_eq!(Delivered::new(StartPosition::Earliest).next(), StartPosition::Earliest);
    }

    fn holds(first: i64) -> PartitionProperties {
        PartitionProperties::new(first, Some(Position { sequence_number: 99, offset: "x".into() }), false)
    }

    #[test]
    fn a_gap_is_looked_for_once_after_each_opening() {
        let after = |number| Delivered::new(StartPosition::AfterSequenceNumber(number));
        let mut delivered = after(6);
        assert_eq!(delivered.gap(&[Numbered(9)]), None, "no link was opened");
        delivered.opened();
        assert_eq!(delivered.gap(&[Numbered(9)]), Some(Gap { due: 7, came: 9 }));
        assert_eq!(delivered.gap(&[Numbered(9)]), None);
        for first in [5, 6, 7] {
            delivered.opened();
            assert_eq!(delivered.gap(&[Numbered(first), Numbered(20)]), None, "{first}");
        }
        kept(&mut delivered, &[7, 8]);
        delivered.opened();
        assert_eq!(delivered.gap(&[Numbered(10)]), Some(Gap { due: 9, came: 10 }));
        let mut earliest = Delivered::new(StartPosition::Earliest);
        earliest.opened();
        assert_eq!(earliest.gap(&[Numbered(3)]), Some(Gap { due: 0, came: 3 }));
        let mut latest = Delivered::new(StartPosition::Latest);
        latest.opened();
        assert_eq!(latest.gap(&[Numbered(3)]), None);
    }

    #[test]
    fn a_gap_is_refused_unless_the_hub_shows_it() {
        let mut delivered = Delivered::new(StartPosition::AfterSequenceNumber(6));
        let gap = Gap { due: 7, came: 9 };
        assert!(!delivered.refuses(gap, &holds(9)), "retention took what is left out");
        assert!(delivered.refuses(gap, &holds(8)), "8 is still there");
        let another = Gap { due: 7, came: 12 };
        assert!(delivered.refuses(another, &holds(8)), "a link that goes on where the last one was");
        assert!(!delivered.refuses(another, &holds(8)), "the same through two links");
    }

    mod defects {
        use super::*;

        #[test]
        fn b04_a_link_whose_numbers_do_not_grow_has_begun_again() {
            for (before, batch, expected, again) in [
                (&[][..], &[7, 8, 7, 8, 9][..], &[7, 8][..], Some((7, 8))),
                (&[7, 8], &[7, 8, 9], &[], Some((7, 8))),
                (&[7, 8], &[8, 9], &[], Some((8, 8))),
                (&[7, 8], &[0], &[], Some((0, 8))),
                (&[7, 8], &[12, 9], &[12], Some((9, 12))),
                (&[3, 4], &[3, 7], &[], Some((3, 4))),
                // Not asked for, but it gets on.
                (&[3, 4], &[5, 6, 7, 9], &[7, 9], None),
            ] {
                let mut delivered = Delivered::new(StartPosition::AfterSequenceNumber(6));
                delivered.opened();
                kept(&mut delivered, before);
                assert_eq!(kept(&mut delivered, batch), expected, "{batch:?} after {before:?}");
                let again = again.map(|(came, after)| Restarted { came, after });
                assert_eq!(delivered.restarted(), again, "{batch:?} after {before:?}");
                delivered.opened();
                assert_eq!(delivered.restarted(), None, "another link");
            }
        }
    }
}
