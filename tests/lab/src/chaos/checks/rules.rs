//! The rules of [`history`](crate::history), over what the storage accepted and what the handlers wrote on disk.

use std::collections::BTreeMap;

use super::Check;
use crate::chaos::clock::Moment;
use crate::chaos::evidence::{Evidence, Session};
use crate::chaos::life::Life;
use crate::chaos::watcher::Backwards;
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
    let seen = evidence.seen.backwards.iter().filter(|step| !is_of_a_reset(evidence, step));
    let seen = seen.map(|step| format!("at {:.1?} a listing {}", step.to, step.breach));
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

    /// A checkpoint must not pass the events that handlers wrote down before it was sent, and after the last reset. Every
    /// accepted write is judged, also one that the chain of versions leaves out. A reset is sent after every checkpoint
    /// that it replaces was taken, and before any that follows it.
    fn judge_progress(&mut self, evidence: &Evidence, sessions: &[&Session], partition: &str) {
        let mut history = Partition::<Life>::default();
        history.published(evidence.published[partition] + 1);
        let (mut starts, mut group) = (BTreeMap::new(), "the group".to_owned());
        for step in steps(evidence, sessions, partition) {
            match step {
                Step::Starts(session) => _ = starts.insert(session, history.started()),
                Step::Processes(session, first, last) => {
                    history.processed(starts.get(&session).copied(), first, last);
                }
                Step::Writes(write) if evidence.is_reset(write) => {
                    history.checkpointed(&write.by, RESET, write.position);
                    group =
                        format!("the group, after {} reset it to {} at {:.1?},", write.by, write.position, write.sent);
                }
                Step::Writes(write) => {
                    self.checkpoints += 1;
                    let who = format!("{} at {:.1?}", write.by, write.sent);
                    self.add(&who, partition, history.skipped(write.position));
                }
            }
        }
        self.add(&group, partition, history.lost());
    }

    /// The order in which the storage took the writes.
    fn judge_order(&mut self, evidence: &Evidence, partition: &str) {
        let mut history = Partition::<Life>::default();
        history.published(evidence.published[partition] + 1);
        let claims = claims(&mut history, evidence, partition);
        for write in chain(evidence.writes_to(Kind::Checkpoint, partition)) {
            let tenure = claims.iter().rposition(|claim| claim.by == write.by && claim.sent < write.sent);
            let progress = Purpose::Progress { tenure: tenure.map(|tenure| tenure as u64 + 1) };
            let purpose = if evidence.is_reset(write) { RESET } else { progress };
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

/// An operator may put a checkpoint anywhere.
const RESET: Purpose = Purpose::Reset { by_operator: true, may_skip: true };

/// What happened to a partition. Sessions are named by their places among the partition's own.
#[derive(Clone, Copy)]
enum Step<'a> {
    Starts(usize),
    Processes(usize, i64, i64),
    Writes(&'a Write),
}

/// In the order in which they happened. What a handler has done when a write is sent comes before the write.
fn steps<'a>(evidence: &'a Evidence, sessions: &[&Session], partition: &'a str) -> Vec<Step<'a>> {
    let writes = evidence.writes_to(Kind::Checkpoint, partition).filter(|write| write.is_accepted());
    let starts = sessions.iter().zip(0..).map(|(session, index)| (session.from, Step::Starts(index)));
    let runs = sessions.iter().zip(0..).flat_map(|(session, index)| {
        session.runs.iter().map(move |(at, first, last)| (*at, Step::Processes(index, *first, *last)))
    });
    let mut steps: Vec<_> = starts.chain(runs).chain(writes.map(|write| (write.sent, Step::Writes(write)))).collect();
    steps.sort_by_key(|(at, _)| *at);
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Whether a reset moved this checkpoint back. Its next owner may have processed more by then.
fn is_of_a_reset(evidence: &Evidence, step: &Backwards) -> bool {
    let mut resets = evidence.writes_to(Kind::Checkpoint, &step.partition).filter(|write| evidence.is_reset(write));
    resets.any(|reset| {
        let is_meanwhile = reset.sent <= step.to && reset.answered.is_some_and(|answered| answered >= step.from);
        is_meanwhile && step.position >= Some(reset.position)
    })
}

struct Claim {
    by: Life,
    sent: Moment,
}

/// The writes that began a tenure, in the order of their numbers. An owner that claims again what it has released goes
/// on in the same tenure. A mark that asks for a handoff keeps the owner.
fn claims(history: &mut Partition<Life>, evidence: &Evidence, partition: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    for write in chain(evidence.writes_to(Kind::Ownership, partition)) {
        if write.owner.is_empty() {
            history.owned_by(None);
        } else if write.claims() && history.owned_by(Some(write.by)).begins {
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
pub mod tests {
    use super::*;
    use crate::chaos::diary::What;
    use crate::chaos::evidence::tests::{entry, in_order};
    use crate::chaos::operators::{Attempt, Outcome};
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
        evidence.seen.backwards.push(seen_at(8));
        let detail = "at 2.0s a listing moved the checkpoint of partition 0 from 9 to 8; \
                      i2.1 at 60.0ms moved the checkpoint from 9 back to 8 (partition 0)";
        assert_eq!(broken(&evidence), [("positions never move back", detail.to_owned())]);
    }

    /// A listing between 1 s and 2 s shows the checkpoint there.
    fn seen_at(position: i64) -> Backwards {
        Backwards {
            partition: "0".to_owned(),
            from: Moment::from_secs(1),
            to: Moment::from_secs(2),
            position: Some(position),
            breach: format!("moved the checkpoint of partition 0 from 9 to {position}"),
        }
    }

    /// The operator takes the partition from the second instance, puts the checkpoint there, and returns the partition.
    pub fn reset(to: i64) -> Evidence {
        let mut evidence = moved();
        let (operator, partition) = (Life::of_operator(1), "0".to_owned());
        let taken = Write { owner: "operator-0".to_owned(), ..write(Kind::Ownership, operator, 60, ("o2", "o3"), 0) };
        let released = Write { owner: String::new(), ..write(Kind::Ownership, operator, 66, ("o3", "o4"), 0) };
        evidence.writes.extend([
            taken,
            write(Kind::Checkpoint, operator, 62, ("c3", "c4"), 9),
            write(Kind::Checkpoint, operator, 64, ("c4", "c5"), to),
            released,
            write(Kind::Ownership, life(1), 70, ("o4", "o5"), 0),
            write(Kind::Checkpoint, life(1), 72, ("c5", "c6"), to),
        ]);
        evidence.resets.push(Attempt { by: operator, partition, to, outcome: Outcome::Done });
        evidence
    }

    /// The second instance starts again, processes these events, and writes down the last one.
    pub fn again(mut evidence: Evidence, first: i64, last: i64) -> Evidence {
        let diary = evidence.diaries.get_mut(&life(1)).unwrap();
        diary[2] = entry(65, What::Stopped("0".to_owned(), "Lost".to_owned()));
        diary.push(entry(74, What::Started("0".to_owned())));
        diary.push(entry(76, What::Processed("0".to_owned(), first, last)));
        evidence.writes.push(write(Kind::Checkpoint, life(1), 78, ("c6", "c7"), last));
        evidence
    }

    #[test]
    fn after_a_reset_every_event_from_there_on_must_come_again() {
        let names = |evidence: &Evidence| broken(evidence).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let (lost, skipped) = ("no event is lost", "no checkpoint passes what is not processed");
        for (to, delivered, expected) in [
            (3, Some((4, 9)), vec![]),
            (-1, Some((0, 9)), vec![]),
            (3, Some((4, 8)), vec![lost]),
            (3, Some((5, 9)), vec![lost, skipped]),
            (-1, Some((4, 9)), vec![lost, skipped]),
            (3, None, vec![lost]),
            (9, None, vec![]),
        ] {
            let evidence = reset(to);
            let evidence = delivered.map(|(first, last)| again(evidence.clone(), first, last)).unwrap_or(evidence);
            assert_eq!(names(&evidence), expected, "{to} {delivered:?}");
        }
        let detail = "the group, after operator.1 reset it to 3 at 64.0ms, never processed 4 to 9 (partition 0)";
        assert_eq!(broken(&reset(3)), [(lost, detail.to_owned())]);
    }

    #[test]
    fn what_the_displaced_owner_goes_on_with_does_not_count_as_delivered_again() {
        let mut evidence = again(reset(3), 4, 9);
        evidence.published.insert("0".to_owned(), 10);
        let last = entry(77, What::Processed("0".to_owned(), 10, 10));
        evidence.diaries.get_mut(&life(1)).unwrap().insert(2, last.clone());
        let missing = "the group, after operator.1 reset it to 3 at 64.0ms, never processed 10 to 10 (partition 0)";
        assert_eq!(broken(&evidence), [("no event is lost", missing.to_owned())]);
        evidence.diaries.get_mut(&life(1)).unwrap().push(last);
        assert_eq!(broken(&evidence), []);
    }

    #[test]
    fn an_operator_may_come_after_an_owner_that_claimed_again() {
        let mut evidence = again(reset(3), 4, 9);
        let release = Write { owner: String::new(), ..write(Kind::Ownership, life(1), 56, ("o2", "o2b"), 0) };
        let claim = write(Kind::Ownership, life(1), 58, ("o2b", "o2c"), 0);
        evidence.writes[5].replaces = Some("o2c".to_owned());
        evidence.writes.extend([release, claim]);
        assert_eq!(broken(&evidence), []);
    }

    #[test]
    fn events_that_a_reset_leaves_out_are_not_lost() {
        let mut evidence = reset(11);
        evidence.published.insert("0".to_owned(), 13);
        assert_eq!(broken(&again(evidence.clone(), 12, 13)), []);
        assert_eq!(broken(&again(evidence, 13, 13)).len(), 2);
    }

    #[test]
    fn a_displaced_owner_that_undoes_a_reset_is_found() {
        let mut evidence = reset(3);
        evidence.writes.retain(|write| write.sent < Moment::from_millis(66));
        evidence.writes.push(write(Kind::Checkpoint, life(1), 68, ("c5", "c6"), 9));
        let names: Vec<_> = broken(&evidence).into_iter().map(|(name, _)| name).collect();
        let fenced = "who was displaced writes no checkpoint";
        assert_eq!(names, ["no event is lost", "no checkpoint passes what is not processed", fenced]);
    }

    #[test]
    fn an_operator_puts_a_checkpoint_back_where_it_was_to_and_nowhere_else() {
        let mut evidence = again(reset(3), 4, 9);
        evidence.resets[0].to = 2;
        assert_eq!(broken(&evidence).last().unwrap().0, "positions never move back");
    }

    #[test]
    fn a_listing_may_show_a_step_back_to_a_reset_and_what_was_processed_since() {
        for (position, sent, is_explained) in [(3, 1500, true), (5, 1500, true), (2, 1500, false), (3, 800, false)] {
            let mut evidence = again(reset(3), 4, 9);
            evidence.seen.backwards.push(seen_at(position));
            evidence.writes[7] = write(Kind::Checkpoint, Life::of_operator(1), sent, ("c4", "c5"), 3);
            let steps = &evidence.seen.backwards;
            assert_eq!(is_of_a_reset(&evidence, &steps[0]), is_explained, "{position} {sent}");
        }
    }
}
