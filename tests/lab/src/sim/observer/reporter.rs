//! The part of the observer that instances use.

use std::fmt;

use eventhubs_checkpoint::processor::StopReason;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Identity, PartitionId};

use super::{Observer, Request, index_of};

/// Reports what the handlers of an incarnation do. Clones report for the same incarnation.
#[derive(Clone)]
pub struct Reporter {
    pub(in super::super) observer: Observer,
    pub(in super::super) incarnation: usize,
}

impl Reporter {
    /// Reports the identity of the incarnation in the records. Only for instances that write an incarnation.
    pub fn identified(&self, identity: &Identity) {
        self.observer.lock().identified(self.incarnation, identity);
    }

    pub(in super::super) fn requested(&self, kind: Request) {
        self.observer.lock().requested(self.incarnation, kind);
    }

    /// Reports that a partition's handler starts, in the ownership with this epoch. Owners of other SDKs have no epoch.
    pub fn started(&self, partition: &PartitionId, epoch: Option<i64>) {
        self.observer.lock().handler_started(self.incarnation, partition, epoch);
    }

    /// Reports that an application with its own positions has moved the position of a partition, because the partition
    /// cannot be read after it.
    pub fn moved(&self, partition: &PartitionId) {
        self.observer.lock().position_moved(index_of(partition));
    }

    /// Reports that the handler gets these events. It gets no others until the returned value is dropped; clones for
    /// work that continues in the background do not count.
    #[must_use]
    pub fn begins(&self, partition: &PartitionId, events: &[MemoryEvent]) -> BatchInProgress {
        let partition = index_of(partition);
        let session = self.observer.lock().handler_begins(self.incarnation, partition, events);
        let turn = Turn { reporter: self.clone(), partition, session };
        BatchInProgress { reporter: self.clone(), partition, session, _turn: Some(turn) }
    }

    /// Reports that a handler of single events begins one of them. Until the returned value is dropped, it begins no
    /// other one with the same key.
    #[must_use]
    pub fn begins_event(&self, partition: &PartitionId, event: &MemoryEvent, key: Option<i64>) -> EventInProgress {
        let partition = index_of(partition);
        let session = self.observer.lock().event_begins(self.incarnation, partition, event, key);
        EventInProgress { reporter: self.clone(), partition, session, key }
    }

    /// Reports that the handler stopped.
    pub fn stopped(&self, partition: &PartitionId, reason: &StopReason) {
        self.observer.lock().handler_stopped(self.incarnation, partition, reason);
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

/// Events that a handler is processing.
#[derive(Debug)]
pub struct BatchInProgress {
    reporter: Reporter,
    partition: usize,
    session: u64,
    _turn: Option<Turn>,
}

impl BatchInProgress {
    /// Reports that these events are processed. Call it before they are checkpointed or finished.
    pub fn done(&self, events: &[MemoryEvent]) {
        self.reporter.observer.lock().handled(self.reporter.incarnation, self.partition, self.session, events);
    }

    /// Reports that the results of these events are committed, in an application that keeps its own positions.
    pub fn counted(&self, events: &[MemoryEvent]) {
        self.reporter.observer.lock().counted(self.reporter.incarnation, self.partition, events);
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

/// An event that a handler of single events is processing.
#[derive(Debug)]
pub struct EventInProgress {
    reporter: Reporter,
    partition: usize,
    session: u64,
    key: Option<i64>,
}

impl EventInProgress {
    /// Reports that the event is processed. Call it before the handler returns.
    pub fn done(&self, event: &MemoryEvent) {
        let Self { reporter: Reporter { observer, incarnation }, partition, session, key } = self;
        let mut state = observer.lock();
        state.handled(*incarnation, *partition, *session, std::slice::from_ref(event));
        state.event_done(*incarnation, *partition, *key);
    }
}

impl Drop for EventInProgress {
    fn drop(&mut self) {
        let Self { reporter, partition, session, key } = self;
        reporter.observer.lock().event_ends(reporter.incarnation, *partition, *session, *key);
    }
}
