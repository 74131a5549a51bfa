//! The data of a finished run, and the sessions in which the instances processed events.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::chaos::clock::Moment;
use crate::chaos::event_log::{Entry, LogEntryKind};
use crate::chaos::faults::Happened;
use crate::chaos::fleet::{End, ObservedIncarnation};
use crate::chaos::incarnation::IncarnationId;
use crate::chaos::operators::Attempt;
use crate::chaos::raw_storage::Observation;
use crate::chaos::watcher::Seen;
use crate::chaos::writes::{Kind, Write};

#[derive(Clone, Debug)]
pub struct RunData {
    pub lease_duration: Duration,
    pub instances: u32,
    pub partitions: u16,
    /// How many events a partition keeps.
    pub retention: u32,
    /// The last sequence number of every partition.
    pub published: BTreeMap<String, i64>,
    pub happened: Vec<Happened>,
    pub incarnations: Vec<ObservedIncarnation>,
    pub event_logs: BTreeMap<IncarnationId, Vec<Entry>>,
    pub writes: Vec<Write>,
    pub resets: Vec<Attempt>,
    pub seen: Seen,
    /// After the group settled, before the shutdown of the instances.
    pub settled: Observation,
    /// After the shutdown.
    pub ended: Observation,
}

/// From the start of a partition's handler to its stop, or to the end of its process.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub incarnation: IncarnationId,
    pub partition: String,
    pub from: Moment,
    /// When it stopped, and why.
    pub stopped: Option<(Moment, String)>,
    /// When, and from which event to which.
    pub runs: Vec<(Moment, i64, i64)>,
}

impl RunData {
    pub fn sessions(&self) -> Vec<Session> {
        self.event_logs.iter().flat_map(|(incarnation, entries)| sessions(*incarnation, entries)).collect()
    }

    pub fn end_of(&self, incarnation: IncarnationId) -> Option<&(Moment, End)> {
        self.incarnations.iter().find(|observed| observed.incarnation == incarnation)?.end.as_ref()
    }

    pub fn writes_to<'a>(&'a self, kind: Kind, partition: &'a str) -> impl Iterator<Item = &'a Write> {
        self.writes.iter().filter(move |write| write.kind == kind && write.partition == partition)
    }

    /// Returns whether this is a checkpoint at a position that an operator was to write.
    pub fn is_reset(&self, write: &Write) -> bool {
        let is_wanted = |attempt: &Attempt| {
            (attempt.by, &attempt.partition, attempt.to) == (write.by, &write.partition, write.position)
        };
        write.kind == Kind::Checkpoint && write.is_accepted() && self.resets.iter().any(is_wanted)
    }

    /// Returns the first event that a partition has at the end.
    pub fn first_of(&self, partition: &str) -> i64 {
        self.published.get(partition).map_or(0, |last| (last + 1 - i64::from(self.retention)).max(0))
    }

    pub fn events(&self) -> u64 {
        self.published.values().map(|last| u64::try_from(last + 1).unwrap_or_default()).sum()
    }
}

fn sessions(incarnation: IncarnationId, entries: &[Entry]) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in entries {
        let at = entry.moment();
        match &entry.kind {
            LogEntryKind::Started(partition) => {
                open.insert(partition, sessions.len());
                let partition = partition.clone();
                sessions.push(Session { incarnation, partition, from: at, stopped: None, runs: Vec::new() });
            }
            LogEntryKind::Stopped(partition, reason) => {
                if let Some(session) = open.remove(partition.as_str()) {
                    sessions[session].stopped = Some((at, reason.clone()));
                }
            }
            LogEntryKind::Processed(partition, first, last) => {
                if let Some(session) = open.get(partition.as_str()) {
                    sessions[*session].runs.push((at, *first, *last));
                }
            }
            LogEntryKind::Published(..)
            | LogEntryKind::DuplicatesPossible(..)
            | LogEntryKind::Tasks(_)
            | LogEntryKind::Ended(_) => {}
        }
    }
    sessions
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::chaos::writes::tests::incarnation;

    pub fn entry(at: u64, kind: LogEntryKind) -> Entry {
        Entry { at: at * 1000, kind }
    }

    /// Two instances and one partition with ten events: the first one processed six, the second one the others.
    pub fn in_order() -> RunData {
        let partition = || "0".to_owned();
        let observation =
            Observation { owners: [(partition(), "i2".to_owned())].into(), positions: [(partition(), 9)].into() };
        let ended = Observation { owners: [(partition(), String::new())].into(), positions: [(partition(), 9)].into() };
        let observed = |instance, end| ObservedIncarnation {
            incarnation: incarnation(instance),
            from: Moment::ZERO,
            end: Some((Moment::from_millis(end), End::Clean)),
            samples: Vec::new(),
        };
        let first = vec![
            entry(10, LogEntryKind::Started(partition())),
            entry(20, LogEntryKind::Processed(partition(), 0, 5)),
            entry(30, LogEntryKind::Stopped(partition(), "Released".to_owned())),
            entry(90, LogEntryKind::Ended("clean".to_owned())),
        ];
        let second = vec![
            entry(40, LogEntryKind::Started(partition())),
            entry(50, LogEntryKind::Processed(partition(), 6, 9)),
            entry(80, LogEntryKind::Stopped(partition(), "Shutdown".to_owned())),
            entry(90, LogEntryKind::Ended("clean".to_owned())),
        ];
        RunData {
            lease_duration: Duration::from_secs(8),
            instances: 2,
            partitions: 1,
            retention: 1000,
            published: [(partition(), 9)].into(),
            happened: Vec::new(),
            incarnations: vec![observed(0, 100), observed(1, 100)],
            event_logs: [(incarnation(0), first), (incarnation(1), second)].into(),
            writes: Vec::new(),
            resets: Vec::new(),
            seen: Seen { last: ended.clone(), observations: 3, ..Seen::default() },
            settled: observation,
            ended,
        }
    }

    #[test]
    fn a_session_is_from_a_start_to_a_stop() {
        let partition = || "0".to_owned();
        let entries = [
            entry(1, LogEntryKind::Started(partition())),
            entry(2, LogEntryKind::Processed(partition(), 0, 4)),
            entry(3, LogEntryKind::Stopped(partition(), "Lost".to_owned())),
            entry(4, LogEntryKind::Started(partition())),
            entry(5, LogEntryKind::Processed(partition(), 5, 6)),
        ];
        let sessions = sessions(incarnation(0), &entries);
        assert_eq!(sessions.len(), 2);
        assert_eq!(sessions[0].stopped, Some((Moment::from_millis(3), "Lost".to_owned())));
        assert_eq!((&sessions[1].stopped, &sessions[1].runs[..]), (&None, &[(Moment::from_millis(5), 5, 6)][..]));
    }
}
