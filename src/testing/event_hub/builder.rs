//! How an event hub is described and started.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::EventHub;
use super::connection;
use super::hub::Hub;
use super::sas::SasKey;
use crate::error::{Error, Result};

/// The name of the shared access key that a hub accepts unless told otherwise.
pub const DEFAULT_KEY_NAME: &str = "RootManageSharedAccessKey";

/// The shared access key that a hub accepts unless told otherwise. No secret: it opens nothing but stand-ins.
pub const DEFAULT_KEY: &str = "RXZlbnRIdWJzU3RhbmRJbktleQ==";

/// How late the hub's bytes leave unless told otherwise: 2 ms, see [`EventHubBuilder::delay`].
pub const DEFAULT_DELAY: Duration = Duration::from_millis(2);

const DEFAULT_PARTITIONS: u16 = 4;

/// Describes an event hub; made by [`EventHub::builder`].
#[must_use = "a hub is only there once it has been started"]
pub struct EventHubBuilder {
    name: String,
    partitions: u16,
    consumer_groups: Vec<String>,
    key: SasKey,
    delay: Duration,
}

impl EventHubBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            partitions: DEFAULT_PARTITIONS,
            consumer_groups: Vec::new(),
            key: SasKey { name: DEFAULT_KEY_NAME.to_owned(), secret: DEFAULT_KEY.to_owned() },
            delay: DEFAULT_DELAY,
        }
    }

    /// How many partitions there are: 4 by default, enough to be shared among a few instances.
    pub fn partitions(mut self, count: u16) -> Self {
        self.partitions = count;
        self
    }

    /// Adds a consumer group. `$Default` is always there. Case does not tell names apart, as in the service.
    pub fn consumer_group(mut self, name: impl Into<String>) -> Self {
        self.consumer_groups.push(name.into());
        self
    }

    /// Replaces the one key that is accepted: [`DEFAULT_KEY_NAME`] with [`DEFAULT_KEY`] by default.
    pub fn sas_key(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.key = SasKey { name: name.into(), secret: key.into() };
        self
    }

    /// How late every byte of the hub leaves: [`DEFAULT_DELAY`] by default. This is latency only, the throughput stays.
    ///
    /// The official Rust client 0.16 is not ready for answers that come at once, which never happens with the real
    /// service: without a delay two runs in three see a send that hangs, or a connection that ends while a session is
    /// closed. A delay makes that rare, not impossible: in tests, send from a runtime of one thread, which is safe from the
    /// hanging sends, and put a time limit on the client's calls. Zero is for clients without such races.
    pub fn delay(mut self, delay: Duration) -> Self {
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
    pub async fn start(self, address: &str) -> Result<EventHub> {
        self.check()?;
        let cannot_listen = |error| {
            Error::config(format!("cannot listen on {address}: name a free local address, or port 0 for any free port"))
                .with_source(error)
        };
        let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
        let local = listener.local_addr().map_err(cannot_listen)?;
        let hub = Arc::new(Hub::new(self.name, self.partitions, self.consumer_groups, self.key));
        let mut tasks = JoinSet::new();
        tasks.spawn(connection::listen(hub.clone(), listener, self.delay));
        tracing::debug!(hub = hub.name, %local, "event hub stand-in listens");
        Ok(EventHub { hub, address: local, _listener: tasks })
    }

    fn check(&self) -> Result<()> {
        check_name("event hub", &self.name)?;
        for group in &self.consumer_groups {
            check_name("consumer group", group)?;
        }
        if self.partitions == 0 {
            return Err(Error::config("an event hub has at least one partition, 0 were asked for: ask for 1 or more"));
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

/// The characters of the service's names, which need no escape in an address or a connection string.
fn check_name(what: &str, name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '$');
    if name.is_empty() || !name.chars().all(allowed) {
        return Err(Error::config(format!(
            "{name:?} is no name for an {what}: use letters, digits, '.', '-', '_' and '$'"
        )));
    }
    Ok(())
}

impl fmt::Debug for EventHubBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubBuilder")
            .field("name", &self.name)
            .field("partitions", &self.partitions)
            .field("consumer_groups", &self.consumer_groups)
            .field("key", &self.key)
            .field("delay", &self.delay)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    async fn refusal(builder: EventHubBuilder) -> String {
        let error = builder.start("127.0.0.1:0").await.expect_err("the setting is wrong");
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string()
    }

    #[tokio::test]
    async fn refuses_no_partitions() {
        assert!(refusal(EventHub::builder("hub").partitions(0)).await.contains("0 were asked for"));
    }

    #[tokio::test]
    async fn refuses_names_that_no_address_can_hold() {
        assert!(refusal(EventHub::builder("")).await.contains("\"\" is no name for an event hub"));
        assert!(refusal(EventHub::builder("hub").consumer_group("a/b")).await.contains("\"a/b\""));
    }

    #[tokio::test]
    async fn refuses_a_key_that_no_connection_string_can_hold_without_showing_it() {
        let refused = refusal(EventHub::builder("hub").sas_key("name", "secret;")).await;
        assert!(refused.contains("';'") && !refused.contains("secret;"), "{refused}");
    }

    #[tokio::test]
    async fn names_an_address_that_is_taken() {
        let taken = EventHub::builder("hub").start("127.0.0.1:0").await.expect("a free port");
        let address = format!("127.0.0.1:{}", taken.port());
        let error = EventHub::builder("hub").start(&address).await.expect_err("taken");
        assert!(error.to_string().contains(&address), "{error}");
    }

    #[test]
    fn does_not_show_the_key() {
        let shown = format!("{:?}", EventHub::builder("hub").sas_key("name", "secret"));
        assert!(shown.contains("name") && !shown.contains("secret"), "{shown}");
    }
}
