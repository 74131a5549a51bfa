//! What the application does instead of handling events, on request.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;

use crate::feature::SECOND;

/// What a call for a partition does instead of handling its batch or its event.
///
/// An application that processes single events tries an event again in its place. So a failure that is meant for the
/// partition comes back at each attempt, until the partition starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehavior {
    Fail,
    Panic,
    /// The call fails, and retention deletes all events of the partition.
    FailAndExpire,
    Hang(Duration),
    /// So many attempts at a single event fail, on all instances together.
    FailAttempts(u32),
    /// No attempt at a single event can succeed.
    Bad,
}

/// The misbehaviors of the next calls, in order. Clones share the queue.
#[derive(Clone, Default)]
pub struct Misbehaviors(Arc<Mutex<State>>);

/// The partition, the body and the sequence number: a recreated hub has other bodies.
type EventId = (u32, Arc<[u8]>, i64);

#[derive(Default)]
struct State {
    due: VecDeque<(u32, Misbehavior)>,
    /// What each single event does, and the session in which that began.
    marked: HashMap<EventId, (Misbehavior, usize)>,
}

impl State {
    fn take(&mut self, partition: u32) -> Option<Misbehavior> {
        let next = self.due.iter().position(|(of, _)| *of == partition)?;
        self.due.remove(next).map(|(_, misbehavior)| misbehavior)
    }
}

fn id(partition: u32, event: &MemoryEvent) -> EventId {
    (partition, Arc::clone(&event.body), event.sequence_number)
}

impl Misbehaviors {
    pub fn add(&self, partition: u32, misbehavior: Misbehavior) {
        self.0.lock().unwrap().due.push_back((partition, misbehavior));
    }

    /// Returns the misbehavior of a call for a batch.
    pub fn take(&self, partition: u32) -> Option<Misbehavior> {
        self.0.lock().unwrap().take(partition)
    }

    /// Returns the misbehavior of an attempt at a single event.
    pub fn of_attempt(&self, partition: u32, event: &MemoryEvent, session: usize) -> Option<Misbehavior> {
        let mut state = self.0.lock().unwrap();
        let id = id(partition, event);
        if !state.marked.contains_key(&id) {
            let next = state.take(partition)?;
            state.marked.insert(id.clone(), (next, session));
        }
        let (misbehavior, since) = state.marked.get_mut(&id)?;
        let now = *misbehavior;
        match misbehavior {
            Misbehavior::FailAttempts(0) => None,
            Misbehavior::FailAttempts(left) => {
                *left -= 1;
                Some(now)
            }
            Misbehavior::Hang(_) => {
                *misbehavior = Misbehavior::FailAttempts(0);
                Some(now)
            }
            Misbehavior::FailAndExpire => {
                *misbehavior = Misbehavior::Fail;
                Some(now)
            }
            Misbehavior::Fail | Misbehavior::Panic => (*since == session).then_some(now),
            Misbehavior::Bad => Some(now),
        }
    }

    /// Returns whether attempts at this event have failed on request.
    pub fn is_marked(&self, partition: u32, event: &MemoryEvent) -> bool {
        self.0.lock().unwrap().marked.contains_key(&id(partition, event))
    }

    /// Returns whether the partition is to fail at this event: then the sink of dead letters fails, too.
    pub fn is_meant_for_partition(&self, partition: u32, event: &MemoryEvent, session: usize) -> bool {
        let state = self.0.lock().unwrap();
        let marked = state.marked.get(&id(partition, event));
        marked.is_some_and(|(misbehavior, since)| {
            matches!(misbehavior, Misbehavior::Fail | Misbehavior::Panic) && *since == session
        })
    }

    /// Waits until all requested misbehaviors have happened.
    pub async fn done(&self) {
        while !self.0.lock().unwrap().due.is_empty() {
            sleep(SECOND).await;
        }
    }
}
