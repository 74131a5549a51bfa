//! Builds and starts an emulator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::alias::Alias;
use super::limits::Limits;
use super::listen::{self, Connections};
use super::namespace::Namespace;
use super::sas::SasKey;
use super::settings::HubSettings;
use super::{EventHubEmulator, Server};
use crate::emptied::EmptiedReport;
use crate::error::StartError;

/// The default name of the accepted shared access key.
pub const DEFAULT_KEY_NAME: &str = "RootManageSharedAccessKey";

/// The default of the accepted shared access key. It is not a secret: only emulators accept it.
pub const DEFAULT_KEY: &str = "RXZlbnRIdWJzU3RhbmRJbktleQ==";

/// The default delay of the hub's bytes: 2 ms, see [`EventHubEmulatorBuilder::with_delay`].
pub const DEFAULT_DELAY: Duration = Duration::from_millis(2);

/// Describes an event hub, and optionally more of them. Created by [`EventHubEmulator::builder`].
#[must_use = "the hub does not exist until `start` is called"]
pub struct EventHubEmulatorBuilder {
    hub: HubSettings,
    others: Vec<HubSettings>,
    key: SasKey,
    delay: Duration,
    limits: Limits,
}

impl EventHubEmulatorBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            hub: HubSettings::new(name),
            others: Vec::new(),
            key: SasKey { name: DEFAULT_KEY_NAME.to_owned(), secret: DEFAULT_KEY.to_owned() },
            delay: DEFAULT_DELAY,
            limits: Limits::default(),
        }
    }

    /// Sets [`HubSettings::with_partitions`] of this event hub.
    pub fn with_partitions(mut self, count: u16) -> Self {
        self.hub = self.hub.with_partitions(count);
        self
    }

    /// Sets [`HubSettings::with_consumer_group`] of this event hub.
    pub fn with_consumer_group(mut self, name: impl Into<String>) -> Self {
        self.hub = self.hub.with_consumer_group(name);
        self
    }

    /// Sets [`HubSettings::with_retention_count`] of this event hub.
    pub fn with_retention_count(mut self, events: usize) -> Self {
        self.hub = self.hub.with_retention_count(events);
        self
    }

    /// Sets [`HubSettings::with_expired_positions_rejected`] of this event hub.
    pub fn with_expired_positions_rejected(mut self) -> Self {
        self.hub = self.hub.with_expired_positions_rejected();
        self
    }

    /// Sets [`HubSettings::with_emptied_report`] of this event hub.
    pub fn with_emptied_report(mut self, report: EmptiedReport) -> Self {
        self.hub = self.hub.with_emptied_report(report);
        self
    }

    /// Sets [`HubSettings::with_geo_replication`] of this event hub.
    pub fn with_geo_replication(mut self) -> Self {
        self.hub = self.hub.with_geo_replication();
        self
    }

    /// Adds another event hub with its own settings, at the same address and with the same key: a namespace of several
    /// event hubs.
    ///
    /// [`start`](Self::start) returns the event hub that the builder was created for. [`EventHubEmulator::event_hub`]
    /// returns the others.
    ///
    /// ```
    /// # use eventhubs_emulator::EventHubEmulator;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), eventhubs_emulator::StartError> {
    /// let orders = EventHubEmulator::builder("orders")
    ///     .with_event_hub("payments", |hub| hub.with_partitions(2).with_consumer_group("audit"))
    ///     .start("127.0.0.1:0")
    ///     .await?;
    /// let payments = orders.event_hub("payments").expect("it was added");
    /// assert_eq!(payments.endpoint(), orders.endpoint());
    /// assert_eq!(payments.partition_ids(), ["0", "1"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_event_hub(
        mut self,
        name: impl Into<String>,
        settings: impl FnOnce(HubSettings) -> HubSettings,
    ) -> Self {
        self.others.push(settings(HubSettings::new(name)));
        self
    }

    /// Replaces the one accepted key. Default [`DEFAULT_KEY_NAME`] with [`DEFAULT_KEY`].
    pub fn with_sas_key(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.key = SasKey { name: name.into(), secret: key.into() };
        self
    }

    /// Sets the delay of every byte that the hub sends. Default [`DEFAULT_DELAY`]. It affects only latency, not
    /// throughput.
    ///
    /// The official Rust client 0.16 cannot handle immediate responses, which the real service never sends: without a
    /// delay, in two of three runs a send hangs, or a connection ends while a session is being closed. A delay makes
    /// that rare, but not impossible. In tests, send from a single-threaded runtime, which prevents the hanging sends,
    /// and set timeouts for the client's calls. Zero is for clients without such races.
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets whether the hub checks the token in each request for properties. Default `true`.
    ///
    /// Clients put a token into each request (`security_token`), besides the token for the link. The service checks it:
    /// in a live test of Azure/azure-sdk-for-js, the key is replaced, and the next request over the open link is
    /// rejected. Whether the service also rejects a token that has expired meanwhile is not known; the emulator does.
    pub fn with_management_token_check(mut self, check: bool) -> Self {
        self.limits.checks_management_tokens = check;
        self
    }

    /// Sets the number of requests for properties that the namespace answers per second. Default 50, the service's
    /// limit for `GetRuntimeInformation` (learn.microsoft.com, event-hubs-quotas). At least 1; `u32::MAX` is no limit.
    ///
    /// Above the quota, requests get the status 503 and the condition `com.microsoft:server-busy`. Tokio's clock
    /// measures the second.
    pub fn with_management_quota(mut self, requests_per_second: u32) -> Self {
        self.limits.management_quota = requests_per_second;
        self
    }

    /// Sets how long a link may be idle: one without published events, and one of a receiver that gives no credit for
    /// events that wait for it. Default 30 minutes, as in the service. More than zero.
    ///
    /// Then the link is detached with `amqp:link:detach-forced` and the service's text, with `IdleTimerExpired`
    /// (Azure/azure-sdk-for-java#11233, Azure/azure-event-hubs-node#96). The time is tokio's.
    pub fn with_idle_limit(mut self, limit: Duration) -> Self {
        self.limits.idle = limit;
        self
    }

    /// Sets the number of sessions that a connection can have. Default 5000, as in the service. At least 1.
    ///
    /// The limit is a part of the open frame. A client that begins more sessions violates the protocol, and its
    /// connection is closed with `amqp:connection:framing-error` or another condition of the AMQP library.
    pub fn with_max_sessions(mut self, sessions: u16) -> Self {
        self.limits.max_sessions = sessions;
        self
    }

    /// Starts the hub at this address, such as `127.0.0.1:0`. Port 0 selects any free port.
    ///
    /// The hub runs in tasks of the current tokio runtime, which must have I/O and time enabled.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or if the address cannot be used, for example because it is in use. The message names
    /// the setting or the address. Correct it.
    pub async fn start(self, address: &str) -> Result<EventHubEmulator, StartError> {
        self.check()?;
        let cannot_listen = |error| {
            let message = format!("cannot listen on {address}: use a free local address, or port 0 for any free port");
            StartError::address(message, error)
        };
        let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
        limit_segments(&listener).map_err(cannot_listen)?;
        let local = listener.local_addr().map_err(cannot_listen)?;
        let Self { hub, others, key, delay, limits } = self;
        let name = hub.name.clone();
        let alias = Arc::new(Alias::new(Namespace::new(key, limits, [hub].into_iter().chain(others).collect())));
        let connections = Arc::new(Connections::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(listen::listen(alias.clone(), connections.clone(), listener, delay));
        tracing::debug!(hub = name, %local, "event hub emulator is listening");
        Ok(EventHubEmulator {
            name,
            place: 0,
            server: Arc::new(Server { alias, address: local, connections, _listener: tasks }),
        })
    }

    fn check(&self) -> Result<(), StartError> {
        let mut names = Vec::new();
        for hub in self.others.iter().chain([&self.hub]) {
            hub.check()?;
            let name = hub.name.to_ascii_lowercase();
            if names.contains(&name) {
                return Err(StartError::setting(format!(
                    "there are two event hubs {:?}: use different names",
                    hub.name
                )));
            }
            names.push(name);
        }
        if self.limits.management_quota == 0 || self.limits.idle.is_zero() || self.limits.max_sessions == 0 {
            return Err(StartError::setting(
                "`with_management_quota`, `with_idle_limit` or `with_max_sessions` is 0, which no client could work with: \
                 use at least 1",
            ));
        }
        if self.key.name.is_empty() || self.key.secret.is_empty() {
            return Err(StartError::setting("the name of the shared access key or the key is empty: set both"));
        }
        if self.key.name.contains(';') || self.key.secret.contains(';') {
            return Err(StartError::setting(
                "the name of the shared access key or the key contains ';', which a connection string cannot: remove it",
            ));
        }
        Ok(())
    }
}

/// Limits the size of TCP segments to what the Python client 5.15.1 can handle: it reads the size of its socket and
/// sets it again, and Linux reads up to 32768 over the loopback interface, but accepts only 32767.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn limit_segments(listener: &TcpListener) -> std::io::Result<()> {
    const MAX_SEGMENT: u32 = 32_000;
    socket2::SockRef::from(listener).set_tcp_mss(MAX_SEGMENT)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn limit_segments(_listener: &TcpListener) -> std::io::Result<()> {
    Ok(())
}

impl fmt::Debug for EventHubEmulatorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubEmulatorBuilder")
            .field("hub", &self.hub)
            .field("others", &self.others)
            .field("key", &self.key)
            .field("delay", &self.delay)
            .field("limits", &self.limits)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(builder: EventHubEmulatorBuilder) -> String {
        builder.start("127.0.0.1:0").await.expect_err("an invalid setting").to_string()
    }

    #[tokio::test]
    async fn invalid_settings_of_any_hub_are_rejected() {
        assert!(refusal(EventHubEmulator::builder("hub").with_partitions(0)).await.contains("with_partitions"));
        let other = EventHubEmulator::builder("hub").with_event_hub("other", |hub| hub.with_partitions(0));
        assert!(refusal(other).await.contains("with_partitions"));
    }

    #[tokio::test]
    async fn limits_of_zero_are_rejected() {
        let builder = || EventHubEmulator::builder("hub");
        for zero in [
            builder().with_management_quota(0),
            builder().with_idle_limit(Duration::ZERO),
            builder().with_max_sessions(0),
        ] {
            assert!(refusal(zero).await.contains("use at least 1"));
        }
    }

    #[tokio::test]
    async fn equal_hub_names_are_rejected() {
        let refused = refusal(EventHubEmulator::builder("hub").with_event_hub("HUB", |hub| hub)).await;
        assert!(refused.contains("there are two event hubs \"hub\""), "{refused}");
    }

    #[tokio::test]
    async fn invalid_key_is_rejected_and_not_shown() {
        let refused = refusal(EventHubEmulator::builder("hub").with_sas_key("name", "secret;")).await;
        assert!(refused.contains("';'") && !refused.contains("secret;"), "{refused}");
    }

    #[tokio::test]
    async fn error_names_the_address_in_use() {
        let taken = EventHubEmulator::builder("hub").start("127.0.0.1:0").await.expect("a free port");
        let address = format!("127.0.0.1:{}", taken.port());
        let error = EventHubEmulator::builder("hub").start(&address).await.expect_err("taken");
        assert!(error.to_string().contains(&address), "{error}");
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[tokio::test]
    async fn a_client_can_set_the_segment_size_that_it_reads() {
        let hub = EventHubEmulator::builder("hub").start("127.0.0.1:0").await.expect("a free port");
        let socket = tokio::net::TcpStream::connect(("127.0.0.1", hub.port())).await.expect("connected");
        let socket = socket2::SockRef::from(&socket);
        socket.set_tcp_mss(socket.tcp_mss().expect("read")).expect("accepted");
    }

    #[test]
    fn debug_does_not_show_the_key() {
        let shown = format!("{:?}", EventHubEmulator::builder("hub").with_sas_key("name", "secret"));
        assert!(shown.contains("name") && !shown.contains("secret"), "{shown}");
    }
}
