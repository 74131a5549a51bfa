//! The trace of a simulation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::balancer::OwnershipEvent;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::{ErrorKind, OwnerId, PartitionId};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// Something that happened to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Time since the beginning.
    pub at: Duration,
    /// The instance.
    pub owner: OwnerId,
    /// What happened.
    pub kind: LoopEventKind,
}

/// What can happen to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopEventKind {
    /// It was started.
    Started,
    /// Its loop emitted an event: claims, losses and releases, with their reasons.
    Emitted(OwnershipEvent),
    /// This many of its events were missed, because they were emitted too fast.
    Missed(u64),
    /// It crashed.
    Crashed,
    /// It ended, gracefully or with this error.
    Ended(Option<ErrorKind>),
}

/// A partition was taken from a running instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Move {
    /// Time since the beginning.
    pub at: Duration,
    /// Which partition.
    pub partition: PartitionId,
    /// The previous owner.
    pub from: OwnerId,
    /// The new owner.
    pub to: OwnerId,
}

pub(super) type Trace = Arc<Mutex<Vec<Entry>>>;

pub(super) fn push(trace: &Trace, entry: Entry) {
    lock(trace).push(entry);
}

/// Records the events of an instance until it has ended.
pub(super) async fn listen(
    owner: OwnerId,
    mut events: broadcast::Receiver<OwnershipEvent>,
    started: Instant,
    trace: Trace,
) {
    loop {
        let kind = match events.recv().await {
            Ok(event) => LoopEventKind::Emitted(event),
            Err(RecvError::Lagged(missed)) => LoopEventKind::Missed(missed),
            Err(RecvError::Closed) => return,
        };
        push(&trace, Entry { at: started.elapsed(), owner: owner.clone(), kind });
    }
}
