//! A connection to an event hub, over the clients that replace each other when it breaks. All of them are opened in the
//! same way.

use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use azure_core::http::Url;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::client::Client;
use super::connection_health::{ConnectionHealth, ConnectionOutcome, Pace, Route};
use crate::error::{Error, ErrorKind, Result};
use crate::eventhubs::CLIENT_REQUEST_TIMEOUT;
use crate::eventhubs::credentials::HubAccess;
use crate::eventhubs::sdk::HubConnectionString;
use crate::telemetry;
use crate::util::lock;

/// The default port of AMQP without TLS.
const AMQP_PORT: u16 = 5672;

pub(crate) type Settings<C> = Box<dyn Fn(<C as Client>::Builder) -> <C as Client>::Builder + Send + Sync>;

/// Creates clients of an event hub.
pub(crate) struct Connector<C: Client> {
    namespace: String,
    event_hub: String,
    access: HubAccess,
    settings: Settings<C>,
}

impl<C: Client> Connector<C> {
    /// Creates a connector. Fails if a connection string is invalid or belongs to another event hub.
    pub(crate) fn new(namespace: &str, event_hub: &str, access: HubAccess, settings: Settings<C>) -> Result<Self> {
        if let HubAccess::ConnectionString(connection_string) = &access {
            check_connection_string(&connection_string.parse_current()?, namespace, event_hub)?;
        }
        Ok(Self { namespace: namespace.to_owned(), event_hub: event_hub.to_owned(), access, settings })
    }

    pub(crate) fn event_hub(&self) -> &str {
        &self.event_hub
    }

    /// Returns a number that changes when the access of later clients does.
    pub(crate) fn access_version(&self) -> u64 {
        match &self.access {
            HubAccess::ConnectionString(connection_string) => connection_string.replacement_count(),
            HubAccess::Token(_) => 0,
        }
    }

    /// Opens a connection.
    pub(crate) async fn open_client(&self) -> Result<C> {
        let cause = match timeout(CLIENT_REQUEST_TIMEOUT, self.open_without_limit()).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => error,
            Err(elapsed) => elapsed.into(),
        };
        let Self { namespace, event_hub, .. } = self;
        let endpoint = self.emulator_endpoint().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
        Err(Error::new(
            ErrorKind::EventSource,
            format!("cannot connect to event hub {namespace}/{event_hub}{endpoint}"),
        )
        .with_source(cause))
    }

    async fn open_without_limit(&self) -> Result<C, Box<dyn StdError + Send + Sync>> {
        let builder = (self.settings)(self.emulator_endpoint().into_iter().fold(C::builder(), C::at_endpoint));
        Ok(match &self.access {
            HubAccess::ConnectionString(connection_string) => {
                let connection_string = connection_string.parse_current()?;
                C::open_with_connection_string(builder, &connection_string, &self.event_hub).await?
            }
            HubAccess::Token(credential) => {
                C::open_with_credential(builder, &self.namespace, &self.event_hub, credential.clone()).await?
            }
        })
    }

    fn emulator_endpoint(&self) -> Option<String> {
        match &self.access {
            HubAccess::ConnectionString(connection_string) => {
                emulator_endpoint(&connection_string.parse_current().ok()?)
            }
            HubAccess::Token(_) => None,
        }
    }
}

/// Checks that the connection string belongs to this event hub.
fn check_connection_string(connection_string: &HubConnectionString, namespace: &str, event_hub: &str) -> Result<()> {
    let host = connection_string.namespace();
    if emulator_endpoint(connection_string).is_some() && host.contains(".servicebus.") {
        return Err(Error::config(format!(
            "the connection string has `UseDevelopmentEmulator=true`, which turns TLS off, but {host} is not an \
             emulator: remove that key"
        )));
    }
    for (what, named, expected) in
        [("namespace", Some(host), namespace), ("event hub", connection_string.event_hub(), event_hub)]
    {
        if let Some(named) = named.filter(|named| !named.eq_ignore_ascii_case(expected)) {
            return Err(Error::config(format!(
                "the connection string names {what} {named:?}, but {expected:?} is configured: configure the same \
                 {what} for both"
            )));
        }
    }
    Ok(())
}

/// Returns the endpoint of the emulator, if the connection string is for one. The client ignores that key.
fn emulator_endpoint(connection_string: &HubConnectionString) -> Option<String> {
    connection_string.text().split(';').find(|part| part.trim().eq_ignore_ascii_case("UseDevelopmentEmulator=true"))?;
    let endpoint = Url::parse(connection_string.endpoint()).ok()?;
    Some(format!("amqp://{}:{}", endpoint.host_str()?, endpoint.port().unwrap_or(AMQP_PORT)))
}

/// Omits the access, which is a secret.
impl<C: Client> fmt::Debug for Connector<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("namespace", &self.namespace)
            .field("event_hub", &self.event_hub)
            .finish_non_exhaustive()
    }
}

/// How long to wait at the end until no link or request uses a client. Links are closed before; a remaining one was
/// aborted.
const UNUSED_LIMIT: Duration = Duration::from_secs(1);

/// How long a connection may take to close. The sum of both limits is less than the processor waits for the source.
const CLIENT_CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// A client that all links and requests of a connection share.
pub(crate) struct SharedClient<C> {
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
            client: connector.open_client().await?,
            access_version,
            health: SyncMutex::default(),
            settled: AtomicBool::new(false),
            replaced: watch::Sender::new(false),
        }))
    }

    pub(crate) fn inner(&self) -> &C {
        &self.client
    }

    pub(crate) fn record_outcome(&self, route: &Route, outcome: ConnectionOutcome) {
        if outcome == ConnectionOutcome::Responded && self.settled.load(Ordering::Acquire) {
            return;
        }
        let mut health = lock(&self.health);
        health.record_outcome(route, outcome);
        self.settled.store(health.is_settled(), Ordering::Release);
    }

    pub(crate) fn is_broken(&self) -> bool {
        lock(&self.health).is_broken()
    }

    /// Returns a receiver for a link or a request to keep. As long as receivers exist, the client is in use.
    pub(crate) fn watch_replacement(&self) -> watch::Receiver<bool> {
        self.replaced.subscribe()
    }

    /// Closes the connection. The client may wait forever if the connection is broken.
    async fn close(self) -> Result<()> {
        let failed = Error::new(ErrorKind::EventSource, "cannot close the connection to the event hub");
        match timeout(CLIENT_CLOSE_LIMIT, self.client.close()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed.with_source(error)),
            Err(elapsed) => Err(failed.with_source(elapsed)),
        }
    }
}

/// Closes a client once no link and no request uses it.
pub(crate) async fn close_once_unused<C: Client>(client: Arc<SharedClient<C>>) -> Result<()> {
    let unused = timeout(UNUSED_LIMIT, client.replaced.closed()).await;
    match Arc::try_unwrap(client) {
        Ok(client) if unused.is_ok() => client.close().await,
        _ => Err(Error::new(ErrorKind::EventSource, "a link or a request to the event hub is still open")),
    }
}

/// A connection to the event hub: its current client, and the replaced ones that links still use.
pub(crate) struct Connection<C: Client> {
    connector: Arc<Connector<C>>,
    clients: SyncMutex<ConnectionClients<C>>,
    /// Locked while a client is created, so that all callers get the same one.
    pace: Mutex<Pace>,
}

struct ConnectionClients<C> {
    current: Arc<SharedClient<C>>,
    /// Replaced clients that links may still use.
    retired: Vec<Arc<SharedClient<C>>>,
}

impl<C: Client> Connection<C> {
    pub(crate) async fn open(connector: Arc<Connector<C>>) -> Result<Self> {
        let clients = ConnectionClients { current: SharedClient::open(&connector).await?, retired: Vec::new() };
        Ok(Self { connector, clients: SyncMutex::new(clients), pace: Mutex::new(Pace::new()) })
    }

    fn lock_clients(&self) -> MutexGuard<'_, ConnectionClients<C>> {
        lock(&self.clients)
    }

    fn current_client(&self) -> Arc<SharedClient<C>> {
        Arc::clone(&self.lock_clients().current)
    }

    /// Returns the client: a new one if the connection of the last one is broken, or the access was replaced. If none
    /// can be created now, the last one.
    pub(crate) async fn usable_client(&self) -> Arc<SharedClient<C>> {
        self.close_unused();
        let current = self.current_client();
        if self.is_usable(&current) {
            return current;
        }
        let mut pace = self.pace.lock().await;
        let current = self.current_client();
        if self.is_usable(&current) || !pace.try_now(Instant::now()) {
            return current;
        }
        match SharedClient::open(&self.connector).await {
            Ok(client) => {
                telemetry::hub_reconnected(self.connector.event_hub());
                let mut clients = self.lock_clients();
                let old = std::mem::replace(&mut clients.current, Arc::clone(&client));
                old.replaced.send_replace(true);
                clients.retired.push(old);
                client
            }
            Err(error) => {
                telemetry::hub_not_reconnected(self.connector.event_hub(), &error, pace.wait());
                current
            }
        }
    }

    fn is_usable(&self, client: &SharedClient<C>) -> bool {
        !client.is_broken() && client.access_version == self.connector.access_version()
    }

    fn close_unused(&self) {
        let mut clients = self.lock_clients();
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
    pub(crate) fn into_clients(self) -> impl Iterator<Item = Arc<SharedClient<C>>> {
        let ConnectionClients { current, retired } = self.clients.into_inner().unwrap_or_else(PoisonError::into_inner);
        retired.into_iter().chain([current])
    }
}

/// Omits the clients, which hold keys.
impl<C: Client> fmt::Debug for Connection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("connector", &self.connector).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use azure_core::credentials::Secret;

    use super::*;

    const SECRET: &str = "c2VjcmV0";

    #[test]
    fn the_emulator_is_used_without_tls() {
        for (endpoint, key, expected) in [
            ("sb://localhost:5673", "UseDevelopmentEmulator=true;", Some("amqp://localhost:5673")),
            ("sb://emulator/", "usedevelopmentemulator=true", Some("amqp://emulator:5672")),
            ("sb://localhost", "UseDevelopmentEmulator=false", None),
            ("sb://localhost:5673", "", None),
        ] {
            let text = format!("Endpoint={endpoint};SharedAccessKeyName=a;SharedAccessKey=b; {key}");
            let connection_string = HubConnectionString::parse(&Secret::new(text)).unwrap();
            assert_eq!(emulator_endpoint(&connection_string).as_deref(), expected, "{endpoint} {key}");
        }
    }

    #[test]
    fn a_connection_string_of_another_hub_is_rejected() {
        for (connection_string, named) in [
            ("Endpoint=sb://ns.example.net/;KEY", None),
            ("Endpoint=sb://NS.example.net;KEY;EntityPath=Orders", None),
            ("Endpoint=sb://other.example.net;KEY;EntityPath=orders", Some("\"other.example.net\"")),
            ("Endpoint=sb://ns.example.net;KEY;EntityPath=payments", Some("\"payments\"")),
            ("Endpoint=sb://ns.example.net;EntityPath=orders", Some("missing shared access key")),
            (SECRET, Some("invalid connection string")),
        ] {
            let key = format!("SharedAccessKeyName=n;SharedAccessKey={SECRET}");
            let secret = Secret::new(connection_string.replace("KEY", &key));
            let rejection = HubConnectionString::parse(&secret)
                .and_then(|parsed| check_connection_string(&parsed, "ns.example.net", "orders"))
                .err();
            assert_eq!(rejection.is_some(), named.is_some(), "{connection_string}: {rejection:?}");
            let Some(rejection) = rejection else { continue };
            assert_eq!(rejection.kind(), ErrorKind::Config);
            let shown = format!("{rejection} {rejection:?}");
            assert!(shown.contains(named.unwrap_or_default()) && !shown.contains(SECRET), "{shown}");
        }
    }
}
