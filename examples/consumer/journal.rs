//! What the handlers of this process processed, line by line in a file: for judging several processes together.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use eventhubs_checkpoint::PartitionId;

use crate::Failure;
use crate::runs::runs;

/// One line per run of sequence numbers without a gap: partition, first, last, owner. Only ever appended to.
#[derive(Debug)]
pub struct Journal(Mutex<File>);

impl Journal {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|error| format!("the journal {} cannot be written: {error}", path.display()))?;
        Ok(Self(Mutex::new(file)))
    }

    /// Appends one batch. It survives the end of the process, however that ends, once this has returned; not that of
    /// the machine.
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
        // In one write, so that lines of several processes do not mix.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(lines.as_bytes())
    }
}
