//! The connections of a source: which one serves which partition, their links, and their requests for properties.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, Weak};

use azure_messaging_eventhubs::EventHubsError;
use futures::future::join_all;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::client::Consumer;
use super::connection::{Connection, Connector, SharedClient, close_once_unused};
use super::connection_health::{ConnectionOutcome, Route};
use crate::error::{Error, ErrorKind, Result};
use crate::eventhubs::{CLIENT_REQUEST_TIMEOUT, errors};
use crate::model::PartitionId;
use crate::util::lock;

/// How many times a request is sent: the second time through another client, if the first response is missing or shows
/// that the connection is broken.
const ATTEMPTS: usize = 2;

/// The connections of a source.
pub(super) struct Connections {
    connector: Arc<Connector<Consumer>>,
    pool: SyncMutex<ConnectionPool>,
    /// Locked while a connection is added, so that all callers get the same one.
    adding: Mutex<()>,
    links: SyncMutex<HashMap<PartitionId, LastLink>>,
    /// Requests end when it is dropped.
    open: watch::Sender<()>,
}

struct ConnectionPool {
    /// At least one. Requests use the first.
    all: Vec<Arc<Connection<Consumer>>>,
    placement: Placement,
}

impl ConnectionPool {
    fn add_connection(&mut self, connection: Connection<Consumer>) {
        self.all.push(Arc::new(connection));
        self.placement.partitions.push(0);
    }
}

/// The last link of a partition.
struct LastLink {
    client: Weak<SharedClient<Consumer>>,
    /// Closed when the link is closed.
    used: watch::Receiver<()>,
}

/// Dropped when the link is closed.
pub(super) struct LinkUse {
    _open: watch::Sender<()>,
}

impl Connections {
    /// Opens the first connection.
    pub(super) async fn open(connector: Connector<Consumer>) -> Result<Self> {
        let connector = Arc::new(connector);
        let mut pool = ConnectionPool { all: Vec::new(), placement: Placement::default() };
        pool.add_connection(Connection::open(Arc::clone(&connector)).await?);
        Ok(Self {
            connector,
            pool: SyncMutex::new(pool),
            adding: Mutex::default(),
            links: SyncMutex::default(),
            open: watch::Sender::new(()),
        })
    }

    /// Sends a request that changes nothing, and that returns `None` for the response to another request. If the
    /// response is missing or shows that the connection is broken, sends it once more, through the next client.
    pub(super) async fn request_properties<T, F>(
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
            let connection = Arc::clone(&self.lock_pool().all[0]);
            let client = connection.usable_client().await;
            match client.send_request(self.open.subscribe(), &request).await {
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

    fn lock_pool(&self) -> MutexGuard<'_, ConnectionPool> {
        lock(&self.pool)
    }

    /// Returns a client for a link of the partition. If all connections are full, it opens one more.
    pub(super) async fn client_for_link(&self, partition: &PartitionId) -> Result<Arc<SharedClient<Consumer>>> {
        if let Some(connection) = self.place_partition(partition) {
            return Ok(connection.usable_client().await);
        }
        let adding = self.adding.lock().await;
        let connection = loop {
            // Another caller may have added a connection.
            if let Some(connection) = self.place_partition(partition) {
                break connection;
            }
            let added = Connection::open(Arc::clone(&self.connector)).await?;
            self.lock_pool().add_connection(added);
        };
        drop(adding);
        Ok(connection.usable_client().await)
    }

    /// Opens a connection that nothing else uses. The caller closes it.
    pub(super) async fn open_alone(&self) -> Result<Connection<Consumer>> {
        Connection::open(Arc::clone(&self.connector)).await
    }

    fn place_partition(&self, partition: &PartitionId) -> Option<Arc<Connection<Consumer>>> {
        let mut pool = self.lock_pool();
        let index = pool.placement.place_partition(partition)?;
        pool.all.get(index).cloned()
    }

    fn lock_links(&self) -> MutexGuard<'_, HashMap<PartitionId, LastLink>> {
        lock(&self.links)
    }

    /// Registers a link of the partition through this client. Waits until the last link of the partition through it is
    /// closed: otherwise the client would continue that link.
    pub(super) async fn register_link(
        &self,
        partition: &PartitionId,
        client: &Arc<SharedClient<Consumer>>,
    ) -> Result<LinkUse> {
        let through = Arc::downgrade(client);
        let last =
            self.lock_links().get(partition).filter(|last| last.client.ptr_eq(&through)).map(|last| last.used.clone());
        if let Some(mut used) = last {
            let closed = async { while used.changed().await.is_ok() {} };
            if timeout(CLIENT_REQUEST_TIMEOUT, closed).await.is_err() {
                return Err(Error::new(
                    ErrorKind::EventSource,
                    format!("the last link to partition {partition} is still open: close its receiver first"),
                ));
            }
        }
        let (open, used) = watch::channel(());
        self.lock_links().insert(partition.clone(), LastLink { client: through, used });
        Ok(LinkUse { _open: open })
    }

    /// Records that the client of the partition's link is broken.
    pub(super) fn mark_suspect(&self, partition: &PartitionId) {
        if let Some(client) = self.lock_links().get(partition).and_then(|last| last.client.upgrade()) {
            client.record_outcome(&Route::Partition(partition.clone()), ConnectionOutcome::Broken);
        }
    }

    /// Closes all connections concurrently. Returns the first error.
    pub(super) async fn close(self) -> Result<()> {
        drop(self.open);
        let connections = std::mem::take(&mut lock(&self.pool).all).into_iter().filter_map(Arc::into_inner);
        join_all(connections.flat_map(Connection::into_clients).map(close_once_unused)).await.into_iter().collect()
    }
}

/// Omits the clients, which hold keys.
impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("connector", &self.connector).finish_non_exhaustive()
    }
}

impl SharedClient<Consumer> {
    /// Sends a request, and records what its outcome shows about the connection. Returns `None` without a response.
    async fn send_request<T, F>(
        self: &Arc<Self>,
        open: watch::Receiver<()>,
        request: impl FnOnce(Arc<Self>) -> F,
    ) -> Option<Result<T, EventHubsError>>
    where
        T: Send + 'static,
        F: Future<Output = Option<Result<T, EventHubsError>>> + Send + 'static,
    {
        let client = Arc::clone(self);
        let in_use = self.watch_replacement();
        self.inner()
            .requests
            .send(open, request(Arc::clone(self)), move |response| {
                let outcome = match response {
                    Some(Ok(_)) => ConnectionOutcome::Responded,
                    Some(Err(error)) => errors::connection_outcome(error),
                    None => ConnectionOutcome::Broken,
                };
                client.record_outcome(&Route::Hub, outcome);
                drop(client);
                // Closing waits for this, and then expects no reference.
                drop(in_use);
            })
            .await
    }
}

/// The most partitions of one connection. The official client opens a session for each partition and keeps it after the
/// link is closed; its connections have 256 sessions, and requests and logins need some.
const MOST_PARTITIONS: usize = 200;

/// The connections of a source, by their index. A partition stays with its connection, also after its links are closed,
/// because its session does.
#[derive(Debug, Default)]
pub(super) struct Placement {
    connection_of: HashMap<PartitionId, usize>,
    /// The number of partitions of each connection.
    partitions: Vec<usize>,
}

impl Placement {
    /// Returns the connection for a partition, or `None` if all connections are full.
    pub(super) fn place_partition(&mut self, partition: &PartitionId) -> Option<usize> {
        if let Some(connection) = self.connection_of.get(partition) {
            return Some(*connection);
        }
        let connection = self.partitions.iter().position(|partitions| *partitions < MOST_PARTITIONS)?;
        self.partitions[connection] += 1;
        self.connection_of.insert(partition.clone(), connection);
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_serves_at_most_200_partitions() {
        let mut placement = Placement::default();
        assert_eq!(placement.place_partition(&PartitionId::from(0)), None);
        placement.partitions.push(0);
        for partition in 0..200 {
            assert_eq!(placement.place_partition(&PartitionId::from(partition)), Some(0), "partition {partition}");
        }
        assert_eq!(placement.place_partition(&PartitionId::from(200)), None);
        placement.partitions.push(0);
        for (partition, connection) in [(200, 1), (201, 1), (7, 0), (200, 1), (199, 0)] {
            assert_eq!(
                placement.place_partition(&PartitionId::from(partition)),
                Some(connection),
                "partition {partition}"
            );
        }
    }
}
