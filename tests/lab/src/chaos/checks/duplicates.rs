//! Events that were processed more than once, and their causes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Check;
use super::spans::{Span, Spans};
use crate::chaos::clock::Moment;
use crate::chaos::event_log::LogEntryKind;
use crate::chaos::faults::Happened;
use crate::chaos::fleet::End;
use crate::chaos::plan::Fault;
use crate::chaos::run_data::{RunData, Session};
use crate::chaos::writes::{Kind, Write};

/// The wait before a checkpoint that was not written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long after an event its checkpoint may be written although there is no fault anymore. A checkpoint that a fault
/// delayed takes two requests, of a quarter of the lease duration each, to fail; and checkpoints are written every
/// eighth of the lease duration.
fn checkpoint_lag(lease_duration: Duration) -> Duration {
    lease_duration.mul_f64(2.0 / 4.0 + 1.0 / 8.0) + RETRY
}

/// How long a displaced owner may continue with the events that it has, plus the time that its successor takes to begin
/// to read.
const LOSS_DETECTED_WITHIN: Duration = Duration::from_secs(3);

/// Why there was no checkpoint after an event when the next owner started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// An operator reset the checkpoint to a position before the event, after the first of the two sessions had
    /// started.
    Reset,
    /// The process was killed first.
    Killed,
    /// A handoff completed without the last checkpoint, and this was reported.
    Reported,
    /// An operator took the partition from the first owner, without a handoff, before the checkpoint was due.
    TakenOver,
    /// The process was frozen meanwhile, or another fault affected it.
    During(Fault),
    /// No cause was found.
    Unexplained,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => f.write_str("after a reset"),
            Self::TakenOver => f.write_str("in flight when an operator took over"),
            Self::Killed => f.write_str("in flight at a kill"),
            Self::Reported => f.write_str("reported: duplicates possible"),
            Self::During(fault) => write!(f, "during {}", fault.name()),
            Self::Unexplained => f.write_str("UNEXPLAINED"),
        }
    }
}

/// The number of duplicates by cause, and examples of unexplained ones.
#[derive(Debug, Default)]
pub struct Duplicates {
    pub by_cause: BTreeMap<Cause, u64>,
    pub unexplained: Vec<String>,
}

pub fn duplicates(run_data: &RunData, sessions: &[Session]) -> Duplicates {
    let mut duplicates = Duplicates::default();
    for partition in run_data.published.keys() {
        let own = sessions.iter().enumerate().filter(|(_, session)| session.partition == *partition);
        let runs = own.flat_map(|(index, session)| session.runs.iter().map(move |run| (index, *run)));
        let mut runs: Vec<_> = runs.map(|(session, (at, first, last))| Span { first, last, session, at }).collect();
        runs.sort_by_key(|run| run.at);
        let mut resets: Vec<_> =
            run_data.writes_to(Kind::Checkpoint, partition).filter(|write| run_data.is_reset(write)).collect();
        resets.sort_by_key(|write| write.sent);
        let mut spans = Spans::default();
        for run in runs {
            for before in spans.cover(run) {
                let again = Span { first: before.first, last: before.last, ..run };
                let repeat = Repeat { before, again, first: &sessions[before.session], second: &sessions[run.session] };
                for part in repeat.parts(&resets) {
                    duplicates.add(run_data, &resets, &part);
                }
            }
        }
    }
    duplicates
}

/// The same events in two sessions, or twice in one.
struct Repeat<'a> {
    before: Span,
    again: Span,
    first: &'a Session,
    second: &'a Session,
}

impl Duplicates {
    fn add(&mut self, run_data: &RunData, resets: &[&Write], repeat: &Repeat<'_>) {
        let cause = repeat.cause(run_data, resets);
        *self.by_cause.entry(cause).or_default() += repeat.before.length();
        if cause == Cause::Unexplained {
            self.unexplained.push(repeat.to_string());
        }
    }
}

impl Repeat<'_> {
    fn cause(&self, run_data: &RunData, resets: &[&Write]) -> Cause {
        if self.before.session == self.again.session {
            return Cause::Unexplained;
        }
        let window = self.window(run_data);
        let in_time = window.late <= LOSS_DETECTED_WITHIN;
        if in_time && self.reset_to(resets).is_some_and(|to| to < self.before.first) {
            return Cause::Reset;
        }
        let is_killed = |incarnation| matches!(run_data.end_of(incarnation), Some((_, End::Killed)));
        if self.first.stopped.is_none() && is_killed(self.first.incarnation) {
            return Cause::Killed;
        }
        let reported = run_data.event_logs.values().flatten().any(|entry| {
            let partition =
                if let LogEntryKind::DuplicatesPossible(partition, _) = &entry.kind { Some(partition) } else { None };
            partition == Some(&self.first.partition) && (window.from..=window.to).contains(&entry.moment())
        });
        if reported {
            return Cause::Reported;
        }
        let meanwhile = || run_data.happened.iter().filter(|happened| window.overlaps(happened));
        let is_of = |session: &Session, happened: &Happened| {
            happened.instance.is_none_or(|instance| instance == session.incarnation.instance)
        };
        let delayed = |happened: &Happened| {
            happened.fault.delays_loss_detection()
                && [self.first, self.second].iter().any(|session| is_of(session, happened))
        };
        if !in_time && !meanwhile().any(delayed) {
            return Cause::Unexplained;
        }
        if in_time && self.was_taken_over(run_data) {
            return Cause::TakenOver;
        }
        let during =
            meanwhile().filter(|happened| happened.fault.explains_duplicates() && is_of(window.displaced, happened));
        // Of several faults the instance's own one, and of these the last one.
        let during = during.max_by_key(|happened| (happened.instance, happened.from));
        during.map_or(Cause::Unexplained, |happened| Cause::During(happened.fault))
    }

    /// Returns the events up to the position of the reset, and those after it.
    fn parts(self, resets: &[&Write]) -> Vec<Self> {
        let Span { first, last, .. } = self.before;
        let Some(to) = self.reset_to(resets).filter(|to| (first..last).contains(to)) else { return vec![self] };
        let part = |first, last| Self {
            before: Span { first, last, ..self.before },
            again: Span { first, last, ..self.again },
            ..self
        };
        vec![part(first, to), part(to + 1, last)]
    }

    /// Returns the position of the last reset before the later session, if the reset came after the earlier session
    /// started.
    fn reset_to(&self, resets: &[&Write]) -> Option<i64> {
        let (displaced, _, successor) = self.displaced_and_successor();
        let last = resets.iter().rfind(|reset| reset.sent <= successor.from)?;
        (displaced.from < last.sent).then_some(last.position)
    }

    /// Returns whether an operator claimed the partition so soon after the event that the event had no checkpoint yet.
    fn was_taken_over(&self, run_data: &RunData) -> bool {
        let (displaced, at, successor) = self.displaced_and_successor();
        let mut claims = run_data.writes_to(Kind::Ownership, &displaced.partition);
        claims.any(|claim| {
            claim.by.is_operator()
                && claim.claims()
                && !claim.is_rejected()
                && (displaced.from..=successor.from).contains(&claim.sent)
                && claim.sent <= at + run_data.lease_duration / 8 + RETRY
        })
    }

    /// Returns the displaced session, when it processed the event, and its successor.
    fn displaced_and_successor(&self) -> (&Session, Moment, &Session) {
        if self.first.from < self.second.from {
            (self.first, self.before.at, self.second)
        } else {
            (self.second, self.again.at, self.first)
        }
    }

    fn window(&self, run_data: &RunData) -> FaultWindow<'_> {
        let (displaced, at, successor) = self.displaced_and_successor();
        let late = at.saturating_sub(successor.from);
        if at < successor.from {
            return FaultWindow {
                displaced,
                from: at.saturating_sub(checkpoint_lag(run_data.lease_duration)),
                to: successor.from,
                late,
            };
        }
        FaultWindow { displaced, from: successor.from.saturating_sub(run_data.lease_duration * 2), to: at, late }
    }
}

/// The displaced session, and when a fault must have affected it: either between its event and the start of its
/// successor, which found no checkpoint after the event, or earlier, so that it did not detect its successor until the
/// event.
struct FaultWindow<'a> {
    displaced: &'a Session,
    from: Moment,
    to: Moment,
    /// How long after the start of its successor it still processed the event.
    late: Duration,
}

impl FaultWindow<'_> {
    fn overlaps(&self, happened: &Happened) -> bool {
        happened.from <= self.to && happened.to >= self.from
    }
}

impl fmt::Display for Repeat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, again, first, second } = self;
        write!(
            f,
            "{} to {} of partition {}: at {:.1?} by {} (began {:.1?}), at {:.1?} by {} (began {:.1?})",
            before.first,
            before.last,
            first.partition,
            before.at,
            first.incarnation,
            first.from,
            again.at,
            second.incarnation,
            second.from
        )
    }
}

pub fn are_explained(duplicates: &Duplicates) -> Check {
    let causes = duplicates.by_cause.iter().map(|(cause, events)| format!("{events} {cause}"));
    let summary = causes.collect::<Vec<_>>().join(", ");
    let summary = if summary.is_empty() { "none".to_owned() } else { summary };
    Check::new("duplicates are explained", &duplicates.unexplained, summary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::incarnation::IncarnationId;
    use crate::chaos::operators::{Attempt, Outcome};
    use crate::chaos::run_data::tests::{entry, in_order};
    use crate::chaos::writes::tests::{incarnation, write};

    /// The second instance processes 4 and 5 again.
    fn overlapping() -> RunData {
        let mut run_data = in_order();
        let event_log = run_data.event_logs.get_mut(&incarnation(1)).unwrap();
        event_log[1] = entry(50, LogEntryKind::Processed("0".to_owned(), 4, 9));
        run_data
    }

    fn found(run_data: &RunData) -> Vec<(Cause, u64)> {
        duplicates(run_data, &run_data.sessions()).by_cause.into_iter().collect()
    }

    #[test]
    fn an_event_that_comes_once_is_no_duplicate() {
        assert_eq!(found(&in_order()), []);
        assert!(are_explained(&Duplicates::default()).holds);
    }

    #[test]
    fn duplicates_without_a_cause_are_unexplained() {
        let run_data = overlapping();
        assert_eq!(found(&run_data), [(Cause::Unexplained, 2)]);
        let check = are_explained(&duplicates(&run_data, &run_data.sessions()));
        assert!(!check.holds);
        assert!(check.detail.contains("4 to 5 of partition 0: at 20.0ms by i1.1"), "{}", check.detail);
    }

    #[test]
    fn a_kill_explains_events_in_flight() {
        let mut run_data = overlapping();
        run_data.event_logs.get_mut(&incarnation(0)).unwrap().truncate(2);
        run_data.incarnations[0].end = Some((Moment::from_millis(30), End::Killed));
        assert_eq!(found(&run_data), [(Cause::Killed, 2)]);
    }

    #[test]
    fn reports_and_faults_explain_what_they_affect() {
        let mut run_data = overlapping();
        let happened =
            |instance, fault| Happened { fault, instance, from: Moment::from_millis(15), to: Moment::from_millis(35) };
        run_data.instances = 3;
        run_data.happened = vec![happened(Some(2), Fault::Freeze)];
        assert_eq!(found(&run_data), [(Cause::Unexplained, 2)]);
        run_data.happened.push(happened(None, Fault::Outage));
        assert_eq!(found(&run_data), [(Cause::During(Fault::Outage), 2)]);
        let describe = LogEntryKind::DuplicatesPossible("0".to_owned(), "NotAcknowledged".to_owned());
        run_data.event_logs.get_mut(&incarnation(1)).unwrap().insert(0, entry(38, describe));
        assert_eq!(found(&run_data), [(Cause::Reported, 2)]);
    }

    #[test]
    fn a_late_detection_needs_a_fault_of_its_own() {
        let mut run_data = overlapping();
        let event_log = run_data.event_logs.get_mut(&incarnation(0)).unwrap();
        event_log[2] = entry(60, LogEntryKind::Processed("0".to_owned(), 6, 7));
        let frozen = |instance| Happened {
            fault: Fault::Freeze,
            instance: Some(instance),
            from: Moment::from_millis(25),
            to: Moment::from_millis(58),
        };
        run_data.happened = vec![frozen(1)];
        assert_eq!(found(&run_data), [(Cause::Unexplained, 4)]);
        run_data.happened = vec![frozen(0)];
        assert_eq!(found(&run_data), [(Cause::During(Fault::Freeze), 4)]);
        // It does not matter which of the two was faster.
        run_data.event_logs.get_mut(&incarnation(0)).unwrap()[2] =
            entry(45, LogEntryKind::Processed("0".to_owned(), 6, 7));
        assert_eq!(found(&run_data), [(Cause::During(Fault::Freeze), 4)]);
    }

    #[test]
    fn a_storage_fault_does_not_explain_a_late_detection() {
        let still_at_it = |fault, at| {
            let mut run_data = overlapping();
            run_data.event_logs.get_mut(&incarnation(0)).unwrap()[2] =
                entry(at, LogEntryKind::Processed("0".to_owned(), 6, 7));
            let (from, to) = (Moment::from_millis(25), Moment::from_secs(20));
            run_data.happened = vec![Happened { fault, instance: Some(0), from, to }];
            found(&run_data)
        };
        assert_eq!(still_at_it(Fault::Isolate, 1_000), [(Cause::During(Fault::Isolate), 4)]);
        assert_eq!(still_at_it(Fault::Isolate, 10_000), [(Cause::During(Fault::Isolate), 2), (Cause::Unexplained, 2)]);
        assert_eq!(still_at_it(Fault::Freeze, 10_000), [(Cause::During(Fault::Freeze), 4)]);
    }

    #[test]
    fn nothing_explains_a_repeat_in_one_session() {
        let mut run_data = overlapping();
        let happened = |fault| Happened { fault, instance: None, from: Moment::ZERO, to: Moment::from_secs(1) };
        run_data.happened = vec![happened(Fault::HubCut)];
        assert_eq!(found(&run_data), [(Cause::Unexplained, 2)]);
        run_data.happened.push(happened(Fault::Throttle));
        let again = entry(60, LogEntryKind::Processed("0".to_owned(), 9, 9));
        run_data.event_logs.get_mut(&incarnation(1)).unwrap().insert(2, again);
        assert_eq!(found(&run_data), [(Cause::During(Fault::Throttle), 2), (Cause::Unexplained, 1)]);
    }

    /// The time of the reset, its position, and the verdict on two repeated events.
    #[test]
    fn a_reset_explains_the_events_after_its_position() {
        let operator = IncarnationId::of_operator(1);
        for (at, to, expected) in [
            (35, 3, vec![(Cause::Reset, 2)]),
            (35, 4, vec![(Cause::Reset, 1), (Cause::Unexplained, 1)]),
            (35, 5, vec![(Cause::Unexplained, 2)]),
            (5, 3, vec![(Cause::Unexplained, 2)]),
            (45, 3, vec![(Cause::Unexplained, 2)]),
        ] {
            let mut run_data = overlapping();
            run_data.writes = vec![write(Kind::Checkpoint, operator, at, ("a", "b"), to)];
            assert_eq!(found(&run_data), [(Cause::Unexplained, 2)], "no operator was to do that");
            run_data.resets = vec![Attempt { by: operator, partition: "0".to_owned(), to, outcome: Outcome::Killed }];
            assert_eq!(found(&run_data), expected, "at {at} to {to}");
        }
    }

    #[test]
    fn the_last_of_several_resets_counts() {
        let mut run_data = overlapping();
        let operator = IncarnationId::of_operator(1);
        for (at, to, expected) in [(32, -1, Cause::Reset), (34, 5, Cause::Unexplained), (36, 2, Cause::Reset)] {
            run_data.writes.insert(0, write(Kind::Checkpoint, operator, at, ("a", "b"), to));
            let attempt = Attempt { by: operator, partition: "0".to_owned(), to, outcome: Outcome::Done };
            run_data.resets.push(attempt);
            assert_eq!(found(&run_data), [(expected, 2)], "{to}");
        }
    }

    #[test]
    fn a_reset_does_not_explain_a_late_detection() {
        for (at, expected) in [(1_000, Cause::Reset), (10_000, Cause::Unexplained)] {
            let mut run_data = overlapping();
            let operator = IncarnationId::of_operator(1);
            let first = run_data.event_logs.get_mut(&incarnation(0)).unwrap();
            *first = vec![first[0].clone(), entry(at, LogEntryKind::Processed("0".to_owned(), 4, 5))];
            run_data.writes = vec![write(Kind::Checkpoint, operator, 35, ("a", "b"), 3)];
            run_data.resets = vec![Attempt { by: operator, partition: "0".to_owned(), to: 3, outcome: Outcome::Done }];
            assert_eq!(found(&run_data), [(expected, 2)], "{at}");
        }
    }

    #[test]
    fn an_idle_operator_explains_events_in_flight() {
        for (at, status, expected) in [
            (25, 201, Cause::TakenOver),
            (25, 0, Cause::TakenOver),
            (25, 412, Cause::Unexplained),
            (45, 201, Cause::Unexplained),
            (5, 201, Cause::Unexplained),
        ] {
            let mut run_data = overlapping();
            let claim = write(Kind::Ownership, IncarnationId::of_operator(1), at, ("a", "b"), 0);
            run_data.writes = vec![Write { status, owner: "operator-0".to_owned(), ..claim }];
            assert_eq!(found(&run_data), [(expected, 2)], "{at} {status}");
        }
        let mut run_data = overlapping();
        let claim = write(Kind::Ownership, IncarnationId::of_operator(1), 10_000, ("a", "b"), 0);
        run_data.writes = vec![Write { owner: "operator-0".to_owned(), ..claim }];
        let event_log = run_data.event_logs.get_mut(&incarnation(1)).unwrap();
        event_log[0] = entry(11_000, LogEntryKind::Started("0".to_owned()));
        event_log[1] = entry(12_000, LogEntryKind::Processed("0".to_owned(), 4, 9));
        assert_eq!(found(&run_data), [(Cause::Unexplained, 2)], "its checkpoint was due long ago");
    }
}
