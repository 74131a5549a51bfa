//! The rules of [`history`](crate::history), over what the storage accepted and what the handlers wrote on disk.

use std::collections::BTreeMap;

use super::Check;
use crate::chaos::clock::Moment;
use crate::chaos::evidence::{Evidence, Session};
use crate::chaos::life::Life;
use crate::chaos::writes::{Kind, Write, chain};
use crate::history::{Delivery, Partition, Purpose, Rule, Verdict};

pub fn checks(evidence: &Evidence, sessions: &[Session]) -> Vec<Check> {
    let mut findings = Findings::default();
    for partition in evidence.published.keys() {
        findings.judge(evidence, sessions, partition);
    }
    for session in sessions {
        findings.judge_session(session, evidence.first_of(&session.partition));
    }
    if findings.checkpoints == 0 {
        findings.breaches.entry(Rule::NothingSkipped).or_default().push("no checkpoint was seen at all".to_owned());
    }
    let seen = evidence.seen.backwards.iter().map(|(at, what)| format!("at {at:.1?} a listing {what}"));
    findings.breaches.entry(Rule::NeverBack).or_default().splice(0..0, seen);
    let Findings { breaches, batches, checkpoints, refused } = findings;
    let check = |name, rule, detail| Check::new(name, breaches.get(&rule).map_or(&[][..], Vec::as_slice), detail);
    vec![
        check("no event is lost", Rule::NothingLost, format!("{} events", evidence.events())),
        check("every start is continuous", Rule::Continuous, format!("{batches} batches after the first")),
        check("no checkpoint passes what is not processed", Rule::NothingSkipped, format!("{checkpoints} checkpoints")),
        check("positions never move back", Rule::NeverBack, format!("{} looks", evidence.seen.looks)),
        check("who was displaced writes no checkpoint", Rule::Fenced, format!("{refused} refused")),
    ]
}

#[derive(Default)]
struct Findings {
    breaches: BTreeMap<Rule, Vec<String>>,
    /// After the first of their start.
    batches: u64,
    checkpoints: u64,
    refused: usize,
}

impl Findings {
    fn judge(&mut self, evidence: &Evidence, sessions: &[Session], partition: &str) {
        let own: Vec<_> = sessions.iter().filter(|session| session.partition == partition).collect();
        self.judge_progress(evidence, &own, partition);
        self.judge_order(evidence, partition);
        self.refused += evidence.writes_to(Kind::Checkpoint, partition).filter(|write| write.is_refused()).count();
    }

    /// A checkpoint must not pass the events that handlers wrote down before it was sent. Every accepted write is judged,
    /// also one that the chain of versions leaves out.
    fn judge_progress(&mut self, evidence: &Evidence, sessions: &[&Session], partition: &str) {
        let mut history = Partition::<Life>::default();
        history.published(evidence.published[partition] + 1);
        let mut runs: Vec<_> = sessions.iter().flat_map(|session| &session.runs).copied().collect();
        runs.sort_by_key(|(at, ..)| *at);
        let mut runs = runs.into_iter().peekable();
        let mut writes: Vec<_> =
            evidence.writes_to(Kind::Checkpoint, partition).filter(|write| write.is_accepted()).collect();
        writes.sort_by_key(|write| write.sent);
        for write in writes {
            while let Some((_, first, last)) = runs.next_if(|(at, ..)| *at <= write.sent) {
                history.processed(Some(0), first, last);
            }
            self.checkpoints += 1;
            self.add(&format!("{} at {:.1?}", write.by, write.sent), partition, history.skipped(write.position));
        }
        runs.for_each(|(_, first, last)| _ = history.processed(Some(0), first, last));
        self.add("the group", partition, history.lost());
    }

    /// The order in which the storage took the writes.
    fn judge_order(&mut self, evidence: &Evidence, partition: &str) {
        let mut history = Partition::<Life>::default();
        history.published(evidence.published[partition] + 1);
        let claims = claims(&mut history, evidence, partition);
        for write in chain(evidence.writes_to(Kind::Checkpoint, partition)) {
            let tenure = claims.iter().rposition(|claim| claim.by == write.by && claim.sent < write.sent);
            let purpose = Purpose::Progress { tenure: tenure.map(|tenure| tenure as u64 + 1) };
            let excused = claim_is_open(evidence, write);
            for verdict in history.checkpointed(&write.by, purpose, write.position) {
                if verdict.rule == Rule::NeverBack || (verdict.rule == Rule::Fenced && !excused) {
                    self.add(&format!("{} at {:.1?}", write.by, write.sent), partition, verdict);
                }
            }
        }
    }

    fn judge_session(&mut self, session: &Session, oldest: i64) {
        let mut delivery = Delivery::default();
        for (at, first, last) in &session.runs {
            let Some(verdict) = delivery.follows(*first, *last, oldest) else { continue };
            self.batches += 1;
            self.add(&format!("{} at {at:.1?}", session.life), &session.partition, verdict);
        }
    }

    fn add(&mut self, who: &str, partition: &str, verdict: Verdict) {
        let breaches = self.breaches.entry(verdict.rule).or_default();
        breaches.extend(verdict.breach.map(|breach| format!("{who} {breach} (partition {partition})")));
    }
}

struct Claim {
    by: Life,
    sent: Moment,
}

/// The writes that began a tenure, or began it again after a release. A mark that asks for a handoff keeps the owner.
fn claims(history: &mut Partition<Life>, evidence: &Evidence, partition: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    for write in chain(evidence.writes_to(Kind::Ownership, partition)) {
        if write.owner.is_empty() {
            history.owned_by(None);
        } else if write.owner == write.by.owner() && history.owned_by(Some(write.by)).changed {
            claims.push(Claim { by: write.by, sent: write.sent });
        }
    }
    claims
}

/// Its writer had sent a claim of which no answer was seen: it may be the owner, and nothing can be said.
fn claim_is_open(evidence: &Evidence, write: &Write) -> bool {
    let mut claims = evidence.writes_to(Kind::Ownership, &write.partition);
    claims.any(|claim| claim.by == write.by && claim.is_open() && claim.sent < write.sent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::diary::What;
    use crate::chaos::evidence::tests::{entry, in_order};
    use crate::chaos::writes::tests::{life, write};

    fn moved() -> Evidence {
        let mut evidence = in_order();
        evidence.writes = vec![
            write(Kind::Ownership, life(0), 1, ("", "o1"), 0),
            write(Kind::Checkpoint, life(0), 25, ("", "c1"), 3),
            write(Kind::Ownership, life(1), 30, ("o1", "o2"), 0),
            write(Kind::Checkpoint, life(1), 40, ("c1", "c2"), 3),
            write(Kind::Checkpoint, life(1), 55, ("c2", "c3"), 9),
        ];
        evidence
    }

    fn broken(evidence: &Evidence) -> Vec<(&'static str, String)> {
        let all = checks(evidence, &evidence.sessions());
        all.into_iter().filter(|check| !check.holds).map(|check| (check.name, check.detail)).collect()
    }

    #[test]
    fn a_handover_breaks_nothing() {
        assert_eq!(broken(&moved()), []);
    }

    #[test]
    fn events_that_no_handler_processed_are_lost() {
        let mut evidence = moved();
        evidence.published.insert("0".to_owned(), 11);
        evidence.published.insert("1".to_owned(), 0);
        let lost = "the group never processed 10 to 11 (partition 0); the group never processed 0 to 0 (partition 1)";
        assert_eq!(broken(&evidence), [("no event is lost", lost.to_owned())]);
    }

    #[test]
    fn a_batch_that_does_not_follow_is_found() {
        let mut evidence = moved();
        let processed = |at, first, last| entry(at, What::Processed("0".to_owned(), first, last));
        let diary = evidence.diaries.get_mut(&life(0)).unwrap();
        diary.splice(1..2, [processed(20, 0, 3), processed(24, 3, 5)]);
        let detail = "i1.1 at 24.0ms got event 3 where 4 was due, and 0 is the oldest (partition 0)".to_owned();
        assert_eq!(broken(&evidence), [("every start is continuous", detail)]);
    }

    #[test]
    fn retention_explains_a_gap() {
        for (retention, holds) in [(4, true), (5, false)] {
            let mut evidence = moved();
            evidence.retention = retention;
            let processed = |at, first, last| entry(at, What::Processed("0".to_owned(), first, last));
            evidence.diaries.get_mut(&life(0)).unwrap().splice(1..2, [processed(20, 0, 4), processed(24, 6, 6)]);
            evidence.diaries.get_mut(&life(1)).unwrap()[1] = processed(50, 5, 9);
            let is_broken = broken(&evidence).iter().any(|(name, _)| *name == "every start is continuous");
            assert_eq!(!is_broken, holds, "{retention}");
        }
    }

    #[test]
    fn a_checkpoint_before_its_handler_is_done_is_found() {
        let mut evidence = moved();
        evidence.writes[4].sent = Moment::from_millis(45);
        let detail = "i2.1 at 45.0ms wrote checkpoint 9, but only 5 is processed (partition 0)".to_owned();
        assert_eq!(broken(&evidence), [("no checkpoint passes what is not processed", detail)]);
    }

    #[test]
    fn a_run_without_checkpoints_proves_nothing() {
        let mut evidence = moved();
        evidence.writes.retain(|write| write.kind == Kind::Ownership);
        let detail = "no checkpoint was seen at all".to_owned();
        assert_eq!(broken(&evidence), [("no checkpoint passes what is not processed", detail)]);
    }

    #[test]
    fn a_displaced_instance_that_is_accepted_is_found() {
        let mut evidence = moved();
        let refused = Write { status: 412, etag: None, ..write(Kind::Checkpoint, life(0), 56, ("c1", ""), 9) };
        evidence.writes.push(refused);
        assert_eq!(broken(&evidence), []);
        evidence.writes.push(write(Kind::Checkpoint, life(0), 60, ("c3", "c4"), 9));
        let detail = "i1.1 at 60.0ms wrote checkpoint 9 in tenure 1, after tenure 2 had (partition 0)".to_owned();
        assert_eq!(broken(&evidence), [("who was displaced writes no checkpoint", detail)]);
    }

    #[test]
    fn a_displaced_instance_may_write_before_the_next_has_adopted() {
        let mut evidence = moved();
        evidence.writes.insert(3, write(Kind::Checkpoint, life(0), 35, ("c1", "c1b"), 3));
        evidence.writes[4].replaces = Some("c1b".to_owned());
        assert_eq!(broken(&evidence), []);
    }

    #[test]
    fn a_mark_begins_no_tenure() {
        let mut evidence = moved();
        let mark = Write { owner: life(0).owner(), ..write(Kind::Ownership, life(1), 26, ("o1", "o1b"), 0) };
        evidence.writes[2].replaces = Some("o1b".to_owned());
        evidence.writes[3].replaces = Some("c1b".to_owned());
        evidence.writes.extend([mark, write(Kind::Checkpoint, life(1), 28, ("c1", "c1b"), 3)]);
        let detail = "i2.1 at 28.0ms wrote checkpoint 3 without a tenure (partition 0)".to_owned();
        assert_eq!(broken(&evidence), [("who was displaced writes no checkpoint", detail)]);
    }

    #[test]
    fn one_of_two_writes_over_one_version_is_judged() {
        let mut evidence = moved();
        evidence.writes.insert(4, write(Kind::Checkpoint, life(1), 45, ("c2", "x"), 9));
        let detail = "i2.1 at 45.0ms wrote checkpoint 9, but only 5 is processed (partition 0)".to_owned();
        assert_eq!(broken(&evidence), [("no checkpoint passes what is not processed", detail)]);
    }

    #[test]
    fn an_instance_that_never_owned_it_must_not_write() {
        let mut evidence = moved();
        let claim = evidence.writes.remove(0);
        assert_eq!(broken(&evidence)[0].1, "i1.1 at 25.0ms wrote checkpoint 3 without a tenure (partition 0)");
        evidence.writes.insert(0, Write { status: 0, answered: None, ..claim });
        assert_eq!(broken(&evidence), [], "its claim may have been applied");
    }

    #[test]
    fn an_owner_that_claims_again_goes_on() {
        let mut evidence = moved();
        let release = Write { owner: String::new(), ..write(Kind::Ownership, life(1), 60, ("o2", "o3"), 0) };
        evidence.writes.extend([release, write(Kind::Ownership, life(1), 62, ("o3", "o4"), 0)]);
        evidence.writes.push(write(Kind::Checkpoint, life(1), 65, ("c3", "c4"), 9));
        assert_eq!(broken(&evidence), []);
    }

    #[test]
    fn steps_back_are_found_in_writes_and_in_listings() {
        let mut evidence = moved();
        evidence.writes.push(write(Kind::Checkpoint, life(1), 60, ("c3", "c4"), 8));
        evidence
            .seen
            .backwards
            .push((Moment::from_secs(2), "moved the checkpoint of partition 0 from 9 to 8".to_owned()));
        let detail = "at 2.0s a listing moved the checkpoint of partition 0 from 9 to 8; \
                      i2.1 at 60.0ms moved the checkpoint from 9 back to 8 (partition 0)";
        assert_eq!(broken(&evidence), [("positions never move back", detail.to_owned())]);
    }
}
