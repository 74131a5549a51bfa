//! Records what the application and the storage observe, and checks the guarantees.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::Instant;

use crate::application::number_of;
use crate::feature::Allowed;
use crate::lanes::Lanes;
use crate::single_events::Order;

/// More violations add no information.
const MAX_VIOLATIONS: usize = 8;

struct Event {
    published: Instant,
    /// The event must be handled from this time on.
    due: Instant,
    handled: u32,
}

#[derive(Default)]
struct Partition {
    /// The events of the current hub, by sequence number.
    events: Vec<Event>,
    /// All events before this one have expired.
    first: i64,
    /// The start position excludes the events up to this one.
    start: i64,
    /// A policy skips the events up to this one.
    skipped: i64,
    /// All events up to this one are handled or excluded. Never decreases.
    prefix: i64,
    checkpoint: Option<i64>,
    /// The checkpoint belongs to the previous hub.
    stale: bool,
    /// The checkpoint is no longer usable.
    invalidated: bool,
    /// The last incarnation that adopted the checkpoint and whose handler has not started since. Until its handler
    /// starts, it may replace a checkpoint that is no longer usable.
    adopted_by: Option<usize>,
    sessions: BTreeSet<usize>,
    no_handler_since: Option<Instant>,
    /// An operator has paused the partition.
    paused_since: Option<Instant>,
    repeats: u32,
}

impl Partition {
    fn end(&self) -> i64 {
        i64::try_from(self.events.len()).unwrap()
    }

    fn excluded(&self) -> i64 {
        (self.first - 1).max(self.start).max(self.skipped)
    }

    fn event(&mut self, number: i64) -> Option<&mut Event> {
        self.events.get_mut(usize::try_from(number).ok()?)
    }

    fn prefix(&mut self) -> i64 {
        self.prefix = self.prefix.max(self.excluded());
        while usize::try_from(self.prefix + 1).is_ok_and(|next| self.events.get(next).is_some_and(|e| e.handled > 0)) {
            self.prefix += 1;
        }
        self.prefix
    }
}

/// From the start of a handler to its stop.
struct Session {
    incarnation: usize,
    partition: usize,
    generation: u32,
    last: Option<i64>,
    /// The order of single events.
    lanes: Lanes,
    over: bool,
}

pub struct State {
    started: Instant,
    allowed: Allowed,
    invalid_to_latest: bool,
    pub generation: u32,
    partitions: Vec<Partition>,
    /// Whether each incarnation is running.
    incarnations: Vec<bool>,
    sessions: Vec<Session>,
    violations: Vec<String>,
}

/// Clones share the state.
#[derive(Clone)]
pub struct Ledger(Arc<Mutex<State>>);

impl Ledger {
    pub fn new(partitions: u32, allowed: Allowed, invalid_to_latest: bool) -> Self {
        let partition = |_| Partition { start: -1, skipped: -1, prefix: -1, ..Partition::default() };
        Self(Arc::new(Mutex::new(State {
            started: Instant::now(),
            allowed,
            invalid_to_latest,
            generation: 0,
            partitions: (0..partitions).map(partition).collect(),
            incarnations: Vec::new(),
            sessions: Vec::new(),
            violations: Vec::new(),
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    pub fn add_violation(&mut self, message: &str) {
        if self.violations.len() < MAX_VIOLATIONS {
            let at = self.started.elapsed().as_secs_f64();
            self.violations.push(format!("after {at:.3} s: {message}"));
        }
    }

    fn check(&mut self, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            self.add_violation(&message());
        }
    }

    pub fn end_of(&self, partition: u32) -> i64 {
        self.partitions[partition as usize].end()
    }

    /// Returns the number of the first event that was published after `moment`, or the next number if there is none.
    pub fn first_after(&self, partition: u32, moment: Instant) -> i64 {
        let events = &self.partitions[partition as usize].events;
        i64::try_from(events.partition_point(|event| event.published <= moment)).unwrap()
    }
}

/// The hub.
impl State {
    pub fn published(&mut self, partition: u32, events: usize) {
        let now = Instant::now();
        let event = || Event { published: now, due: now, handled: 0 };
        self.partitions[partition as usize].events.extend(std::iter::repeat_with(event).take(events));
    }

    pub fn set_start(&mut self, partition: u32, number: i64) {
        self.partitions[partition as usize].start = number;
    }

    /// The group starts: from now on, the time without a handler counts.
    pub fn group_started(&mut self) {
        let now = Instant::now();
        for partition in &mut self.partitions {
            partition.no_handler_since = Some(now);
            partition.events.iter_mut().for_each(|event| event.due = now);
        }
    }

    pub fn expired(&mut self, partition: u32) {
        let partition = &mut self.partitions[partition as usize];
        (partition.first, partition.invalidated) = (partition.end(), true);
    }

    pub fn recreated(&mut self) {
        self.generation += 1;
        for partition in &mut self.partitions {
            (partition.stale, partition.invalidated) = (true, true);
            partition.events.clear();
            (partition.first, partition.start, partition.skipped, partition.prefix) = (0, -1, -1, -1);
        }
    }
}

/// The application.
impl State {
    pub fn incarnation_started(&mut self) -> usize {
        self.incarnations.push(true);
        self.incarnations.len() - 1
    }

    /// Calls of this incarnation are ignored from now on.
    pub fn incarnation_ended(&mut self, incarnation: usize) {
        self.incarnations[incarnation] = false;
        for session in 0..self.sessions.len() {
            if self.sessions[session].incarnation == incarnation {
                self.handler_stopped(session);
            }
        }
    }

    pub fn handler_started(&mut self, incarnation: usize, partition: usize) -> usize {
        let generation = self.generation;
        self.sessions.push(Session {
            incarnation,
            partition,
            generation,
            last: None,
            lanes: Lanes::default(),
            over: false,
        });
        let session = self.sessions.len() - 1;
        if self.incarnations[incarnation] {
            let partition = &mut self.partitions[partition];
            partition.adopted_by.take_if(|adopter| *adopter == incarnation);
            partition.sessions.insert(session);
            partition.no_handler_since = None;
            self.check_not_paused(session, "a handler has started");
        }
        session
    }

    pub fn handler_stopped(&mut self, session: usize) {
        if std::mem::replace(&mut self.sessions[session].over, true) {
            return;
        }
        let partition = &mut self.partitions[self.sessions[session].partition];
        partition.sessions.remove(&session);
        if partition.sessions.is_empty() {
            partition.no_handler_since = Some(Instant::now());
        }
    }

    /// Checks that sequence numbers within one session have no gap except for expired events.
    pub fn delivered(&mut self, session: usize, events: &[MemoryEvent]) {
        let Session { incarnation, partition, .. } = self.sessions[session];
        if !self.incarnations[incarnation] {
            return;
        }
        self.check_not_paused(session, "events were delivered");
        let (first, start, generation) =
            (self.partitions[partition].first, self.partitions[partition].start, self.generation);
        for event in events {
            let (number, of) = (event.sequence_number, event.text().unwrap().parse().unwrap());
            let entry = &mut self.sessions[session];
            let before = entry.last.filter(|_| entry.generation == of);
            (entry.last, entry.generation) = (Some(number), of);
            if of != generation {
                continue;
            }
            if let Some(before) = before {
                self.check(number == before + 1 || (number > before && number <= first), || {
                    format!("within one session event {number} of partition {partition} came after event {before}")
                });
            }
            let allowed = number > start || self.allowed.before_start;
            self.check(allowed, || {
                format!("event {number} of partition {partition} is not after the start position {start}")
            });
        }
    }

    /// Checks an attempt at a single event: its order within the session, and that the session has it.
    pub fn begun(&mut self, session: usize, event: &MemoryEvent, order: Order) {
        let Session { incarnation, partition, over, .. } = self.sessions[session];
        if !self.incarnations[incarnation] {
            return;
        }
        let (number, generation) = (event.sequence_number, event.text().unwrap().parse().unwrap());
        self.check(!over, || format!("event {number} of partition {partition} began after the stop of its session"));
        self.check_not_paused(session, "an event was processed");
        let Partition { first, start, .. } = self.partitions[partition];
        let is_current = generation == self.generation;
        // What has expired in a hub that is gone is not known.
        let first = if is_current { first } else { i64::MAX };
        if let Some(wrong) = self.sessions[session].lanes.begin(order, generation, number, first) {
            self.add_violation(&format!("partition {partition}: {wrong}"));
        }
        self.check(!is_current || number > start || self.allowed.before_start, || {
            format!("event {number} of partition {partition} is not after the start position {start}")
        });
    }

    /// Records a failed attempt at a single event.
    pub fn failed(&mut self, session: usize, event: &MemoryEvent, order: Order) {
        self.sessions[session].lanes.fail(order, event.sequence_number);
    }

    /// Records that a single event is processed, or moved to the dead letters.
    pub fn finished(&mut self, session: usize, event: &MemoryEvent, order: Order) {
        self.sessions[session].lanes.finish(order, event.sequence_number);
        self.handled(session, std::slice::from_ref(event));
    }

    fn check_not_paused(&mut self, session: usize, what: &str) {
        let (partition, limit) = (self.sessions[session].partition, self.allowed.pause_detection);
        let paused = self.partitions[partition].paused_since.map(|since| since.elapsed());
        self.check(paused.is_none_or(|time| time <= limit), || {
            format!("{what}, although an operator has paused partition {partition} for {paused:?}")
        });
    }

    pub fn handled(&mut self, session: usize, events: &[MemoryEvent]) {
        let Session { incarnation, partition, .. } = self.sessions[session];
        if !self.incarnations[incarnation] {
            return;
        }
        let generation = self.generation;
        for event in events.iter().filter(|event| event.text().unwrap().parse() == Ok(generation)) {
            let number = event.sequence_number;
            let entry = &mut self.partitions[partition];
            let Some(event) = entry.event(number) else { continue };
            event.handled += 1;
            let again = event.handled > 1;
            entry.repeats += u32::from(again);
            self.check(!again || self.allowed.repeats, || {
                format!("event {number} of partition {partition} was handled more than once")
            });
        }
    }
}

/// The operator.
impl State {
    pub fn paused(&mut self, partition: &PartitionId) {
        self.partitions[number_of(partition) as usize].paused_since = Some(Instant::now());
    }

    pub fn resumed(&mut self, partition: &PartitionId) {
        self.partitions[number_of(partition) as usize].paused_since = None;
    }
}

/// The storage.
impl State {
    /// Records a checkpoint that the container accepted.
    pub fn checkpoint(&mut self, incarnation: usize, partition: usize, record: &Metadata) {
        let number = record.get("sequencenumber").and_then(|number| number.parse().ok()).unwrap_or(-1);
        let Some(entry) = self.partitions.get_mut(partition) else { return };
        let before = entry.checkpoint.replace(number);
        let adopts = before.is_none_or(|before| before == number);
        let replaces = !adopts && entry.adopted_by == Some(incarnation);
        if adopts {
            entry.adopted_by = Some(incarnation);
        }
        if replaces && self.invalid_to_latest && entry.invalidated {
            entry.skipped = entry.skipped.max(number);
        }
        let handled = entry.prefix();
        entry.stale &= number > handled;
        let stale = entry.stale;
        entry.invalidated &= !replaces;
        self.check(stale || number <= handled, || {
            format!("the checkpoint of partition {partition} is {number}, but events are handled only up to {handled}")
        });
        self.check(stale || replaces || before.is_none_or(|before| before <= number), || {
            format!("the checkpoint of partition {partition} went back from {before:?} to {number}")
        });
    }
}

/// The checks.
impl State {
    /// Reports partitions without a handler and events that wait longer than allowed.
    pub fn check_deadlines(&mut self) {
        let Allowed { no_handler, delay, .. } = self.allowed;
        for index in 0..self.partitions.len() {
            let entry = &mut self.partitions[index];
            if let Some(since) = entry.no_handler_since.filter(|since| since.elapsed() > no_handler) {
                entry.no_handler_since = None;
                self.add_violation(&format!(
                    "partition {index} has had no handler for {:?}, longer than {no_handler:?}",
                    since.elapsed()
                ));
            }
            let entry = &mut self.partitions[index];
            let next = entry.prefix() + 1;
            if let Some(waits) = entry.event(next).map(|event| event.due.elapsed()).filter(|waits| *waits > delay) {
                entry.skipped = entry.end() - 1;
                self.add_violation(&format!(
                    "event {next} of partition {index} has waited for {waits:?}, longer than {delay:?}"
                ));
            }
        }
    }

    /// Returns how many partitions each running incarnation handles, or why the group is not settled.
    pub fn shares(&self) -> Result<Vec<usize>, String> {
        let mut shares = vec![0; self.incarnations.len()];
        for (index, entry) in self.partitions.iter().enumerate() {
            let sessions: Vec<_> = entry.sessions.iter().map(|session| self.sessions[*session].incarnation).collect();
            match sessions[..] {
                [incarnation] => shares[incarnation] += 1,
                _ => return Err(format!("partition {index} is handled by {sessions:?}")),
            }
        }
        Ok(shares.into_iter().zip(&self.incarnations).filter(|(_, alive)| **alive).map(|(share, _)| share).collect())
    }

    /// Returns the first partition with an event that is not handled, or not checkpointed if `checkpointed` is set.
    pub fn missing(&mut self, checkpointed: bool) -> Option<String> {
        for (index, entry) in self.partitions.iter_mut().enumerate() {
            let (last, handled) = (entry.end() - 1, entry.prefix());
            if handled < last {
                return Some(format!("partition {index} ends at {last}, but events are handled only up to {handled}"));
            }
            // Excluded events are checkpointed together with the next event, if there is one.
            if checkpointed && last > entry.excluded() && entry.checkpoint != Some(last) {
                return Some(format!("partition {index} ends at {last}, but its checkpoint is {:?}", entry.checkpoint));
            }
        }
        None
    }
}
