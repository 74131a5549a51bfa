#![cfg_attr(doctest, doc = include_str!("../README.md"))]
//! An Event Hubs emulator that runs in this process and speaks AMQP 1.0, for tests and examples without a cloud. The
//! program of the same name runs it on its own.
//!
//! It supports the official producer and consumer of `azure_messaging_eventhubs`. Its wire format is the service's, so
//! clients in [other languages](self#clients-in-other-languages) can use it too. Set the *custom endpoint* option of a
//! client to the [endpoint](EventHubEmulator::endpoint), and use the [connection
//! string](EventHubEmulator::connection_string):
//!
//! ```
//! use eventhubs_emulator::EventHubEmulator;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), eventhubs_emulator::StartError> {
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
//! - Go (`azeventhubs` 2): `ConsumerClientOptions{CustomEndpoint: "localhost:PORT"}`.
//! - Java (`azure-messaging-eventhubs` 5): `customEndpointAddress("http://localhost:PORT")`, of which the host and the
//!   port are used.
//!
//! # Supported
//!
//! - `$cbs` put-token of shared access signatures (key name, signature, resource, expiry) and of [bearer
//!   tokens](EventHubEmulator::entra_token). The response is 401 if the token is invalid, and 404 for an event hub that
//!   does not exist (microsoft/MCW-Cosmos-DB-Real-Time-Advanced-Analytics#25). A connection has one pair of links to
//!   `$cbs`; another one is rejected with `amqp:not-allowed` (Azure/azure-event-hubs-node#174).
//! - A token authorizes the path that it was put for and the paths below, until it expires by the
//!   [clock](EventHubEmulator::advance_clock) of the emulator. Then the links of the path are detached, and attaches
//!   are rejected, with `amqp:unauthorized-access` (Azure/azure-sdk-for-python#5314, Azure/azure-event-hubs-node#174),
//!   until another token is put. `$management` is open without one, because the Java client puts none for it.
//! - `$management` READ of a hub and of a partition, whose `security_token` is
//!   [checked](EventHubEmulatorBuilder::with_management_token_check); 404 for an unknown hub, 400 for an unknown
//!   partition, 503 above the [quota](EventHubEmulatorBuilder::with_management_quota). Errors have an
//!   `error-condition`.
//! - Publishing single events and batches: to a partition, by partition key, or to the partitions in turn. Events are
//!   stored as they were published, whatever their sections contain; the annotations of the hub are added, and the
//!   header is not kept. A message above 1 MiB is rejected, and its link stays.
//! - Receiving from an offset, a sequence number, an enqueued time, the earliest or the latest event, inclusive or
//!   exclusive. The receiver's credit is honored, and events are not copied in advance. Events are sent settled, with
//!   an empty delivery tag (Azure/azure-event-hubs-node#113, vcabbage/amqp#43). A selector that cannot be parsed is
//!   rejected with `amqp:invalid-field`. An offset or sequence number after the partition's last one is rejected with
//!   `com.microsoft:argument-error`, and a partition that does not exist with `com.microsoft:argument-out-of-range`, as
//!   by the service.
//! - A link that is rejected is so before it looks accepted: the response to its attach has neither source nor target,
//!   and there is no flow (Azure/azure-event-hubs-node#186).
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
//! - [Geo-replication](HubSettings::with_geo_replication): offsets that are text, their errors, and
//!   [promotion](EventHubEmulator::promote).
//! - [Idle links](EventHubEmulatorBuilder::with_idle_limit) are detached, and a connection has a limited number of
//!   [sessions](EventHubEmulatorBuilder::with_max_sessions).
//! - On request of a test: [more partitions](EventHubEmulator::grow_to), [expired
//!   events](EventHubEmulator::expire_before), [removed events](EventHubEmulator::remove_event), [events that clients
//!   cannot decode](EventHubEmulator::append_raw), detached [receivers](EventHubEmulator::detach_receivers) and
//!   [senders](EventHubEmulator::detach_senders), [expired tokens](EventHubEmulator::expire_authorizations), [another
//!   key](EventHubEmulator::replace_key), [cut connections](EventHubEmulator::cut_connections), an event hub that [is
//!   recreated](EventHubEmulator::recreate), and a namespace that [fails over](EventHubEmulator::move_namespace).
//!
//! # Not supported
//!
//! TLS and WebSockets, the signature and the contents of Entra ID tokens, claims (send, listen), throttling of events,
//! retention by age or size and compaction by itself, adding or removing event hubs and groups at run time, replication
//! of events between regions, capture, the schema registry, the service's hash of partition keys (equal keys do go to
//! one partition, until partitions are added), idempotent producers, transactions, and the runtime metrics on received
//! events. A receiver without credit counts as idle only while an event waits for it.
//!
//! # Shutdown
//!
//! Dropping the last [`EventHubEmulator`] handle closes the port and all connections without an AMQP close: to a client
//! it looks like a crash of the server. All tasks run on the runtime that called
//! [`start`](EventHubEmulatorBuilder::start), and end soon after the drop.

mod address;
mod admit;
mod alias;
mod attach;
mod attaching;
mod authorizations;
mod bad_start;
mod builder;
mod clock;
mod connection;
mod consume;
mod delayed;
mod emptied;
mod encoding;
mod error;
mod event;
mod filter;
mod frames;
mod geo;
mod hooks;
mod hub;
mod idle;
mod late_frames;
mod limits;
mod links;
mod listen;
mod lock;
mod log;
mod management;
mod message;
mod namespace;
mod partition;
mod payloads;
mod publish;
mod quota;
mod receivers;
mod refused;
mod requests;
mod retention;
#[cfg(test)]
mod samples;
mod sas;
mod selector;
mod served;
mod sessions;
mod settings;
mod token_check;
mod tokens;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use time::OffsetDateTime;
use tokio::task::JoinSet;

pub use builder::{DEFAULT_DELAY, DEFAULT_KEY, DEFAULT_KEY_NAME, EventHubEmulatorBuilder};
pub use emptied::EmptiedReport;
pub use error::StartError;
pub use partition::PartitionProperties;
pub use settings::{DEFAULT_RETENTION_COUNT, HubSettings};

use alias::Alias;
use hub::Hub;
use listen::Connections;
use namespace::Namespace;
use partition::Partition;

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
    name: String,
    /// The place of the event hub in its namespace.
    place: usize,
    server: Arc<Server>,
}

/// The parts that all event hubs of an emulator share.
#[derive(Debug)]
struct Server {
    alias: Arc<Alias>,
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
        &self.name
    }

    fn namespace(&self) -> Arc<Namespace> {
        self.server.alias.current()
    }

    fn hub(&self) -> Arc<Hub> {
        self.namespace().hub_at(self.place)
    }

    fn partition(&self, id: &str) -> Option<Arc<Partition>> {
        self.hub().partition(id)
    }

    /// Returns the event hub with this name in the same emulator, or `None` if there is none. Ignores case.
    #[must_use]
    pub fn event_hub(&self, name: &str) -> Option<Self> {
        let place = self.namespace().place(name)?;
        let name = self.namespace().hub_at(place).name.clone();
        Some(Self { name, place, server: self.server.clone() })
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
        let key = self.namespace().tokens.key();
        format!(
            "Endpoint=sb://localhost/;SharedAccessKeyName={};SharedAccessKey={};EntityPath={}",
            key.name, key.secret, self.name
        )
    }

    /// Returns a connection string with the port and `UseDevelopmentEmulator=true`.
    ///
    /// With it, the JavaScript client and `EventHubSource` of the crate `eventhubs-checkpoint` need no endpoint. A
    /// client that ignores the port needs [`connection_string`](Self::connection_string) and
    /// [`endpoint`](Self::endpoint) instead.
    #[must_use]
    pub fn connection_string_with_port(&self) -> String {
        let address = format!("sb://localhost:{}/", self.port());
        format!("{};UseDevelopmentEmulator=true", self.connection_string().replace("sb://localhost/", &address))
    }

    /// Returns [`connection_string_with_port`](Self::connection_string_with_port) for all event hubs of the namespace:
    /// clients must name the event hub that they connect to.
    #[must_use]
    pub fn namespace_connection_string_with_port(&self) -> String {
        self.connection_string_with_port().replace(&format!(";EntityPath={}", self.name), "")
    }

    /// Returns the ids of the partitions, starting at `"0"`.
    #[must_use]
    pub fn partition_ids(&self) -> Vec<String> {
        self.hub().partition_ids()
    }

    /// Returns the properties that a client would receive for this partition, or `None` if there is no such partition.
    #[must_use]
    pub fn partition_properties(&self, partition_id: &str) -> Option<PartitionProperties> {
        self.partition(partition_id).map(|partition| partition.properties())
    }

    /// Returns the number of events in the partition, without those that have expired, or `None` if there is no such
    /// partition.
    #[must_use]
    pub fn event_count(&self, partition_id: &str) -> Option<usize> {
        self.partition(partition_id).map(|partition| partition.event_count())
    }

    /// Returns the number of receivers that are attached to the partition in this consumer group, or `None` if there is
    /// no such partition or group.
    ///
    /// A receiver counts from its attach until its detach, or the end of its connection, has reached the emulator.
    #[must_use]
    pub fn open_receivers(&self, consumer_group: &str, partition_id: &str) -> Option<usize> {
        let hub = self.hub();
        let group = hub.consumer_group(consumer_group)?;
        hub.partition(partition_id).map(|partition| partition.receivers().count(group))
    }

    /// Returns the epoch (owner level) of each receiver that is attached to the partition in this consumer group,
    /// `None` for a receiver without one; or `None` if there is no such partition or group.
    ///
    /// As in the service, there is either one receiver with an epoch, or up to five without.
    #[must_use]
    pub fn owner_levels(&self, consumer_group: &str, partition_id: &str) -> Option<Vec<Option<i64>>> {
        let hub = self.hub();
        let group = hub.consumer_group(consumer_group)?;
        hub.partition(partition_id).map(|partition| partition.receivers().epochs(group))
    }

    /// Returns the number of events that the partition has sent to all of its receivers up to now, or `None` if there
    /// is no such partition.
    ///
    /// The difference from the number of events that a reader got is what its client buffers.
    #[must_use]
    pub fn sent_events(&self, partition_id: &str) -> Option<u64> {
        self.partition(partition_id).map(|partition| partition.sent())
    }

    /// Returns the time by the [clock](Self::advance_clock) of the emulator, which decides when tokens expire.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.hub().now()
    }

    /// Returns when the event hub was created, by the [clock](Self::advance_clock) of the emulator.
    #[must_use]
    pub fn created_at(&self) -> OffsetDateTime {
        self.hub().created_at
    }
}
