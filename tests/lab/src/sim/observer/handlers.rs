//! What handlers do. What a life that has died does until its tasks are gone does not count.

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::processor::StopReason;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;

use super::lives::Session;
use super::timeline::Mark;
use super::{State, index_of};
use crate::history::Delivery;
use crate::sim::invariant::Invariant;

impl State {
    pub(super) fn handler_started(&mut self, life: usize, partition: &PartitionId, epoch: Option<i64>) {
        if !self.lives[life].alive {
            return;
        }
        let partition = index_of(partition);
        self.saw(life, "started", partition, 0);
        let Some(book) = self.partitions.get_mut(partition) else { return };
        let adopted = book.adopted_by.take_if(|adopter| *adopter == life);
        let put_to = book.put_to.filter(|_| adopted.is_some());
        let since = book.history.started();
        let verdict = epoch.map(|epoch| book.epochs.processes(epoch));
        let delivery = put_to.map_or_else(Delivery::default, |number| Delivery::beginning_with(number + 1));
        let session = Session { since, busy: false, delivery };
        let before = self.lives[life].sessions.insert(partition, session);
        let name = self.name_of(life);
        self.check(Invariant::OneHandler, before.is_none(), || format!("{name} started partition {partition} twice"));
        if let Some(verdict) = verdict {
            self.judged(life, partition, verdict);
        }
        if self.lives[life].ours {
            self.group_begins();
        }
        self.mark(life, Mark::HandlerStarted { partition });
    }

    /// With the first handler of ours: from here on a start at the latest leaves nothing out, of no partition.
    fn group_begins(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.partitions.iter_mut().for_each(|book| book.begun_at = Some(book.history.end() - 1));
        }
    }

    pub(super) fn handler_begins(&mut self, life: usize, partition: usize, events: &[MemoryEvent]) -> u64 {
        if !self.lives[life].alive {
            return 0;
        }
        self.saw(life, "begins", partition, events.first().map_or(-1, |event| event.sequence_number));
        let name = self.name_of(life);
        let session = self.lives[life].sessions.get_mut(&partition);
        let (free, since) = session.as_ref().map_or((false, 0), |session| (!session.busy, session.since));
        if let Some(session) = session {
            session.busy = true;
        }
        self.check(Invariant::OneHandler, free, || format!("{name} handles partition {partition} twice at once"));
        if self.lives[life].ours {
            self.must_follow(life, partition, events);
        }
        since
    }

    /// Events of a hub that is gone follow nothing, and nothing follows them.
    fn must_follow(&mut self, life: usize, partition: usize, events: &[MemoryEvent]) {
        let oldest = self.partitions.get(partition).map_or(0, |book| book.history.oldest());
        for event in events {
            let is_current = *event.body == *self.generation;
            let Some(session) = self.lives[life].sessions.get_mut(&partition) else { return };
            if !is_current {
                session.delivery.restart();
                continue;
            }
            let number = event.sequence_number;
            if let Some(verdict) = session.delivery.follows(number, number, oldest) {
                self.judged(life, partition, verdict);
            }
        }
    }

    /// The batch was given back, whatever became of it.
    pub(super) fn handler_returns(&mut self, life: usize, partition: usize, since: u64) {
        let session = self.lives[life].sessions.get_mut(&partition);
        if let Some(session) = session.filter(|session| session.since == since) {
            session.busy = false;
        }
    }

    pub(super) fn handled(&mut self, life: usize, partition: usize, since: u64, events: &[MemoryEvent]) {
        let Some(last) = events.last() else { return };
        self.saw(life, "handled", partition, last.sequence_number);
        let Some(book) = self.partitions.get_mut(partition) else { return };
        let generation = &self.generation;
        for event in events.iter().filter(|event| *event.body == **generation) {
            let number = event.sequence_number;
            self.totals.handled += 1;
            self.totals.repeated += book.history.processed(Some(since), number, number);
        }
    }

    pub(super) fn handler_stopped(&mut self, life: usize, partition: &PartitionId, reason: &StopReason) {
        if !self.lives[life].alive {
            return;
        }
        let partition = index_of(partition);
        self.saw(life, "stopped", partition, 0);
        self.note(format!("{} partition {partition}: {reason:?}", self.name_of(life)));
        let name = self.name_of(life);
        let session = self.lives[life].sessions.remove(&partition);
        self.check(Invariant::OneHandler, session.is_some(), || format!("{name} stopped partition {partition} twice"));
        self.mark(life, Mark::HandlerStopped { partition });
        let Some(session) = session.filter(|_| matches!(reason, StopReason::OwnershipLost { .. })) else { return };
        if !self.lives[life].misled {
            let verdict = self.partitions[partition].history.lost_by(&life, session.since);
            self.judged(life, partition, verdict);
        }
    }
}
