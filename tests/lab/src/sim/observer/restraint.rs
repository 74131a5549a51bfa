//! What instances send while the storage refuses.

use tokio::time::Instant;

use super::State;
use crate::sim::invariant::Invariant;

/// From the moment when a life's requests begin to be refused.
pub(super) struct Refused {
    since: Instant,
    /// How many requests it had sent before.
    before: u64,
    /// The most partitions that it has held since.
    held: usize,
    /// How many it has gained since.
    gained: usize,
}

impl State {
    /// Whether the storage refuses requests of this life from now on, all or a part of them.
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

    /// What it has sent until it was connected does not count: how often a process that cannot connect is started is
    /// not a matter of this crate.
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

    /// How many partitions it holds, or processes without knowing that it has lost them.
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
        let usual = self.bounds.requests(refused.held, refused.gained, lasted);
        let (name, held) = (self.name_of(incarnation), refused.held);
        self.check(Invariant::Restrained, sent <= usual, || {
            format!("{name} sent {sent} requests in {lasted:.1?} while they were refused, with {held} partitions; in calm {usual}")
        });
    }
}
