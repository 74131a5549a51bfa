//! Every event is processed, and before its checkpoint.

use std::collections::BTreeMap;

use super::Check;
use super::spans::{Span, Spans};
use crate::chaos::clock::Moment;
use crate::chaos::evidence::{Evidence, Session};
use crate::chaos::writes::Kind;

pub fn nothing_is_lost(evidence: &Evidence, sessions: &[Session]) -> Check {
    let mut spans: BTreeMap<&str, Spans> = BTreeMap::new();
    for (index, session) in sessions.iter().enumerate() {
        let spans = spans.entry(&session.partition).or_default();
        for (at, first, last) in &session.runs {
            spans.cover(Span { first: *first, last: *last, session: index, at: *at });
        }
    }
    let mut lost = Vec::new();
    for (partition, last) in &evidence.published {
        let gaps =
            spans.get(partition.as_str()).map_or_else(|| Spans::default().gaps(*last), |spans| spans.gaps(*last));
        lost.extend(gaps.into_iter().map(|(first, last)| format!("{first} to {last} of partition {partition}")));
    }
    Check::new("no event is lost", &lost, format!("{} events", evidence.events()))
}

/// From one start of a partition to its stop the handler gets every event once and in order, but for those that retention
/// took.
pub fn every_start_is_continuous(evidence: &Evidence, sessions: &[Session]) -> Check {
    let (mut broken, mut count) = (Vec::new(), 0);
    for session in sessions {
        let first = evidence.first_of(&session.partition);
        for pair in session.runs.windows(2) {
            let [(_, _, before), (at, next, _)] = pair else { continue };
            count += 1;
            let due = before + 1;
            if *next != due && (*next < due || *next > first) {
                let (life, partition) = (session.life, &session.partition);
                broken.push(format!("{life} at {at:.1?}: {next} of partition {partition} came where {due} was due"));
            }
        }
    }
    Check::new("every start is continuous", &broken, format!("{count} batches after the first"))
}

/// Whatever a checkpoint says was written down by a handler before the checkpoint was sent.
pub fn no_checkpoint_passes_what_is_not_processed(evidence: &Evidence, sessions: &[Session]) -> Check {
    let (mut early, mut count) = (Vec::new(), 0);
    for partition in evidence.published.keys() {
        let progress = progress(sessions.iter().filter(|session| session.partition == *partition));
        for write in evidence.writes_to(Kind::Checkpoint, partition).filter(|write| write.is_accepted()) {
            count += 1;
            let known = progress.partition_point(|(at, _)| *at <= write.sent);
            let processed = known.checked_sub(1).map_or(-1, |index| progress[index].1);
            if write.position > processed {
                let (by, at, position) = (write.by, write.sent, write.position);
                early.push(format!("{by} at {at:.1?}: {position} of partition {partition}, processed was {processed}"));
            }
        }
    }
    if count == 0 {
        early.push("no checkpoint was seen at all".to_owned());
    }
    Check::new("no checkpoint passes what is not processed", &early, format!("{count} checkpoints"))
}

/// Up to which event all are processed, each time that this changes.
fn progress<'a>(sessions: impl Iterator<Item = &'a Session>) -> Vec<(Moment, i64)> {
    let mut runs: Vec<_> = sessions.flat_map(|session| &session.runs).collect();
    runs.sort_by_key(|(at, ..)| *at);
    let (mut progress, mut until) = (Vec::new(), -1);
    let mut ahead: BTreeMap<i64, i64> = BTreeMap::new();
    for (at, first, last) in runs {
        let known = ahead.entry(*first).or_insert(*last);
        *known = (*known).max(*last);
        let before = until;
        while let Some(entry) = ahead.first_entry().filter(|entry| *entry.key() <= until + 1) {
            until = until.max(entry.remove());
        }
        if until > before {
            progress.push((*at, until));
        }
    }
    progress
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::diary::What;
    use crate::chaos::evidence::tests::{entry, in_order};
    use crate::chaos::writes::tests::{life, write};

    #[test]
    fn what_nobody_processed_is_lost() {
        let mut evidence = in_order();
        assert!(nothing_is_lost(&evidence, &evidence.sessions()).holds);
        evidence.published.insert("0".to_owned(), 11);
        evidence.published.insert("1".to_owned(), 0);
        let check = nothing_is_lost(&evidence, &evidence.sessions());
        assert_eq!((check.holds, check.detail.as_str()), (false, "10 to 11 of partition 0; 0 to 0 of partition 1"));
    }

    #[test]
    fn a_batch_that_does_not_follow_the_one_before_is_found() {
        for (next, retention, holds) in
            [(4, 1000, true), (5, 1000, false), (3, 1000, false), (6, 4, true), (7, 4, false)]
        {
            let mut evidence = in_order();
            evidence.retention = retention;
            let processed = |at, first, last| entry(at, What::Processed("0".to_owned(), first, last));
            let diary = evidence.diaries.get_mut(&life(0)).unwrap();
            diary.splice(1..2, [processed(20, 0, 3), processed(25, next, 9)]);
            let check = every_start_is_continuous(&evidence, &evidence.sessions());
            assert_eq!(check.holds, holds, "{next}, {retention}: {}", check.detail);
        }
    }

    #[test]
    fn a_checkpoint_must_not_come_before_the_handler_is_done() {
        let mut evidence = in_order();
        let checkpoint = |at, position| write(Kind::Checkpoint, life(1), at, ("a", "b"), position);
        evidence.writes = vec![checkpoint(5, -1), checkpoint(21, 5), checkpoint(51, 9)];
        assert!(no_checkpoint_passes_what_is_not_processed(&evidence, &evidence.sessions()).holds);
        evidence.writes.push(checkpoint(45, 6));
        let check = no_checkpoint_passes_what_is_not_processed(&evidence, &evidence.sessions());
        assert_eq!((check.holds, check.detail.as_str()), (false, "i2.1 at 45.0ms: 6 of partition 0, processed was 5"));
    }

    #[test]
    fn progress_waits_for_what_is_missing() {
        let partition = || "0".to_owned();
        let mut evidence = in_order();
        let entries = vec![
            entry(1, What::Started(partition())),
            entry(2, What::Processed(partition(), 5, 9)),
            entry(3, What::Processed(partition(), 0, 2)),
            entry(4, What::Processed(partition(), 2, 4)),
        ];
        evidence.diaries = [(life(0), entries)].into();
        let sessions = evidence.sessions();
        let progress = progress(sessions.iter());
        assert_eq!(progress, [(Moment::from_millis(3), 2), (Moment::from_millis(4), 9)]);
    }
}
