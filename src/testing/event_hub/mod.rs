//! An Event Hubs stand-in that runs in this process and speaks AMQP 1.0, for tests and samples without a cloud.
//!
//! It is good enough for the official producer and consumer of `azure_messaging_eventhubs`, and its wire format is the
//! service's, so clients in [other languages](self#clients-in-other-languages) can use it as well. Point a client at it
//! with its *custom endpoint* option and the [connection string](EventHubEmulator::connection_string):
//!
//! ```
//! use eventhubs_checkpoint::testing::with_event_hub::EventHubEmulator;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> eventhubs_checkpoint::Result<()> {
//! let hub = EventHubEmulator::builder("orders").partitions(8).with_consumer_group("billing").start("127.0.0.1:0").await?;
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
//! `;UseDevelopmentEmulator=true` behind the connection string says that there is no TLS. The port goes where it leaves
//! the namespace `localhost` alone, by which checkpoint stores name their blobs:
//!
//! - JavaScript (`@azure/event-hubs` 6): into the connection string, `Endpoint=sb://localhost:PORT/;...`. A
//!   `customEndpointAddress` would take the namespace's place.
//! - Python (`azure-eventhub` 5): `custom_endpoint_address="sb://localhost:PORT"`. A port in the connection string
//!   would become part of the namespace.
//!
//! # What it does
//!
//! - `$cbs` put-token: the shared access signature is checked (key name, signature, expiry) and answered 401 when
//!   wrong. A link on a connection without a good token is refused with `amqp:unauthorized-access`.
//! - `$management` READ of a hub and of a partition; 404 for an unknown hub or partition.
//! - Publishing single events and batches: to a partition, by partition key, or to the partitions in turn.
//! - Receiving from an offset, a sequence number, an enqueued time, the earliest or the latest event, inclusive or
//!   exclusive. The receiver's credit is honoured, and nothing is copied ahead of it. A selector that cannot be parsed
//!   is refused with `amqp:invalid-field`; an offset or sequence number above the partition's last one with
//!   `com.microsoft:argument-error`, as the service does.
//! - Retention by count: a partition keeps its newest events, [50,000](DEFAULT_RETENTION_COUNT) unless told otherwise,
//!   which bounds the memory. The older ones expire, and its beginning sequence number moves. A receiver from an
//!   expired position starts at the oldest event, as in the service, or
//!   [is refused](HubSettings::with_expired_positions_rejected). One that lags behind goes on with the oldest event.
//! - Epochs (owner levels): an equal or higher epoch takes the partition and its group from all other receivers, which
//!   are closed with `amqp:link:stolen`; a lower one is refused with the same condition while a higher one is attached,
//!   and a receiver without an epoch while any epoch is attached. Without epochs, at most five receivers share a
//!   partition and group. A receiver counts as gone as soon as its connection is, which the service may notice minutes
//!   later.
//! - Consumer groups must be named on the builder, `$Default` excepted; another one is answered `amqp:not-found`.
//! - [Several event hubs](EventHubEmulatorBuilder::with_event_hub) behind one address and key, each with its own partitions, groups
//!   and retention. The addresses of a client's links say which one is meant.
//! - On demand, for tests: [more partitions](EventHubEmulator::grow_to), [expired events](EventHubEmulator::expire_before),
//!   [detached receivers](EventHubEmulator::detach_receivers) and [cut connections](EventHubEmulator::cut_connections).
//!
//! # What it does not model
//!
//! TLS and WebSockets, Entra ID tokens, claims (send, listen) and the audience of a token (a good one opens all event
//! hubs), a token's expiry on an open link, throttling and quotas, retention by age or size and compaction, event hubs
//! and groups that come or go at run time, geo-replication, capture, the schema registry, the service's hash of
//! partition keys (equal keys do meet in one partition, until there are more partitions), idempotent producers,
//! transactions, and the runtime metrics on received events.
//!
//! # Closing
//!
//! Dropping the last handle, [`EventHubEmulator`], closes the port and all connections, without an AMQP farewell: to a client
//! that looks like a server that died. Everything runs in tasks of the runtime that called
//! [`start`](EventHubEmulatorBuilder::start), and all of them end soon after the drop.

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

/// The condition with which receivers are detached unless told otherwise: `amqp:link:detach-forced`.
///
/// The service closes links with it for reasons of its own, such as moving a partition to another node or ending an
/// idle link. Clients take it as a reason to attach again.
pub const DEFAULT_DETACH_CONDITION: &str = "amqp:link:detach-forced";

/// A handle on a running event hub. See the [module](self) for what it does; dropping the last handle stops it.
///
/// Clones are the same event hub, and [`with_event_hub`](Self::event_hub) gives handles on others of the same stand-in.
#[derive(Clone, Debug)]
pub struct EventHubEmulator {
    hub: Arc<Hub>,
    server: Arc<Server>,
}

/// What all event hubs of a stand-in share.
#[derive(Debug)]
struct Server {
    namespace: Arc<Namespace>,
    address: SocketAddr,
    /// The connections own their sessions, which own their links.
    connections: Arc<Connections>,
    _listener: JoinSet<()>,
}

impl EventHubEmulator {
    /// Starts describing an event hub of this name, with 4 partitions and the consumer group `$Default`.
    pub fn builder(name: impl Into<String>) -> EventHubEmulatorBuilder {
        EventHubEmulatorBuilder::new(name.into())
    }

    /// The name of the event hub.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hub.name
    }

    /// The event hub of this name in the same stand-in, or `None` if there is none. Case does not tell names apart.
    #[must_use]
    pub fn event_hub(&self, name: &str) -> Option<Self> {
        let hub = self.server.namespace.hub(name)?.clone();
        Some(Self { hub, server: self.server.clone() })
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.address.port()
    }

    /// The address for a client's *custom endpoint* option: `amqp://127.0.0.1:PORT`.
    ///
    /// A hub that listens on all interfaces names the loopback one.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let ip = match self.server.address.ip() {
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
        let key = &self.server.namespace.key;
        format!(
            "Endpoint=sb://localhost/;SharedAccessKeyName={};SharedAccessKey={};EntityPath={}",
            key.name, key.secret, self.hub.name
        )
    }

    /// The ids of the partitions, `"0"` and up.
    #[must_use]
    pub fn partition_ids(&self) -> Vec<String> {
        self.hub.partition_ids()
    }

    /// What a client would be told about this partition, or `None` if there is none of this id.
    #[must_use]
    pub fn partition_properties(&self, partition_id: &str) -> Option<PartitionProperties> {
        self.hub.partition(partition_id).map(|partition| partition.properties())
    }

    /// How many events the partition holds, without those that have expired, or `None` if there is none of this id.
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

    /// The epoch (owner level) of each receiver that is attached to the partition in this consumer group, `None` for a
    /// receiver without one; or `None` if there is no such partition or group.
    ///
    /// As in the service, there is one receiver with an epoch, or there are up to five without.
    #[must_use]
    pub fn owner_levels(&self, consumer_group: &str, partition_id: &str) -> Option<Vec<Option<i64>>> {
        let group = self.hub.consumer_group(consumer_group)?;
        self.hub.partition(partition_id).map(|partition| partition.receivers().epochs(group))
    }

    /// How many events of the partition have been sent, to all receivers that it has had, or `None` if there is none of
    /// this id.
    ///
    /// What a client holds back from its reader is the difference between this and what the reader got.
    #[must_use]
    pub fn sent_events(&self, partition_id: &str) -> Option<u64> {
        self.hub.partition(partition_id).map(|partition| partition.sent())
    }

    /// Adds partitions until there are this many; does nothing if there are. The service cannot take any away either.
    ///
    /// `$management` tells of them at once, and events that name no partition go to them as well. As in the service,
    /// the events of a partition key may go to another partition from now on.
    ///
    /// ```
    /// # use eventhubs_checkpoint::testing::with_event_hub::EventHubEmulator;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> eventhubs_checkpoint::Result<()> {
    /// let hub = EventHubEmulator::builder("orders").partitions(2).start("127.0.0.1:0").await?;
    /// hub.grow_to(3);
    /// assert_eq!(hub.partition_ids(), ["0", "1", "2"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow_to(&self, partitions: u16) {
        self.hub.grow_to(partitions);
    }

    /// Lets the events of the partition before this sequence number expire, and returns how many these were, or `None`
    /// if there is no such partition. With a number beyond the last event, such as `i64::MAX`, the partition is empty.
    ///
    /// What was sent to a receiver already stays with it.
    #[must_use = "`None` says that nothing expired: there is no such partition"]
    pub fn expire_before(&self, partition_id: &str, sequence_number: i64) -> Option<usize> {
        self.hub.partition(partition_id).map(|partition| partition.expire_before(sequence_number))
    }

    /// Detaches all receivers of the partition in this consumer group with [`DEFAULT_DETACH_CONDITION`], and returns
    /// how many they were; `None` if there is no such partition or group.
    ///
    /// Nothing keeps them from attaching again. That is what the official client does on its own, unless it was told
    /// not to retry, and it starts where it had started before.
    ///
    /// With the first link that fails, the official Rust client 0.16 sets up all links of its connection anew. If
    /// several fail at once it may not get over it: its streams then end with `Link name is not unique`, or with a
    /// session that has stopped. [`cut_connections`](Self::cut_connections) can have the same effect.
    #[must_use = "`None` says that nothing was detached: there is no such partition or group"]
    pub fn detach_receivers(&self, consumer_group: &str, partition_id: &str) -> Option<usize> {
        self.detach_receivers_with(consumer_group, partition_id, DEFAULT_DETACH_CONDITION)
    }

    /// As [`detach_receivers`](Self::detach_receivers), with an AMQP error condition of choice, such as
    /// `amqp:link:stolen` or `com.microsoft:server-busy`.
    #[must_use = "`None` says that nothing was detached: there is no such partition or group"]
    pub fn detach_receivers_with(&self, consumer_group: &str, partition_id: &str, condition: &str) -> Option<usize> {
        let group = self.hub.consumer_group(consumer_group)?;
        self.hub.partition(partition_id).map(|partition| partition.receivers().detach(group, condition))
    }

    /// Cuts all open connections of the stand-in, to whichever event hub, and returns how many they were.
    ///
    /// There is no AMQP farewell: to the clients it looks like a network that failed. They may connect again at once.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does, the count is a bonus")]
    pub fn cut_connections(&self) -> usize {
        self.server.connections.cut()
    }
}
