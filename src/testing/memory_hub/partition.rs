//! A partition of the hub: its events, and the changes of its links.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;

use super::log::Log;
use crate::util::lock;

/// The changes of a partition's links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    /// The number of readers up to now. The last one is the current reader.
    pub(super) reader: u64,
    /// The reader whose link is stalled.
    pub(super) stalled: Option<u64>,
    /// The number of times that the links were broken.
    pub(super) breaks: u64,
    /// The number of times that the links restarted.
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
