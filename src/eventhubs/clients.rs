//! The current client of a source, the clients that it replaced, and how to create the next one.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, Weak};
use std::time::Duration;

use azure_messaging_eventhubs::{ConsumerClient, EventHubsError};
use futures::future::join_all;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::REQUEST_TIMEOUT;
use super::connection_health::{ConnectionHealth, Pace, Signal};
use super::connector::Connector;
use super::errors;
use super::request_queue::RequestQueue;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::{ConsumerGroup, PartitionId};
use crate::telemetry;

/// How long to wait at the end until no link or request uses a client. Links are closed before; a remaining one was
/// aborted.
const UNUSED_LIMIT: Duration = Duration::from_secs(1);

/// How long a connection may take to close. The sum of both limits is less than the processor waits for the source.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// The most links of one connection. The official client opens a session for each, and its connections have 256.
const MOST_LINKS: usize = 200;

/// How many times a request is sent: the second time through another client, if the first response is missing.
const ATTEMPTS: usize = 2;

/// Dropped when the link is closed.
pub(super) struct Used {
    _open: watch::Sender<()>,
    _place: OwnedSemaphorePermit,
}

/// A client that all links opened through it share.
pub(super) struct SharedClient {
    client: ConsumerClient,
    health: SyncMutex<ConnectionHealth>,
    /// Another response would not change the health. Events arrive often, and this is cheaper than the lock.
    responds: AtomicBool,
    /// True once another client has replaced it.
    replaced: watch::Sender<bool>,
    /// The links that can be opened through it.
    places: Arc<Semaphore>,
    requests: RequestQueue,
}

impl SharedClient {
    fn new(client: ConsumerClient, connector: &Connector) -> Arc<Self> {
        Arc::new(Self {
            client,
            health: SyncMutex::default(),
            responds: AtomicBool::new(false),
            replaced: watch::Sender::new(false),
            places: Arc::new(Semaphore::new(MOST_LINKS)),
            requests: RequestQueue::new(connector.login_limit()),
        })
    }

    pub(super) fn client(&self) -> &ConsumerClient {
        &self.client
    }

    fn health(&self) -> MutexGuard<'_, ConnectionHealth> {
        lock(&self.health)
    }

    pub(super) fn note(&self, signal: Signal) {
        if signal == Signal::Responding && self.responds.load(Ordering::Acquire) {
            return;
        }
        let mut health = self.health();
        *health = health.after(signal);
        self.responds.store(health.after(Signal::Responding) == *health, Ordering::Release);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.health().is_broken()
    }

    /// Returns a receiver for a link or a request to keep. As long as receivers exist, the client is in use.
    pub(super) fn replaced(&self) -> watch::Receiver<bool> {
        self.replaced.subscribe()
    }

    /// Sends a request, and records what its outcome shows about the connection. Returns `None` without a response.
    async fn send<T, F>(
        self: &Arc<Self>,
        open: watch::Receiver<()>,
        request: impl FnOnce(Arc<Self>) -> F,
    ) -> Option<Result<T, EventHubsError>>
    where
        T: Send + 'static,
        F: Future<Output = Option<Result<T, EventHubsError>>> + Send + 'static,
    {
        let (client, used) = (Arc::clone(self), self.replaced());
        let record = move |response: Option<&Result<T, EventHubsError>>| {
            client.note(match response {
                Some(Ok(_)) => Signal::Responding,
                Some(Err(error)) => errors::signal(error),
                None => Signal::Broken,
            });
            drop(client);
            // Closing waits for this, and then expects no reference.
            drop(used);
        };
        self.requests.send(open, request(Arc::clone(self)), record).await
    }

    /// Closes the connection. The client may wait forever if the connection is broken.
    async fn close(self) -> Result<()> {
        let failed = || Error::new(ErrorKind::EventSource, "cannot close the connection to the event hub");
        match timeout(CLOSE_LIMIT, self.client.close()).await {
            Ok(closed) => closed.map_err(|error| failed().with_source(error)),
            Err(elapsed) => Err(failed().with_source(elapsed)),
        }
    }
}

/// The clients of a source.
pub(super) struct Clients {
    connector: Connector,
    /// At least one. Locked while a client is created, so that all callers get the same one.
    connections: Mutex<Vec<Connection>>,
    links: SyncMutex<HashMap<PartitionId, LastLink>>,
    /// Requests end when it is dropped.
    open: watch::Sender<()>,
}

/// The last link of a partition.
struct LastLink {
    client: Weak<SharedClient>,
    /// Closed when the link is closed.
    used: watch::Receiver<()>,
}

/// A connection, over the clients that replace each other when it breaks.
struct Connection {
    current: Arc<SharedClient>,
    /// Replaced clients that links may still use.
    retired: Vec<Arc<SharedClient>>,
    pace: Pace,
}

impl Clients {
    /// Creates the clients of a source, with a first client that the connector created.
    pub(super) fn new(client: ConsumerClient, connector: Connector) -> Self {
        let connections = Mutex::new(vec![Connection::new(client, &connector)]);
        Self { connector, connections, links: SyncMutex::default(), open: watch::Sender::new(()) }
    }

    pub(super) fn group(&self) -> &ConsumerGroup {
        self.connector.group()
    }

    /// Sends a request that changes nothing, and that returns `None` for the response to another request. Without a
    /// response, sends it once more, through the next client.
    pub(super) async fn query<T, F>(
        &self,
        request: impl Fn(Arc<SharedClient>) -> F,
        failed: impl FnOnce(EventHubsError) -> Error,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Option<Result<T, EventHubsError>>> + Send + 'static,
    {
        for _ in 0..ATTEMPTS {
            let client = self.current().await;
            if let Some(response) = client.send(self.open.subscribe(), &request).await {
                return response.map_err(failed);
            }
        }
        Err(Error::new(
            ErrorKind::EventSource,
            "no response from the event hub; a later request opens another connection",
        ))
    }

    /// Returns the client for requests: a new one if the connection of the last one is broken. If none can be created
    /// now, the last one.
    async fn current(&self) -> Arc<SharedClient> {
        let mut connections = self.connections.lock().await;
        let first = &mut connections[0];
        first.renew(&self.connector).await;
        Arc::clone(&first.current)
    }

    /// Returns a client with a place for another link, chosen as by [`current`](Self::current). If all connections are
    /// full, it opens one more.
    pub(super) async fn for_link(&self) -> Result<(Arc<SharedClient>, OwnedSemaphorePermit)> {
        let mut connections = self.connections.lock().await;
        for connection in connections.iter_mut() {
            connection.renew(&self.connector).await;
            if let Some(found) = connection.place() {
                return Ok(found);
            }
        }
        let added = Connection::new(self.connector.client().await?, &self.connector);
        let found = added.place().ok_or_else(|| Error::new(ErrorKind::Internal, "a new connection has no place"))?;
        connections.push(added);
        Ok(found)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<PartitionId, LastLink>> {
        lock(&self.links)
    }

    /// Registers a link of the partition through this client. Waits until the last link of the partition through it is
    /// closed: otherwise the client would continue that link.
    pub(super) async fn use_for(
        &self,
        partition: &PartitionId,
        client: &Arc<SharedClient>,
        place: OwnedSemaphorePermit,
    ) -> Result<Used> {
        let through = Arc::downgrade(client);
        let last =
            self.links().get(partition).filter(|last| last.client.ptr_eq(&through)).map(|last| last.used.clone());
        if let Some(mut used) = last {
            let closed = async { while used.changed().await.is_ok() {} };
            timeout(REQUEST_TIMEOUT, closed).await.map_err(|_| {
                let open = format!("the last link to partition {partition} is still open: close its receiver first");
                Error::new(ErrorKind::EventSource, open)
            })?;
        }
        let (open, used) = watch::channel(());
        self.links().insert(partition.clone(), LastLink { client: through, used });
        Ok(Used { _open: open, _place: place })
    }

    /// Records that the client of the partition's link is broken.
    pub(super) fn suspect(&self, partition: &PartitionId) {
        if let Some(client) = self.links().get(partition).and_then(|last| last.client.upgrade()) {
            client.note(Signal::Broken);
        }
    }

    /// Closes all connections concurrently. Returns the first error.
    pub(super) async fn close(self) -> Result<()> {
        drop(self.open);
        let connections = self.connections.into_inner().into_iter();
        let clients = connections.flat_map(|Connection { current, retired, .. }| retired.into_iter().chain([current]));
        let closed = join_all(clients.map(close_once_unused)).await;
        closed.into_iter().collect()
    }
}

async fn close_once_unused(client: Arc<SharedClient>) -> Result<()> {
    let unused = timeout(UNUSED_LIMIT, client.replaced.closed()).await;
    match Arc::try_unwrap(client) {
        Ok(client) if unused.is_ok() => client.close().await,
        _ => Err(Error::new(ErrorKind::EventSource, "a link or a request to the event hub is still open")),
    }
}

impl Connection {
    fn new(client: ConsumerClient, connector: &Connector) -> Self {
        Self { current: SharedClient::new(client, connector), retired: Vec::new(), pace: Pace::new() }
    }

    /// Returns the client with a place for another link, if it has one.
    fn place(&self) -> Option<(Arc<SharedClient>, OwnedSemaphorePermit)> {
        let place = Arc::clone(&self.current.places).try_acquire_owned().ok()?;
        Some((Arc::clone(&self.current), place))
    }

    async fn renew(&mut self, connector: &Connector) {
        self.close_unused();
        let health = *self.current.health();
        if !health.is_broken() || !self.pace.try_now(Instant::now(), health.is_proven()) {
            return;
        }
        match connector.client().await {
            Ok(client) => {
                telemetry::reconnected();
                let old = std::mem::replace(&mut self.current, SharedClient::new(client, connector));
                old.replaced.send_replace(true);
                self.retired.push(old);
            }
            Err(error) => telemetry::reconnect_failed(&error, self.pace.wait()),
        }
    }

    fn close_unused(&mut self) {
        for client in std::mem::take(&mut self.retired) {
            match Arc::try_unwrap(client) {
                Ok(unused) => {
                    let closing = async move {
                        if let Err(error) = unused.close().await {
                            telemetry::source_not_closed(&error);
                        }
                    };
                    tokio::spawn(closing.in_current_span());
                }
                Err(used) => self.retired.push(used),
            }
        }
    }
}

/// Omits the clients, which hold keys.
impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("connector", &self.connector).finish_non_exhaustive()
    }
}
