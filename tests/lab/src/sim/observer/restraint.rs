//! What instances send while the storage rejects requests.

use tokio::time::Instant;

use super::State;
use crate::sim::invariant::Invariant;

/// Counted from the moment when an incarnation's requests begin to be rejected.
pub(super) struct Refused {
    since: Instant,
    /// How many requests it had sent before.
    before: u64,
    /// The most partitions that it has held since.
    held: usize,
    /// How many partitions it has gained since.
    gained: usize,
}

impl State {
    /// Whether the storage rejects all or some requests of this incarnation from now on.
    pub(in super::super) fn refuses(&mut self, incarnation: usize, begins: bool) {
        let held = self.held_by(incarnation);
        let book = &mut self.incarnations[incarnation];
        match (begins, book.refused.take()) {
            (true, None) => {
                let refused = Refused { since: Instant::now(), before: book.requests, held, gained: 0 };
                book.refused = Some(refused);
            }
            (true, refused) => book.refused = refused,
            (false, Some(refused)) => self.must_be_restrained(incarnation, &refused),
            (false, None) => {}
        }
    }

    /// Requests before the first connection do not count: the process supervisor decides how often it restarts a
    /// process that cannot connect.
    pub(super) fn is_connected(&mut self, incarnation: usize) {
        let book = &mut self.incarnations[incarnation];
        if let Some(refused) = &mut book.refused {
            (refused.since, refused.before) = (Instant::now(), book.requests);
        }
    }

    pub(super) fn gains(&mut self, incarnation: usize) {
        let held = self.held_by(incarnation);
        if let Some(refused) = &mut self.incarnations[incarnation].refused {
            refused.held = refused.held.max(held);
            refused.gained += 1;
        }
    }

    /// Returns how many partitions the incarnation holds, or processes because it has not detected their loss yet.
    fn held_by(&self, incarnation: usize) -> usize {
        let processed = &self.incarnations[incarnation].sessions;
        let partitions = self.partitions.iter().enumerate();
        partitions.filter(|(index, book)| book.holder() == Some(incarnation) || processed.contains_key(index)).count()
    }

    fn must_be_restrained(&mut self, incarnation: usize, refused: &Refused) {
        if !self.incarnations[incarnation].crate_processor || self.incarnations[incarnation].id.is_none() {
            return;
        }
        let (lasted, sent) = (refused.since.elapsed(), self.incarnations[incarnation].requests - refused.before);
        let usual = self.incarnations[incarnation].bounds.requests(refused.held, refused.gained, lasted);
        let (name, held) = (self.name_of(incarnation), refused.held);
        self.check(Invariant::Restrained, sent <= usual, || {
            format!(
                "{name} sent {sent} requests in {lasted:.1?} while they were rejected, with {held} partitions; \
                the usual number is {usual}"
            )
        });
    }
}
