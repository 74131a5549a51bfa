//! The rules of single events, for random histories: the queue decides which event begins, and the tracker how far the
//! checkpoint may advance, while events finish in any order, fail once or for good, and the partition stops, is lost,
//! or crashes. What drives both is the code of `concurrent.rs` without its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::queue::{EventQueue, Queued};
use crate::processor::checkpoints::tracker::Tracker;

const EVENTS: i64 = 30;
const RETRY_WAIT: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
enum Input {
    Deliver {
        events: i64,
    },
    /// An event that runs ends.
    End {
        which: usize,
        how: End,
    },
    PassTime {
        millis: u64,
    },
    /// The position becomes durable.
    WriteCheckpoint,
    Stop,
    Lose,
    Crash,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Finished,
    TriedAgain,
    FailedForGood,
}

/// Reads an input from random numbers: a strategy for each would take most of the time.
fn read_input(kind: u8, value: u8) -> Input {
    match kind % 44 {
        0..8 => Input::Deliver { events: i64::from(value % 11) + 1 },
        8..32 => Input::End {
            which: usize::from(value) / 17,
            how: match value % 17 {
                0..12 => End::Finished,
                12..16 => End::TriedAgain,
                _ => End::FailedForGood,
            },
        },
        32..36 => Input::PassTime { millis: u64::from(value % 50) },
        36..40 => Input::WriteCheckpoint,
        40..42 => Input::Stop,
        42 => Input::Lose,
        _ => Input::Crash,
    }
}

/// How many events run at once, the key of each event, and what happens. One event out of five has no key.
fn history() -> impl Strategy<Value = History> {
    let keys = prop::collection::vec(any::<u8>(), usize::try_from(EVENTS).unwrap());
    let inputs = prop::collection::vec(any::<(u8, u8)>(), 0..80);
    (1usize..6, keys, inputs).prop_map(|(places, keys, inputs)| {
        let keys = keys.into_iter().map(|key| Some(u64::from(key % 5)).filter(|key| *key < 4));
        let inputs = inputs.into_iter().map(|(kind, value)| read_input(kind, value));
        History::run(places, keys.collect(), inputs.collect())
    })
}

/// What one start of the partition showed, from its first event on.
#[derive(Debug, Default)]
struct Record {
    first: i64,
    steps: Vec<Step>,
    /// It was stopped, and no event failed then.
    is_clean: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begun(i64),
    Failed(i64),
    Finished(i64),
    /// The checkpoint may advance to this event.
    Reached(i64),
}

impl Record {
    /// Returns the events that were finished within the first steps.
    fn finished_within(&self, steps: usize) -> BTreeSet<i64> {
        let finished = self.steps[..steps].iter().filter_map(|step| match step {
            Step::Finished(number) => Some(*number),
            _ => None,
        });
        finished.collect()
    }

    fn last_reached(&self) -> i64 {
        let mut reached = self.steps.iter().filter_map(|step| match step {
            Step::Reached(number) => Some(*number),
            _ => None,
        });
        reached.next_back().unwrap_or(self.first - 1)
    }
}

/// All starts of a partition, one after another. The last one processes all that is left.
#[derive(Debug)]
struct History {
    places: usize,
    keys: Vec<Option<u64>>,
    starts: Vec<Record>,
}

/// One start of the partition.
struct Session {
    queue: EventQueue<i64>,
    tracker: Tracker,
    running: Vec<Queued<i64>>,
    next: i64,
    last_begun: Option<i64>,
    has_failed: bool,
    is_lost: bool,
    record: Record,
}

impl Session {
    fn start(places: usize, checkpoint: i64) -> Self {
        Self {
            queue: EventQueue::new(places),
            tracker: Tracker::new(Some(checkpoint)),
            running: Vec::new(),
            next: checkpoint + 1,
            last_begun: None,
            has_failed: false,
            is_lost: false,
            record: Record { first: checkpoint + 1, ..Record::default() },
        }
    }

    fn deliver(&mut self, events: i64, keys: &[Option<u64>]) {
        if self.queue.is_draining() {
            return;
        }
        let batch = self.next..EVENTS.min(self.next + events);
        self.next = batch.end.max(self.next);
        self.tracker.begin_batch(batch.clone());
        for number in batch {
            assert!(self.tracker.track_event(number));
            assert_eq!(self.queue.add_event(keys[usize::try_from(number).unwrap()], number), None);
        }
        assert_eq!(self.tracker.end_batch(), None);
    }

    fn begin_all(&mut self, now: Instant) {
        while let Some(queued) = self.queue.begin_next(now) {
            self.last_begun = self.last_begun.max(Some(queued.item));
            self.record.steps.push(Step::Begun(queued.item));
            self.running.push(queued);
        }
    }

    fn end(&mut self, which: usize, how: End, now: Instant) {
        if self.running.is_empty() {
            return;
        }
        let ended = self.running.remove(which % self.running.len());
        match how {
            End::Finished => {
                self.record.steps.push(Step::Finished(ended.item));
                let reached = self.tracker.finish_token(ended.item, "").map(|reached| reached.sequence_number);
                self.record.steps.extend(reached.map(Step::Reached));
                self.queue.finish_event(ended.key);
            }
            End::TriedAgain if !self.queue.is_draining() => {
                self.record.steps.push(Step::Failed(ended.item));
                self.queue.retry_at(now + RETRY_WAIT, ended);
            }
            End::TriedAgain | End::FailedForGood => {
                self.record.steps.push(Step::Failed(ended.item));
                self.has_failed = true;
                self.queue.fail_event();
            }
        }
    }

    fn stop(&mut self) {
        if !self.queue.is_draining() {
            let last_begun = self.last_begun;
            self.queue.drain_all_but(|number| Some(*number) < last_begun);
        }
    }

    fn lose(&mut self) {
        self.is_lost = true;
        self.queue.drain_all_but(|_| false);
    }

    fn has_ended(&self) -> bool {
        self.running.is_empty() && (self.has_failed || self.queue.is_draining())
    }
}

impl History {
    fn run(places: usize, keys: Vec<Option<u64>>, inputs: Vec<Input>) -> Self {
        let mut history = Self { places, keys, starts: Vec::new() };
        let mut now = Instant::now();
        let (mut checkpoint, mut session) = (-1, Session::start(places, -1));
        for input in inputs {
            match input {
                Input::Deliver { events } => session.deliver(events, &history.keys),
                Input::End { which, how } => session.end(which, how, now),
                Input::PassTime { millis } => now += Duration::from_millis(millis),
                Input::WriteCheckpoint => checkpoint = session.record.last_reached(),
                Input::Stop => session.stop(),
                Input::Lose => session.lose(),
                Input::Crash => session = history.start_again(session, checkpoint),
            }
            session.begin_all(now);
            if session.has_ended() {
                session.record.is_clean = !session.has_failed && !session.is_lost;
                checkpoint = session.record.last_reached();
                session = history.start_again(session, checkpoint);
            }
        }
        let mut rest = history.start_again(session, checkpoint);
        rest.deliver(EVENTS, &history.keys);
        rest.begin_all(now);
        while !rest.running.is_empty() {
            rest.end(0, End::Finished, now);
            rest.begin_all(now);
        }
        history.starts.push(rest.record);
        history
    }

    fn start_again(&mut self, session: Session, checkpoint: i64) -> Session {
        self.starts.push(session.record);
        Session::start(self.places, checkpoint)
    }
}

/// A rule that each start of a partition keeps.
type Rule = fn(&Record, &[Option<u64>]) -> bool;

const RULES: [(&str, Rule); 4] = [
    ("events of a key begin when those before them are finished", keeps_order),
    ("the checkpoint passes no unfinished event, and advances as far as it may", keeps_checkpoint),
    ("an event is delivered once, and once more after each failure", delivers_once),
    ("a stop in which no event fails leaves nothing behind the checkpoint", stops_cleanly),
];

fn keeps_order(record: &Record, keys: &[Option<u64>]) -> bool {
    let key_of = |number: i64| keys[usize::try_from(number).unwrap()];
    record.steps.iter().enumerate().all(|(index, step)| {
        let Step::Begun(number) = *step else { return true };
        let Some(key) = key_of(number) else { return true };
        let finished = record.finished_within(index);
        (record.first..number).all(|before| key_of(before) != Some(key) || finished.contains(&before))
    })
}

fn keeps_checkpoint(record: &Record, _: &[Option<u64>]) -> bool {
    let mut finished = BTreeSet::new();
    let mut reached = record.first - 1;
    record.steps.iter().all(|step| {
        // A step is followed by the position that it has reached.
        let is_right = matches!(step, Step::Reached(_)) || !finished.contains(&(reached + 1));
        match *step {
            Step::Finished(number) => drop(finished.insert(number)),
            Step::Reached(number) => reached = number,
            Step::Begun(_) | Step::Failed(_) => {}
        }
        is_right && (record.first..=reached).all(|number| finished.contains(&number))
    })
}

fn delivers_once(record: &Record, _: &[Option<u64>]) -> bool {
    let mut last: BTreeMap<i64, Step> = BTreeMap::new();
    record.steps.iter().all(|step| {
        let (Step::Begun(number) | Step::Failed(number) | Step::Finished(number)) = *step else { return true };
        let before = last.insert(number, *step);
        !matches!(step, Step::Begun(_)) || matches!(before, None | Some(Step::Failed(_)))
    })
}

fn stops_cleanly(record: &Record, _: &[Option<u64>]) -> bool {
    let last_finished = record.finished_within(record.steps.len()).last().copied();
    !record.is_clean || last_finished <= Some(record.last_reached())
}

#[test]
fn a_broken_rule_is_found() {
    use Step::{Begun, Failed, Finished, Reached};
    let broken_by = |steps: &[Step]| {
        let record = Record { first: 0, steps: steps.to_vec(), is_clean: true };
        let keys = [Some(1), Some(2), Some(1)];
        let broken: Vec<_> = (0..).zip(RULES).filter(|(_, (_, keeps))| !keeps(&record, &keys)).collect();
        broken.into_iter().map(|(index, _)| index).collect::<Vec<i32>>()
    };
    let none: [i32; 0] = [];
    assert_eq!(broken_by(&[Begun(0), Failed(0), Begun(0), Finished(0), Reached(0), Begun(2)]), none);
    assert_eq!(broken_by(&[Begun(0), Begun(2)]), [0]);
    assert_eq!(broken_by(&[Begun(0), Begun(1), Finished(0), Reached(1)]), [1], "too far");
    assert_eq!(broken_by(&[Begun(0), Finished(0), Begun(1)]), [1, 3], "not far enough");
    assert_eq!(broken_by(&[Begun(0), Begun(0)]), [2]);
    assert_eq!(broken_by(&[Begun(0), Finished(0), Reached(0), Begun(0)]), [2]);
    assert_eq!(broken_by(&[Begun(0), Begun(1), Finished(1)]), [3]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]

    /// No event is lost, either.
    #[test]
    fn no_history_breaks_a_rule(history in history()) {
        for record in &history.starts {
            for (rule, keeps) in RULES {
                prop_assert!(keeps(record, &history.keys), "{} is broken: {:?}", rule, record);
            }
        }
        let mut ends = history.starts.iter().map(|record| record.last_reached() + 1);
        prop_assert!(ends.clone().zip(history.starts.iter().skip(1)).all(|(end, next)| next.first <= end));
        prop_assert_eq!(ends.next_back(), Some(EVENTS));
    }
}
