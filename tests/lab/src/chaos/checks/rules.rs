//! The rules of [`history`](crate::history), applied to the writes that the storage accepted and to what the handlers
//! wrote to disk.

use std::collections::BTreeMap;

use super::Check;
use crate::chaos::clock::Moment;
use crate::chaos::incarnation::IncarnationId;
use crate::chaos::run_data::{RunData, Session};
use crate::chaos::watcher::StepBack;
use crate::chaos::writes::{Kind, Write, chain};
use crate::history::{Delivery, Partition, Purpose, Rule, Verdict};

pub fn checks(run_data: &RunData, sessions: &[Session]) -> Vec<Check> {
    let mut findings = Findings::default();
    for partition in run_data.published.keys() {
        findings.judge(run_data, sessions, partition);
    }
    for session in sessions {
        findings.judge_session(session, run_data.first_of(&session.partition));
    }
    if findings.checkpoints == 0 {
        findings.breaches.entry(Rule::NothingSkipped).or_default().push("no checkpoint was seen at all".to_owned());
    }
    let seen = run_data.seen.backward.iter().filter(|step| !is_of_a_reset(run_data, step));
    let seen = seen.map(|step| format!("at {:.1?} a listing {}", step.to, step.breach));
    findings.breaches.entry(Rule::CheckpointMonotonic).or_default().splice(0..0, seen);
    let Findings { breaches, batches, checkpoints, rejected } = findings;
    let check = |name, rule, detail| Check::new(name, breaches.get(&rule).map_or(&[][..], Vec::as_slice), detail);
    vec![
        check("no event is lost", Rule::NothingLost, format!("{} events", run_data.events())),
        check("every start is continuous", Rule::Continuous, format!("{batches} batches after the first")),
        check("no checkpoint passes an unprocessed event", Rule::NothingSkipped, format!("{checkpoints} checkpoints")),
        check(
            "positions never move back",
            Rule::CheckpointMonotonic,
            format!("{} observations", run_data.seen.observations),
        ),
        check("a displaced owner writes no checkpoint", Rule::Fenced, format!("{rejected} refused")),
    ]
}

#[derive(Default)]
struct Findings {
    breaches: BTreeMap<Rule, Vec<String>>,
    /// After the first of their start.
    batches: u64,
    checkpoints: u64,
    rejected: usize,
}

impl Findings {
    fn judge(&mut self, run_data: &RunData, sessions: &[Session], partition: &str) {
        let own: Vec<_> = sessions.iter().filter(|session| session.partition == partition).collect();
        self.judge_progress(run_data, &own, partition);
        self.judge_order(run_data, partition);
        self.rejected += run_data.writes_to(Kind::Checkpoint, partition).filter(|write| write.is_rejected()).count();
    }

    /// A checkpoint must not pass the events that handlers recorded before it was sent, and after the last reset. Every
    /// accepted write is checked, including one that is missing in the chain of versions. A reset is sent after the
    /// storage accepted every checkpoint that it replaces, and before any that follows it.
    fn judge_progress(&mut self, run_data: &RunData, sessions: &[&Session], partition: &str) {
        let mut history = Partition::<IncarnationId>::default();
        history.published(run_data.published[partition] + 1);
        let (mut starts, mut group) = (BTreeMap::new(), "the group".to_owned());
        for step in steps(run_data, sessions, partition) {
            match step {
                Step::Starts(session) => _ = starts.insert(session, history.started()),
                Step::Processes(session, first, last) => {
                    history.processed(starts.get(&session).copied(), first, last);
                }
                Step::Writes(write) if run_data.is_reset(write) => {
                    history.checkpointed(&write.by, RESET, write.position);
                    group =
                        format!("the group, after {} reset it to {} at {:.1?},", write.by, write.position, write.sent);
                }
                Step::Writes(write) => {
                    self.checkpoints += 1;
                    let writer = format!("{} at {:.1?}", write.by, write.sent);
                    self.add(&writer, partition, history.skipped(write.position));
                }
            }
        }
        self.add(&group, partition, history.lost());
    }

    /// Checks the writes in the order in which the storage accepted them.
    fn judge_order(&mut self, run_data: &RunData, partition: &str) {
        let mut history = Partition::<IncarnationId>::default();
        history.published(run_data.published[partition] + 1);
        let claims = claims(&mut history, run_data, partition);
        for write in chain(run_data.writes_to(Kind::Checkpoint, partition)) {
            let ownership = claims.iter().rposition(|claim| claim.by == write.by && claim.sent < write.sent);
            let progress = Purpose::Progress { ownership: ownership.map(|ownership| ownership as u64 + 1) };
            let purpose = if run_data.is_reset(write) { RESET } else { progress };
            let excused = claim_is_open(run_data, write);
            for verdict in history.checkpointed(&write.by, purpose, write.position) {
                if verdict.rule == Rule::CheckpointMonotonic || (verdict.rule == Rule::Fenced && !excused) {
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
            self.add(&format!("{} at {at:.1?}", session.incarnation), &session.partition, verdict);
        }
    }

    fn add(&mut self, writer: &str, partition: &str, verdict: Verdict) {
        let breaches = self.breaches.entry(verdict.rule).or_default();
        breaches.extend(verdict.breach.map(|breach| format!("{writer} {breach} (partition {partition})")));
    }
}

/// An operator may choose any position.
const RESET: Purpose = Purpose::Reset { by_operator: true, may_skip: true };

/// An event of a partition. Sessions are identified by their index among the partition's own.
#[derive(Clone, Copy)]
enum Step<'a> {
    Starts(usize),
    Processes(usize, i64, i64),
    Writes(&'a Write),
}

/// Returns the steps in the order in which they happened. Events processed at the time of a write come before the
/// write.
fn steps<'a>(run_data: &'a RunData, sessions: &[&Session], partition: &'a str) -> Vec<Step<'a>> {
    let writes = run_data.writes_to(Kind::Checkpoint, partition).filter(|write| write.is_accepted());
    let starts = sessions.iter().zip(0..).map(|(session, index)| (session.from, Step::Starts(index)));
    let runs = sessions.iter().zip(0..).flat_map(|(session, index)| {
        session.runs.iter().map(move |(at, first, last)| (*at, Step::Processes(index, *first, *last)))
    });
    let mut steps: Vec<_> = starts.chain(runs).chain(writes.map(|write| (write.sent, Step::Writes(write)))).collect();
    steps.sort_by_key(|(at, _)| *at);
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Returns whether a reset moved this checkpoint back. The next owner may have processed more by then.
fn is_of_a_reset(run_data: &RunData, step: &StepBack) -> bool {
    let mut resets = run_data.writes_to(Kind::Checkpoint, &step.partition).filter(|write| run_data.is_reset(write));
    resets.any(|reset| {
        let is_meanwhile = reset.sent <= step.to && reset.responded.is_some_and(|responded| responded >= step.from);
        is_meanwhile && step.position >= Some(reset.position)
    })
}

struct Claim {
    by: IncarnationId,
    sent: Moment,
}

/// Returns the writes that began an ownership, in the order of their numbers. An owner that claims again what it has
/// released continues the same ownership. A handoff request keeps the owner.
fn claims(history: &mut Partition<IncarnationId>, run_data: &RunData, partition: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    for write in chain(run_data.writes_to(Kind::Ownership, partition)) {
        if write.owner.is_empty() {
            history.owned_by(None);
        } else if write.claims() && history.owned_by(Some(write.by)).begins {
            claims.push(Claim { by: write.by, sent: write.sent });
        }
    }
    claims
}

/// Returns whether its writer had sent a claim without a known outcome: the writer may be the owner, so no verdict is
/// possible.
fn claim_is_open(run_data: &RunData, write: &Write) -> bool {
    let mut claims = run_data.writes_to(Kind::Ownership, &write.partition);
    claims.any(|claim| claim.by == write.by && claim.is_open() && claim.sent < write.sent)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::chaos::event_log::LogEntryKind;
    use crate::chaos::operators::{Attempt, Outcome};
    use crate::chaos::run_data::tests::{entry, in_order};
    use crate::chaos::writes::tests::{incarnation, write};

    fn moved() -> RunData {
        let mut run_data = in_order();
        run_data.writes = vec![
            write(Kind::Ownership, incarnation(0), 1, ("", "o1"), 0),
            write(Kind::Checkpoint, incarnation(0), 25, ("", "c1"), 3),
            write(Kind::Ownership, incarnation(1), 30, ("o1", "o2"), 0),
            write(Kind::Checkpoint, incarnation(1), 40, ("c1", "c2"), 3),
            write(Kind::Checkpoint, incarnation(1), 55, ("c2", "c3"), 9),
        ];
        run_data
    }

    fn broken(run_data: &RunData) -> Vec<(&'static str, String)> {
        let all = checks(run_data, &run_data.sessions());
        all.into_iter().filter(|check| !check.holds).map(|check| (check.name, check.detail)).collect()
    }

    #[test]
    fn a_handover_breaks_no_rule() {
        assert_eq!(broken(&moved()), []);
    }

    #[test]
    fn unprocessed_events_are_lost() {
        let mut run_data = moved();
        run_data.published.insert("0".to_owned(), 11);
        run_data.published.insert("1".to_owned(), 0);
        let lost = "the group never processed 10 to 11 (partition 0); the group never processed 0 to 0 (partition 1)";
        assert_eq!(broken(&run_data), [("no event is lost", lost.to_owned())]);
    }

    #[test]
    fn a_batch_that_does_not_follow_is_found() {
        let mut run_data = moved();
        let processed = |at, first, last| entry(at, LogEntryKind::Processed("0".to_owned(), first, last));
        let event_log = run_data.event_logs.get_mut(&incarnation(0)).unwrap();
        event_log.splice(1..2, [processed(20, 0, 3), processed(24, 3, 5)]);
        let detail = "i1.1 at 24.0ms got event 3 although 4 was due, and 0 is the oldest (partition 0)".to_owned();
        assert_eq!(broken(&run_data), [("every start is continuous", detail)]);
    }

    #[test]
    fn retention_explains_a_gap() {
        for (retention, holds) in [(4, true), (5, false)] {
            let mut run_data = moved();
            run_data.retention = retention;
            let processed = |at, first, last| entry(at, LogEntryKind::Processed("0".to_owned(), first, last));
            run_data
                .event_logs
                .get_mut(&incarnation(0))
                .unwrap()
                .splice(1..2, [processed(20, 0, 4), processed(24, 6, 6)]);
            run_data.event_logs.get_mut(&incarnation(1)).unwrap()[1] = processed(50, 5, 9);
            let is_broken = broken(&run_data).iter().any(|(name, _)| *name == "every start is continuous");
            assert_eq!(!is_broken, holds, "{retention}");
        }
    }

    #[test]
    fn a_checkpoint_before_its_events_is_found() {
        let mut run_data = moved();
        run_data.writes[4].sent = Moment::from_millis(45);
        let detail = "i2.1 at 45.0ms wrote checkpoint 9, but only 5 is processed (partition 0)".to_owned();
        assert_eq!(broken(&run_data), [("no checkpoint passes an unprocessed event", detail)]);
    }

    #[test]
    fn a_run_without_checkpoints_proves_nothing() {
        let mut run_data = moved();
        run_data.writes.retain(|write| write.kind == Kind::Ownership);
        let detail = "no checkpoint was seen at all".to_owned();
        assert_eq!(broken(&run_data), [("no checkpoint passes an unprocessed event", detail)]);
    }

    #[test]
    fn an_accepted_write_of_a_displaced_owner_is_found() {
        let mut run_data = moved();
        let rejected = Write { status: 412, etag: None, ..write(Kind::Checkpoint, incarnation(0), 56, ("c1", ""), 9) };
        run_data.writes.push(rejected);
        assert_eq!(broken(&run_data), []);
        run_data.writes.push(write(Kind::Checkpoint, incarnation(0), 60, ("c3", "c4"), 9));
        let detail = "i1.1 at 60.0ms wrote checkpoint 9 in ownership 1, after ownership 2 had (partition 0)".to_owned();
        assert_eq!(broken(&run_data), [("a displaced owner writes no checkpoint", detail)]);
    }

    #[test]
    fn a_displaced_owner_may_write_before_the_next_adopts() {
        let mut run_data = moved();
        run_data.writes.insert(3, write(Kind::Checkpoint, incarnation(0), 35, ("c1", "c1b"), 3));
        run_data.writes[4].replaces = Some("c1b".to_owned());
        assert_eq!(broken(&run_data), []);
    }

    #[test]
    fn a_handoff_request_begins_no_ownership() {
        let mut run_data = moved();
        let request =
            Write { owner: incarnation(0).owner(), ..write(Kind::Ownership, incarnation(1), 26, ("o1", "o1b"), 0) };
        run_data.writes[2].replaces = Some("o1b".to_owned());
        run_data.writes[3].replaces = Some("c1b".to_owned());
        run_data.writes.extend([request, write(Kind::Checkpoint, incarnation(1), 28, ("c1", "c1b"), 3)]);
        let detail = "i2.1 at 28.0ms wrote checkpoint 3 without an ownership (partition 0)".to_owned();
        assert_eq!(broken(&run_data), [("a displaced owner writes no checkpoint", detail)]);
    }

    #[test]
    fn one_of_two_writes_over_one_version_is_checked() {
        let mut run_data = moved();
        run_data.writes.insert(4, write(Kind::Checkpoint, incarnation(1), 45, ("c2", "x"), 9));
        let detail = "i2.1 at 45.0ms wrote checkpoint 9, but only 5 is processed (partition 0)".to_owned();
        assert_eq!(broken(&run_data), [("no checkpoint passes an unprocessed event", detail)]);
    }

    #[test]
    fn an_instance_without_ownership_must_not_write() {
        let mut run_data = moved();
        let claim = run_data.writes.remove(0);
        assert_eq!(broken(&run_data)[0].1, "i1.1 at 25.0ms wrote checkpoint 3 without an ownership (partition 0)");
        run_data.writes.insert(0, Write { status: 0, responded: None, ..claim });
        assert_eq!(broken(&run_data), [], "its claim may have been applied");
    }

    #[test]
    fn an_owner_that_claims_again_continues() {
        let mut run_data = moved();
        let release = Write { owner: String::new(), ..write(Kind::Ownership, incarnation(1), 60, ("o2", "o3"), 0) };
        run_data.writes.extend([release, write(Kind::Ownership, incarnation(1), 62, ("o3", "o4"), 0)]);
        run_data.writes.push(write(Kind::Checkpoint, incarnation(1), 65, ("c3", "c4"), 9));
        assert_eq!(broken(&run_data), []);
    }

    #[test]
    fn steps_back_are_found_in_writes_and_in_listings() {
        let mut run_data = moved();
        run_data.writes.push(write(Kind::Checkpoint, incarnation(1), 60, ("c3", "c4"), 8));
        run_data.seen.backward.push(seen_at(8));
        let detail = "at 2.0s a listing moved the checkpoint of partition 0 from 9 to 8; \
                      i2.1 at 60.0ms moved the checkpoint from 9 back to 8 (partition 0)";
        assert_eq!(broken(&run_data), [("positions never move back", detail.to_owned())]);
    }

    /// A listing between 1 s and 2 s shows this checkpoint.
    fn seen_at(position: i64) -> StepBack {
        StepBack {
            partition: "0".to_owned(),
            from: Moment::from_secs(1),
            to: Moment::from_secs(2),
            position: Some(position),
            breach: format!("moved the checkpoint of partition 0 from 9 to {position}"),
        }
    }

    /// The operator takes the partition from the second instance, resets the checkpoint, and returns the partition.
    pub fn reset(to: i64) -> RunData {
        let mut run_data = moved();
        let (operator, partition) = (IncarnationId::of_operator(1), "0".to_owned());
        let taken = Write { owner: "operator-0".to_owned(), ..write(Kind::Ownership, operator, 60, ("o2", "o3"), 0) };
        let released = Write { owner: String::new(), ..write(Kind::Ownership, operator, 66, ("o3", "o4"), 0) };
        run_data.writes.extend([
            taken,
            write(Kind::Checkpoint, operator, 62, ("c3", "c4"), 9),
            write(Kind::Checkpoint, operator, 64, ("c4", "c5"), to),
            released,
            write(Kind::Ownership, incarnation(1), 70, ("o4", "o5"), 0),
            write(Kind::Checkpoint, incarnation(1), 72, ("c5", "c6"), to),
        ]);
        run_data.resets.push(Attempt { by: operator, partition, to, outcome: Outcome::Done });
        run_data
    }

    /// The second instance starts again, processes these events, and checkpoints the last one.
    pub fn again(mut run_data: RunData, first: i64, last: i64) -> RunData {
        let event_log = run_data.event_logs.get_mut(&incarnation(1)).unwrap();
        event_log[2] = entry(65, LogEntryKind::Stopped("0".to_owned(), "Lost".to_owned()));
        event_log.push(entry(74, LogEntryKind::Started("0".to_owned())));
        event_log.push(entry(76, LogEntryKind::Processed("0".to_owned(), first, last)));
        run_data.writes.push(write(Kind::Checkpoint, incarnation(1), 78, ("c6", "c7"), last));
        run_data
    }

    #[test]
    fn every_event_after_a_reset_must_be_redelivered() {
        let names = |run_data: &RunData| broken(run_data).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let (lost, skipped) = ("no event is lost", "no checkpoint passes an unprocessed event");
        for (to, delivered, expected) in [
            (3, Some((4, 9)), vec![]),
            (-1, Some((0, 9)), vec![]),
            (3, Some((4, 8)), vec![lost]),
            (3, Some((5, 9)), vec![lost, skipped]),
            (-1, Some((4, 9)), vec![lost, skipped]),
            (3, None, vec![lost]),
            (9, None, vec![]),
        ] {
            let run_data = reset(to);
            let run_data = delivered.map(|(first, last)| again(run_data.clone(), first, last)).unwrap_or(run_data);
            assert_eq!(names(&run_data), expected, "{to} {delivered:?}");
        }
        let detail = "the group, after operator.1 reset it to 3 at 64.0ms, never processed 4 to 9 (partition 0)";
        assert_eq!(broken(&reset(3)), [(lost, detail.to_owned())]);
    }

    #[test]
    fn events_of_the_displaced_owner_do_not_count() {
        let mut run_data = again(reset(3), 4, 9);
        run_data.published.insert("0".to_owned(), 10);
        let last = entry(77, LogEntryKind::Processed("0".to_owned(), 10, 10));
        run_data.event_logs.get_mut(&incarnation(1)).unwrap().insert(2, last.clone());
        let missing = "the group, after operator.1 reset it to 3 at 64.0ms, never processed 10 to 10 (partition 0)";
        assert_eq!(broken(&run_data), [("no event is lost", missing.to_owned())]);
        run_data.event_logs.get_mut(&incarnation(1)).unwrap().push(last);
        assert_eq!(broken(&run_data), []);
    }

    #[test]
    fn an_operator_may_follow_a_repeated_claim() {
        let mut run_data = again(reset(3), 4, 9);
        let release = Write { owner: String::new(), ..write(Kind::Ownership, incarnation(1), 56, ("o2", "o2b"), 0) };
        let claim = write(Kind::Ownership, incarnation(1), 58, ("o2b", "o2c"), 0);
        run_data.writes[5].replaces = Some("o2c".to_owned());
        run_data.writes.extend([release, claim]);
        assert_eq!(broken(&run_data), []);
    }

    #[test]
    fn events_that_a_reset_skips_are_not_lost() {
        let mut run_data = reset(11);
        run_data.published.insert("0".to_owned(), 13);
        assert_eq!(broken(&again(run_data.clone(), 12, 13)), []);
        assert_eq!(broken(&again(run_data, 13, 13)).len(), 2);
    }

    #[test]
    fn an_undone_reset_is_found() {
        let mut run_data = reset(3);
        run_data.writes.retain(|write| write.sent < Moment::from_millis(66));
        run_data.writes.push(write(Kind::Checkpoint, incarnation(1), 68, ("c5", "c6"), 9));
        let names: Vec<_> = broken(&run_data).into_iter().map(|(name, _)| name).collect();
        let fenced = "a displaced owner writes no checkpoint";
        assert_eq!(names, ["no event is lost", "no checkpoint passes an unprocessed event", fenced]);
    }

    #[test]
    fn an_operator_writes_only_the_wanted_position() {
        let mut run_data = again(reset(3), 4, 9);
        run_data.resets[0].to = 2;
        assert_eq!(broken(&run_data).last().unwrap().0, "positions never move back");
    }

    #[test]
    fn a_listing_may_show_a_step_back_of_a_reset() {
        for (position, sent, is_explained) in [(3, 1500, true), (5, 1500, true), (2, 1500, false), (3, 800, false)] {
            let mut run_data = again(reset(3), 4, 9);
            run_data.seen.backward.push(seen_at(position));
            run_data.writes[7] = write(Kind::Checkpoint, IncarnationId::of_operator(1), sent, ("c4", "c5"), 3);
            let steps = &run_data.seen.backward;
            assert_eq!(is_of_a_reset(&run_data, &steps[0]), is_explained, "{position} {sent}");
        }
    }
}
