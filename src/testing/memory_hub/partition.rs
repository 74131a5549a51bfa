//! A partition of the hub: its events, and what was done to its links.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;

use super::log::Log;
use crate::lock::lock;

/// What was done to the links of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    /// How many readers there have been; the last is the one that reads.
    pub(super) reader: u64,
    /// The reader whose link is silent.
    pub(super) silenced: Option<u64>,
    /// How often the links were broken.
    pub(super) breaks: u64,
    /// How often the links began again.
    pub(super) reattached: u64,
}

/// A partition. Code that needs both locks takes the control first.
#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) log: Mutex<Log>,
    /// The number of the next event.
    pub(super) end: watch::Sender<i64>,
    pub(super) control: watch::Sender<Control>,
}

impl Partition {
    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }
}
