//! What one incarnation of an instance gets, and what it must implement.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::internal::clock::WallClock;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::processor::ProcessorHandle;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;

use super::freeze::{Gates, HostSource};
use super::ledger::Ledger;
use super::observer::Reporter;
use super::plan::{Member, Settings};

/// A host with one process on it, from the start of the process to its end.
pub struct Host {
    /// The owner ID.
    pub owner: OwnerId,
    /// The consumer group.
    pub group: ConsumerGroup,
    /// All randomness of the instance must depend only on this seed.
    pub seed: u64,
    /// The plan's description of this member.
    pub member: Member,
    /// The plan's settings for all instances of this crate.
    pub settings: Settings,
    /// The storage, including the faults on the way to it.
    pub container: Arc<dyn BlobContainer>,
    /// The hub.
    pub source: HostSource,
    /// The wall clock of the host.
    pub clock: Arc<dyn WallClock>,
    /// The database of the application, if it keeps its own positions.
    pub ledger: Option<Ledger>,
    /// Receives what the handlers do.
    pub reporter: Reporter,
    /// `true` when the process is to shut down gracefully.
    pub shutdown: watch::Receiver<bool>,
    /// By how much its handlers take longer than usual.
    pub extra_work: watch::Receiver<Duration>,
    pub(super) gates: Gates,
    pub(super) handle_slot: HandleSlot,
}

impl Host {
    /// Waits until the process is to shut down gracefully.
    pub fn shut_down(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut shutdown = self.shutdown.clone();
        async move {
            // Without a sender there is no shutdown request.
            if shutdown.wait_for(|requested| *requested).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits while the process is frozen or its runtime is blocked. Handlers call it before they do anything.
    pub async fn runs(&self) {
        self.gates.pass().await;
    }

    /// Lets the plan pause and release partitions of this processor.
    pub fn register_handle(&self, handle: ProcessorHandle) {
        self.handle_slot.set(handle);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// How an incarnation ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitStatus {
    /// After a shutdown request.
    Shutdown {
        /// Nothing was left undone.
        clean: bool,
        /// Human-readable description of what was left undone.
        report: String,
    },
    /// A later incarnation with its name is running.
    Replaced,
    /// With an error.
    Failed(String),
}

/// A running incarnation. Dropping it is a crash: nothing of it may remain.
pub type InstanceFuture = Pin<Box<dyn Future<Output = ExitStatus> + Send>>;

/// A kind of instance.
pub trait InstanceKind: Send + Sync {
    /// Returns whether this crate's guarantees are checked for it.
    fn is_crate_processor(&self) -> bool;

    /// Runs one incarnation.
    fn live(&self, host: Host) -> InstanceFuture;
}

/// Holds the processor handle of an incarnation.
#[derive(Clone, Debug, Default)]
pub(super) struct HandleSlot(Arc<Mutex<Option<ProcessorHandle>>>);

impl HandleSlot {
    fn set(&self, handle: ProcessorHandle) {
        *lock(&self.0) = Some(handle);
    }

    pub(super) fn handle(&self) -> Option<ProcessorHandle> {
        lock(&self.0).clone()
    }
}

/// A wall clock that runs at the right speed, but shows a wrong time.
#[derive(Debug)]
pub(super) struct Skewed {
    pub(super) shown: OffsetDateTime,
    pub(super) since: Instant,
}

impl WallClock for Skewed {
    fn now(&self) -> OffsetDateTime {
        self.shown + self.since.elapsed()
    }
}
