//! An Event Hubs stand-in that runs in this process and speaks AMQP 1.0, for tests and samples without a cloud.
//!
//! It is good enough for the official producer and consumer of `azure_messaging_eventhubs`, and its wire format is the
//! service's, so clients in other languages can use it as well. Point a client at it with its *custom endpoint* option
//! and the [connection string](EventHub::connection_string):
//!
//! ```
//! use eventhubs_checkpoint::testing::event_hub::EventHub;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> eventhubs_checkpoint::Result<()> {
//! let hub = EventHub::builder("orders").partitions(8).consumer_group("billing").start("127.0.0.1:0").await?;
//!
//! // ConsumerClient::builder()
//! //     .with_custom_endpoint(hub.endpoint())
//! //     .open_with_connection_string(&hub.connection_string(), None)
//! assert_eq!(hub.endpoint(), format!("amqp://127.0.0.1:{}", hub.port()));
//! assert!(hub.connection_string().ends_with(";EntityPath=orders"));
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! - `$cbs` put-token: the shared access signature is checked (key name, signature, expiry) and answered 401 when
//!   wrong. A link on a connection without a good token is refused with `amqp:unauthorized-access`.
//! - `$management` READ of the hub and of a partition; 404 for an unknown hub or partition.
//! - Publishing single events and batches: to a partition, by partition key, or to the partitions in turn.
//! - Receiving from an offset, a sequence number, an enqueued time, the earliest or the latest event, inclusive or
//!   exclusive. The receiver's credit is honoured, and nothing is copied ahead of it. A selector that cannot be parsed
//!   is refused with `amqp:invalid-field`; an offset or sequence number above the partition's last one with
//!   `com.microsoft:argument-error`, as the service does.
//! - Epochs (owner levels): an equal or higher epoch takes the partition and its group from all other receivers, which
//!   are closed with `amqp:link:stolen`; a lower one, or none, is refused with the same condition while a higher one is
//!   attached. Without epochs, at most five receivers share a partition and group.
//! - Consumer groups must be named on the builder, `$Default` excepted; another one is answered `amqp:not-found`.
//!
//! # What it does not model
//!
//! TLS and WebSockets, Entra ID tokens, claims (send, listen) and the audience of a token, a token's expiry on an open
//! link, throttling and quotas, retention (all events stay in memory until the hub is dropped), geo-replication,
//! capture, the schema registry, the service's hash of partition keys (equal keys do meet in one partition), idempotent
//! producers, transactions, the runtime metrics on received events, and more than one event hub.
//!
//! # Closing
//!
//! Dropping the [`EventHub`] closes its port and all its connections, without an AMQP farewell: to a client that looks
//! like a server that died. Everything runs in tasks of the runtime that called
//! [`start`](EventHubBuilder::start), and all of them end soon after the drop.

mod address;
mod attach;
mod builder;
mod connection;
mod consume;
mod delayed;
mod hub;
mod management;
mod message;
mod partition;
mod publish;
mod receivers;
mod requests;
mod sas;
mod selector;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::task::JoinSet;

pub use builder::{DEFAULT_DELAY, DEFAULT_KEY, DEFAULT_KEY_NAME, EventHubBuilder};
pub use partition::PartitionProperties;

use hub::Hub;

/// A running event hub. See the [module](self) for what it does; dropping it stops it.
#[derive(Debug)]
pub struct EventHub {
    hub: Arc<Hub>,
    address: SocketAddr,
    /// The listener, which owns the connections, which own their sessions, which own their links.
    _listener: JoinSet<()>,
}

impl EventHub {
    /// Starts describing an event hub of this name, with 4 partitions and the consumer group `$Default`.
    pub fn builder(name: impl Into<String>) -> EventHubBuilder {
        EventHubBuilder::new(name.into())
    }

    /// The name of the event hub.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hub.name
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address for a client's *custom endpoint* option: `amqp://127.0.0.1:PORT`.
    ///
    /// A hub that listens on all interfaces names the loopback one.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        format!("amqp://{}", SocketAddr::new(ip, self.port()))
    }

    /// A connection string with the name and the key that the hub accepts. It holds the key in clear text.
    ///
    /// Its namespace is `localhost`; where to connect to is the [endpoint](Self::endpoint)'s matter.
    #[must_use]
    pub fn connection_string(&self) -> String {
        let key = &self.hub.key;
        format!(
            "Endpoint=sb://localhost/;SharedAccessKeyName={};SharedAccessKey={};EntityPath={}",
            key.name, key.secret, self.hub.name
        )
    }

    /// The ids of the partitions, `"0"` and up.
    #[must_use]
    pub fn partition_ids(&self) -> Vec<String> {
        self.hub.partitions.iter().map(|partition| partition.id().to_owned()).collect()
    }

    /// What a client would be told about this partition, or `None` if there is none of this id.
    #[must_use]
    pub fn partition_properties(&self, partition_id: &str) -> Option<PartitionProperties> {
        self.hub.partition(partition_id).map(|partition| partition.properties())
    }

    /// How many events the partition holds, or `None` if there is none of this id.
    #[must_use]
    pub fn event_count(&self, partition_id: &str) -> Option<usize> {
        self.hub.partition(partition_id).map(|partition| partition.event_count())
    }

    /// How many receivers are attached to the partition in this consumer group, or `None` if there is no such partition
    /// or group.
    ///
    /// A receiver counts from its attach until its detach, or the end of its connection, has reached the hub.
    #[must_use]
    pub fn open_receivers(&self, consumer_group: &str, partition_id: &str) -> Option<usize> {
        let group = self.hub.consumer_group(consumer_group)?;
        self.hub.partition(partition_id).map(|partition| partition.receivers().count(group))
    }
}
