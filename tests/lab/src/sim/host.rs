//! What one life of an instance is given, and what it must be able to do.

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

use super::freeze::Gate;
use super::freeze::HostSource;
use super::observer::Reporter;
use super::plan::{Member, Settings};

/// A host with one process on it, from its start to its end.
pub struct Host {
    /// The name of the owner.
    pub owner: OwnerId,
    /// The group that it belongs to.
    pub group: ConsumerGroup,
    /// Whatever it does by chance must depend on this alone.
    pub seed: u64,
    /// What the plan says of it.
    pub member: Member,
    /// What the plan says of all of ours.
    pub settings: Settings,
    /// The storage, with whatever goes wrong on the way to it.
    pub container: Arc<dyn BlobContainer>,
    /// The hub.
    pub source: HostSource,
    /// Its wall clock.
    pub clock: Arc<dyn WallClock>,
    /// Where it tells what its handlers do.
    pub reporter: Reporter,
    /// True when it is to end in good order.
    pub shutdown: watch::Receiver<bool>,
    /// How much longer than usual its handlers take.
    pub extra_work: watch::Receiver<Duration>,
    pub(super) gate: Gate,
    pub(super) handle_slot: HandleSlot,
}

impl Host {
    /// Ready when the process is to end in good order.
    pub fn shut_down(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut shutdown = self.shutdown.clone();
        async move {
            // Without a sender nobody asks.
            if shutdown.wait_for(|asked| *asked).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits while the process is frozen. Handlers call it before they do anything.
    pub async fn runs(&self) {
        self.gate.pass().await;
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

/// How a life ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitStatus {
    /// As it was told to.
    Shutdown {
        /// Nothing was left undone.
        clean: bool,
        /// What was, for a person.
        report: String,
    },
    /// A later life with its name is at work.
    Replaced,
    /// By an error.
    Failed(String),
}

/// A life. Dropped, it has crashed: nothing of it may be left.
pub type InstanceFuture = Pin<Box<dyn Future<Output = ExitStatus> + Send>>;

/// A kind of instance.
pub trait InstanceKind: Send + Sync {
    /// Whether this crate's promises are expected of it.
    fn is_crate_processor(&self) -> bool;

    /// One life of it.
    fn live(&self, host: Host) -> InstanceFuture;
}

/// Where a life leaves its handle.
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

/// A wall clock that goes as it should, but was set wrong.
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
