//! All that is known about a run when it is over, and in which pieces the instances processed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::chaos::clock::Moment;
use crate::chaos::diary::{Entry, What};
use crate::chaos::faults::Happened;
use crate::chaos::fleet::{Biography, End};
use crate::chaos::life::Life;
use crate::chaos::operators::Attempt;
use crate::chaos::outside::Look;
use crate::chaos::watcher::Seen;
use crate::chaos::writes::{Kind, Write};

#[derive(Clone, Debug)]
pub struct Evidence {
    pub expiry: Duration,
    pub instances: u32,
    pub partitions: u16,
    /// How many events a partition keeps.
    pub retention: u32,
    /// The last sequence number of every partition.
    pub published: BTreeMap<String, i64>,
    pub happened: Vec<Happened>,
    pub lives: Vec<Biography>,
    pub diaries: BTreeMap<Life, Vec<Entry>>,
    pub writes: Vec<Write>,
    pub resets: Vec<Attempt>,
    pub seen: Seen,
    /// When all was quiet, before the instances were asked to end.
    pub settled: Look,
    /// After they had ended.
    pub ended: Look,
}

/// From the start of a partition's handler to its stop, or to the end of its process.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub life: Life,
    pub partition: String,
    pub from: Moment,
    /// When it stopped, and why.
    pub stopped: Option<(Moment, String)>,
    /// When, from which event to which.
    pub runs: Vec<(Moment, i64, i64)>,
}

impl Evidence {
    pub fn sessions(&self) -> Vec<Session> {
        self.diaries.iter().flat_map(|(life, entries)| sessions(*life, entries)).collect()
    }

    pub fn end_of(&self, life: Life) -> Option<&(Moment, End)> {
        self.lives.iter().find(|biography| biography.life == life)?.end.as_ref()
    }

    pub fn writes_to<'a>(&'a self, kind: Kind, partition: &'a str) -> impl Iterator<Item = &'a Write> {
        self.writes.iter().filter(move |write| write.kind == kind && write.partition == partition)
    }

    /// Whether this is a checkpoint that an operator put where it was to put it.
    pub fn is_reset(&self, write: &Write) -> bool {
        let is_wanted = |attempt: &Attempt| {
            (attempt.by, &attempt.partition, attempt.to) == (write.by, &write.partition, write.position)
        };
        write.kind == Kind::Checkpoint && write.is_accepted() && self.resets.iter().any(is_wanted)
    }

    /// The first event that a partition has at the end.
    pub fn first_of(&self, partition: &str) -> i64 {
        self.published.get(partition).map_or(0, |last| (last + 1 - i64::from(self.retention)).max(0))
    }

    pub fn events(&self) -> u64 {
        self.published.values().map(|last| u64::try_from(last + 1).unwrap_or_default()).sum()
    }
}

fn sessions(life: Life, entries: &[Entry]) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in entries {
        let at = entry.moment();
        match &entry.what {
            What::Started(partition) => {
                open.insert(partition, sessions.len());
                let partition = partition.clone();
                sessions.push(Session { life, partition, from: at, stopped: None, runs: Vec::new() });
            }
            What::Stopped(partition, reason) => {
                if let Some(session) = open.remove(partition.as_str()) {
                    sessions[session].stopped = Some((at, reason.clone()));
                }
            }
            What::Processed(partition, first, last) => {
                if let Some(session) = open.get(partition.as_str()) {
                    sessions[*session].runs.push((at, *first, *last));
                }
            }
            What::DuplicatesPossible(..) | What::Tasks(_) | What::Ended(_) => {}
        }
    }
    sessions
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::chaos::writes::tests::life;

    pub fn entry(at: u64, what: What) -> Entry {
        Entry { at: at * 1000, what }
    }

    /// Two instances and one partition with ten events, of which the first processed six and the second the others.
    pub fn in_order() -> Evidence {
        let partition = || "0".to_owned();
        let look = Look { owners: [(partition(), "i2".to_owned())].into(), positions: [(partition(), 9)].into() };
        let ended = Look { owners: [(partition(), String::new())].into(), positions: [(partition(), 9)].into() };
        let biography = |instance, end| Biography {
            life: life(instance),
            from: Moment::ZERO,
            end: Some((Moment::from_millis(end), End::Orderly)),
            samples: Vec::new(),
        };
        let first = vec![
            entry(10, What::Started(partition())),
            entry(20, What::Processed(partition(), 0, 5)),
            entry(30, What::Stopped(partition(), "Released".to_owned())),
            entry(90, What::Ended("clean".to_owned())),
        ];
        let second = vec![
            entry(40, What::Started(partition())),
            entry(50, What::Processed(partition(), 6, 9)),
            entry(80, What::Stopped(partition(), "Shutdown".to_owned())),
            entry(90, What::Ended("clean".to_owned())),
        ];
        Evidence {
            expiry: Duration::from_secs(8),
            instances: 2,
            partitions: 1,
            retention: 1000,
            published: [(partition(), 9)].into(),
            happened: Vec::new(),
            lives: vec![biography(0, 100), biography(1, 100)],
            diaries: [(life(0), first), (life(1), second)].into(),
            writes: Vec::new(),
            resets: Vec::new(),
            seen: Seen { last: ended.clone(), looks: 3, ..Seen::default() },
            settled: look,
            ended,
        }
    }

    #[test]
    fn a_session_is_what_lies_between_a_start_and_a_stop() {
        let partition = || "0".to_owned();
        let entries = [
            entry(1, What::Started(partition())),
            entry(2, What::Processed(partition(), 0, 4)),
            entry(3, What::Stopped(partition(), "Lost".to_owned())),
            entry(4, What::Started(partition())),
            entry(5, What::Processed(partition(), 5, 6)),
        ];
        let sessions = sessions(life(0), &entries);
        assert_eq!(sessions.len(), 2);
        assert_eq!(sessions[0].stopped, Some((Moment::from_millis(3), "Lost".to_owned())));
        assert_eq!((&sessions[1].stopped, &sessions[1].runs[..]), (&None, &[(Moment::from_millis(5), 5, 6)][..]));
    }
}
