//! How far the events of one partition are finished, when they finish out of order.
//!
//! A checkpoint may stand behind an event only when that event and all delivered before it are done with. An event is
//! *undecided* while its batch is in the handler and nothing was said of it, *open* while a token of it is not
//! finished, and in nobody's way otherwise. What finishes behind an open event waits.
//!
//! A mark speaks for all events before it that have no token, undecided ones included; without tokens it counts at
//! once. A finished token speaks for its own event only: it waits for undecided ones, too, for a handler that takes its
//! tokens in futures that run side by side must not have the checkpoint pass a sibling that has not come to take its
//! own yet.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

/// The place that may be checkpointed now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reached<'a> {
    pub(super) sequence_number: i64,
    /// Borrowed where it is the one just given, so that marking event after event costs no allocation.
    pub(super) offset: Cow<'a, str>,
}

/// Belongs to one start of the handler, as the numbers do that it compares.
#[derive(Debug)]
pub(super) struct Tracker {
    /// The furthest place that was ever returned, or the checkpoint at the start.
    reached: Option<i64>,
    /// Events of the batch at hand of which nothing was said yet, ascending. All are behind `reached`.
    undecided: VecDeque<i64>,
    /// Events with tokens, and how many. All are behind `reached`.
    open: BTreeMap<i64, u32>,
    /// What is finished and waits for something before it. Of those that wait for the same events only the last is
    /// kept, so that one event that stays open for ever does not make this grow.
    finished: BTreeMap<i64, String>,
    in_flight: usize,
}

impl Tracker {
    /// Begins behind the checkpoint, if there is one.
    pub(super) fn new(checkpoint: Option<i64>) -> Self {
        Self {
            reached: checkpoint,
            undecided: VecDeque::new(),
            open: BTreeMap::new(),
            finished: BTreeMap::new(),
            in_flight: 0,
        }
    }

    /// A batch goes to the handler, in ascending order.
    pub(super) fn delivered(&mut self, numbers: impl Iterator<Item = i64>) {
        let reached = self.reached;
        self.undecided.extend(numbers.filter(|number| Some(*number) > reached));
    }

    /// The handler returned: events of the batch without a token are in nobody's way any more. What had only waited for
    /// them is returned.
    pub(super) fn handled(&mut self) -> Option<Reached<'static>> {
        self.undecided.clear();
        self.released()
    }

    /// A token is taken: the event is open until every token of it is finished. One that is never finished keeps it
    /// open for ever. False if the event was passed already: then it holds nothing back.
    pub(super) fn track(&mut self, number: i64) -> bool {
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

    /// A token is done.
    pub(super) fn finish<'a>(&mut self, number: i64, offset: &'a str) -> Option<Reached<'a>> {
        self.in_flight = self.in_flight.saturating_sub(1);
        let tokens = self.open.get_mut(&number)?;
        *tokens -= 1;
        if *tokens > 0 {
            return None;
        }
        self.open.remove(&number);
        self.settle(number, offset)
    }

    /// This event and all before it are finished, but for those with a token.
    pub(super) fn request<'a>(&mut self, number: i64, offset: &'a str) -> Option<Reached<'a>> {
        while self.undecided.front().is_some_and(|first| *first <= number) {
            self.undecided.pop_front();
        }
        self.settle(number, offset)
    }

    /// How many tokens are not finished.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The first event that holds the checkpoint back by a token.
    pub(super) fn oldest_open(&self) -> Option<i64> {
        self.open.first_key_value().map(|(number, _)| *number)
    }

    /// Whether a token of this event is not finished, and holds the checkpoint back.
    pub(super) fn is_open(&self, number: i64) -> bool {
        self.open.contains_key(&number)
    }

    /// The last event that is finished and waits for one before it.
    pub(super) fn last_waiting(&self) -> Option<i64> {
        self.finished.last_key_value().map(|(number, _)| *number)
    }

    fn settle<'a>(&mut self, number: i64, offset: &'a str) -> Option<Reached<'a>> {
        if Some(number) <= self.reached {
            return None;
        }
        if self.barrier().is_some_and(|barrier| barrier <= number) {
            self.hold(number, offset);
            return self.released();
        }
        // What waited further on comes along. What waited before is passed.
        let further = self.released().filter(|further| further.sequence_number > number);
        self.reached = self.reached.max(Some(number));
        Some(further.unwrap_or(Reached { sequence_number: number, offset: Cow::Borrowed(offset) }))
    }

    /// The first event that nothing may pass.
    fn barrier(&self) -> Option<i64> {
        self.undecided.front().copied().into_iter().chain(self.oldest_open()).min()
    }

    /// The furthest of what need not wait any more.
    fn released(&mut self) -> Option<Reached<'static>> {
        let barrier = self.barrier();
        let mut last = None;
        while let Some(first) = self.finished.first_entry() {
            if barrier.is_some_and(|barrier| barrier <= *first.key()) {
                break;
            }
            last = Some(first.remove_entry());
        }
        let (sequence_number, offset) = last?;
        self.reached = Some(sequence_number);
        Some(Reached { sequence_number, offset: Cow::Owned(offset) })
    }

    /// Lets it wait, in place of all that wait for the same events.
    fn hold(&mut self, number: i64, offset: &str) {
        let blocker = self.last_blocker(number).unwrap_or(i64::MIN);
        while let Some((&passed, _)) = self.finished.range(blocker..number).next_back() {
            self.finished.remove(&passed);
        }
        let next = self.finished.range(number..).next().map(|(next, _)| *next);
        let covered = next.is_some_and(|next| self.last_blocker(next).unwrap_or(i64::MIN) <= number);
        if !covered {
            self.finished.insert(number, offset.to_owned());
        }
    }

    /// The last event up to this one that it has to wait for.
    fn last_blocker(&self, number: i64) -> Option<i64> {
        let open = self.open.range(..=number).next_back().map(|(open, _)| *open);
        let before = self.undecided.partition_point(|undecided| *undecided <= number);
        let undecided = before.checked_sub(1).and_then(|index| self.undecided.get(index)).copied();
        open.max(undecided)
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

    /// A tracker whose answers are numbers.
    struct Numbered(Tracker);

    impl Numbered {
        fn with_batch(numbers: std::ops::RangeInclusive<i64>) -> Self {
            let mut tracker = Self(Tracker::new(None));
            tracker.0.delivered(numbers);
            tracker
        }

        fn track(&mut self, numbers: impl IntoIterator<Item = i64>) {
            for number in numbers {
                assert!(self.0.track(number));
            }
        }

        fn finish(&mut self, finished: i64) -> Option<i64> {
            number(self.0.finish(finished, &offset(finished)))
        }

        fn mark(&mut self, marked: i64) -> Option<i64> {
            number(self.0.request(marked, &offset(marked)))
        }

        fn handled(&mut self) -> Option<i64> {
            number(self.0.handled())
        }
    }

    #[test]
    fn without_tokens_a_mark_counts_at_once_and_costs_no_allocation() {
        let mut tracker = Tracker::new(Some(3));
        tracker.delivered(4..=8);
        assert!(matches!(
            tracker.request(6, "six"),
            Some(Reached { sequence_number: 6, offset: Cow::Borrowed("six") })
        ));
        assert_eq!(tracker.request(5, "five"), None, "it never goes back");
        assert_eq!(tracker.request(6, "six"), None, "nor tells anything twice");
        assert_eq!(tracker.request(2, "two"), None, "nor before the checkpoint");
        assert_eq!(tracker.handled(), None);
    }

    #[test]
    fn tokens_that_finish_out_of_order_wait_for_those_before() {
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
    fn a_sibling_that_has_not_taken_its_token_yet_is_not_passed() {
        let mut tracker = Numbered::with_batch(0..=2);
        tracker.track([1]);
        assert_eq!(tracker.finish(1), None, "0 may still take one");
        tracker.track([0]);
        assert_eq!(tracker.finish(0), Some(1));
    }

    #[test]
    fn what_waited_for_untracked_events_only_is_reached_when_the_handler_returns() {
        let mut tracker = Numbered::with_batch(0..=4);
        tracker.track([1, 3]);
        assert_eq!(tracker.finish(1), None);
        assert_eq!(tracker.handled(), Some(1), "nothing but 3 holds anything back now");
        assert_eq!(tracker.finish(3), Some(3), "an event without a word advances nothing by itself");
    }

    #[test]
    fn a_mark_settles_what_has_no_token_and_waits_for_what_has() {
        let mut tracker = Numbered::with_batch(0..=9);
        tracker.track([3]);
        assert_eq!(tracker.mark(2), Some(2));
        assert_eq!(tracker.mark(5), None);
        assert_eq!(tracker.mark(3), None, "its own token counts, too");
        assert_eq!(tracker.finish(3), Some(5));
        assert_eq!(tracker.mark(6), Some(6));
    }

    #[test]
    fn a_mark_that_waits_itself_may_let_go_what_is_before() {
        let mut tracker = Numbered::with_batch(0..=9);
        tracker.track([2, 5]);
        assert_eq!(tracker.finish(2), None, "0 and 1 are undecided");
        assert_eq!(tracker.mark(7), Some(2));
        assert_eq!(tracker.finish(5), Some(7));
    }

    #[test]
    fn both_tokens_of_an_event_must_finish() {
        let mut tracker = Numbered::with_batch(0..=0);
        tracker.track([0, 0]);
        assert_eq!(tracker.finish(0), None);
        assert_eq!(tracker.0.in_flight(), 1);
        assert_eq!(tracker.finish(0), Some(0));
    }

    #[test]
    fn a_token_of_a_passed_event_is_in_flight_and_holds_nothing_back() {
        let mut tracker = Numbered::with_batch(0..=4);
        assert_eq!(tracker.mark(2), Some(2));
        assert!(!tracker.0.track(1));
        assert_eq!((tracker.0.in_flight(), tracker.0.oldest_open()), (1, None));
        assert_eq!(tracker.mark(3), Some(3));
        assert_eq!(tracker.finish(1), None);
        assert_eq!(tracker.0.in_flight(), 0);
    }

    #[test]
    fn a_token_of_the_batch_before_still_holds_back() {
        let mut tracker = Numbered::with_batch(0..=1);
        tracker.track([0]);
        assert_eq!(tracker.handled(), None);
        tracker.0.delivered(2..=3);
        assert_eq!(tracker.mark(3), None);
        assert_eq!(tracker.handled(), None);
        assert_eq!(tracker.finish(0), Some(3));
    }

    #[test]
    fn one_event_that_stays_open_does_not_fill_the_memory() {
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

    #[derive(Clone, Debug)]
    enum Step {
        Deliver(usize),
        Handled,
        /// Of an event this many before the last delivered one.
        Track(usize),
        /// Of the tokens that are there, this one, counted round.
        Finish(usize),
        Mark(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => (1..6_usize).prop_map(Step::Deliver),
            2 => Just(Step::Handled),
            6 => (0..8_usize).prop_map(Step::Track),
            6 => (0..16_usize).prop_map(Step::Finish),
            2 => (0..10_usize).prop_map(Step::Mark),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// The rule, written down without a thought to cost: every event ever delivered is looked at every time.
    #[derive(Default)]
    struct Model {
        delivered: i64,
        undecided: BTreeSet<i64>,
        tokens: Vec<i64>,
        /// Tokens of events that were passed already.
        late: Vec<i64>,
        settled: BTreeSet<i64>,
        tracking: bool,
        reached: Option<i64>,
        /// A token was taken for an event that was settled or neutral before, so a place before it may be forgotten.
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

        fn mark(&mut self, number: i64) {
            self.undecided.retain(|undecided| *undecided > number);
            self.settled.insert(number);
        }
    }

    /// What the tracker answers, after the model has followed. A step that makes no sense now is left out.
    fn apply(step: &Step, tracker: &mut Tracker, model: &mut Model) -> Option<i64> {
        let before_last =
            |back: usize| Some(model.delivered - 1 - i64::try_from(back).unwrap()).filter(|number| *number >= 0);
        match step {
            Step::Deliver(events) => {
                let numbers = model.delivered..model.delivered + i64::try_from(*events).unwrap();
                tracker.delivered(numbers.clone());
                model.delivered = numbers.end;
                model.undecided.extend(numbers);
                None
            }
            Step::Handled => {
                model.undecided.clear();
                number(tracker.handled())
            }
            Step::Track(back) => {
                let event = before_last(*back)?;
                assert_eq!(tracker.track(event), model.track(event));
                None
            }
            Step::Finish(index) => {
                let event = model.finish(*index)?;
                number(tracker.finish(event, &offset(event)))
            }
            Step::Mark(back) => {
                let event = before_last(*back)?;
                model.mark(event);
                number(tracker.request(event, &offset(event)))
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

        /// Never past an open event, never back, and as far as the rule allows; unless a token is taken for an event
        /// that had been done with: then the answer may come later, but not too early.
        #[test]
        fn answers_what_the_rule_says(steps in steps()) {
            let (mut tracker, mut model) = (Tracker::new(None), Model::default());
            for step in &steps {
                let answer = apply(step, &mut tracker, &mut model);
                let allowed = model.allowed();
                if model.reopened {
                    prop_assert!(answer <= allowed, "{step:?}: {answer:?} is past {allowed:?}");
                    prop_assert!(answer.is_none() || answer > model.reached);
                    prop_assert!(answer.is_none_or(|place| (0..=place).all(|number| !model.blocks(number))));
                } else {
                    prop_assert_eq!(answer, allowed, "{:?}", step);
                }
                model.reached = answer.or(model.reached);
                prop_assert_eq!(tracker.in_flight(), model.tokens.len() + model.late.len());
                prop_assert_eq!(tracker.oldest_open(), model.tokens.iter().min().copied());
                prop_assert!(tracker.finished.len() <= tracker.open.len() + model.undecided.len() + 5);
            }
        }
    }
}
