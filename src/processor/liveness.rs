//! When a receiver that yields nothing must be opened again.
//!
//! A link can die without a word: the client takes it for alive, and nothing comes any more. Silence alone proves
//! nothing, for there may be nothing to say. Nor does a hub that is ahead of the receiver: the handler may be busy, the
//! partition paused, the events on their way. But an event that has been in the hub for `patience`, while somebody
//! waited on the receiver all that time and nothing at all came out, will not come any more.
//!
//! What came out counts when it was received, and not when its batch is full: a batch can be gathered for longer than
//! two looks take.
//!
//! So two looks at the hub are needed: one that finds it ahead, and one at least `patience` later, with uninterrupted
//! waiting in between. Whatever interrupts the waiting (an event, a pause) makes it begin anew; so an event that comes
//! between a look and the decision never counts, and neither does the time in which the handler was at work.
//!
//! And a hub that ends before what came was made anew; its events would have to pass the old end before one of them
//! came. Two looks, 10 s apart or more, and all between them must say so, for what a hub says of itself can be a little
//! old.
//!
//! With a look every `patience` or less often, a link that is dead is found by the second look after the event that it
//! keeps back was enqueued: within two periods. With looks more often, within `patience` and two periods.

use std::time::Duration;

use super::properties::PartitionProperties;
use super::source::StartPosition;

/// How long reports of a hub must say that it ends before what came. A report can be some seconds old.
pub(super) const OLDEST_REPORT: Duration = Duration::from_secs(10);

/// What a look at the hub says of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Nothing is missing, or nobody waits for it.
    Healthy,
    /// The hub has more than what came, but not for long enough.
    Behind,
    /// What is missing will not come: open the receiver anew.
    Reopen,
    /// The hub ends before what came: it was made anew.
    BeyondEnd,
}

/// One partition's receiver, from its opening to the next one. Times are those of any clock, all of the same.
#[derive(Debug)]
pub(super) struct StallDetector {
    patience: Duration,
    /// Nothing up to here is still to come. None as long as that is unknown: what is in the hub at the first look
    /// need not come then.
    seen: Option<i64>,
    /// That was told by what came, or by where the link was opened; not by a look.
    certain: bool,
    /// Somebody waits on the receiver now.
    waiting: bool,
    /// The first look since the waiting began that found the hub ahead.
    behind_since: Option<Duration>,
    /// The first look of those in a row that found the hub to end before what came.
    beyond_end_since: Option<Duration>,
    /// The verdict was [`Verdict::BeyondEnd`].
    is_beyond_end: bool,
}

impl StallDetector {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            seen: None,
            certain: false,
            waiting: false,
            behind_since: None,
            beyond_end_since: None,
            is_beyond_end: false,
        }
    }

    /// A link was opened here.
    pub(super) fn opened(&mut self, from: &StartPosition) {
        self.seen = match from {
            StartPosition::Earliest => Some(i64::MIN),
            StartPosition::AfterSequenceNumber(number) => Some(*number),
            StartPosition::Latest | StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) => None,
        };
        self.certain = self.seen.is_some();
        self.is_beyond_end = false;
        self.rests();
    }

    /// From now on somebody waits on the receiver. Nothing changes if somebody does already.
    pub(super) fn waits(&mut self) {
        self.waiting = true;
    }

    /// Nobody waits any more, though nothing came: the partition is paused.
    pub(super) fn rests(&mut self) {
        self.waiting = false;
        self.behind_since = None;
        self.beyond_end_since = None;
    }

    /// Events came out of the receiver, up to this one. Nobody waits until they are handled.
    pub(super) fn received(&mut self, number: Option<i64>) {
        self.seen = number.map(|number| self.seen.unwrap_or(i64::MIN).max(number));
        self.certain = number.is_some();
        self.rests();
    }

    /// Events came out of the receiver, up to this one, and wait until their batch is full. The receiver is still
    /// waited on. False if this was known already.
    pub(super) fn gathered(&mut self, number: Option<i64>) -> bool {
        let is_new = number.is_none() || number > self.seen;
        if is_new {
            let waiting = self.waiting;
            self.received(number);
            self.waiting = waiting;
        }
        is_new
    }

    /// Whether looks at the hub have found that it ends before what came through this link.
    pub(super) fn is_beyond_end(&self) -> bool {
        self.is_beyond_end
    }

    /// The hub was looked at; `now` is when its answer was here. The receiver must be waited on while the answer is
    /// under way, and what came out meanwhile told first.
    pub(super) fn checked(&mut self, now: Duration, properties: &PartitionProperties) -> LinkState {
        let last = properties.last_enqueued().map(|last| last.sequence_number);
        // What retention took will not come, and is not missing.
        let readable = last.filter(|_| !properties.is_empty());
        let seen = *self.seen.get_or_insert(last.unwrap_or(i64::MIN));
        if !(self.waiting && self.certain && seen > last.unwrap_or(-1)) {
            self.beyond_end_since = None;
        } else if now.saturating_sub(*self.beyond_end_since.get_or_insert(now)) >= OLDEST_REPORT {
            self.is_beyond_end = true;
            return LinkState::BeyondEnd;
        }
        if !self.waiting || readable.is_none_or(|last| last <= seen) {
            self.behind_since = None;
            return LinkState::Healthy;
        }
        let since = *self.behind_since.get_or_insert(now);
        if now.saturating_sub(since) >= self.patience { LinkState::Reopen } else { LinkState::Behind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Position;

    #[derive(Debug)]
    enum Step {
        Opened(StartPosition),
        Waits,
        Rests,
        Received(Option<i64>),
        Gathered(Option<i64>),
        /// At this second, the hub with events from here to there.
        Probed(u64, i64, Option<i64>, LinkState),
    }

    use LinkState::{Behind, BeyondEnd, Healthy, Reopen};
    use Step::{Gathered, Opened, Probed, Received, Rests, Waits};

    fn after(number: i64) -> Step {
        Opened(StartPosition::AfterSequenceNumber(number))
    }

    /// With a patience of 30 s.
    fn run(case: &str, steps: impl IntoIterator<Item = Step>) {
        let mut silence = StallDetector::new(Duration::from_secs(30));
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Opened(from) => silence.opened(&from),
                Waits => silence.waits(),
                Rests => silence.rests(),
                Received(number) => silence.received(number),
                Gathered(number) => _ = silence.gathered(number),
                Probed(second, first, last, expected) => {
                    let last = last.map(|sequence_number| Position { sequence_number, offset: "x".into() });
                    let properties = PartitionProperties::new(first, last, false);
                    let verdict = silence.checked(Duration::from_secs(second), &properties);
                    assert_eq!(verdict, expected, "{case}: step {index}");
                }
            }
        }
    }

    #[test]
    fn a_dead_link_is_found_by_the_second_look_at_what_it_keeps_back() {
        run("at once", [after(4), Waits, Probed(30, 0, Some(5), Behind), Probed(60, 0, Some(5), Reopen)]);
        run(
            "after a while",
            [
                after(4),
                Waits,
                Probed(30, 0, Some(4), Healthy),
                Probed(60, 0, Some(5), Behind),
                Probed(90, 0, Some(9), Reopen),
                Probed(120, 0, Some(9), Reopen),
            ],
        );
        run(
            "having delivered before",
            [after(4), Waits, Received(Some(7)), Waits, Probed(30, 0, Some(8), Behind), Probed(60, 0, Some(8), Reopen)],
        );
        run(
            "by looks that come often",
            [
                after(4),
                Waits,
                Probed(10, 0, Some(5), Behind),
                Waits,
                Probed(25, 0, Some(5), Behind),
                Probed(39, 0, Some(5), Behind),
                Probed(40, 0, Some(5), Reopen),
            ],
        );
        run(
            "from the first event on",
            [Opened(StartPosition::Earliest), Waits, Probed(30, 0, Some(0), Behind), Probed(60, 0, Some(0), Reopen)],
        );
    }

    #[test]
    fn silence_is_fine_where_there_is_nothing_to_say() {
        run("all was seen", [after(4), Waits, Probed(30, 0, Some(4), Healthy), Probed(90, 0, Some(4), Healthy)]);
        run(
            "a new hub",
            [Opened(StartPosition::Earliest), Waits, Probed(30, 0, None, Healthy), Probed(90, 0, None, Healthy)],
        );
        run("emptied", [after(4), Waits, Probed(30, 8, Some(7), Healthy), Probed(90, 8, Some(7), Healthy)]);
        run(
            "emptied while it was behind",
            [
                after(4),
                Waits,
                Probed(30, 0, Some(7), Behind),
                Probed(60, 8, Some(7), Healthy),
                Probed(90, 8, Some(8), Behind),
            ],
        );
    }

    #[test]
    fn time_in_which_nobody_waits_does_not_count() {
        run(
            "a busy handler",
            [
                after(4),
                Waits,
                Received(Some(5)),
                Probed(30, 0, Some(99), Healthy),
                Probed(60, 0, Some(99), Healthy),
                Waits,
                Probed(90, 0, Some(99), Behind),
            ],
        );
        run(
            "a paused partition",
            [
                after(4),
                Waits,
                Probed(30, 0, Some(9), Behind),
                Rests,
                Probed(60, 0, Some(9), Healthy),
                Probed(90, 0, Some(9), Healthy),
                Waits,
                Probed(120, 0, Some(9), Behind),
                Probed(150, 0, Some(9), Reopen),
            ],
        );
        run("not waited on yet", [after(4), Probed(30, 0, Some(9), Healthy), Probed(90, 0, Some(9), Healthy)]);
    }

    #[test]
    fn an_event_that_comes_between_the_looks_makes_the_waiting_begin_anew() {
        run(
            "a slow link",
            [
                after(4),
                Waits,
                Probed(30, 0, Some(9), Behind),
                Received(Some(5)),
                Waits,
                Probed(60, 0, Some(9), Behind),
                Received(Some(6)),
                Waits,
                Probed(90, 0, Some(9), Behind),
                Probed(120, 0, Some(9), Reopen),
            ],
        );
        run(
            "one that was handled already",
            [
                after(4),
                Waits,
                Probed(30, 0, Some(9), Behind),
                Received(Some(2)),
                Waits,
                Probed(60, 0, Some(4), Healthy),
                Probed(90, 0, Some(5), Behind),
            ],
        );
    }

    #[test]
    fn a_hub_that_was_made_anew_is_found_by_the_second_look_at_its_end() {
        run("empty", [after(4), Waits, Probed(30, 0, None, Healthy), Probed(60, 0, None, BeyondEnd)]);
        run("begun again", [after(4), Waits, Probed(30, 0, Some(1), Healthy), Probed(60, 0, Some(3), BeyondEnd)]);
        run(
            "only an old answer",
            [
                after(4),
                Waits,
                Received(Some(9)),
                Waits,
                Probed(30, 0, Some(8), Healthy),
                Probed(60, 0, Some(9), Healthy),
            ],
        );
        run(
            "nobody waited in between",
            [after(4), Waits, Probed(30, 0, Some(1), Healthy), Rests, Waits, Probed(60, 0, Some(1), Healthy)],
        );
        run(
            "nothing came yet",
            [Opened(StartPosition::Earliest), Waits, Probed(30, 0, None, Healthy), Probed(60, 0, None, Healthy)],
        );
    }

    #[test]
    fn a_link_that_was_opened_again_gets_its_time() {
        run(
            "reopened",
            [
                after(4),
                Waits,
                Probed(30, 0, Some(5), Behind),
                Probed(60, 0, Some(5), Reopen),
                after(4),
                Waits,
                Probed(61, 0, Some(5), Behind),
                Probed(90, 0, Some(5), Behind),
                Probed(91, 0, Some(5), Reopen),
            ],
        );
    }

    #[test]
    fn where_it_is_unknown_what_must_come_only_what_is_new_must() {
        for from in [StartPosition::Latest, StartPosition::AfterOffset("x".into())] {
            run(
                "behind the last event",
                [
                    Opened(from),
                    Waits,
                    Probed(30, 0, Some(9), Healthy),
                    Probed(60, 0, Some(9), Healthy),
                    Probed(90, 0, Some(10), Behind),
                    Probed(120, 0, Some(10), Reopen),
                ],
            );
        }
        run(
            "events without a number",
            [
                after(4),
                Waits,
                Received(None),
                Waits,
                Probed(30, 0, Some(9), Healthy),
                Probed(90, 0, Some(9), Healthy),
                Probed(120, 0, Some(10), Behind),
            ],
        );
    }

    mod defects {
        use super::*;

        #[test]
        fn b03_looks_that_are_close_to_each_other_prove_nothing() {
            let old = |second| Probed(second, 0, Some(8), Healthy);
            run("two old ones", [after(9), Waits, old(1), old(2), Probed(3, 0, Some(9), Healthy), old(12)]);
            run("old for 10 s", [after(9), Waits, old(1), old(2), old(10), Probed(11, 0, Some(8), BeyondEnd)]);
            let between = [after(9), Waits, old(1), Received(Some(10)), Waits, old(8), old(12), old(17)];
            run("an event in between", between.into_iter().chain([Probed(18, 0, Some(8), BeyondEnd)]));
        }

        #[test]
        fn b05_what_was_gathered_is_not_missing() {
            run(
                "all of it",
                [after(4), Waits, Gathered(Some(5)), Probed(30, 0, Some(5), Healthy), Probed(60, 0, Some(5), Healthy)],
            );
            run(
                "a part of it, and then silence",
                [
                    after(4),
                    Waits,
                    Probed(30, 0, Some(9), Behind),
                    Gathered(Some(7)),
                    Probed(60, 0, Some(9), Behind),
                    Gathered(Some(7)),
                    Probed(90, 0, Some(9), Reopen),
                ],
            );
            run(
                "events without a number",
                [after(4), Waits, Gathered(None), Probed(30, 0, Some(9), Healthy), Probed(60, 0, Some(10), Behind)],
            );
            run(
                "not waited on",
                [after(4), Gathered(Some(5)), Probed(30, 0, Some(9), Healthy), Probed(60, 0, Some(9), Healthy)],
            );
        }

        /// A new group at the earliest event of a quiet hub: its link has nothing to deliver, however long it waits.
        #[test]
        fn c01_a_link_to_an_emptied_partition_is_not_behind() {
            for begin in [255, 256] {
                let last = Position { sequence_number: 255, offset: "x".into() };
                let emptied = PartitionProperties::new(begin, Some(last), true);
                let mut silence = StallDetector::new(Duration::from_secs(30));
                silence.opened(&StartPosition::Earliest);
                silence.waits();
                for second in [30, 60, 90] {
                    let verdict = silence.checked(Duration::from_secs(second), &emptied);
                    assert_eq!(verdict, Healthy, "begins at {begin}, after {second} s");
                }
            }
        }
    }
}
