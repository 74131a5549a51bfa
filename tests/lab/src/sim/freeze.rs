//! Separates a host from storage and hub while its process is frozen.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSender, EventSource, PartitionProperties, StartPosition,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemorySource};
use eventhubs_checkpoint::{PartitionId, Result};
use tokio::sync::Notify;

use super::observer::{Reporter, Request};
use super::quota::Quota;

/// How long a link may take to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Open, unless its host is frozen. Clones share the same gate.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<Hinge>);

/// Wakes waiters in the order of arrival. A watch channel does not, if many wait.
#[derive(Debug, Default)]
struct Hinge {
    frozen: AtomicBool,
    woken: Notify,
}

impl Gate {
    pub(super) fn freeze(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::Relaxed);
        if !frozen {
            self.0.woken.notify_waiters();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    pub(super) async fn pass(&self) {
        while self.is_closed() {
            self.0.woken.notified().await;
        }
    }

    /// Returns how many clones exist.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Sends a request. Requests leave and responses arrive only while the process runs.
    async fn around<T>(&self, request: impl Future<Output = T>) -> T {
        self.pass().await;
        let response = request.await;
        self.pass().await;
        response
    }
}

/// A container after a gate. Every request that passes is counted, even if it is rejected or lost later.
#[derive(Clone)]
pub(super) struct GatedContainer {
    pub(super) inner: Arc<dyn BlobContainer>,
    pub(super) gate: Gate,
    pub(super) reporter: Reporter,
}

impl GatedContainer {
    async fn send<T>(&self, kind: Request, request: impl Future<Output = T>) -> T {
        self.gate.pass().await;
        self.reporter.requested(kind);
        let response = request.await;
        self.gate.pass().await;
        response
    }
}

impl fmt::Debug for GatedContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedContainer").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl BlobContainer for GatedContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.send(Request::List, self.inner.list(prefix)).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.send(Request::Get, self.inner.get(name)).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        self.send(Request::Write, self.inner.write(name, metadata, condition)).await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.send(Request::Write, self.inner.delete(name, etag)).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.gate.around(self.inner.create_container()).await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}

/// The hub as one host sees it.
#[derive(Clone, Debug)]
pub struct HostSource {
    pub(super) inner: MemorySource,
    pub(super) gates: Gates,
    pub(super) quota: Quota,
}

/// The gates of the process and of the application's runtime.
#[derive(Clone, Debug, Default)]
pub(super) struct Gates {
    pub(super) process: Gate,
    /// Closed while the runtime is blocked. The load-balancing loop does not pass it.
    pub(super) runtime: Gate,
}

impl Gates {
    /// Waits until the application's tasks run.
    pub(super) async fn pass(&self) {
        while self.process.is_closed() || self.runtime.is_closed() {
            self.process.pass().await;
            self.runtime.pass().await;
        }
    }

    async fn around<T>(&self, request: impl Future<Output = T>) -> T {
        self.pass().await;
        let response = request.await;
        self.pass().await;
        response
    }
}

impl HostSource {
    /// Sends a request that counts against the quota of the namespace.
    async fn ask<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let counted = async {
            self.quota.request()?;
            request.await
        };
        self.gates.around(counted).await
    }
}

impl EventSource for HostSource {
    type Event = MemoryEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        self.ask(self.inner.event_hub_properties()).await
    }

    async fn partition_properties(&self, id: &PartitionId) -> Result<PartitionProperties> {
        self.ask(self.inner.partition_properties(id)).await
    }

    async fn open_receiver(
        &self,
        id: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<MemoryEvent>> {
        let receiver = self.gates.around(self.inner.open_receiver(id, from, prefetch, epoch)).await?;
        let gates = self.gates.clone();
        Ok(EventReceiver::spawn(prefetch, move |sender| forward(receiver, sender, gates)))
    }
}

async fn forward(mut receiver: EventReceiver<MemoryEvent>, sender: EventSender<MemoryEvent>, gates: Gates) {
    loop {
        let batch = tokio::select! {
            biased;
            () = sender.closed() => break,
            batch = receiver.next_batch(100) => batch,
        };
        // A process may be killed while it is frozen.
        let runs = tokio::select! {
            biased;
            () = sender.closed() => false,
            () = gates.pass() => true,
        };
        if !runs {
            break;
        }
        let goes_on = match batch {
            Ok(events) => sender.send_all(events).await,
            Err(error) => {
                sender.send(Err(error)).await;
                false
            }
        };
        if !goes_on {
            break;
        }
    }
    receiver.close(CLOSE_LIMIT).await;
}
