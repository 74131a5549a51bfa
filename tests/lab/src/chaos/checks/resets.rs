//! Whether operators report what they did, and whether owners continue at the new position.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::duplicates::{Cause, Duplicates};
use crate::chaos::clock::Moment;
use crate::chaos::operators::{Attempt, Outcome};
use crate::chaos::run_data::{RunData, Session};
use crate::chaos::writes::{Kind, Write, chain};

pub fn are_reported(run_data: &RunData, sessions: &[Session], duplicates: &Duplicates) -> Check {
    let mut wrong = Vec::new();
    let (mut outcomes, mut starts) = (BTreeMap::<_, u32>::new(), 0);
    for attempt in &run_data.resets {
        *outcomes.entry(attempt.outcome).or_default() += 1;
        wrong.extend(misreported(run_data, attempt));
        if let Some(Start { at, first }) = start_after(run_data, sessions, attempt) {
            starts += 1;
            let due = attempt.to + 1;
            wrong.extend((first != due).then(|| format!("{} starts with {first} at {at:.1?}", report(attempt))));
        }
    }
    let outcomes: Vec<_> = outcomes.into_iter().map(|(outcome, count)| format!("{count} {}", outcome.name())).collect();
    let again = duplicates.by_cause.get(&Cause::Reset).copied().unwrap_or(0);
    let operators: BTreeSet<_> = run_data.resets.iter().map(|attempt| attempt.by).collect();
    let detail = format!(
        "{} partitions by {} operators: {}; {starts} starts of the next owner, {again} events again",
        run_data.resets.len(),
        operators.len(),
        if outcomes.is_empty() { "none".to_owned() } else { outcomes.join(", ") }
    );
    Check::new("resets match the reports of operators", &wrong, detail)
}

fn report(attempt: &Attempt) -> String {
    let Attempt { by, partition, to, outcome } = attempt;
    format!("{by} reported {:?} of partition {partition} to {to}, which", outcome.name())
}

/// Returns how the accepted writes differ from the report.
fn misreported(run_data: &RunData, attempt: &Attempt) -> Option<String> {
    let Written { written, moved } = written(run_data, attempt);
    let problem = match attempt.outcome {
        Outcome::Done | Outcome::IndeterminateButWritten if !written => "was not written",
        Outcome::Done if release(run_data, attempt).is_none() => "was not released",
        Outcome::Lost | Outcome::Busy | Outcome::Failed | Outcome::Refused | Outcome::NotBegun if moved => {
            "was written"
        }
        _ => return None,
    };
    Some(format!("{} {problem}", report(attempt)))
}

struct Written {
    /// The operator wrote the position.
    written: bool,
    /// The previous position was different.
    moved: bool,
}

fn written(run_data: &RunData, attempt: &Attempt) -> Written {
    let (mut found, mut before) = (Written { written: false, moved: false }, None);
    for write in chain(run_data.writes_to(Kind::Checkpoint, &attempt.partition)) {
        if write.by == attempt.by && write.position == attempt.to {
            found.written = true;
            found.moved |= before != Some(write.position);
        }
        before = Some(write.position);
    }
    found
}

/// The release, with or without a response: the operator may have read the outcome.
fn release<'a>(run_data: &'a RunData, attempt: &'a Attempt) -> Option<&'a Write> {
    let mut writes = run_data.writes_to(Kind::Ownership, &attempt.partition);
    writes.find(|write| write.by == attempt.by && write.owner.is_empty() && (write.is_accepted() || write.is_open()))
}

/// The first event of an owner.
struct Start {
    at: Moment,
    first: i64,
}

/// Returns the first event of the next owner after a completed reset. That owner may lose the partition before it
/// starts: then there may have been another reset.
fn start_after(run_data: &RunData, sessions: &[Session], attempt: &Attempt) -> Option<Start> {
    let release = release(run_data, attempt).filter(|_| attempt.outcome == Outcome::Done)?;
    let mut claims: Vec<_> = run_data
        .writes_to(Kind::Ownership, &attempt.partition)
        .filter(|write| write.claims() && (write.is_accepted() || write.is_open()) && write.sent > release.sent)
        .collect();
    claims.sort_by_key(|claim| claim.sent);
    let next = claims.iter().find(|claim| claim.is_accepted())?;
    let other = claims.iter().find(|claim| claim.by != next.by).map_or(Moment::MAX, |claim| claim.sent);
    let began = sessions.iter().filter(|session| {
        (session.incarnation, &session.partition) == (next.by, &attempt.partition) && session.from >= next.sent
    });
    let session = began.min_by_key(|session| session.from).filter(|session| session.from < other)?;
    session.runs.first().map(|(at, first, _)| Start { at: *at, first: *first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::checks::duplicates::duplicates;
    use crate::chaos::checks::rules::tests::{again, reset};
    use crate::chaos::incarnation::IncarnationId;
    use crate::chaos::writes::tests::{incarnation, write};

    fn check(run_data: &RunData) -> Check {
        let sessions = run_data.sessions();
        are_reported(run_data, &sessions, &duplicates(run_data, &sessions))
    }

    #[test]
    fn a_report_must_match_the_writes() {
        use Outcome::{Busy, Done, Failed, IndeterminateButWritten, Killed, Lost, NotBegun, Unsure};
        let full = again(reset(3), 4, 9);
        let mut unwritten = full.clone();
        unwritten.writes.retain(|write| !full.is_reset(write));
        let mut kept = full.clone();
        kept.writes.retain(|write| !(write.by.is_operator() && write.owner.is_empty()));
        for (run_data, wrong) in [
            (&full, vec![Lost, Busy, Failed, NotBegun]),
            (&unwritten, vec![Done, IndeterminateButWritten]),
            (&kept, vec![Done, Lost, Busy, Failed, NotBegun]),
        ] {
            for outcome in [Done, Lost, Busy, Failed, IndeterminateButWritten, Unsure, NotBegun, Killed] {
                let mut run_data = run_data.clone();
                run_data.resets[0].outcome = outcome;
                assert_eq!(
                    check(&run_data).holds,
                    !wrong.contains(&outcome),
                    "{outcome:?}: {}",
                    check(&run_data).detail
                );
            }
        }
    }

    #[test]
    fn the_next_owner_starts_after_the_new_position() {
        let found = |first| check(&again(reset(3), first, 9));
        assert_eq!(found(4).detail, "1 partitions by 1 operators: 1 done; 1 starts of the next owner, 6 events again");
        assert_eq!(found(6).detail, "operator.1 reported \"done\" of partition 0 to 3, which starts with 6 at 76.0ms");
        assert!(!found(3).holds);
    }

    #[test]
    fn another_owner_may_come_before_the_next_starts() {
        let mut run_data = again(reset(3), 6, 9);
        run_data.writes.push(write(Kind::Ownership, incarnation(0), 73, ("o5", "o6"), 0));
        let mut again = run_data.resets[0].clone();
        assert!(check(&run_data).holds);
        again.by = IncarnationId::of_operator(2);
        again.outcome = Outcome::Busy;
        run_data.resets.push(again);
        assert_eq!(
            check(&run_data).detail,
            "2 partitions by 2 operators: 1 done, 1 not done: busy; 0 starts of the next owner, 4 events again"
        );
    }

    #[test]
    fn a_run_without_resets_is_reported() {
        assert_eq!(
            check(&crate::chaos::run_data::tests::in_order()).detail,
            "0 partitions by 0 operators: none; 0 starts of the next owner, 0 events again"
        );
    }
}
