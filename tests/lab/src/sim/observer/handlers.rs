//! Calls of handlers. Calls of a crashed incarnation do not count, although its tasks may take a moment to end.

use std::collections::BTreeMap;
use std::sync::Arc;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::processor::StopReason;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;

use super::incarnations::{LastOfKey, Session};
use super::timeline::TimelineEvent;
use super::{State, index_of};
use crate::history::Delivery;
use crate::sim::invariant::Invariant;

impl State {
    pub(super) fn handler_started(&mut self, incarnation: usize, partition: &PartitionId, epoch: Option<i64>) {
        if !self.incarnations[incarnation].alive {
            return;
        }
        let partition = index_of(partition);
        self.trace(incarnation, "started", partition, 0);
        let Some(book) = self.partitions.get_mut(partition) else { return };
        let adopted = book.adopted_by.take_if(|adopter| *adopter == incarnation);
        let put_to = book.put_to.filter(|_| adopted.is_some());
        let since = book.history.started();
        let verdict = epoch.map(|epoch| book.epochs.processes(epoch));
        let delivery = put_to.map_or_else(Delivery::default, |number| Delivery::beginning_with(number + 1));
        let session = Session { since, epoch, busy: false, delivery, keys: BTreeMap::new() };
        let before = self.incarnations[incarnation].sessions.insert(partition, session);
        let name = self.name_of(incarnation);
        self.check(Invariant::OneHandler, before.is_none(), || format!("{name} started partition {partition} twice"));
        if let Some(verdict) = verdict {
            self.judged(incarnation, partition, verdict);
        }
        if self.incarnations[incarnation].crate_processor {
            self.group_begins();
            let step = self.partitions[partition].records.started(&incarnation);
            self.must_be_explored(incarnation, partition, step);
            self.must_not_be_paused(incarnation, partition, epoch);
        }
        self.record(incarnation, TimelineEvent::HandlerStarted { partition });
    }

    /// The first handler of this crate has started. From here on a start at the latest event skips no event of any
    /// partition.
    fn group_begins(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.partitions.iter_mut().for_each(|book| book.begun_at = Some(book.history.end() - 1));
        }
    }

    pub(super) fn handler_begins(&mut self, incarnation: usize, partition: usize, events: &[MemoryEvent]) -> u64 {
        if !self.incarnations[incarnation].alive {
            return 0;
        }
        self.trace(incarnation, "begins", partition, events.first().map_or(-1, |event| event.sequence_number));
        let name = self.name_of(incarnation);
        let session = self.incarnations[incarnation].sessions.get_mut(&partition);
        let (free, since) = session.as_ref().map_or((false, 0), |session| (!session.busy, session.since));
        if let Some(session) = session {
            session.busy = true;
        }
        self.check(Invariant::OneHandler, free, || format!("{name} handles partition {partition} twice at once"));
        if self.incarnations[incarnation].crate_processor {
            self.must_follow(incarnation, partition, events);
        }
        since
    }

    /// Events of a deleted hub follow no other events, and no other events follow them.
    fn must_follow(&mut self, incarnation: usize, partition: usize, events: &[MemoryEvent]) {
        let oldest = self.partitions.get(partition).map_or(0, |book| book.history.oldest());
        for event in events {
            let is_current = *event.body == *self.generation.as_bytes();
            let Some(session) = self.incarnations[incarnation].sessions.get_mut(&partition) else { return };
            if !is_current {
                session.delivery.restart();
                continue;
            }
            let number = event.sequence_number;
            if let Some(verdict) = session.delivery.follows(number, number, oldest) {
                self.judged(incarnation, partition, verdict);
            }
        }
    }

    /// The handler returned, with any result.
    pub(super) fn handler_returns(&mut self, incarnation: usize, partition: usize, since: u64) {
        let session = self.incarnations[incarnation].sessions.get_mut(&partition);
        if let Some(session) = session.filter(|session| session.since == since) {
            session.busy = false;
        }
    }

    /// An event that is tried again begins again.
    pub(super) fn event_begins(
        &mut self,
        incarnation: usize,
        partition: usize,
        event: &MemoryEvent,
        key: Option<i64>,
    ) -> u64 {
        if !self.incarnations[incarnation].alive {
            return 0;
        }
        let number = event.sequence_number;
        let name = self.name_of(incarnation);
        let session = self.incarnations[incarnation].sessions.get_mut(&partition);
        let Some(session) = session else {
            self.check(Invariant::KeyOrder, false, || {
                format!("{name} begins event {number} of partition {partition}, which has stopped")
            });
            return 0;
        };
        let since = session.since;
        let begun = LastOfKey { number, runs: true, done: false };
        let before = key.and_then(|key| session.keys.insert(key, begun));
        let in_order = before
            .is_none_or(|before| !before.runs && (before.number < number || (before.number == number && !before.done)));
        self.check(Invariant::KeyOrder, in_order, || {
            format!("{name} begins event {number} of partition {partition} out of order: the last one of its key is {before:?}")
        });
        since
    }

    pub(super) fn event_ends(&mut self, incarnation: usize, partition: usize, since: u64, key: Option<i64>) {
        let session = self.incarnations[incarnation].sessions.get_mut(&partition);
        if let Some(session) = session.filter(|session| session.since == since)
            && let Some(last) = key.and_then(|key| session.keys.get_mut(&key))
        {
            last.runs = false;
        }
    }

    pub(super) fn event_done(&mut self, incarnation: usize, partition: usize, key: Option<i64>) {
        let session = self.incarnations[incarnation].sessions.get_mut(&partition);
        if let Some(last) = session.zip(key).and_then(|(session, key)| session.keys.get_mut(&key)) {
            last.done = true;
        }
    }

    pub(super) fn handled(&mut self, incarnation: usize, partition: usize, since: u64, events: &[MemoryEvent]) {
        let Some(last) = events.last() else { return };
        self.trace(incarnation, "handled", partition, last.sequence_number);
        let Some(book) = self.partitions.get_mut(partition) else { return };
        let generation = &self.generation;
        for event in events.iter().filter(|event| *event.body == *generation.as_bytes()) {
            let number = event.sequence_number;
            self.totals.handled += 1;
            self.totals.repeated += book.history.processed(Some(since), number, number);
        }
    }

    /// The application has committed the results of these events. Also counts for incarnations that have ended: what is
    /// committed stays.
    pub(super) fn counted(&mut self, incarnation: usize, partition: usize, events: &[MemoryEvent]) {
        let name = self.name_of(incarnation);
        for event in events {
            let Some(book) = self.partitions.get_mut(partition) else { return };
            let (body, number) = (Arc::clone(&event.body), event.sequence_number);
            let before = book.counted.replace((Arc::clone(&body), number));
            let again = before.is_some_and(|(of, last)| of == body && number <= last);
            self.check(Invariant::CountedOnce, !again, || {
                format!("{name} counts event {number} of partition {partition} again")
            });
        }
    }

    /// Between the recreation of the hub and its detection, an instance may count events of the new hub in the order of
    /// the old one. They come again once the application has moved its position.
    pub(super) fn position_moved(&mut self, partition: usize) {
        if let Some(book) = self.partitions.get_mut(partition) {
            book.counted = None;
        }
    }

    pub(super) fn handler_stopped(&mut self, incarnation: usize, partition: &PartitionId, reason: &StopReason) {
        if !self.incarnations[incarnation].alive {
            return;
        }
        let partition = index_of(partition);
        self.trace(incarnation, "stopped", partition, 0);
        self.note(format!("{} partition {partition}: {reason:?}", self.name_of(incarnation)));
        let name = self.name_of(incarnation);
        let session = self.incarnations[incarnation].sessions.remove(&partition);
        self.partitions[partition].records.stopped(&incarnation);
        self.check(Invariant::OneHandler, session.is_some(), || format!("{name} stopped partition {partition} twice"));
        self.record(incarnation, TimelineEvent::HandlerStopped { partition });
        let Some(session) = session.filter(|_| matches!(reason, StopReason::OwnershipLost { .. })) else { return };
        let book = &self.partitions[partition];
        // An instance with strict leases gives a partition up that the record still names as its own, and may claim it
        // again before its handler has stopped.
        let was_claimed_again = session.epoch.is_some_and(|epoch| book.epochs.has_later(epoch));
        if !self.incarnations[incarnation].stale_view && !was_claimed_again {
            let verdict = book.history.lost_by(&incarnation, session.since);
            self.judged(incarnation, partition, verdict);
        }
    }
}
