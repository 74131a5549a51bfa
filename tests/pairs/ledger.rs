//! What the application and the storage saw, and whether it is as promised.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::Instant;

use crate::feature::Allowed;

/// More of them say nothing new.
const MOST_VIOLATIONS: usize = 8;

struct Event {
    published: Instant,
    /// Since when it is to be handled.
    due: Instant,
    handled: u32,
}

#[derive(Default)]
struct Partition {
    /// Of the hub as it is now, by their numbers.
    events: Vec<Event>,
    /// What is before it has expired.
    first: i64,
    /// The start position leaves out the events up to here.
    start: i64,
    /// A policy leaves out the events up to here.
    skipped: i64,
    /// All events up to here are handled, or left out. Only ever grows.
    prefix: i64,
    checkpoint: Option<i64>,
    /// The checkpoint is of the hub before.
    stale: bool,
    /// The checkpoint is not usable any more.
    invalidated: bool,
    /// The life that adopted it last, and whose handler has not started since: until then it may replace a checkpoint
    /// that is not usable any more.
    adopted_by: Option<usize>,
    sessions: BTreeSet<usize>,
    dark_since: Option<Instant>,
    repeats: u32,
}

impl Partition {
    fn end(&self) -> i64 {
        i64::try_from(self.events.len()).unwrap()
    }

    fn left_out(&self) -> i64 {
        (self.first - 1).max(self.start).max(self.skipped)
    }

    fn event(&mut self, number: i64) -> Option<&mut Event> {
        self.events.get_mut(usize::try_from(number).ok()?)
    }

    fn prefix(&mut self) -> i64 {
        self.prefix = self.prefix.max(self.left_out());
        while usize::try_from(self.prefix + 1).is_ok_and(|next| self.events.get(next).is_some_and(|e| e.handled > 0)) {
            self.prefix += 1;
        }
        self.prefix
    }
}

/// From a start of a handler to its stop.
struct Session {
    life: usize,
    partition: usize,
    generation: u32,
    last: Option<i64>,
    over: bool,
}

pub struct State {
    started: Instant,
    allowed: Allowed,
    invalid_to_latest: bool,
    pub generation: u32,
    partitions: Vec<Partition>,
    /// Whether each is alive.
    lives: Vec<bool>,
    sessions: Vec<Session>,
    violations: Vec<String>,
}

/// Clones are the same.
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
            lives: Vec::new(),
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

    pub fn violated(&mut self, what: &str) {
        if self.violations.len() < MOST_VIOLATIONS {
            let at = self.started.elapsed().as_secs_f64();
            self.violations.push(format!("after {at:.3} s: {what}"));
        }
    }

    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(&what());
        }
    }

    pub fn end_of(&self, partition: u32) -> i64 {
        self.partitions[partition as usize].end()
    }

    /// The number of the first event that was published after this moment, or of the next one.
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

    pub fn starts_after(&mut self, partition: u32, number: i64) {
        self.partitions[partition as usize].start = number;
    }

    /// The group begins: from now on a partition without a handler is dark.
    pub fn begins(&mut self) {
        let now = Instant::now();
        for partition in &mut self.partitions {
            partition.dark_since = Some(now);
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
    pub fn comes_up(&mut self) -> usize {
        self.lives.push(true);
        self.lives.len() - 1
    }

    /// What it does from now on does not count.
    pub fn dies(&mut self, life: usize) {
        self.lives[life] = false;
        for session in 0..self.sessions.len() {
            if self.sessions[session].life == life {
                self.stops(session);
            }
        }
    }

    pub fn starts(&mut self, life: usize, partition: usize) -> usize {
        let generation = self.generation;
        self.sessions.push(Session { life, partition, generation, last: None, over: false });
        let session = self.sessions.len() - 1;
        if self.lives[life] {
            let partition = &mut self.partitions[partition];
            partition.adopted_by.take_if(|adopter| *adopter == life);
            partition.sessions.insert(session);
            partition.dark_since = None;
        }
        session
    }

    pub fn stops(&mut self, session: usize) {
        if std::mem::replace(&mut self.sessions[session].over, true) {
            return;
        }
        let partition = &mut self.partitions[self.sessions[session].partition];
        partition.sessions.remove(&session);
        if partition.sessions.is_empty() {
            partition.dark_since = Some(Instant::now());
        }
    }

    /// Within one start the numbers have no gap that the hub does not show.
    pub fn delivered(&mut self, session: usize, events: &[MemoryEvent]) {
        let Session { life, partition, .. } = self.sessions[session];
        if !self.lives[life] {
            return;
        }
        let (first, start, generation) =
            (self.partitions[partition].first, self.partitions[partition].start, self.generation);
        for event in events {
            let (number, of) = (event.sequence_number, event.body.parse().unwrap());
            let book = &mut self.sessions[session];
            let before = book.last.filter(|_| book.generation == of);
            (book.last, book.generation) = (Some(number), of);
            if of != generation {
                continue;
            }
            if let Some(before) = before {
                self.check(number == before + 1 || (number > before && number <= first), || {
                    format!("within one start event {number} of partition {partition} came after event {before}")
                });
            }
            let allowed = number > start || self.allowed.before_start;
            self.check(allowed, || {
                format!("event {number} of partition {partition} is before the start, after {start}")
            });
        }
    }

    pub fn handled(&mut self, session: usize, events: &[MemoryEvent]) {
        let Session { life, partition, .. } = self.sessions[session];
        if !self.lives[life] {
            return;
        }
        let generation = self.generation;
        for event in events.iter().filter(|event| event.body.parse() == Ok(generation)) {
            let number = event.sequence_number;
            let book = &mut self.partitions[partition];
            let Some(event) = book.event(number) else { continue };
            event.handled += 1;
            let again = event.handled > 1;
            book.repeats += u32::from(again);
            self.check(!again || self.allowed.repeats, || {
                format!("event {number} of partition {partition} was handled again")
            });
        }
    }
}

/// The storage.
impl State {
    /// The container accepted a checkpoint.
    pub fn checkpoint(&mut self, life: usize, partition: usize, record: &Metadata) {
        let number = record.get("sequencenumber").and_then(|number| number.parse().ok()).unwrap_or(-1);
        let Some(book) = self.partitions.get_mut(partition) else { return };
        let before = book.checkpoint.replace(number);
        let adopts = before.is_none_or(|before| before == number);
        let is_replaced = !adopts && book.adopted_by == Some(life);
        if adopts {
            book.adopted_by = Some(life);
        }
        if is_replaced && self.invalid_to_latest && book.invalidated {
            book.skipped = book.skipped.max(number);
        }
        let handled = book.prefix();
        book.stale &= number > handled;
        let stale = book.stale;
        book.invalidated &= !is_replaced;
        self.check(stale || number <= handled, || {
            format!("the checkpoint of partition {partition} is {number}, but events are handled up to {handled} only")
        });
        self.check(stale || is_replaced || before.is_none_or(|before| before <= number), || {
            format!("the checkpoint of partition {partition} went from {before:?} back to {number}")
        });
    }
}

/// The verdicts.
impl State {
    /// Looks whether anything takes too long.
    pub fn look_at_the_time(&mut self) {
        let Allowed { dark, delay, .. } = self.allowed;
        for index in 0..self.partitions.len() {
            let book = &mut self.partitions[index];
            if let Some(since) = book.dark_since.filter(|since| since.elapsed() > dark) {
                book.dark_since = None;
                self.violated(&format!(
                    "partition {index} has had no handler for {:?}, longer than {dark:?}",
                    since.elapsed()
                ));
            }
            let book = &mut self.partitions[index];
            let next = book.prefix() + 1;
            if let Some(waits) = book.event(next).map(|event| event.due.elapsed()).filter(|waits| *waits > delay) {
                book.skipped = book.end() - 1;
                self.violated(&format!("event {next} of partition {index} waits for {waits:?}, longer than {delay:?}"));
            }
        }
    }

    /// How many partitions each life handles; or what is not settled.
    pub fn shares(&self) -> Result<Vec<usize>, String> {
        let mut shares = vec![0; self.lives.len()];
        for (index, book) in self.partitions.iter().enumerate() {
            let sessions: Vec<_> = book.sessions.iter().map(|session| self.sessions[*session].life).collect();
            match sessions[..] {
                [life] => shares[life] += 1,
                _ => return Err(format!("partition {index} is handled by {sessions:?}")),
            }
        }
        Ok(shares.into_iter().zip(&self.lives).filter(|(_, alive)| **alive).map(|(share, _)| share).collect())
    }

    /// What is not handled yet, or not checkpointed.
    pub fn missing(&mut self, checkpointed: bool) -> Option<String> {
        for (index, book) in self.partitions.iter_mut().enumerate() {
            let (last, handled) = (book.end() - 1, book.prefix());
            if handled < last {
                return Some(format!("partition {index} ends at {last}, but events are handled up to {handled} only"));
            }
            // What a start or a policy leaves out is checkpointed together with the next event, where there is one.
            if checkpointed && last > book.left_out() && book.checkpoint != Some(last) {
                return Some(format!("partition {index} ends at {last}, but its checkpoint is {:?}", book.checkpoint));
            }
        }
        None
    }
}
