//! What the worker processes did, line by line in one file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use eventhubs_checkpoint::PartitionContext;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Failure;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Happened {
    Started,
    /// The first and the last of successive sequence numbers.
    Handled(i64, i64),
    Stopped,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// See [`now`].
    pub at: i64,
    pub owner: String,
    pub partition: String,
    /// Identifies a win of the partition.
    pub epoch: i64,
    pub happened: Happened,
}

impl Entry {
    /// Returns what one win of a partition has in common.
    pub fn win(&self) -> (&str, &str, i64) {
        (&self.owner, &self.partition, self.epoch)
    }
}

/// Returns milliseconds by a clock that all processes of the machine share.
pub fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// A file to which several processes append.
#[derive(Debug)]
pub struct Journal {
    file: Mutex<File>,
    owner: String,
}

impl Journal {
    pub fn open(path: &Path, owner: &str) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file: Mutex::new(file), owner: owner.to_owned() })
    }

    /// Appends entries about a partition. When this returns, they survive any end of the process.
    pub fn append(
        &self,
        context: &PartitionContext,
        happened: impl IntoIterator<Item = Happened>,
    ) -> Result<(), Failure> {
        let mut lines = String::new();
        for happened in happened {
            let entry = Entry {
                at: now(),
                owner: self.owner.clone(),
                partition: context.partition_id().to_string(),
                epoch: context.epoch(),
                happened,
            };
            lines.push_str(&serde_json::to_string(&entry)?);
            lines.push('\n');
        }
        // One write, so that lines of several processes do not mix.
        Ok(self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(lines.as_bytes())?)
    }
}

/// Returns all entries, in the order in which they were appended.
pub fn read_entries(path: &Path) -> Result<Vec<Entry>, Failure> {
    let text = fs::read_to_string(path)?;
    // The last line may not be complete.
    let (lines, _) = text.rsplit_once('\n').unwrap_or_default();
    Ok(lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}
