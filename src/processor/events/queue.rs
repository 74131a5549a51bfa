//! Which event of a partition is processed next, if events are processed one by one: by the order that the application
//! wants, by how many may be processed at once, and by the waits of those that failed.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::time::Instant;

use crate::processor::monitoring::EventCounts;

/// An event on its way through the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Queued<T> {
    /// Events with the same key are processed one after another. `None`: the event waits for no other one.
    pub(super) key: Option<u64>,
    pub(super) item: T,
    /// The number of its current attempt among all attempts of the queue.
    pub(super) attempt: u64,
}

/// The events that were delivered and are not finished.
///
/// A key is *busy* while one of its events is ready, running, or waiting for its next attempt. Its later events stay
/// behind that one. So the events of a key are processed in their order, also if one of them is tried again, and the
/// other keys continue.
///
/// It drops no events, because the application's code may run then: it returns those that it does not keep.
#[derive(Debug)]
pub(super) struct EventQueue<T> {
    places: usize,
    running: usize,
    /// When each attempt that runs began.
    began: BTreeMap<u64, Instant>,
    attempts: u64,
    ready: VecDeque<Queued<T>>,
    /// The busy keys, with the events that wait behind the current one.
    busy: HashMap<u64, VecDeque<T>>,
    /// The events that wait for their next attempt, by its time, and by the order in which they failed.
    retries: BTreeMap<(Instant, u64), Queued<T>>,
    failures: u64,
    /// The last event that began had failed before.
    retried_last: bool,
    is_draining: bool,
}

impl<T> EventQueue<T> {
    /// Creates a queue of which at most so many events run at once.
    pub(super) fn new(places: usize) -> Self {
        Self {
            places,
            running: 0,
            began: BTreeMap::new(),
            attempts: 0,
            ready: VecDeque::new(),
            busy: HashMap::new(),
            retries: BTreeMap::new(),
            failures: 0,
            retried_last: false,
            is_draining: false,
        }
    }

    /// Adds an event after all that were added before. Returns it if the queue accepts no more.
    pub(super) fn add_event(&mut self, key: Option<u64>, item: T) -> Option<T> {
        if self.is_draining {
            return Some(item);
        }
        if let Some(waiting) = key.and_then(|key| self.busy.get_mut(&key)) {
            waiting.push_back(item);
        } else {
            self.busy.extend(key.map(|key| (key, VecDeque::new())));
            self.ready.push_back(Queued { key, item, attempt: 0 });
        }
        None
    }

    /// Takes the next event that may begin now. It runs until [`finish_event`](Self::finish_event) or
    /// [`retry_at`](Self::retry_at) is called for it. Events that are tried again take turns with the others, so that
    /// neither kind can keep all places.
    pub(super) fn begin_next(&mut self, now: Instant) -> Option<Queued<T>> {
        if self.running >= self.places {
            return None;
        }
        let due = self.retries.first_entry().filter(|first| first.key().0 <= now);
        self.retried_last = due.is_some() && (!self.retried_last || self.ready.is_empty());
        let mut next = if self.retried_last { due.map(OccupiedEntry::remove) } else { self.ready.pop_front() }?;
        self.running += 1;
        self.attempts += 1;
        next.attempt = self.attempts;
        self.began.insert(next.attempt, now);
        Some(next)
    }

    /// Records that an attempt is over, whatever its outcome.
    pub(super) fn end_attempt(&mut self, attempt: u64) {
        self.began.remove(&attempt);
    }

    /// Returns when the oldest attempt began that still runs.
    pub(super) fn oldest_attempt(&self) -> Option<Instant> {
        self.began.first_key_value().map(|(_, began)| *began)
    }

    /// Records that the running event of this key is finished: the next one of the key may begin.
    pub(super) fn finish_event(&mut self, key: Option<u64>) {
        self.running -= 1;
        let Some(key) = key else { return };
        match self.busy.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(item) => self.ready.push_back(Queued { key: Some(key), item, attempt: 0 }),
            None => {
                self.busy.remove(&key);
            }
        }
    }

    /// Records that a running event is tried again at this time. Until then it keeps its key, but not its place. Not to
    /// be called once the queue [drains](Self::is_draining).
    pub(super) fn retry_at(&mut self, at: Instant, failed: Queued<T>) {
        self.running -= 1;
        self.failures += 1;
        self.retries.insert((at, self.failures), failed);
    }

    /// Records that a running event has failed for good: no other event begins. Once the queue drains, returns all that
    /// it has, because nothing could process them.
    pub(super) fn fail_event(&mut self) -> Vec<T> {
        self.running -= 1;
        self.places = 0;
        if self.is_draining { self.drain_all_but(|_| false) } else { Vec::new() }
    }

    /// Returns when the next event is tried again, if there is a place for it.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.retries.first_key_value().map(|((at, _), _)| *at).filter(|_| self.running < self.places)
    }

    /// Returns whether the queue accepts no more events.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Accepts no more events, and keeps only some of the events that do not run; none if an event has failed for good.
    /// Returns the events that it does not keep. Kept events wait no longer for their next attempt. If an event is not
    /// kept, no later event of its key may be.
    pub(super) fn drain_all_but(&mut self, is_kept: impl Fn(&T) -> bool) -> Vec<T> {
        let has_failed = self.places == 0;
        let is_kept = |item: &T| !has_failed && is_kept(item);
        self.is_draining = true;
        let retries = std::mem::take(&mut self.retries).into_values();
        let (kept, dropped): (Vec<_>, Vec<_>) =
            retries.chain(std::mem::take(&mut self.ready)).partition(|queued| is_kept(&queued.item));
        self.ready = kept.into();
        let waiting = self.busy.values_mut().flat_map(|waiting| {
            let first_dropped = waiting.iter().position(|item| !is_kept(item)).unwrap_or(waiting.len());
            waiting.split_off(first_dropped)
        });
        dropped.into_iter().map(|queued| queued.item).chain(waiting).collect()
    }

    pub(super) fn count_events(&self) -> EventCounts {
        EventCounts {
            running: self.running,
            waiting: self.ready.len() + self.busy.values().map(VecDeque::len).sum::<usize>(),
            retrying: self.retries.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// Begins all that may begin now.
    fn begin_all(queue: &mut EventQueue<i64>, now: Instant) -> Vec<i64> {
        std::iter::from_fn(|| queue.begin_next(now)).map(|queued| queued.item).collect()
    }

    #[tokio::test]
    async fn events_of_one_key_run_one_after_the_other() {
        let now = Instant::now();
        let mut queue = EventQueue::new(8);
        for (key, item) in [(1, 10), (1, 11), (2, 20), (1, 12)] {
            assert_eq!(queue.add_event(Some(key), item), None);
        }
        assert_eq!(begin_all(&mut queue, now), [10, 20]);
        assert_eq!(queue.count_events(), EventCounts { running: 2, waiting: 2, retrying: 0 });
        queue.finish_event(Some(1));
        assert_eq!(begin_all(&mut queue, now), [11]);
        queue.finish_event(Some(1));
        queue.finish_event(Some(2));
        assert_eq!(begin_all(&mut queue, now), [12]);
        queue.finish_event(Some(1));
        assert!(queue.busy.is_empty(), "a key that is not busy takes no memory");
    }

    #[tokio::test]
    async fn events_without_a_key_wait_for_places_only() {
        let now = Instant::now();
        let mut queue = EventQueue::new(2);
        (0..3).for_each(|item| assert_eq!(queue.add_event(None, item), None));
        assert_eq!(begin_all(&mut queue, now), [0, 1]);
        queue.finish_event(None);
        assert_eq!(begin_all(&mut queue, now), [2]);
    }

    #[tokio::test]
    async fn a_retry_blocks_its_key_and_no_place() {
        let now = Instant::now();
        let at = now + Duration::from_secs(1);
        let mut queue = EventQueue::new(1);
        for (key, item) in [(1, 10), (1, 11), (2, 20)] {
            assert_eq!(queue.add_event(Some(key), item), None);
        }
        let failed = queue.begin_next(now).unwrap();
        queue.retry_at(at, failed);
        assert_eq!(queue.next_retry(), Some(at));
        assert_eq!(begin_all(&mut queue, now), [20], "the other key continues");
        assert_eq!(queue.next_retry(), None, "there is no place");
        queue.finish_event(Some(2));
        assert_eq!(begin_all(&mut queue, now), [0i64; 0]);
        assert_eq!(begin_all(&mut queue, at), [10]);
        queue.finish_event(Some(1));
        assert_eq!(begin_all(&mut queue, at), [11]);
    }

    /// A stall is the time of the oldest one.
    #[tokio::test]
    async fn the_oldest_attempt_that_runs_is_known() {
        let now = Instant::now();
        let mut queue = EventQueue::new(2);
        (0..2).for_each(|item| assert_eq!(queue.add_event(None, item), None));
        assert_eq!(queue.oldest_attempt(), None);
        let first = queue.begin_next(now).unwrap();
        queue.begin_next(now + Duration::from_secs(1)).unwrap();
        assert_eq!(queue.oldest_attempt(), Some(now));
        queue.end_attempt(first.attempt);
        assert_eq!(queue.oldest_attempt(), Some(now + Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn retries_and_other_events_take_turns() {
        let now = Instant::now();
        let mut queue = EventQueue::new(1);
        (0..3).for_each(|item| assert_eq!(queue.add_event(None, item), None));
        for item in 0..3 {
            let failed = queue.begin_next(now).unwrap();
            assert_eq!(failed.item, item);
            queue.retry_at(now + Duration::from_secs(1), failed);
        }
        (10..13).for_each(|item| assert_eq!(queue.add_event(None, item), None));
        let begun = std::iter::from_fn(|| {
            let next = queue.begin_next(now + Duration::from_secs(1))?;
            queue.finish_event(None);
            Some(next.item)
        });
        assert_eq!(begun.collect::<Vec<_>>(), [0, 10, 1, 11, 2, 12]);
    }

    #[tokio::test]
    async fn a_failure_lets_nothing_begin() {
        let now = Instant::now();
        let mut queue = EventQueue::new(1);
        (0..3).for_each(|item| assert_eq!(queue.add_event(Some(0), item), None));
        assert_eq!(begin_all(&mut queue, now), [0]);
        assert_eq!(queue.fail_event(), [0i64; 0]);
        assert_eq!(begin_all(&mut queue, now), [0i64; 0]);
        assert_eq!(queue.count_events(), EventCounts { running: 0, waiting: 2, retrying: 0 });
        assert_eq!(queue.drain_all_but(|_| true), [1, 2], "none is kept after a failure");
    }

    /// Otherwise a stop would wait for events that nothing processes.
    #[tokio::test]
    async fn a_failure_in_a_drain_keeps_nothing() {
        let now = Instant::now();
        let mut queue = EventQueue::new(1);
        (0..3).for_each(|item| assert_eq!(queue.add_event(Some(0), item), None));
        assert_eq!(begin_all(&mut queue, now), [0]);
        assert_eq!(queue.drain_all_but(|_| true), [0i64; 0]);
        assert_eq!(queue.fail_event(), [1, 2]);
        assert_eq!(queue.count_events(), EventCounts::default());
    }

    #[tokio::test]
    async fn a_drain_keeps_the_events_before_the_last_begun() {
        let now = Instant::now();
        let mut queue = EventQueue::new(3);
        for (key, item) in [(1, 0), (1, 1), (2, 2), (3, 3), (1, 4), (3, 5), (4, 6)] {
            assert_eq!(queue.add_event(Some(key), item), None);
        }
        let mut begun: Vec<_> = std::iter::from_fn(|| queue.begin_next(now)).collect();
        queue.retry_at(now + Duration::from_secs(60), begun.remove(1));
        let mut dropped = queue.drain_all_but(|item| *item < 3);
        dropped.sort_unstable();
        assert_eq!(dropped, [4, 5, 6]);
        assert_eq!(queue.add_event(None, 7), Some(7), "no more events");
        assert_eq!(begin_all(&mut queue, now), [2], "the retry need not wait");
        queue.finish_event(Some(1));
        assert_eq!(begin_all(&mut queue, now), [1], "the next one of the key");
        queue.finish_event(Some(3));
        queue.finish_event(Some(1));
        queue.finish_event(Some(2));
        assert_eq!(begin_all(&mut queue, now), [0i64; 0]);
        assert_eq!(queue.count_events(), EventCounts::default());
    }

    /// What happens to the event that runs longest.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Finished,
        Failed,
    }

    #[derive(Clone, Copy, Debug)]
    enum Happened {
        Pushed { key: Option<u64> },
        Ended { which: usize, end: End },
        Passed { millis: u64 },
    }

    fn happened() -> impl Strategy<Value = Happened> {
        let end = prop_oneof![3 => Just(End::Finished), 1 => Just(End::Failed)];
        prop_oneof![
            3 => prop::option::weighted(0.8, 0u64..4).prop_map(|key| Happened::Pushed { key }),
            3 => (any::<prop::sample::Index>(), end)
                .prop_map(|(which, end)| Happened::Ended { which: which.index(8), end }),
            1 => (0u64..50).prop_map(|millis| Happened::Passed { millis }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Whatever happens: no more events run than there are places, the events of a key run in their order and never
        /// at once, and none is lost.
        #[test]
        fn order_places_and_events_are_kept(places in 1usize..5, history in prop::collection::vec(happened(), 0..60)) {
            let start = Instant::now();
            let mut now = start;
            let mut queue = EventQueue::new(places);
            let mut running: Vec<Queued<i64>> = Vec::new();
            let mut pushed = 0;
            let mut finished: Vec<(Option<u64>, i64)> = Vec::new();
            let drain = (0..200).map(|_| Happened::Ended { which: 0, end: End::Finished });
            for event in history.into_iter().chain(drain) {
                match event {
                    Happened::Pushed { key } => {
                        prop_assert_eq!(queue.add_event(key, pushed), None);
                        pushed += 1;
                    }
                    Happened::Ended { which, end } if !running.is_empty() => {
                        let ended = running.remove(which % running.len());
                        match end {
                            End::Finished => {
                                queue.finish_event(ended.key);
                                finished.push((ended.key, ended.item));
                            }
                            End::Failed => queue.retry_at(now + Duration::from_millis(20), ended),
                        }
                    }
                    Happened::Ended { .. } => now += Duration::from_millis(20),
                    Happened::Passed { millis } => now += Duration::from_millis(millis),
                }
                running.extend(std::iter::from_fn(|| queue.begin_next(now)));
                prop_assert!(running.len() <= places && queue.count_events().running == running.len());
                let mut keys: Vec<_> = running.iter().filter_map(|queued| queued.key).collect();
                keys.sort_unstable();
                prop_assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "two events of a key at once");
            }
            prop_assert_eq!(finished.len(), usize::try_from(pushed).unwrap(), "an event was lost");
            for key in 0..4 {
                let of_key: Vec<_> = finished.iter().filter(|(of, _)| *of == Some(key)).collect();
                prop_assert!(of_key.is_sorted(), "{:?}", of_key);
            }
        }
    }
}
