//! The side of the observer that instances see.

use std::fmt;

use eventhubs_checkpoint::processor::StopReason;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Identity, PartitionId};

use super::{Observer, Request, index_of};

/// Where a life tells what its handlers do. Clones are the same.
#[derive(Clone)]
pub struct Reporter {
    pub(in super::super) observer: Observer,
    pub(in super::super) incarnation: usize,
}

impl Reporter {
    /// The life has this identity in the records. Only for those that write an incarnation.
    pub fn identified(&self, identity: &Identity) {
        self.observer.lock().identified(self.incarnation, identity);
    }

    pub(in super::super) fn requested(&self, kind: Request) {
        self.observer.lock().requested(self.incarnation, kind);
    }

    /// A partition's handler starts, in the tenure with this epoch. Owners of other SDKs have none.
    pub fn started(&self, partition: &PartitionId, epoch: Option<i64>) {
        self.observer.lock().handler_started(self.incarnation, partition, epoch);
    }

    /// It gets these events. Until what is returned is dropped it has no others; clones for work that goes on behind
    /// its back do not count.
    #[must_use]
    pub fn begins(&self, partition: &PartitionId, events: &[MemoryEvent]) -> BatchInProgress {
        let partition = index_of(partition);
        let session = self.observer.lock().handler_begins(self.incarnation, partition, events);
        let turn = Turn { reporter: self.clone(), partition, session };
        BatchInProgress { reporter: self.clone(), partition, session, _turn: Some(turn) }
    }

    /// It stops.
    pub fn stopped(&self, partition: &PartitionId, reason: &StopReason) {
        self.observer.lock().handler_stopped(self.incarnation, partition, reason);
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("life", &self.incarnation).finish_non_exhaustive()
    }
}

/// Events that a handler has.
#[derive(Debug)]
pub struct BatchInProgress {
    reporter: Reporter,
    partition: usize,
    session: u64,
    _turn: Option<Turn>,
}

impl BatchInProgress {
    /// These are processed. To be told before they are marked or finished.
    pub fn done(&self, events: &[MemoryEvent]) {
        self.reporter.observer.lock().handled(self.reporter.incarnation, self.partition, self.session, events);
    }
}

impl Clone for BatchInProgress {
    fn clone(&self) -> Self {
        Self { reporter: self.reporter.clone(), partition: self.partition, session: self.session, _turn: None }
    }
}

#[derive(Debug)]
struct Turn {
    reporter: Reporter,
    partition: usize,
    session: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.reporter.observer.lock().handler_returns(self.reporter.incarnation, self.partition, self.session);
    }
}
