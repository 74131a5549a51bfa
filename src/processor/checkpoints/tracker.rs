//! Tracks how far the events of one partition are finished if they finish out of order.
//!
//! The checkpoint may pass an event only if that event and all events delivered before it are settled. An event is
//! *undecided* while its batch is in the handler and the handler has neither tracked nor checkpointed it. It is *open*
//! while one of its tokens is not finished; a token is one [`TrackedEvent`](crate::processor::TrackedEvent). Any other
//! event does not hold the checkpoint back. An event that finishes after an open one waits.
//!
//! A requested position covers all events before it that have no token, undecided ones included; without tokens it
//! counts at once. A finished token covers its own event only, and waits for undecided events, too: a handler may track
//! its events in futures that run concurrently, and the checkpoint must not pass an event whose future has not tracked
//! it yet.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use crate::model::Position;

/// A position that may be checkpointed now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reached<'a> {
    pub(crate) sequence_number: i64,
    /// Borrowed if it is the offset that the caller passed, so that a request per event costs no allocation.
    pub(crate) offset: Cow<'a, str>,
}

impl Reached<'_> {
    /// Replaces a position and reuses its text. Takes `self` by reference, because moving it first made
    /// [`checkpoint`](crate::processor::PartitionContext::checkpoint) a third slower.
    pub(super) fn replace(&self, position: &mut Option<Position>) {
        let position = position.get_or_insert_with(|| Position::new(self.sequence_number, ""));
        position.sequence_number = self.sequence_number;
        position.offset.clear();
        position.offset.push_str(&self.offset);
    }
}

/// The state of one start of the handler. It compares sequence numbers, which are meaningful within one start only.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// The greatest position ever returned, or the checkpoint at the start.
    reached: Option<i64>,
    /// The undecided events of the batch in the handler, ascending. All are after `reached`.
    undecided: VecDeque<i64>,
    /// The open events and the number of their unfinished tokens. All are after `reached`.
    open: BTreeMap<i64, u32>,
    /// The finished events that wait for one before them. Of those that wait for the same events only the last is kept,
    /// so that one event that stays open forever does not make this map grow.
    finished: BTreeMap<i64, String>,
    in_flight: usize,
    /// The last event that was delivered, and the last one of the batches that the handler has accepted.
    last_delivered: Option<i64>,
    last_accepted: Option<i64>,
    passed: Vec<PassedEvent>,
}

/// An event that the handler does not process.
#[derive(Debug)]
struct PassedEvent {
    number: i64,
    /// Empty if it is not known.
    offset: String,
    /// The event before it that must be covered first.
    after: Option<i64>,
}

impl Tracker {
    /// Creates a tracker that starts after the checkpoint, if there is one.
    pub(crate) fn new(checkpoint: Option<i64>) -> Self {
        Self {
            reached: checkpoint,
            undecided: VecDeque::new(),
            open: BTreeMap::new(),
            finished: BTreeMap::new(),
            in_flight: 0,
            last_delivered: None,
            last_accepted: None,
            passed: Vec::new(),
        }
    }

    /// Records a batch that goes to the handler. The numbers must ascend.
    pub(crate) fn begin_batch(&mut self, numbers: impl Iterator<Item = i64>) {
        for number in numbers {
            self.last_delivered = Some(number);
            if Some(number) > self.reached {
                self.undecided.push_back(number);
            }
        }
    }

    /// Records an event of the batch in the handler that the handler does not process. The position advances over it
    /// once it covers all events before; see [`next_passed`](Self::next_passed).
    pub(crate) fn pass_over(&mut self, number: i64, offset: &str) {
        let in_batch = self.undecided.iter().copied().take_while(|undecided| *undecided < number).last();
        let open = self.open.range(..number).next_back().map(|(open, _)| *open);
        let after = in_batch.max(open).max(self.last_accepted.map(|last| last.min(number.saturating_sub(1))));
        self.passed.push(PassedEvent { number, offset: offset.to_owned(), after });
    }

    /// Records an event after the last delivered one that the handler does not get. The position advances over it once
    /// it covers all events before.
    pub(crate) fn skip_event(&mut self, number: i64) {
        let open = self.open.last_key_value().map(|(open, _)| *open);
        self.passed.push(PassedEvent { number, offset: String::new(), after: open.max(self.last_delivered) });
    }

    /// Returns the next position that advances over an event which the handler does not process.
    pub(crate) fn next_passed(&mut self) -> Option<Reached<'static>> {
        loop {
            let due = self.passed.iter().position(|passed| self.reached >= passed.after)?;
            let PassedEvent { number, offset, .. } = self.passed.swap_remove(due);
            // The position may have advanced over the event with a later one.
            if let Some(Reached { sequence_number, offset }) = self.request_position(number, &offset) {
                return Some(Reached { sequence_number, offset: Cow::Owned(offset.into_owned()) });
            }
        }
    }

    /// Returns the greatest position ever returned, or the checkpoint at the start.
    pub(crate) fn last_reached(&self) -> Option<i64> {
        self.reached
    }

    /// Records that the handler returned: events of the batch without a token no longer hold the checkpoint back.
    /// Returns the position that had waited for them only.
    pub(crate) fn end_batch(&mut self) -> Option<Reached<'static>> {
        self.undecided.clear();
        self.last_accepted = self.last_delivered;
        self.release_waiting()
    }

    /// Records a new token: the event is open until all its tokens are finished. A token that is never finished keeps
    /// it open forever. Returns false if the checkpoint has passed the event already: then the token holds nothing
    /// back.
    pub(crate) fn track_event(&mut self, number: i64) -> bool {
        self.in_flight += 1;
        if Some(number) <= self.reached {
            return false;
        }
        *self.open.entry(number).or_default() += 1;
        if let Ok(index) = self.undecided.binary_search(&number) {
            self.undecided.remove(index);
        }
        true
    }

    /// Records that a token is finished.
    pub(crate) fn finish_token<'a>(&mut self, number: i64, offset: &'a str) -> Option<Reached<'a>> {
        self.in_flight = self.in_flight.saturating_sub(1);
        let tokens = self.open.get_mut(&number)?;
        *tokens -= 1;
        if *tokens > 0 {
            return None;
        }
        self.open.remove(&number);
        self.settle_event(number, offset)
    }

    /// Records a requested position: the event and all events before it are finished, except those with a token.
    pub(crate) fn request_position<'a>(&mut self, number: i64, offset: &'a str) -> Option<Reached<'a>> {
        while self.undecided.front().is_some_and(|first| *first <= number) {
            self.undecided.pop_front();
        }
        self.settle_event(number, offset)
    }

    /// Returns how many tokens are not finished.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the first open event.
    pub(crate) fn oldest_open(&self) -> Option<i64> {
        self.open.first_key_value().map(|(number, _)| *number)
    }

    /// Returns whether the event is open.
    pub(crate) fn is_open(&self, number: i64) -> bool {
        self.open.contains_key(&number)
    }

    /// Returns the last finished event that waits for one before it.
    pub(crate) fn last_waiting(&self) -> Option<i64> {
        self.finished.last_key_value().map(|(number, _)| *number)
    }

    fn settle_event<'a>(&mut self, number: i64, offset: &'a str) -> Option<Reached<'a>> {
        if Some(number) <= self.reached {
            return None;
        }
        if self.first_blocker().is_some_and(|blocker| blocker <= number) {
            self.keep_waiting(number, offset);
            return self.release_waiting();
        }
        // Includes later positions that waited for this one. Earlier ones are passed.
        let further = self.release_waiting().filter(|further| further.sequence_number > number);
        self.reached = self.reached.max(Some(number));
        Some(further.unwrap_or(Reached { sequence_number: number, offset: Cow::Borrowed(offset) }))
    }

    /// Returns the first event that the checkpoint must not pass.
    fn first_blocker(&self) -> Option<i64> {
        self.undecided.front().copied().into_iter().chain(self.oldest_open()).min()
    }

    /// Returns the greatest position that no longer waits.
    fn release_waiting(&mut self) -> Option<Reached<'static>> {
        let blocker = self.first_blocker();
        let mut last = None;
        while let Some(first) = self.finished.first_entry() {
            if blocker.is_some_and(|blocker| blocker <= *first.key()) {
                break;
            }
            last = Some(first.remove_entry());
        }
        let (sequence_number, offset) = last?;
        self.reached = Some(sequence_number);
        Some(Reached { sequence_number, offset: Cow::Owned(offset) })
    }

    /// Adds a waiting position, in place of all others that wait for the same events.
    fn keep_waiting(&mut self, number: i64, offset: &str) {
        let blocker = self.last_blocker(number).unwrap_or(i64::MIN);
        while let Some((&passed, _)) = self.finished.range(blocker..number).next_back() {
            self.finished.remove(&passed);
        }
        let next = self.finished.range(number..).next().map(|(next, _)| *next);
        // A later position that waits for the same events covers this one.
        if next.is_none_or(|next| self.last_blocker(next).unwrap_or(i64::MIN) > number) {
            self.finished.insert(number, offset.to_owned());
        }
    }

    /// Returns the last event that this position waits for, itself included.
    fn last_blocker(&self, number: i64) -> Option<i64> {
        let open = self.open.range(..=number).next_back().map(|(open, _)| *open);
        let before = self.undecided.partition_point(|undecided| *undecided <= number);
        open.max(before.checked_sub(1).and_then(|index| self.undecided.get(index)).copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn number(reached: Option<Reached<'_>>) -> Option<i64> {
        reached.map(|reached| {
            assert_eq!(reached.offset, offset(reached.sequence_number), "the offset belongs to another event");
            reached.sequence_number
        })
    }

    fn offset(number: i64) -> String {
        format!("o{number}")
    }

    /// Wraps a tracker and returns numbers instead of positions.
    struct Numbered(Tracker);

    impl Numbered {
        fn with_batch(numbers: std::ops::RangeInclusive<i64>) -> Self {
            let mut tracker = Self(Tracker::new(None));
            tracker.0.begin_batch(numbers);
            tracker
        }

        fn track(&mut self, numbers: impl IntoIterator<Item = i64>) {
            for number in numbers {
                assert!(self.0.track_event(number));
            }
        }

        fn finish(&mut self, finished: i64) -> Option<i64> {
            number(self.0.finish_token(finished, &offset(finished)))
        }

        fn request(&mut self, requested: i64) -> Option<i64> {
            number(self.0.request_position(requested, &offset(requested)))
        }

        fn handled(&mut self) -> Option<i64> {
            number(self.0.end_batch())
        }
    }

    /// It borrows the offset, so a request per event costs no allocation.
    #[test]
    fn a_request_without_tokens_counts_at_once() {
        let mut tracker = Tracker::new(Some(3));
        tracker.begin_batch(4..=8);
        assert!(matches!(
            tracker.request_position(6, "six"),
            Some(Reached { sequence_number: 6, offset: Cow::Borrowed("six") })
        ));
        assert_eq!(tracker.request_position(5, "five"), None, "the position never decreases");
        assert_eq!(tracker.request_position(6, "six"), None, "a position is returned once");
        assert_eq!(tracker.request_position(2, "two"), None, "a position before the checkpoint is ignored");
        assert_eq!(tracker.end_batch(), None);
    }

    mod finished_tokens {
        use super::*;

        #[test]
        fn a_finished_token_waits_for_earlier_ones() {
            let mut tracker = Numbered::with_batch(0..=3);
            tracker.track(0..=3);
            assert_eq!(tracker.handled(), None);
            assert_eq!(tracker.finish(2), None);
            assert_eq!(tracker.finish(1), None);
            assert_eq!(tracker.0.oldest_open(), Some(0));
            assert_eq!(tracker.finish(0), Some(2));
            assert_eq!(tracker.0.in_flight(), 1);
            assert_eq!(tracker.finish(3), Some(3));
            assert_eq!((tracker.0.in_flight(), tracker.0.oldest_open()), (0, None));
        }

        #[test]
        fn a_finished_token_waits_for_undecided_events() {
            let mut tracker = Numbered::with_batch(0..=2);
            tracker.track([1]);
            assert_eq!(tracker.finish(1), None, "event 0 may still be tracked");
            tracker.track([0]);
            assert_eq!(tracker.finish(0), Some(1));
        }

        /// 5 waits for 0 only, and 7 for 6, too.
        #[test]
        fn a_finished_token_is_kept_before_a_later_one() {
            let mut tracker = Numbered::with_batch(0..=7);
            tracker.track([0, 5, 6, 7]);
            assert_eq!(tracker.handled(), None);
            assert_eq!((tracker.finish(7), tracker.finish(5)), (None, None));
            assert_eq!(tracker.finish(0), Some(5));
            assert_eq!(tracker.finish(6), Some(7));
        }

        /// It was finished before the start.
        #[test]
        fn the_event_of_the_checkpoint_holds_nothing_back() {
            let mut tracker = Numbered(Tracker::new(Some(3)));
            tracker.0.begin_batch(3..=4);
            tracker.track([4]);
            assert_eq!(tracker.finish(4), Some(4));
        }

        #[test]
        fn untracked_events_hold_back_until_handle_returns() {
            let mut tracker = Numbered::with_batch(0..=4);
            tracker.track([1, 3]);
            assert_eq!(tracker.finish(1), None);
            assert_eq!(tracker.handled(), Some(1), "only event 3 holds the checkpoint back now");
            assert_eq!(tracker.finish(3), Some(3), "an untracked event does not advance the checkpoint");
        }
    }

    mod requests {
        use super::*;

        #[test]
        fn a_request_waits_for_tracked_events_only() {
            let mut tracker = Numbered::with_batch(0..=9);
            tracker.track([3]);
            assert_eq!(tracker.request(2), Some(2));
            assert_eq!(tracker.request(5), None);
            assert_eq!(tracker.request(3), None, "the event's own token counts, too");
            assert_eq!(tracker.finish(3), Some(5));
            assert_eq!(tracker.request(6), Some(6));
        }

        #[test]
        fn a_waiting_request_still_settles_undecided_events() {
            let mut tracker = Numbered::with_batch(0..=9);
            tracker.track([2, 5]);
            assert_eq!(tracker.finish(2), None, "0 and 1 are undecided");
            assert_eq!(tracker.request(7), Some(2));
            assert_eq!(tracker.finish(5), Some(7));
        }
    }

    mod events_that_are_not_processed {
        use super::*;

        fn pass_over(tracker: &mut Numbered, event: i64) -> Option<i64> {
            tracker.0.pass_over(event, &offset(event));
            number(tracker.0.next_passed())
        }

        #[test]
        fn are_passed_once_the_events_before_are_covered() {
            let mut tracker = Numbered(Tracker::new(Some(3)));
            tracker.0.begin_batch(4..=6);
            assert_eq!(pass_over(&mut tracker, 4), Some(4), "the first event after the checkpoint");
            assert_eq!(pass_over(&mut tracker, 6), None, "5 is not finished");
            assert_eq!(tracker.request(5), Some(5));
            assert_eq!(number(tracker.0.next_passed()), Some(6));
            assert_eq!(number(tracker.0.next_passed()), None);
        }

        #[test]
        fn wait_for_tokens_before_them() {
            let mut tracker = Numbered::with_batch(0..=2);
            tracker.track([0, 1]);
            assert_eq!(pass_over(&mut tracker, 2), None);
            assert_eq!(tracker.handled(), None);
            assert_eq!((tracker.finish(1), number(tracker.0.next_passed())), (None, None));
            assert_eq!(tracker.finish(0), Some(1));
            assert_eq!(number(tracker.0.next_passed()), Some(2));
        }

        #[test]
        fn advance_past_others_that_are_covered_already() {
            let mut tracker = Numbered::with_batch(0..=0);
            tracker.track([0]);
            tracker.handled();
            tracker.0.skip_event(1);
            tracker.0.begin_batch(2..=2);
            tracker.track([2]);
            tracker.handled();
            tracker.0.skip_event(3);
            assert_eq!((tracker.finish(2), tracker.finish(0)), (None, Some(2)));
            let mut last = None;
            while let Some(passed) = tracker.0.next_passed() {
                last = Some(passed.sequence_number);
            }
            assert_eq!(last, Some(3));
        }

        #[test]
        fn wait_for_earlier_batches() {
            let mut tracker = Numbered::with_batch(0..=2);
            tracker.handled();
            tracker.0.begin_batch(3..=5);
            assert_eq!(pass_over(&mut tracker, 3), None, "no checkpoint covers the batch before");
            assert_eq!(tracker.request(4), Some(4), "a later checkpoint passes it");
            assert_eq!(number(tracker.0.next_passed()), None);
        }
    }

    mod open_events {
        use super::*;

        #[test]
        fn all_tokens_of_an_event_must_finish() {
            let mut tracker = Numbered::with_batch(0..=0);
            tracker.track([0, 0]);
            assert_eq!(tracker.finish(0), None);
            assert_eq!(tracker.0.in_flight(), 1);
            assert_eq!(tracker.finish(0), Some(0));
        }

        #[test]
        fn a_token_of_a_passed_event_is_only_in_flight() {
            let mut tracker = Numbered::with_batch(0..=4);
            assert_eq!(tracker.request(2), Some(2));
            assert!(!tracker.0.track_event(1));
            assert_eq!((tracker.0.in_flight(), tracker.0.oldest_open()), (1, None));
            assert_eq!(tracker.request(3), Some(3));
            assert_eq!(tracker.finish(1), None);
            assert_eq!(tracker.0.in_flight(), 0);
        }

        #[test]
        fn a_token_of_an_earlier_batch_holds_back() {
            let mut tracker = Numbered::with_batch(0..=1);
            tracker.track([0]);
            assert_eq!(tracker.handled(), None);
            tracker.0.begin_batch(2..=3);
            assert_eq!(tracker.request(3), None);
            assert_eq!(tracker.handled(), None);
            assert_eq!(tracker.finish(0), Some(3));
        }

        #[test]
        fn one_open_event_does_not_grow_the_memory() {
            let mut tracker = Numbered::with_batch(0..=10_000);
            tracker.track(0..=10_000);
            for number in (1..=10_000).filter(|number| number % 2 == 0) {
                assert_eq!(tracker.finish(number), None);
            }
            for number in (1..=10_000).filter(|number| number % 2 == 1) {
                assert_eq!(tracker.finish(number), None);
            }
            assert_eq!(tracker.0.finished.len(), 1);
            assert_eq!(tracker.finish(0), Some(10_000));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Deliver(usize),
        Handled,
        /// Tracks the event this many before the last delivered one.
        Track(usize),
        /// Finishes one of the tokens, chosen by this index modulo their number.
        Finish(usize),
        Request(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => (1..6_usize).prop_map(Step::Deliver),
            2 => Just(Step::Handled),
            6 => (0..8_usize).prop_map(Step::Track),
            6 => (0..16_usize).prop_map(Step::Finish),
            2 => (0..10_usize).prop_map(Step::Request),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// The same rule without any optimization: every step looks at every event ever delivered.
    #[derive(Default)]
    struct Model {
        delivered: i64,
        undecided: BTreeSet<i64>,
        tokens: Vec<i64>,
        /// Tokens of events that the checkpoint had passed.
        late: Vec<i64>,
        settled: BTreeSet<i64>,
        tracking: bool,
        reached: Option<i64>,
        /// A token was taken for an event that held nothing back before, so a position before it may be lost.
        reopened: bool,
    }

    impl Model {
        fn blocks(&self, number: i64) -> bool {
            self.tokens.contains(&number) || (self.tracking && self.undecided.contains(&number))
        }

        fn allowed(&self) -> Option<i64> {
            let free = |place: &i64| (0..=*place).all(|number| !self.blocks(number));
            self.settled.iter().copied().filter(free).max().filter(|place| Some(*place) > self.reached)
        }

        fn track(&mut self, number: i64) -> bool {
            self.tracking = true;
            if Some(number) <= self.reached {
                self.late.push(number);
                return false;
            }
            self.reopened |= !self.undecided.remove(&number) && !self.tokens.contains(&number);
            self.tokens.push(number);
            true
        }

        fn finish(&mut self, index: usize) -> Option<i64> {
            let all = self.tokens.len() + self.late.len();
            let index = index % all.max(1);
            if index < self.tokens.len() {
                let number = self.tokens.remove(index);
                if !self.tokens.contains(&number) {
                    self.settled.insert(number);
                }
                return Some(number);
            }
            (all > 0).then(|| self.late.remove(index - self.tokens.len()))
        }

        fn request(&mut self, number: i64) {
            self.undecided.retain(|undecided| *undecided > number);
            self.settled.insert(number);
        }
    }

    /// Applies a step to both and returns the position that the tracker returns. A step that is not possible now does
    /// nothing.
    fn apply(step: &Step, tracker: &mut Tracker, model: &mut Model) -> Option<i64> {
        let before_last =
            |back: usize| Some(model.delivered - 1 - i64::try_from(back).unwrap()).filter(|number| *number >= 0);
        match step {
            Step::Deliver(events) => {
                let numbers = model.delivered..model.delivered + i64::try_from(*events).unwrap();
                tracker.begin_batch(numbers.clone());
                model.delivered = numbers.end;
                model.undecided.extend(numbers);
                None
            }
            Step::Handled => {
                model.undecided.clear();
                number(tracker.end_batch())
            }
            Step::Track(back) => {
                let event = before_last(*back)?;
                assert_eq!(tracker.track_event(event), model.track(event));
                None
            }
            Step::Finish(index) => {
                let event = model.finish(*index)?;
                number(tracker.finish_token(event, &offset(event)))
            }
            Step::Request(back) => {
                let event = before_last(*back)?;
                model.request(event);
                number(tracker.request_position(event, &offset(event)))
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

        /// The position never passes an open event, never decreases, and is as great as the rule allows. If a token is
        /// taken for an event that held nothing back before, the position may come later, but never too early.
        #[test]
        fn the_tracker_agrees_with_the_model(steps in steps()) {
            let (mut tracker, mut model) = (Tracker::new(None), Model::default());
            for step in &steps {
                let position = apply(step, &mut tracker, &mut model);
                let allowed = model.allowed();
                if model.reopened {
                    prop_assert!(position <= allowed, "{step:?}: {position:?} is past {allowed:?}");
                    prop_assert!(position.is_none() || position > model.reached);
                    prop_assert!(position.is_none_or(|number| (0..=number).all(|event| !model.blocks(event))));
                } else {
                    prop_assert_eq!(position, allowed, "{:?}", step);
                }
                model.reached = position.or(model.reached);
                prop_assert_eq!(tracker.in_flight(), model.tokens.len() + model.late.len());
                prop_assert_eq!(tracker.oldest_open(), model.tokens.iter().min().copied());
                prop_assert!(tracker.finished.len() <= tracker.open.len() + model.undecided.len() + 5);
            }
        }
    }
}
