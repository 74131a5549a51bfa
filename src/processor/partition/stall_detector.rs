//! Detects a receiver that has stalled and must be reopened.
//!
//! A link can fail without an error: the client considers it open, but no more events arrive. The absence of events
//! alone proves nothing, because there may be no new ones. Nor does a partition with newer events than the last
//! received one: the handler may be busy, the partition paused, or the events on their way. But an event that was in
//! the event hub for `timeout`, while the processor waited on the receiver all that time and received nothing, will not
//! arrive.
//!
//! An event counts when it is received, not when its batch is full: a batch may be gathered for longer than the time
//! between two lag checks.
//!
//! So two lag checks are needed: one that finds newer events in the event hub, and one at least `timeout` later, with
//! uninterrupted waiting in between. Any interruption, by an event or a pause, restarts the waiting. So an event that
//! arrives between a check and the decision never counts as missing, and the time in which the handler works does not
//! count.
//!
//! An event hub that ends before the last received event was recreated. Its events would have to pass the old end
//! before the receiver delivered one of them. All checks over at least 10 s must show this, because the properties that
//! an event hub reports can be some seconds old.
//!
//! An event hub may report an end that it never delivers: compaction can remove the last event of a partition
//! (learn.microsoft.com, Event Hubs, "Log compaction"). If a second link misses the same events as the one before,
//! while the end is the same, these events count as undelivered, and the partition as read. Since both links may have
//! stalled, further links are opened at growing intervals of at most an hour, until the end grows or is delivered.
//!
//! If checks are `timeout` or more apart, the second check after the missing event was enqueued detects the stall:
//! within two periods. With more frequent checks, it is detected within `timeout` and two periods.

use std::time::Duration;

use crate::backoff::CountingBackoff;
use crate::source::StartPosition;
use crate::source::properties::{PartitionProperties, Undelivered};

/// How long all reports of an event hub must show that it ends before the last received event. A report can be some
/// seconds old.
pub(crate) const OLDEST_REPORT: Duration = Duration::from_secs(10);

/// How many times the timeout passes until a third link is opened for events that two links did not deliver.
const PROBE_WAIT: u32 = 10;

/// The longest time between two such links. Each costs one attach, and by then an event that does exist is an hour
/// late.
const LONGEST_PROBE_WAIT: Duration = Duration::from_secs(3600);

/// What a lag check shows about the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// No event is missing, or the processor does not wait for events.
    Healthy,
    /// The event hub has newer events than the last received one, but not for long enough.
    Behind,
    /// The missing events will not arrive: reopen the receiver.
    Reopen,
    /// Two receivers did not deliver the last events: open another one, to see whether it does. It is no failure.
    Probe,
    /// The event hub ends before the last received event: it was recreated.
    BeyondEnd,
}

/// The state of one partition's receiver, from one opening to the next, with what the links before have missed. All
/// times are of one clock, of any kind.
#[derive(Debug)]
pub(crate) struct StallDetector {
    timeout: Duration,
    /// No event up to this one is missing. `None` while that is unknown: the events that are in the event hub at the
    /// first check may not be delivered then.
    seen: Option<i64>,
    /// A received event, or the position at which the receiver was opened, determined `seen`; not a lag check.
    certain: bool,
    /// The processor waits on the receiver now.
    waiting: bool,
    /// The first check since the waiting began that found newer events in the event hub.
    behind_since: Option<Duration>,
    /// The first of consecutive checks that found that the event hub ends before the last received event.
    beyond_end_since: Option<Duration>,
    /// The last state was [`LinkState::BeyondEnd`].
    is_beyond_end: bool,
    /// What this link has missed, if it must be reopened.
    missed: Option<Undelivered>,
    /// What the last link missed that had to be reopened.
    missed_before: Option<Undelivered>,
    /// What two links have missed.
    undelivered: Option<LinkProbe>,
}

/// Events that two links did not deliver.
#[derive(Debug)]
struct LinkProbe {
    events: Undelivered,
    /// When to open another link.
    due: Duration,
    backoff: CountingBackoff,
}

impl LinkProbe {
    fn new(events: Undelivered, now: Duration, timeout: Duration) -> Self {
        let mut backoff = CountingBackoff::new(timeout.saturating_mul(PROBE_WAIT), LONGEST_PROBE_WAIT);
        Self { events, due: now + backoff.next_wait(), backoff }
    }

    fn check_probe(&mut self, now: Duration) -> LinkState {
        if now < self.due {
            return LinkState::Healthy;
        }
        self.due = now + self.backoff.next_wait();
        LinkState::Probe
    }
}

impl StallDetector {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            seen: None,
            certain: false,
            waiting: false,
            behind_since: None,
            beyond_end_since: None,
            is_beyond_end: false,
            missed: None,
            missed_before: None,
            undelivered: None,
        }
    }

    /// Records that a receiver was opened at this start.
    pub(crate) fn record_opening(&mut self, from: &StartPosition) {
        self.seen = match from {
            StartPosition::Earliest => Some(i64::MIN),
            StartPosition::AfterSequenceNumber(number) => Some(*number),
            StartPosition::Latest | StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) => None,
        };
        self.certain = self.seen.is_some();
        self.is_beyond_end = false;
        self.missed_before = self.missed.take().or(self.missed_before);
        self.stop_waiting();
    }

    /// Records that the processor waits on the receiver. Changes nothing if it already does.
    pub(crate) fn start_waiting(&mut self) {
        self.waiting = true;
    }

    /// Records that the processor no longer waits although it received no event: the partition is paused.
    pub(crate) fn stop_waiting(&mut self) {
        self.waiting = false;
        self.behind_since = None;
        self.beyond_end_since = None;
    }

    /// Records received events, up to this one. The processor does not wait until they are handled.
    pub(crate) fn record_received(&mut self, number: Option<i64>) {
        if number.is_none() || number > self.seen {
            self.missed = None;
            self.missed_before = None;
            self.undelivered = None;
        }
        self.seen = number.map(|number| self.seen.unwrap_or(i64::MIN).max(number));
        self.certain = number.is_some();
        self.stop_waiting();
    }

    /// Records received events, up to this one, that wait until their batch is full. The processor continues to wait on
    /// the receiver. Returns false if the event was recorded already.
    pub(crate) fn record_gathered(&mut self, number: Option<i64>) -> bool {
        let is_new = number.is_none() || number > self.seen;
        if is_new {
            let waiting = self.waiting;
            self.record_received(number);
            self.waiting = waiting;
        }
        is_new
    }

    /// Returns whether lag checks have found that the event hub ends before the last event received through this link.
    pub(crate) fn is_beyond_end(&self) -> bool {
        self.is_beyond_end
    }

    /// Returns the events after the last received one, if all events of the partition have expired.
    pub(crate) fn find_expired(&self, properties: &PartitionProperties) -> Option<Undelivered> {
        let last = properties.last_enqueued().filter(|_| properties.is_empty())?;
        Some(Undelivered { after: self.seen.unwrap_or(i64::MIN), up_to: last.sequence_number })
    }

    /// Returns the events at the end of the partition that two links did not deliver.
    pub(crate) fn find_undelivered(&self) -> Option<Undelivered> {
        self.undelivered.as_ref().map(|probed| probed.events)
    }

    /// Records a lag check; `now` is when the response arrived. The processor must wait on the receiver during the
    /// request, and must record the events that arrive meanwhile first.
    pub(crate) fn check_link(&mut self, now: Duration, properties: &PartitionProperties) -> LinkState {
        let last = properties.last_enqueued().map(|last| last.sequence_number);
        let seen = *self.seen.get_or_insert(last.unwrap_or(i64::MIN));
        if !(self.waiting && self.certain && seen > last.unwrap_or(-1)) {
            self.beyond_end_since = None;
        } else if now.saturating_sub(*self.beyond_end_since.get_or_insert(now)) >= OLDEST_REPORT {
            self.is_beyond_end = true;
            return LinkState::BeyondEnd;
        }
        // Expired events will not arrive, and are not missing.
        let Some(up_to) = last.filter(|last| self.waiting && *last > seen && !properties.is_empty()) else {
            self.behind_since = None;
            return LinkState::Healthy;
        };
        let missing = Undelivered { after: seen, up_to };
        if let Some(probed) = self.undelivered.as_mut().filter(|probed| probed.events == missing) {
            self.behind_since = None;
            return probed.check_probe(now);
        }
        if now.saturating_sub(*self.behind_since.get_or_insert(now)) < self.timeout {
            return LinkState::Behind;
        }
        if self.missed_before == Some(missing) {
            self.undelivered = Some(LinkProbe::new(missing, now, self.timeout));
            self.behind_since = None;
            return LinkState::Healthy;
        }
        self.missed = Some(missing);
        LinkState::Reopen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Position;

    #[derive(Debug)]
    enum Step {
        Opened(StartPosition),
        Waiting,
        Paused,
        Received(Option<i64>),
        Gathered(Option<i64>),
        /// A check at this second, of an event hub with events from the first number to the second.
        Checked(u64, i64, Option<i64>, LinkState),
    }

    use LinkState::{Behind, BeyondEnd, Healthy, Reopen};
    use Step::{Checked, Gathered, Opened, Paused, Received, Waiting};

    fn after(number: i64) -> Step {
        Opened(StartPosition::AfterSequenceNumber(number))
    }

    /// Runs the steps with a timeout of 30 s.
    fn run(case: &str, steps: impl IntoIterator<Item = Step>) {
        let mut detector = StallDetector::new(Duration::from_secs(30));
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Opened(from) => detector.record_opening(&from),
                Waiting => detector.start_waiting(),
                Paused => detector.stop_waiting(),
                Received(number) => detector.record_received(number),
                Gathered(number) => _ = detector.record_gathered(number),
                Checked(second, first, last, expected) => {
                    let last = last.map(|sequence_number| Position { sequence_number, offset: "x".into() });
                    let properties = PartitionProperties::new(first, last, false);
                    let state = detector.check_link(Duration::from_secs(second), &properties);
                    assert_eq!(state, expected, "{case}: step {index}");
                }
            }
        }
    }

    #[test]
    fn the_second_check_detects_a_stalled_link() {
        run("at once", [after(4), Waiting, Checked(30, 0, Some(5), Behind), Checked(60, 0, Some(5), Reopen)]);
        run(
            "after a while",
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(4), Healthy),
                Checked(60, 0, Some(5), Behind),
                Checked(90, 0, Some(9), Reopen),
                Checked(120, 0, Some(9), Reopen),
            ],
        );
        run(
            "having delivered before",
            [
                after(4),
                Waiting,
                Received(Some(7)),
                Waiting,
                Checked(30, 0, Some(8), Behind),
                Checked(60, 0, Some(8), Reopen),
            ],
        );
        run(
            "by frequent checks",
            [
                after(4),
                Waiting,
                Checked(10, 0, Some(5), Behind),
                Waiting,
                Checked(25, 0, Some(5), Behind),
                Checked(39, 0, Some(5), Behind),
                Checked(40, 0, Some(5), Reopen),
            ],
        );
        run(
            "from the first event on",
            [
                Opened(StartPosition::Earliest),
                Waiting,
                Checked(30, 0, Some(0), Behind),
                Checked(60, 0, Some(0), Reopen),
            ],
        );
    }

    #[test]
    fn a_link_without_new_events_is_healthy() {
        run(
            "all events were received",
            [after(4), Waiting, Checked(30, 0, Some(4), Healthy), Checked(90, 0, Some(4), Healthy)],
        );
        run(
            "a new event hub",
            [Opened(StartPosition::Earliest), Waiting, Checked(30, 0, None, Healthy), Checked(90, 0, None, Healthy)],
        );
        run("emptied", [after(4), Waiting, Checked(30, 8, Some(7), Healthy), Checked(90, 8, Some(7), Healthy)]);
        run(
            "emptied while it was behind",
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(7), Behind),
                Checked(60, 8, Some(7), Healthy),
                Checked(90, 8, Some(8), Behind),
            ],
        );
    }

    #[test]
    fn only_time_spent_waiting_counts() {
        run(
            "a busy handler",
            [
                after(4),
                Waiting,
                Received(Some(5)),
                Checked(30, 0, Some(99), Healthy),
                Checked(60, 0, Some(99), Healthy),
                Waiting,
                Checked(90, 0, Some(99), Behind),
            ],
        );
        run(
            "a paused partition",
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(9), Behind),
                Paused,
                Checked(60, 0, Some(9), Healthy),
                Checked(90, 0, Some(9), Healthy),
                Waiting,
                Checked(120, 0, Some(9), Behind),
                Checked(150, 0, Some(9), Reopen),
            ],
        );
        run("no waiting yet", [after(4), Checked(30, 0, Some(9), Healthy), Checked(90, 0, Some(9), Healthy)]);
    }

    #[test]
    fn an_event_between_two_checks_restarts_the_waiting() {
        run(
            "a slow link",
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(9), Behind),
                Received(Some(5)),
                Waiting,
                Checked(60, 0, Some(9), Behind),
                Received(Some(6)),
                Waiting,
                Checked(90, 0, Some(9), Behind),
                Checked(120, 0, Some(9), Reopen),
            ],
        );
        run(
            "an event that was handled before",
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(9), Behind),
                Received(Some(2)),
                Waiting,
                Checked(60, 0, Some(4), Healthy),
                Checked(90, 0, Some(5), Behind),
            ],
        );
    }

    #[test]
    fn the_second_check_detects_a_recreated_event_hub() {
        run("empty", [after(4), Waiting, Checked(30, 0, None, Healthy), Checked(60, 0, None, BeyondEnd)]);
        run(
            "with new events",
            [after(4), Waiting, Checked(30, 0, Some(1), Healthy), Checked(60, 0, Some(3), BeyondEnd)],
        );
        run(
            "one old response",
            [
                after(4),
                Waiting,
                Received(Some(9)),
                Waiting,
                Checked(30, 0, Some(8), Healthy),
                Checked(60, 0, Some(9), Healthy),
            ],
        );
        run(
            "no waiting in between",
            [after(4), Waiting, Checked(30, 0, Some(1), Healthy), Paused, Waiting, Checked(60, 0, Some(1), Healthy)],
        );
        run(
            "no event received yet",
            [Opened(StartPosition::Earliest), Waiting, Checked(30, 0, None, Healthy), Checked(60, 0, None, Healthy)],
        );
    }

    #[test]
    fn a_reopened_link_has_the_full_timeout() {
        run(
            "reopened",
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(5), Behind),
                Checked(60, 0, Some(5), Reopen),
                after(4),
                Waiting,
                Checked(61, 0, Some(6), Behind),
                Checked(90, 0, Some(6), Behind),
                Checked(91, 0, Some(6), Reopen),
            ],
        );
    }

    #[test]
    fn an_end_that_two_links_do_not_deliver_is_absent() {
        let missed_twice = || {
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(5), Behind),
                Checked(60, 0, Some(5), Reopen),
                Checked(90, 0, Some(5), Reopen),
                after(4),
                Waiting,
                Checked(120, 0, Some(5), Behind),
                Checked(150, 0, Some(5), Healthy),
                Checked(180, 0, Some(5), Healthy),
            ]
        };
        let then = |steps: Vec<Step>| missed_twice().into_iter().chain(steps);
        run(
            "it grows",
            then(vec![Checked(210, 0, Some(6), Behind), Checked(240, 0, Some(6), Reopen), after(4), Waiting]),
        );
        run(
            "another link",
            then(vec![after(4), Waiting, Checked(210, 0, Some(5), Healthy), Checked(300, 0, Some(5), Healthy)]),
        );
        run(
            "it is delivered after all",
            then(vec![Received(Some(5)), Waiting, Checked(210, 0, Some(6), Behind), Checked(240, 0, Some(6), Reopen)]),
        );
        run(
            "another event was delivered in between",
            [
                after(4),
                Waiting,
                Checked(30, 0, Some(6), Behind),
                Checked(60, 0, Some(6), Reopen),
                after(4),
                Waiting,
                Received(Some(5)),
                Waiting,
                Checked(90, 0, Some(6), Behind),
                Checked(120, 0, Some(6), Reopen),
            ],
        );
    }

    #[test]
    fn from_an_unknown_start_only_new_events_are_due() {
        for from in [StartPosition::Latest, StartPosition::AfterOffset("x".into())] {
            run(
                "after the last event",
                [
                    Opened(from),
                    Waiting,
                    Checked(30, 0, Some(9), Healthy),
                    Checked(60, 0, Some(9), Healthy),
                    Checked(90, 0, Some(10), Behind),
                    Checked(120, 0, Some(10), Reopen),
                ],
            );
        }
        run(
            "events without a number",
            [
                after(4),
                Waiting,
                Received(None),
                Waiting,
                Checked(30, 0, Some(9), Healthy),
                Checked(90, 0, Some(9), Healthy),
                Checked(120, 0, Some(10), Behind),
            ],
        );
    }

    mod defects {
        use super::*;

        #[test]
        fn checks_within_a_short_time_prove_nothing() {
            let old = |second| Checked(second, 0, Some(8), Healthy);
            run("two old responses", [after(9), Waiting, old(1), old(2), Checked(3, 0, Some(9), Healthy), old(12)]);
            run(
                "old responses for 10 s",
                [after(9), Waiting, old(1), old(2), old(10), Checked(11, 0, Some(8), BeyondEnd)],
            );
            let between = [after(9), Waiting, old(1), Received(Some(10)), Waiting, old(8), old(12), old(17)];
            run("an event in between", between.into_iter().chain([Checked(18, 0, Some(8), BeyondEnd)]));
        }

        #[test]
        fn gathered_events_are_not_missing() {
            run(
                "all events",
                [
                    after(4),
                    Waiting,
                    Gathered(Some(5)),
                    Checked(30, 0, Some(5), Healthy),
                    Checked(60, 0, Some(5), Healthy),
                ],
            );
            run(
                "some events, then none",
                [
                    after(4),
                    Waiting,
                    Checked(30, 0, Some(9), Behind),
                    Gathered(Some(7)),
                    Checked(60, 0, Some(9), Behind),
                    Gathered(Some(7)),
                    Checked(90, 0, Some(9), Reopen),
                ],
            );
            run(
                "events without a number",
                [after(4), Waiting, Gathered(None), Checked(30, 0, Some(9), Healthy), Checked(60, 0, Some(10), Behind)],
            );
            run(
                "no waiting",
                [after(4), Gathered(Some(5)), Checked(30, 0, Some(9), Healthy), Checked(60, 0, Some(9), Healthy)],
            );
        }

        /// A new group starts at the earliest event of an emptied partition: its receiver has nothing to deliver.
        #[test]
        fn a_link_to_an_emptied_partition_is_healthy() {
            for begin in [255, 256] {
                let last = Position { sequence_number: 255, offset: "x".into() };
                let emptied = PartitionProperties::new(begin, Some(last), true);
                let mut detector = StallDetector::new(Duration::from_secs(30));
                detector.record_opening(&StartPosition::Earliest);
                detector.start_waiting();
                for second in [30, 60, 90] {
                    let state = detector.check_link(Duration::from_secs(second), &emptied);
                    assert_eq!(state, Healthy, "begins at {begin}, after {second} s");
                }
            }
        }
    }
}
