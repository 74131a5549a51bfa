//! The processed events of this process, line by line in a file, for an analysis of several processes together.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use eventhubs_checkpoint::PartitionId;

use crate::Failure;
use crate::runs::runs;

/// A file with one line per run of sequence numbers without a gap: partition, first, last, owner. Lines are only
/// appended.
#[derive(Debug)]
pub struct Journal(Mutex<File>);

impl Journal {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|error| format!("cannot write the journal {}: {error}", path.display()))?;
        Ok(Self(Mutex::new(file)))
    }

    /// Appends one batch. After this call returns, the lines survive any end of the process, but not a crash of the
    /// machine.
    pub fn append(
        &self,
        partition: &PartitionId,
        numbers: impl IntoIterator<Item = i64>,
        owner: &str,
    ) -> io::Result<()> {
        let mut lines = String::new();
        for (first, last) in runs(numbers) {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{partition} {first} {last} {owner}");
        }
        // One write, so that lines of several processes do not mix.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(lines.as_bytes())
    }
}
