//! Compares the run with the exploration.

use std::collections::BTreeSet;

use eventhubs_checkpoint::internal::codec::{decode_checkpoint, decode_ownership};

use super::Check;
use crate::chaos::clock::Moment;
use crate::chaos::incarnation::IncarnationId;
use crate::chaos::run_data::{RunData, Session};
use crate::chaos::writes::{Kind, Write, chain};
use crate::explored::{Actor, PartitionRecords, Step, is_known};

/// Checks that the exploration contains every accepted write and every start, so that its proofs hold for the run.
pub fn is_explored(run_data: &RunData, sessions: &[Session]) -> Check {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    let mut judged = 0;
    for partition in run_data.published.keys() {
        let own = sessions.iter().filter(|session| session.partition == *partition);
        for Taken { by, at, step } in steps(run_data, own, partition) {
            judged += 1;
            if !is_known(step) {
                wrong.push(format!("{by} at {at:.1?}: {step} (partition {partition})"));
            }
            seen.insert(step);
        }
    }
    Check::new("every step is explored", &wrong, format!("{judged} steps of {} kinds", seen.len()))
}

/// A step of a run.
struct Taken {
    by: IncarnationId,
    at: Moment,
    step: Step,
}

/// What changes the state of a partition, in the order in which it was seen.
enum Event<'a> {
    /// With whether the write that it replaces was seen, too.
    Written(&'a Write, bool),
    Started(IncarnationId),
    Stopped(IncarnationId),
}

/// Returns the steps at a partition. Without those that follow a write whose response was lost, and checkpoints during
/// whose request the ownership may have changed.
fn steps<'a>(run_data: &'a RunData, sessions: impl Iterator<Item = &'a Session>, partition: &str) -> Vec<Taken> {
    let ownerships = linked(run_data, Kind::Ownership, partition);
    let checkpoints = linked(run_data, Kind::Checkpoint, partition);
    let changes_owner = |checkpoint: &Write| {
        ownerships.iter().any(|(write, _)| write.sent <= seen_at(checkpoint) && checkpoint.sent <= seen_at(write))
    };
    let sessions = sessions.flat_map(|session| {
        let stop = session.stopped.as_ref().map(|(at, _)| (*at, Event::Stopped(session.incarnation)));
        [(session.from, Event::Started(session.incarnation))].into_iter().chain(stop)
    });
    let written = ownerships.iter().chain(&checkpoints);
    let written = written.map(|(write, is_linked)| (seen_at(write), Event::Written(write, *is_linked)));
    let mut events: Vec<_> = sessions.chain(written).collect();
    events.sort_by_key(|(at, _)| *at);
    let mut records = PartitionRecords::default();
    let mut steps = Vec::new();
    for (at, event) in events {
        let (by, step) = match event {
            Event::Started(by) => (by, Some(records.started(&by))),
            Event::Stopped(by) => {
                records.stopped(&by);
                continue;
            }
            Event::Written(write, is_linked) => {
                let step = written_step(&mut records, write);
                let is_ordered = write.kind == Kind::Ownership || !changes_owner(write);
                (write.by, Some(step).filter(|_| is_linked && is_ordered))
            }
        };
        steps.extend(step.map(|step| Taken { by, at, step }));
    }
    steps
}

fn written_step(records: &mut PartitionRecords<IncarnationId>, write: &Write) -> Step {
    let actor = if write.by.is_operator() { Actor::Operator } else { Actor::Instance };
    let step = match write.kind {
        Kind::Ownership => records.ownership_written((&write.by, actor), decode_ownership("", &write.metadata).0),
        Kind::Checkpoint => records.checkpoint_written((&write.by, actor), decode_checkpoint("", &write.metadata).0),
    };
    if write.is_conditional { step } else { Step::Unconditional(actor) }
}

/// Returns the accepted writes of a blob in their order, each with whether it follows the one before.
fn linked<'a>(run_data: &'a RunData, kind: Kind, partition: &'a str) -> Vec<(&'a Write, bool)> {
    let mut before = None;
    let accepted = chain(run_data.writes_to(kind, partition)).into_iter();
    accepted
        .map(|write| {
            let is_linked = write.replaces.as_deref() == before;
            before = write.etag.as_deref();
            (write, is_linked)
        })
        .collect()
}

fn seen_at(write: &Write) -> Moment {
    write.responded.unwrap_or(write.sent)
}

#[cfg(test)]
mod tests {
    use eventhubs_checkpoint::internal::codec::encode_ownership;

    use super::super::rules::tests::{again, reset};
    use super::*;

    /// An operator resets the partition of the second instance, which then starts again.
    fn after_a_reset() -> RunData {
        let mut run_data = again(reset(3), 4, 9);
        for write in run_data.writes.iter_mut().filter(|write| write.owner.is_empty()) {
            let (taken, _) = decode_ownership("", &write.metadata);
            write.metadata = encode_ownership(&taken.released());
        }
        run_data
    }

    fn checked(run_data: &RunData) -> Check {
        is_explored(run_data, &run_data.sessions())
    }

    #[test]
    fn a_reset_between_two_owners_is_explored() {
        let check = checked(&after_a_reset());
        assert!(check.holds, "{check:?}");
    }

    #[test]
    fn an_owner_that_moves_back_is_not_explored() {
        let mut run_data = after_a_reset();
        run_data.writes[3].metadata.insert("sequencenumber", "1");
        let check = checked(&run_data);
        assert!(!check.holds && check.detail.contains("processed -> processed, back"), "{check:?}");
    }

    #[test]
    fn a_write_without_a_condition_is_not_explored() {
        let mut run_data = after_a_reset();
        run_data.writes[3].is_conditional = false;
        assert!(checked(&run_data).detail.contains("writes without a condition"));
    }

    #[test]
    fn what_follows_a_lost_response_is_not_judged() {
        let mut run_data = after_a_reset();
        let all = steps(&run_data, run_data.sessions().iter(), "0").len();
        let claim = run_data.writes.remove(0);
        run_data.writes.insert(0, Write { responded: None, status: 0, etag: None, ..claim });
        assert_eq!(steps(&run_data, run_data.sessions().iter(), "0").len(), all - 2);
    }
}
