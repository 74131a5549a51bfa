//! A connection to an event hub, over the clients that replace each other when it breaks.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::client::Client;
use super::connection_health::{ConnectionHealth, Outcome, Pace, Route};
use super::connector::Connector;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::telemetry;

/// How long to wait at the end until no link or request uses a client. Links are closed before; a remaining one was
/// aborted.
const UNUSED_LIMIT: Duration = Duration::from_secs(1);

/// How long a connection may take to close. The sum of both limits is less than the processor waits for the source.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// A client that all links and requests of a connection share.
pub(super) struct SharedClient<C> {
    client: C,
    access_version: u64,
    health: SyncMutex<ConnectionHealth>,
    /// Another response would not change the health. Events arrive often, and this is cheaper than the lock.
    settled: AtomicBool,
    /// True once another client has replaced it.
    replaced: watch::Sender<bool>,
}

impl<C: Client> SharedClient<C> {
    async fn open(connector: &Connector<C>) -> Result<Arc<Self>> {
        // Read first: if the access is replaced meanwhile, another client follows.
        let access_version = connector.access_version();
        Ok(Arc::new(Self {
            client: connector.client().await?,
            access_version,
            health: SyncMutex::default(),
            settled: AtomicBool::new(false),
            replaced: watch::Sender::new(false),
        }))
    }

    pub(super) fn client(&self) -> &C {
        &self.client
    }

    pub(super) fn record(&self, route: &Route, outcome: Outcome) {
        if outcome == Outcome::Responded && self.settled.load(Ordering::Acquire) {
            return;
        }
        let mut health = lock(&self.health);
        health.record(route, outcome);
        self.settled.store(health.is_settled(), Ordering::Release);
    }

    pub(super) fn is_broken(&self) -> bool {
        lock(&self.health).is_broken()
    }

    /// Returns a receiver for a link or a request to keep. As long as receivers exist, the client is in use.
    pub(super) fn replaced(&self) -> watch::Receiver<bool> {
        self.replaced.subscribe()
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

/// Closes a client once no link and no request uses it.
pub(super) async fn close_once_unused<C: Client>(client: Arc<SharedClient<C>>) -> Result<()> {
    let unused = timeout(UNUSED_LIMIT, client.replaced.closed()).await;
    match Arc::try_unwrap(client) {
        Ok(client) if unused.is_ok() => client.close().await,
        _ => Err(Error::new(ErrorKind::EventSource, "a link or a request to the event hub is still open")),
    }
}

/// A connection.
pub(super) struct Connection<C: Client> {
    connector: Arc<Connector<C>>,
    clients: SyncMutex<Clients<C>>,
    /// Locked while a client is created, so that all callers get the same one.
    pace: Mutex<Pace>,
}

struct Clients<C> {
    current: Arc<SharedClient<C>>,
    /// Replaced clients that links may still use.
    retired: Vec<Arc<SharedClient<C>>>,
}

impl<C: Client> Connection<C> {
    pub(super) async fn open(connector: Arc<Connector<C>>) -> Result<Self> {
        let clients = Clients { current: SharedClient::open(&connector).await?, retired: Vec::new() };
        Ok(Self { connector, clients: SyncMutex::new(clients), pace: Mutex::new(Pace::new()) })
    }

    fn clients(&self) -> MutexGuard<'_, Clients<C>> {
        lock(&self.clients)
    }

    fn current(&self) -> Arc<SharedClient<C>> {
        Arc::clone(&self.clients().current)
    }

    /// Returns the client: a new one if the connection of the last one is broken, or the access was replaced. If none
    /// can be created now, the last one.
    pub(super) async fn usable(&self) -> Arc<SharedClient<C>> {
        self.close_unused();
        let current = self.current();
        if self.is_usable(&current) {
            return current;
        }
        let mut pace = self.pace.lock().await;
        let current = self.current();
        if self.is_usable(&current) || !pace.try_now(Instant::now()) {
            return current;
        }
        match SharedClient::open(&self.connector).await {
            Ok(client) => {
                telemetry::reconnected(self.connector.event_hub());
                self.replace_by(&client);
                client
            }
            Err(error) => {
                telemetry::reconnect_failed(self.connector.event_hub(), &error, pace.wait());
                current
            }
        }
    }

    fn is_usable(&self, client: &SharedClient<C>) -> bool {
        !client.is_broken() && client.access_version == self.connector.access_version()
    }

    fn replace_by(&self, client: &Arc<SharedClient<C>>) {
        let mut clients = self.clients();
        let old = std::mem::replace(&mut clients.current, Arc::clone(client));
        old.replaced.send_replace(true);
        clients.retired.push(old);
    }

    fn close_unused(&self) {
        let mut clients = self.clients();
        for client in std::mem::take(&mut clients.retired) {
            match Arc::try_unwrap(client) {
                Ok(unused) => {
                    let closing = async move {
                        if let Err(error) = unused.close().await {
                            telemetry::source_not_closed(&error);
                        }
                    };
                    tokio::spawn(closing.in_current_span());
                }
                Err(used) => clients.retired.push(used),
            }
        }
    }

    /// Returns all clients, to close them.
    pub(super) fn into_clients(self) -> impl Iterator<Item = Arc<SharedClient<C>>> {
        let Clients { current, retired } = self.clients.into_inner().unwrap_or_else(PoisonError::into_inner);
        retired.into_iter().chain([current])
    }
}

/// Omits the clients, which hold keys.
impl<C: Client> fmt::Debug for Connection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("connector", &self.connector).finish_non_exhaustive()
    }
}
