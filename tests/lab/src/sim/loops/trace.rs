//! What has happened, and when.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::balancer::OwnershipEvent;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::{OwnerId, PartitionId};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// Something that happened to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// When, counted from the beginning.
    pub at: Duration,
    /// To whom.
    pub owner: OwnerId,
    /// What.
    pub kind: LoopEventKind,
}

/// What can happen to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopEventKind {
    /// It was started.
    Started,
    /// What its loop told: claims, losses and releases, with their reasons.
    Emitted(OwnershipEvent),
    /// So many of its events came too fast to be heard.
    Missed(u64),
    /// It was made to crash.
    Crashed,
    /// It ended, in good order or with such an error.
    Ended(Option<ErrorKind>),
}

/// A partition was taken from an instance that was running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Move {
    /// When, counted from the beginning.
    pub at: Duration,
    /// Which.
    pub partition: PartitionId,
    /// From whom.
    pub from: OwnerId,
    /// By whom.
    pub to: OwnerId,
}

pub(super) type Trace = Arc<Mutex<Vec<Entry>>>;

pub(super) fn push(trace: &Trace, entry: Entry) {
    lock(trace).push(entry);
}

/// Writes down what an instance tells until it is gone.
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
