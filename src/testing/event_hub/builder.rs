//! How a stand-in is described and started.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::hub::Hub;
use super::listen::{self, Connections};
use super::namespace::Namespace;
use super::sas::SasKey;
use super::settings::HubSettings;
use super::{EventHubEmulator, Server};
use crate::error::{Error, Result};
use crate::testing::EmptiedReport;

/// The name of the shared access key that a hub accepts unless told otherwise.
pub const DEFAULT_KEY_NAME: &str = "RootManageSharedAccessKey";

/// The shared access key that a hub accepts unless told otherwise. No secret: it opens nothing but stand-ins.
pub const DEFAULT_KEY: &str = "RXZlbnRIdWJzU3RhbmRJbktleQ==";

/// How late the hub's bytes leave unless told otherwise: 2 ms, see [`EventHubEmulatorBuilder::with_delay`].
pub const DEFAULT_DELAY: Duration = Duration::from_millis(2);

/// Describes an event hub, and others beside it; made by [`EventHubEmulator::builder`].
#[must_use = "a hub is only there once it has been started"]
pub struct EventHubEmulatorBuilder {
    hub: HubSettings,
    others: Vec<HubSettings>,
    key: SasKey,
    delay: Duration,
}

impl EventHubEmulatorBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            hub: HubSettings::new(name),
            others: Vec::new(),
            key: SasKey { name: DEFAULT_KEY_NAME.to_owned(), secret: DEFAULT_KEY.to_owned() },
            delay: DEFAULT_DELAY,
        }
    }

    /// [`HubSettings::partitions`] of this event hub.
    pub fn with_partitions(mut self, count: u16) -> Self {
        self.hub = self.hub.with_partitions(count);
        self
    }

    /// [`HubSettings::with_consumer_group`] of this event hub.
    pub fn with_consumer_group(mut self, name: impl Into<String>) -> Self {
        self.hub = self.hub.with_consumer_group(name);
        self
    }

    /// [`HubSettings::with_retention_count`] of this event hub.
    pub fn with_retention_count(mut self, events: usize) -> Self {
        self.hub = self.hub.with_retention_count(events);
        self
    }

    /// [`HubSettings::with_expired_positions_rejected`] of this event hub.
    pub fn with_expired_positions_rejected(mut self) -> Self {
        self.hub = self.hub.with_expired_positions_rejected();
        self
    }

    /// [`HubSettings::with_emptied_report`] of this event hub.
    pub fn with_emptied_report(mut self, report: EmptiedReport) -> Self {
        self.hub = self.hub.with_emptied_report(report);
        self
    }

    /// Adds another event hub, with settings of its own, behind the same address and key: a namespace of several.
    ///
    /// The one that the builder was made for is the one that [`start`](Self::start) returns; from there
    /// [`EventHubEmulator::event_hub`] leads to the others.
    ///
    /// ```
    /// # use eventhubs_checkpoint::testing::with_event_hub::EventHubEmulator;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> eventhubs_checkpoint::Result<()> {
    /// let orders = EventHubEmulator::builder("orders")
    ///     .with_event_hub("payments", |hub| hub.partitions(2).with_consumer_group("audit"))
    ///     .start("127.0.0.1:0")
    ///     .await?;
    /// let payments = orders.with_event_hub("payments").expect("it was added");
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

    /// Replaces the one key that is accepted: [`DEFAULT_KEY_NAME`] with [`DEFAULT_KEY`] by default.
    pub fn with_sas_key(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.key = SasKey { name: name.into(), secret: key.into() };
        self
    }

    /// How late every byte of the hub leaves: [`DEFAULT_DELAY`] by default. This is latency only, the throughput stays.
    ///
    /// The official Rust client 0.16 is not ready for answers that come at once, which never happens with the real
    /// service: without a delay two runs in three see a send that hangs, or a connection that ends while a session is
    /// closed. A delay makes that rare, not impossible: in tests, send from a runtime of one thread, which is safe from
    /// the hanging sends, and put a time limit on the client's calls. Zero is for clients without such races.
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Starts the hub on this address, such as `127.0.0.1:0`; port 0 stands for any free port.
    ///
    /// The hub lives in tasks of the current tokio runtime, which must have I/O and time enabled.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if a setting is wrong or nobody can listen on the address, for
    /// instance because it is taken; the message says which. Correct it.
    pub async fn start(self, address: &str) -> Result<EventHubEmulator> {
        self.check()?;
        let cannot_listen = |error| {
            Error::config(format!("cannot listen on {address}: name a free local address, or port 0 for any free port"))
                .with_source(error)
        };
        let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
        let local = listener.local_addr().map_err(cannot_listen)?;
        let Self { hub, others, key, delay } = self;
        let hub = Arc::new(Hub::new(hub));
        let others = others.into_iter().map(|other| Arc::new(Hub::new(other)));
        let namespace = Arc::new(Namespace::new(key, others.chain([hub.clone()]).collect()));
        let connections = Arc::new(Connections::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(listen::listen(namespace.clone(), connections.clone(), listener, delay));
        tracing::debug!(hub = hub.name, %local, "event hub stand-in listens");
        Ok(EventHubEmulator {
            hub,
            server: Arc::new(Server { namespace, address: local, connections, _listener: tasks }),
        })
    }

    fn check(&self) -> Result<()> {
        let mut names = Vec::new();
        for hub in self.others.iter().chain([&self.hub]) {
            hub.check()?;
            let name = hub.name.to_ascii_lowercase();
            if names.contains(&name) {
                return Err(Error::config(format!(
                    "there are two event hubs {:?}: give each a name of its own",
                    hub.name
                )));
            }
            names.push(name);
        }
        if self.key.name.is_empty() || self.key.secret.is_empty() {
            return Err(Error::config("the name of the shared access key or the key is empty: give both"));
        }
        if self.key.name.contains(';') || self.key.secret.contains(';') {
            return Err(Error::config(
                "the name of the shared access key or the key has a ';', which a connection string cannot hold: drop it",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for EventHubEmulatorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubBuilder")
            .field("hub", &self.hub)
            .field("others", &self.others)
            .field("key", &self.key)
            .field("delay", &self.delay)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    async fn refusal(builder: EventHubEmulatorBuilder) -> String {
        let error = builder.start("127.0.0.1:0").await.expect_err("the setting is wrong");
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string()
    }

    #[tokio::test]
    async fn refuses_wrong_settings_of_any_hub() {
        assert!(refusal(EventHubEmulator::builder("hub").with_partitions(0)).await.contains("0 were asked for"));
        let other = EventHubEmulator::builder("hub").with_event_hub("other", |hub| hub.with_partitions(0));
        assert!(refusal(other).await.contains("0 were asked for"));
    }

    #[tokio::test]
    async fn refuses_two_hubs_of_one_name() {
        let refused = refusal(EventHubEmulator::builder("hub").with_event_hub("HUB", |hub| hub)).await;
        assert!(refused.contains("there are two event hubs \"hub\""), "{refused}");
    }

    #[tokio::test]
    async fn refuses_a_key_that_no_connection_string_can_hold_without_showing_it() {
        let refused = refusal(EventHubEmulator::builder("hub").with_sas_key("name", "secret;")).await;
        assert!(refused.contains("';'") && !refused.contains("secret;"), "{refused}");
    }

    #[tokio::test]
    async fn names_an_address_that_is_taken() {
        let taken = EventHubEmulator::builder("hub").start("127.0.0.1:0").await.expect("a free port");
        let address = format!("127.0.0.1:{}", taken.port());
        let error = EventHubEmulator::builder("hub").start(&address).await.expect_err("taken");
        assert!(error.to_string().contains(&address), "{error}");
    }

    #[test]
    fn does_not_show_the_key() {
        let shown = format!("{:?}", EventHubEmulator::builder("hub").with_sas_key("name", "secret"));
        assert!(shown.contains("name") && !shown.contains("secret"), "{shown}");
    }
}
