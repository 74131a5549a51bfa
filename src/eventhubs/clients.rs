//! The connections of a source, their links, and their requests for properties.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, Weak};

use azure_messaging_eventhubs::EventHubsError;
use futures::future::join_all;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::REQUEST_TIMEOUT;
use super::client::Consumer;
use super::connection::{Connection, SharedClient, close_once_unused};
use super::connection_health::{Outcome, Route};
use super::connector::Connector;
use super::errors;
use super::placement::Placement;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::PartitionId;

/// How many times a request is sent: the second time through another client, if the first response is missing or shows
/// that the connection is broken.
const ATTEMPTS: usize = 2;

/// Dropped when the link is closed.
pub(super) struct Used {
    _open: watch::Sender<()>,
}

impl SharedClient<Consumer> {
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
            let outcome = match response {
                Some(Ok(_)) => Outcome::Responded,
                Some(Err(error)) => errors::outcome(error),
                None => Outcome::Broken,
            };
            client.record(&Route::Hub, outcome);
            drop(client);
            // Closing waits for this, and then expects no reference.
            drop(used);
        };
        self.client().requests.send(open, request(Arc::clone(self)), record).await
    }
}

/// The clients of a source.
pub(super) struct Clients {
    connector: Arc<Connector<Consumer>>,
    connections: SyncMutex<Connections>,
    /// Locked while a connection is added, so that all callers get the same one.
    adding: Mutex<()>,
    links: SyncMutex<HashMap<PartitionId, LastLink>>,
    /// Requests end when it is dropped.
    open: watch::Sender<()>,
}

struct Connections {
    /// At least one. Requests use the first.
    all: Vec<Arc<Connection<Consumer>>>,
    placement: Placement,
}

impl Connections {
    fn add(&mut self, connection: Connection<Consumer>) {
        self.all.push(Arc::new(connection));
        self.placement.add_connection();
    }
}

/// The last link of a partition.
struct LastLink {
    client: Weak<SharedClient<Consumer>>,
    /// Closed when the link is closed.
    used: watch::Receiver<()>,
}

impl Clients {
    /// Creates the first client.
    pub(super) async fn open(connector: Connector<Consumer>) -> Result<Self> {
        let connector = Arc::new(connector);
        let mut connections = Connections { all: Vec::new(), placement: Placement::default() };
        connections.add(Connection::open(Arc::clone(&connector)).await?);
        Ok(Self {
            connector,
            connections: SyncMutex::new(connections),
            adding: Mutex::default(),
            links: SyncMutex::default(),
            open: watch::Sender::new(()),
        })
    }

    /// Sends a request that changes nothing, and that returns `None` for the response to another request. If the
    /// response is missing or shows that the connection is broken, sends it once more, through the next client.
    pub(super) async fn query<T, F>(
        &self,
        request: impl Fn(Arc<SharedClient<Consumer>>) -> F,
        failed: impl Fn(EventHubsError) -> Error,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Option<Result<T, EventHubsError>>> + Send + 'static,
    {
        let mut failure = None;
        for _ in 0..ATTEMPTS {
            let client = self.first().usable().await;
            match client.send(self.open.subscribe(), &request).await {
                Some(Ok(response)) => return Ok(response),
                Some(Err(error)) if client.is_broken() => failure = Some(failed(error)),
                Some(Err(error)) => return Err(failed(error)),
                None => failure = None,
            }
        }
        Err(failure.unwrap_or_else(|| {
            Error::new(
                ErrorKind::EventSource,
                "no response from the event hub; a later request opens another connection",
            )
        }))
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        lock(&self.connections)
    }

    fn first(&self) -> Arc<Connection<Consumer>> {
        Arc::clone(&self.connections().all[0])
    }

    /// Returns a client for a link of the partition. If all connections are full, it opens one more.
    pub(super) async fn for_link(&self, partition: &PartitionId) -> Result<Arc<SharedClient<Consumer>>> {
        let connection = match self.place(partition) {
            Some(connection) => connection,
            None => self.place_after_adding(partition).await?,
        };
        Ok(connection.usable().await)
    }

    /// Opens a connection that nothing else uses. The caller closes it.
    pub(super) async fn open_alone(&self) -> Result<Connection<Consumer>> {
        Connection::open(Arc::clone(&self.connector)).await
    }

    fn place(&self, partition: &PartitionId) -> Option<Arc<Connection<Consumer>>> {
        let mut connections = self.connections();
        let index = connections.placement.place(partition)?;
        connections.all.get(index).cloned()
    }

    async fn place_after_adding(&self, partition: &PartitionId) -> Result<Arc<Connection<Consumer>>> {
        let _adding = self.adding.lock().await;
        loop {
            // Another caller may have added a connection.
            if let Some(connection) = self.place(partition) {
                return Ok(connection);
            }
            let added = Connection::open(Arc::clone(&self.connector)).await?;
            self.connections().add(added);
        }
    }

    fn links(&self) -> MutexGuard<'_, HashMap<PartitionId, LastLink>> {
        lock(&self.links)
    }

    /// Registers a link of the partition through this client. Waits until the last link of the partition through it is
    /// closed: otherwise the client would continue that link.
    pub(super) async fn use_for(&self, partition: &PartitionId, client: &Arc<SharedClient<Consumer>>) -> Result<Used> {
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
        Ok(Used { _open: open })
    }

    /// Records that the client of the partition's link is broken.
    pub(super) fn suspect(&self, partition: &PartitionId) {
        if let Some(client) = self.links().get(partition).and_then(|last| last.client.upgrade()) {
            client.record(&Route::Partition(partition.clone()), Outcome::Broken);
        }
    }

    /// Closes all connections concurrently. Returns the first error.
    pub(super) async fn close(self) -> Result<()> {
        drop(self.open);
        let connections = std::mem::take(&mut lock(&self.connections).all).into_iter().filter_map(Arc::into_inner);
        let closed = join_all(connections.flat_map(Connection::into_clients).map(close_once_unused)).await;
        closed.into_iter().collect()
    }
}

/// Omits the clients, which hold keys.
impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("connector", &self.connector).finish_non_exhaustive()
    }
}
