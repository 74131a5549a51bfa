//! Whether operators report what they did, and whether owners go on there.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::duplicates::{Cause, Duplicates};
use crate::chaos::clock::Moment;
use crate::chaos::evidence::{Evidence, Session};
use crate::chaos::operators::{Attempt, Outcome};
use crate::chaos::writes::{Kind, Write, chain};

pub fn are_reported(evidence: &Evidence, sessions: &[Session], duplicates: &Duplicates) -> Check {
    let mut wrong = Vec::new();
    let (mut outcomes, mut starts) = (BTreeMap::<_, u32>::new(), 0);
    for attempt in &evidence.resets {
        *outcomes.entry(attempt.outcome).or_default() += 1;
        wrong.extend(misreported(evidence, attempt));
        if let Some(Start { at, first }) = start_after(evidence, sessions, attempt) {
            starts += 1;
            let due = attempt.to + 1;
            wrong.extend((first != due).then(|| format!("{} starts with {first} at {at:.1?}", report(attempt))));
        }
    }
    let outcomes: Vec<_> = outcomes.into_iter().map(|(outcome, count)| format!("{count} {}", outcome.name())).collect();
    let again = duplicates.by_cause.get(&Cause::Reset).copied().unwrap_or(0);
    let operators: BTreeSet<_> = evidence.resets.iter().map(|attempt| attempt.by).collect();
    let detail = format!(
        "{} partitions by {} operators: {}; {starts} starts of the next owner, {again} events again",
        evidence.resets.len(),
        operators.len(),
        if outcomes.is_empty() { "none".to_owned() } else { outcomes.join(", ") }
    );
    Check::new("resets are what operators report", &wrong, detail)
}

fn report(attempt: &Attempt) -> String {
    let Attempt { by, partition, to, outcome } = attempt;
    format!("{by} reported {:?} of partition {partition} to {to}, which", outcome.name())
}

/// What the storage took differs from the report.
fn misreported(evidence: &Evidence, attempt: &Attempt) -> Option<String> {
    let Written { written, moved } = written(evidence, attempt);
    let what = match attempt.outcome {
        Outcome::Done | Outcome::UnsureButWritten if !written => "was not written",
        Outcome::Done if release(evidence, attempt).is_none() => "was not released",
        Outcome::Lost | Outcome::Busy | Outcome::Failed | Outcome::Refused | Outcome::NotBegun if moved => {
            "was written"
        }
        _ => return None,
    };
    Some(format!("{} {what}", report(attempt)))
}

struct Written {
    /// The operator wrote the position.
    written: bool,
    /// Another one was there before.
    moved: bool,
}

fn written(evidence: &Evidence, attempt: &Attempt) -> Written {
    let (mut found, mut before) = (Written { written: false, moved: false }, None);
    for write in chain(evidence.writes_to(Kind::Checkpoint, &attempt.partition)) {
        if write.by == attempt.by && write.position == attempt.to {
            found.written = true;
            found.moved |= before != Some(write.position);
        }
        before = Some(write.position);
    }
    found
}

/// With or without an answer: the operator may have read what became of it.
fn release<'a>(evidence: &'a Evidence, attempt: &'a Attempt) -> Option<&'a Write> {
    let mut writes = evidence.writes_to(Kind::Ownership, &attempt.partition);
    writes.find(|write| write.by == attempt.by && write.owner.is_empty() && (write.is_accepted() || write.is_open()))
}

/// What an owner began with.
struct Start {
    at: Moment,
    first: i64,
}

/// What the next owner after a reset that is done began with. It may lose the partition before it begins: then
/// another reset may have come.
fn start_after(evidence: &Evidence, sessions: &[Session], attempt: &Attempt) -> Option<Start> {
    let release = release(evidence, attempt).filter(|_| attempt.outcome == Outcome::Done)?;
    let mut claims: Vec<_> = evidence
        .writes_to(Kind::Ownership, &attempt.partition)
        .filter(|write| write.claims() && (write.is_accepted() || write.is_open()) && write.sent > release.sent)
        .collect();
    claims.sort_by_key(|claim| claim.sent);
    let next = claims.iter().find(|claim| claim.is_accepted())?;
    let other = claims.iter().find(|claim| claim.by != next.by).map_or(Moment::MAX, |claim| claim.sent);
    let began = sessions.iter().filter(|session| {
        (session.life, &session.partition) == (next.by, &attempt.partition) && session.from >= next.sent
    });
    let session = began.min_by_key(|session| session.from).filter(|session| session.from < other)?;
    session.runs.first().map(|(at, first, _)| Start { at: *at, first: *first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::checks::duplicates::duplicates;
    use crate::chaos::checks::rules::tests::{again, reset};
    use crate::chaos::life::Life;
    use crate::chaos::writes::tests::{life, write};

    fn check(evidence: &Evidence) -> Check {
        let sessions = evidence.sessions();
        are_reported(evidence, &sessions, &duplicates(evidence, &sessions))
    }

    #[test]
    fn a_report_must_agree_with_what_was_written() {
        use Outcome::{Busy, Done, Failed, Killed, Lost, NotBegun, Unsure, UnsureButWritten};
        let full = again(reset(3), 4, 9);
        let mut unwritten = full.clone();
        unwritten.writes.retain(|write| !full.is_reset(write));
        let mut kept = full.clone();
        kept.writes.retain(|write| !(write.by.is_operator() && write.owner.is_empty()));
        for (evidence, wrong) in [
            (&full, vec![Lost, Busy, Failed, NotBegun]),
            (&unwritten, vec![Done, UnsureButWritten]),
            (&kept, vec![Done, Lost, Busy, Failed, NotBegun]),
        ] {
            for outcome in [Done, Lost, Busy, Failed, UnsureButWritten, Unsure, NotBegun, Killed] {
                let mut evidence = evidence.clone();
                evidence.resets[0].outcome = outcome;
                assert_eq!(
                    check(&evidence).holds,
                    !wrong.contains(&outcome),
                    "{outcome:?}: {}",
                    check(&evidence).detail
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
    fn another_owner_may_come_before_the_next_one_starts() {
        let mut evidence = again(reset(3), 6, 9);
        evidence.writes.push(write(Kind::Ownership, life(0), 73, ("o5", "o6"), 0));
        let mut again = evidence.resets[0].clone();
        assert!(check(&evidence).holds);
        again.by = Life::of_operator(2);
        again.outcome = Outcome::Busy;
        evidence.resets.push(again);
        assert_eq!(
            check(&evidence).detail,
            "2 partitions by 2 operators: 1 done, 1 not done: busy; 0 starts of the next owner, 4 events again"
        );
    }

    #[test]
    fn a_run_without_resets_says_so() {
        assert_eq!(
            check(&crate::chaos::evidence::tests::in_order()).detail,
            "0 partitions by 0 operators: none; 0 starts of the next owner, 0 events again"
        );
    }
}
