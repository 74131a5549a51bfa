//! Events that were processed more than once, and why.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Check;
use super::spans::{Span, Spans};
use crate::clock::Moment;
use crate::diary::What;
use crate::evidence::{Evidence, Session};
use crate::fleet::End;
use crate::plan::Fault;

/// What was processed right before a fault may not be checkpointed when it begins.
const CHECKPOINT_LAG: Duration = Duration::from_secs(2);

/// Why the checkpoint behind an event was not there when the next owner began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The process was killed first.
    Killed,
    /// A handoff went without the last checkpoint, and that was told.
    Told,
    /// The process was stopped meanwhile, or something else was wrong on its way.
    During(Fault),
    /// There is no reason for it.
    Unexplained,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed => f.write_str("in flight at a kill"),
            Self::Told => f.write_str("told: duplicates possible"),
            Self::During(fault) => write!(f, "during {}", fault.name()),
            Self::Unexplained => f.write_str("UNEXPLAINED"),
        }
    }
}

/// How many there are of each cause, and examples of those without one.
#[derive(Debug, Default)]
pub struct Duplicates {
    pub by_cause: BTreeMap<Cause, u64>,
    pub unexplained: Vec<String>,
}

pub fn duplicates(evidence: &Evidence, sessions: &[Session]) -> Duplicates {
    let mut duplicates = Duplicates::default();
    for partition in evidence.published.keys() {
        let own = sessions.iter().enumerate().filter(|(_, session)| session.partition == *partition);
        let runs = own.flat_map(|(index, session)| session.runs.iter().map(move |run| (index, *run)));
        let mut runs: Vec<_> = runs.map(|(session, (at, first, last))| Span { first, last, session, at }).collect();
        runs.sort_by_key(|run| run.at);
        let mut spans = Spans::default();
        for run in runs {
            for before in spans.cover(run) {
                duplicates.add(evidence, &before, &sessions[before.session], &sessions[run.session]);
            }
        }
    }
    duplicates
}

impl Duplicates {
    fn add(&mut self, evidence: &Evidence, events: &Span, before: &Session, again: &Session) {
        let cause = if before == again { Cause::Unexplained } else { cause(evidence, events.at, before, again) };
        *self.by_cause.entry(cause).or_default() += events.length();
        if cause == Cause::Unexplained {
            let Span { first, last, at, .. } = events;
            let (partition, stopped) = (&before.partition, &before.stopped);
            self.unexplained.push(format!(
                "{first} to {last} of partition {partition}: by {} at {at:.1?} (stopped {stopped:?}), by {} which began at {:.1?}",
                before.life, again.life, again.from
            ));
        }
    }
}

/// The events were processed at this time.
fn cause(evidence: &Evidence, at: Moment, before: &Session, again: &Session) -> Cause {
    let was_killed = matches!(evidence.end_of(before.life), Some((_, End::Killed)));
    if was_killed && before.stopped.is_none() {
        return Cause::Killed;
    }
    let (from, to) = (at.saturating_sub(CHECKPOINT_LAG), again.from);
    let told = evidence.diaries.values().flatten().any(|entry| {
        let partition = if let What::DuplicatesPossible(partition, _) = &entry.what { Some(partition) } else { None };
        partition == Some(&before.partition) && (from..=to).contains(&entry.moment())
    });
    if told {
        return Cause::Told;
    }
    let strikes = |instance| instance == before.life.instance || instance == again.life.instance;
    let during = evidence
        .happened
        .iter()
        .filter(|happened| happened.from <= to && happened.to >= from && happened.instance.is_none_or(strikes));
    // Of several the one that began last.
    during.max_by_key(|happened| happened.from).map_or(Cause::Unexplained, |happened| Cause::During(happened.fault))
}

pub fn are_explained(duplicates: &Duplicates) -> Check {
    let causes = duplicates.by_cause.iter().map(|(cause, events)| format!("{events} {cause}"));
    let told = causes.collect::<Vec<_>>().join(", ");
    let told = if told.is_empty() { "none".to_owned() } else { told };
    Check::new("duplicates are explained", &duplicates.unexplained, told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::tests::{entry, in_order};
    use crate::faults::Happened;
    use crate::writes::tests::life;

    /// The second instance processes 4 and 5 again.
    fn overlapping() -> Evidence {
        let mut evidence = in_order();
        let diary = evidence.diaries.get_mut(&life(1)).unwrap();
        diary[1] = entry(50, What::Processed("0".to_owned(), 4, 9));
        evidence
    }

    fn found(evidence: &Evidence) -> Vec<(Cause, u64)> {
        duplicates(evidence, &evidence.sessions()).by_cause.into_iter().collect()
    }

    #[test]
    fn what_comes_once_is_no_duplicate() {
        assert_eq!(found(&in_order()), []);
        assert!(are_explained(&Duplicates::default()).holds);
    }

    #[test]
    fn without_a_reason_they_are_unexplained() {
        let evidence = overlapping();
        assert_eq!(found(&evidence), [(Cause::Unexplained, 2)]);
        let check = are_explained(&duplicates(&evidence, &evidence.sessions()));
        assert!(!check.holds);
        assert!(check.detail.starts_with("4 to 5 of partition 0: by i1.1 at 20.0ms"), "{}", check.detail);
    }

    #[test]
    fn a_kill_explains_what_was_in_flight() {
        let mut evidence = overlapping();
        evidence.diaries.get_mut(&life(0)).unwrap().truncate(2);
        evidence.lives[0].end = Some((Moment::from_millis(30), End::Killed));
        assert_eq!(found(&evidence), [(Cause::Killed, 2)]);
    }

    #[test]
    fn a_warning_explains_its_partition_and_a_fault_whom_it_strikes() {
        let mut evidence = overlapping();
        let happened =
            |instance, fault| Happened { fault, instance, from: Moment::from_millis(15), to: Moment::from_millis(35) };
        evidence.instances = 3;
        evidence.happened = vec![happened(Some(2), Fault::Freeze)];
        assert_eq!(found(&evidence), [(Cause::Unexplained, 2)]);
        evidence.happened.push(happened(None, Fault::Outage));
        assert_eq!(found(&evidence), [(Cause::During(Fault::Outage), 2)]);
        let told = What::DuplicatesPossible("0".to_owned(), "NotReleased".to_owned());
        evidence.diaries.get_mut(&life(1)).unwrap().insert(0, entry(38, told));
        assert_eq!(found(&evidence), [(Cause::Told, 2)]);
    }

    #[test]
    fn nothing_explains_an_event_that_comes_twice_to_one_start_of_a_handler() {
        let mut evidence = overlapping();
        evidence.happened =
            vec![Happened { fault: Fault::HubCut, instance: None, from: Moment::ZERO, to: Moment::from_secs(1) }];
        let again = entry(60, What::Processed("0".to_owned(), 9, 9));
        evidence.diaries.get_mut(&life(1)).unwrap().insert(2, again);
        assert_eq!(found(&evidence), [(Cause::During(Fault::HubCut), 2), (Cause::Unexplained, 1)]);
    }
}
