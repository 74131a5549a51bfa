//! What an instance records on disk, line by line, so that the records survive any end of the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Mutex;

use eventhubs_checkpoint::internal::lock::lock;
use serde::{Deserialize, Serialize};

use crate::chaos::clock::{Clock, Moment};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Microseconds since the run began.
    pub at: u64,
    #[serde(flatten)]
    pub kind: LogEntryKind,
}

impl Entry {
    pub fn moment(&self) -> Moment {
        Moment::from_micros(self.at)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogEntryKind {
    /// A partition starts to deliver.
    Started(String),
    /// A partition stops, for this reason.
    Stopped(String, String),
    /// The handler has got events that were published together: partition, first, and the time in microseconds since
    /// the run began.
    Published(String, i64, u64),
    /// The handler has processed successive events: partition, first and last.
    Processed(String, i64, i64),
    /// The balancer reported that events of a partition may be processed twice, and why.
    DuplicatesPossible(String, String),
    /// The number of tasks of the runtime.
    Tasks(usize),
    /// How the processor ended after a shutdown request.
    Ended(String),
}

/// The writer.
#[derive(Debug)]
pub struct EventLog {
    file: Mutex<File>,
    clock: Clock,
}

impl EventLog {
    pub fn open(path: &Path, clock: Clock) -> Result<Self, String> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|error| format!("cannot write the event log {}: {error}", path.display()))?;
        Ok(Self { file: Mutex::new(file), clock })
    }

    /// After this has returned, the entries survive the end of the process, but not that of the machine.
    pub fn write(&self, entries: impl IntoIterator<Item = LogEntryKind>) -> io::Result<()> {
        let at = u64::try_from(self.clock.now().as_micros()).unwrap_or(u64::MAX);
        let mut lines = Vec::new();
        for kind in entries {
            serde_json::to_writer(&mut lines, &Entry { at, kind })?;
            lines.push(b'\n');
        }
        lock(&self.file).write_all(&lines)
    }
}

/// Returns the entries of an event log. An incomplete line is skipped.
pub fn read(path: &Path) -> Result<Vec<Entry>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    let entry = |line: &str| serde_json::from_str(line).map_err(|error| format!("{}: {error}: {line}", path.display()));
    whole.lines().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_half_a_line_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let event_log = EventLog::open(&path, Clock::start()).unwrap();
        let written = [
            LogEntryKind::Started("3".to_owned()),
            LogEntryKind::Processed("3".to_owned(), 0, 9),
            LogEntryKind::Tasks(7),
        ];
        event_log.write(written.clone()).unwrap();
        let mut text = fs::read(&path).unwrap();
        text.extend(b"{\"at\":12,\"sta");
        fs::write(&path, text).unwrap();
        let read: Vec<_> = read(&path).unwrap().into_iter().map(|entry| entry.kind).collect();
        assert_eq!(read, written);
    }
}
