//! An Event Hubs emulator that runs in this process and speaks AMQP 1.0, for tests and examples without a cloud.
//!
//! It supports the official producer and consumer of `azure_messaging_eventhubs`. Its wire format is the service's, so
//! clients in [other languages](self#clients-in-other-languages) can use it too. Set the *custom endpoint* option of a
//! client to the [endpoint](EventHubEmulator::endpoint), and use the [connection
//! string](EventHubEmulator::connection_string):
//!
//! ```
//! use eventhubs_checkpoint::testing::event_hub::EventHubEmulator;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> eventhubs_checkpoint::Result<()> {
//! let hub = EventHubEmulator::builder("orders").with_partitions(8).with_consumer_group("billing");
//! let hub = hub.start("127.0.0.1:0").await?;
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
//! # Clients in other languages
//!
//! `;UseDevelopmentEmulator=true` at the end of the connection string disables TLS. Set the port so that the namespace
//! remains `localhost`, because checkpoint stores use the namespace in blob names:
//!
//! - JavaScript (`@azure/event-hubs` 6): in the connection string, `Endpoint=sb://localhost:PORT/;...`. A
//!   `customEndpointAddress` would replace the namespace.
//! - Python (`azure-eventhub` 5): `custom_endpoint_address="sb://localhost:PORT"`. A port in the connection string
//!   would become a part of the namespace.
//!
//! # Supported
//!
//! - `$cbs` put-token: the shared access signature is checked (key name, signature, expiry). The response is 401 if it
//!   is invalid. A link on a connection without a valid token is rejected with `amqp:unauthorized-access`.
//! - `$management` READ of a hub and of a partition; 404 for an unknown hub or partition.
//! - Publishing single events and batches: to a partition, by partition key, or to the partitions in turn.
//! - Receiving from an offset, a sequence number, an enqueued time, the earliest or the latest event, inclusive or
//!   exclusive. The receiver's credit is honored, and events are not copied in advance. A selector that cannot be
//!   parsed is rejected with `amqp:invalid-field`. An offset or sequence number after the partition's last one is
//!   rejected with `com.microsoft:argument-error`, as by the service.
//! - Retention by count: a partition keeps its newest events, [50,000](DEFAULT_RETENTION_COUNT) by default, which
//!   bounds the memory. Older events expire, and the beginning sequence number of the partition increases. A receiver
//!   with an expired position starts at the oldest event, as in the service, or [is
//!   rejected](HubSettings::with_expired_positions_rejected). A receiver that lags too far continues with the oldest
//!   event.
//! - Epochs (owner levels): a receiver with an equal or higher epoch takes the partition and group from all other
//!   receivers, which are closed with `amqp:link:stolen`. A receiver with a lower epoch is rejected with the same
//!   condition while one with a higher epoch is attached, and a receiver without an epoch while one with any epoch is
//!   attached. Without epochs, at most five receivers share a partition and group. A receiver is removed as soon as its
//!   connection ends, which the service may detect minutes later.
//! - Consumer groups must be added on the builder, except `$Default`. Others are rejected with `amqp:not-found`.
//! - [Several event hubs](EventHubEmulatorBuilder::with_event_hub) at one address and with one key, each with its own
//!   partitions, groups and retention. The addresses of a client's links select the event hub.
//! - On request of a test: [more partitions](EventHubEmulator::grow_to), [expired
//!   events](EventHubEmulator::expire_before), [detached receivers](EventHubEmulator::detach_receivers) and [cut
//!   connections](EventHubEmulator::cut_connections).
//!
//! # Not supported
//!
//! TLS and WebSockets, Entra ID tokens, claims (send, listen) and the audience of a token (a valid one is accepted for
//! all event hubs), the expiry of a token on an open link, throttling and quotas, retention by age or size and
//! compaction, adding or removing event hubs and groups at run time, geo-replication, capture, the schema registry, the
//! service's hash of partition keys (equal keys do go to one partition, until partitions are added), idempotent
//! producers, transactions, and the runtime metrics on received events.
//!
//! # Shutdown
//!
//! Dropping the last [`EventHubEmulator`] handle closes the port and all connections without an AMQP close: to a client
//! it looks like a crash of the server. All tasks run on the runtime that called
//! [`start`](EventHubEmulatorBuilder::start), and end soon after the drop.

mod address;
mod attach;
mod builder;
mod connection;
mod consume;
mod delayed;
mod frames;
mod hub;
mod late_frames;
mod listen;
mod log;
mod management;
mod message;
mod namespace;
mod partition;
mod publish;
mod receivers;
mod requests;
mod sas;
mod selector;
mod served;
mod settings;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::task::JoinSet;

pub use builder::{DEFAULT_DELAY, DEFAULT_KEY, DEFAULT_KEY_NAME, EventHubEmulatorBuilder};
pub use partition::PartitionProperties;
pub use settings::{DEFAULT_RETENTION_COUNT, HubSettings};

use hub::Hub;
use listen::Connections;
use namespace::Namespace;

/// The default condition with which receivers are detached: `amqp:link:detach-forced`.
///
/// The service closes links with it for internal reasons, such as moving a partition to another node or ending an idle
/// link. Clients attach again.
pub const DEFAULT_DETACH_CONDITION: &str = "amqp:link:detach-forced";

/// A handle to a running event hub. See the [module](self) for its features. Dropping the last handle stops the
/// emulator.
///
/// Clones are handles to the same event hub. [`event_hub`](Self::event_hub) returns handles to other event hubs of the
/// same emulator.
#[derive(Clone, Debug)]
pub struct EventHubEmulator {
    hub: Arc<Hub>,
    server: Arc<Server>,
}

/// The parts that all event hubs of an emulator share.
#[derive(Debug)]
struct Server {
    namespace: Arc<Namespace>,
    address: SocketAddr,
    /// The connections own their sessions, which own their links.
    connections: Arc<Connections>,
    _listener: JoinSet<()>,
}

impl EventHubEmulator {
    /// Creates a builder for an event hub with this name, with 4 partitions and the consumer group `$Default`.
    pub fn builder(name: impl Into<String>) -> EventHubEmulatorBuilder {
        EventHubEmulatorBuilder::new(name.into())
    }

    /// Returns the name of the event hub.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hub.name
    }

    /// Returns the event hub with this name in the same emulator, or `None` if there is none. Ignores case.
    #[must_use]
    pub fn event_hub(&self, name: &str) -> Option<Self> {
        let hub = self.server.namespace.hub(name)?.clone();
        Some(Self { hub, server: self.server.clone() })
    }

    /// Returns the port that the emulator listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.address.port()
    }

    /// Returns the address for a client's *custom endpoint* option: `amqp://127.0.0.1:PORT`.
    ///
    /// If the emulator listens on all interfaces, this is the loopback address.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let ip = match self.server.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        format!("amqp://{}", SocketAddr::new(ip, self.port()))
    }

    /// Returns a connection string with the name and the key that the emulator accepts. It contains the key in clear
    /// text.
    ///
    /// Its namespace is `localhost`. Clients connect to the [endpoint](Self::endpoint).
    #[must_use]
    pub fn connection_string(&self) -> String {
        let key = &self.server.namespace.key;
        format!(
            "Endpoint=sb://localhost/;SharedAccessKeyName={};SharedAccessKey={};EntityPath={}",
            key.name, key.secret, self.hub.name
        )
    }

    /// Returns a connection string with the port and `UseDevelopmentEmulator=true`.
    ///
    /// With it, [`EventHubSource::from_connection_string`](crate::eventhubs::EventHubSource::from_connection_string) and
    /// the JavaScript client need no endpoint. A client that ignores the port needs
    /// [`connection_string`](Self::connection_string) and [`endpoint`](Self::endpoint) instead.
    #[must_use]
    pub fn connection_string_with_port(&self) -> String {
        let address = format!("sb://localhost:{}/", self.port());
        format!("{};UseDevelopmentEmulator=true", self.connection_string().replace("sb://localhost/", &address))
    }

    /// Returns the ids of the partitions, starting at `"0"`.
    #[must_use]
    pub fn partition_ids(&self) -> Vec<String> {
        self.hub.partition_ids()
    }

    /// Returns the properties that a client would receive for this partition, or `None` if there is no such partition.
    #[must_use]
    pub fn partition_properties(&self, partition_id: &str) -> Option<PartitionProperties> {
        self.hub.partition(partition_id).map(|partition| partition.properties())
    }

    /// Returns the number of events in the partition, without those that have expired, or `None` if there is no such
    /// partition.
    #[must_use]
    pub fn event_count(&self, partition_id: &str) -> Option<usize> {
        self.hub.partition(partition_id).map(|partition| partition.event_count())
    }

    /// Returns the number of receivers that are attached to the partition in this consumer group, or `None` if there is
    /// no such partition or group.
    ///
    /// A receiver counts from its attach until its detach, or the end of its connection, has reached the emulator.
    #[must_use]
    pub fn open_receivers(&self, consumer_group: &str, partition_id: &str) -> Option<usize> {
        let group = self.hub.consumer_group(consumer_group)?;
        self.hub.partition(partition_id).map(|partition| partition.receivers().count(group))
    }

    /// Returns the epoch (owner level) of each receiver that is attached to the partition in this consumer group,
    /// `None` for a receiver without one; or `None` if there is no such partition or group.
    ///
    /// As in the service, there is either one receiver with an epoch, or up to five without.
    #[must_use]
    pub fn owner_levels(&self, consumer_group: &str, partition_id: &str) -> Option<Vec<Option<i64>>> {
        let group = self.hub.consumer_group(consumer_group)?;
        self.hub.partition(partition_id).map(|partition| partition.receivers().epochs(group))
    }

    /// Returns the number of events that the partition has sent to all of its receivers up to now, or `None` if there
    /// is no such partition.
    ///
    /// The difference from the number of events that a reader got is what its client buffers.
    #[must_use]
    pub fn sent_events(&self, partition_id: &str) -> Option<u64> {
        self.hub.partition(partition_id).map(|partition| partition.sent())
    }

    /// Adds partitions until there are this many; does nothing if there are already. As in the service, partitions
    /// cannot be removed.
    ///
    /// `$management` reports them at once, and events that name no partition are distributed to them too. As in the
    /// service, the events of a partition key may go to another partition from now on.
    ///
    /// ```
    /// # use eventhubs_checkpoint::testing::event_hub::EventHubEmulator;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> eventhubs_checkpoint::Result<()> {
    /// let hub = EventHubEmulator::builder("orders").with_partitions(2).start("127.0.0.1:0").await?;
    /// hub.grow_to(3);
    /// assert_eq!(hub.partition_ids(), ["0", "1", "2"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow_to(&self, partitions: u16) {
        self.hub.grow_to(partitions);
    }

    /// Expires the events of the partition before this sequence number. Returns their number, or `None` if there is no
    /// such partition. A number after the last event, such as `i64::MAX`, empties the partition.
    ///
    /// Events that were already sent to a receiver are not affected.
    #[must_use = "`None` means that nothing expired: there is no such partition"]
    pub fn expire_before(&self, partition_id: &str, sequence_number: i64) -> Option<usize> {
        self.hub.partition(partition_id).map(|partition| partition.expire_before(sequence_number))
    }

    /// Detaches all receivers of the partition in this consumer group with [`DEFAULT_DETACH_CONDITION`]. Returns their
    /// number, or `None` if there is no such partition or group.
    ///
    /// They may attach again at once. The official client does so on its own, unless its retries are disabled, and it
    /// starts at its original start position.
    ///
    /// When the first link fails, the official Rust client 0.16 sets up all links of its connection again. If several
    /// links fail at once, it may not recover: its streams then end with `Link name is not unique`, or with a session
    /// that has stopped. [`cut_connections`](Self::cut_connections) can have the same effect.
    #[must_use = "`None` means that nothing was detached: there is no such partition or group"]
    pub fn detach_receivers(&self, consumer_group: &str, partition_id: &str) -> Option<usize> {
        self.detach_receivers_with(consumer_group, partition_id, DEFAULT_DETACH_CONDITION)
    }

    /// Does the same as [`detach_receivers`](Self::detach_receivers), with a given AMQP error condition, such as
    /// `amqp:link:stolen` or `com.microsoft:server-busy`.
    #[must_use = "`None` means that nothing was detached: there is no such partition or group"]
    pub fn detach_receivers_with(&self, consumer_group: &str, partition_id: &str, condition: &str) -> Option<usize> {
        let group = self.hub.consumer_group(consumer_group)?;
        self.hub.partition(partition_id).map(|partition| partition.receivers().detach(group, condition))
    }

    /// Cuts all open connections of the emulator, to all its event hubs, and returns their number.
    ///
    /// There is no AMQP close: to the clients it looks like a network failure. They may connect again at once.
    #[expect(clippy::must_use_candidate, reason = "it is called for its effect")]
    pub fn cut_connections(&self) -> usize {
        self.server.connections.cut()
    }
}
