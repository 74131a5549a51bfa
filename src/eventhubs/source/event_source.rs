//! Reads an event hub through the official `ConsumerClient`: the source, and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_messaging_eventhubs::builders::ConsumerClientBuilder;
use azure_messaging_eventhubs::models::{EventHubPartitionProperties, ReceivedEventData};
use azure_messaging_eventhubs::{EventHubsError, OpenReceiverOptions, RetryOptions, StartPosition as ClientPosition};
use futures::future::join_all;
use tokio::time::Instant;

use super::client::Consumer;
use super::connection::{Connector, Settings, SharedClient, close_once_unused};
use super::connections::Connections;
use super::conversions::{to_client_position, to_partition_properties};
use super::link::PartitionLink;
use super::owner_level::OwnerLevel;
use crate::error::Result;
use crate::eventhubs::credentials::{HubAccess, ReplaceableConnectionString};
use crate::eventhubs::errors;
use crate::model::{ConsumerGroup, PartitionId};
use crate::source::{EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition};
use crate::util::read_variable;

/// How long to wait for the broker to reject a consumer group. A rejection is the first response to the link; on an
/// empty partition of an existing group there is no response.
const SHORTEST_CHECK: Duration = Duration::from_secs(1);
const LONGEST_CHECK: Duration = Duration::from_secs(10);

/// The round trips of a first link: session, session and link for the login, login, link, and some to spare.
const ROUND_TRIPS: u32 = 10;

/// An [`EventSource`] that reads an event hub through the official client. Every instance needs its own source, because
/// two receivers of one client share a link.
///
/// It is created [from a connection string](Self::from_connection_string) or [with a
/// credential](Self::from_credential), for the consumer group whose records the store keeps.
///
/// # Broken connections
///
/// If many links of the official client fail at once, because a connection is lost or a broker restarts, version 0.16
/// may not recover: its links then fail forever, or deliver nothing. Only a new client helps, so the source creates one
/// when the connection of the last one is broken.
///
/// A connection counts as broken after one of these:
///
/// - an error that shows it
/// - a request for properties without a response within 10 s, or 20 s if it includes a login with a credential
/// - a link that took 20 s to close
/// - a [suspect](EventSource::connection_suspect) link
/// - a refusal (`amqp:unauthorized-access`, or status 401 or 403), if the broker has responded through this client
///   before: the client keeps a token that it has presented, even if it has expired
/// - three other failures, each without a later success of the same partition, or of the requests for properties.
///   Events of one partition therefore do not hide that another one fails.
///
/// Links that are opened later use the new client. Links that still receive events keep the old one; the others end
/// with an error, and the processor reopens them. The old client is closed when no link uses it. A new client is
/// created at the earliest 2 s after the last one. This time doubles with each further client, up to 30 s, and is 2 s
/// again once a client has lasted a minute.
///
/// Only the source reopens links: it turns the retries of the client off. If you turn them on in
/// [`with_client_builder`](super::EventHubSourceBuilder::with_client_builder), the client re-attaches a detached link,
/// and all other links of its connection, at the positions where they were opened. The
/// [`Processor`](crate::processor::Processor) then detects the first repeated event, and reopens each link.
///
/// # Requests for properties
///
/// The official client does not match responses with requests: if a request is canceled, the next request returns its
/// response, such as the properties of another partition. Therefore the source sends one request after the other, and
/// each continues if its caller stops waiting. The client can also miss a response, and it sends with each request the
/// token that was current when it opened. If a response is missing, or shows that the connection is broken, the source
/// sends the request once more, through the next client.
///
/// # Two readers of a partition
///
/// The broker admits one of them: by default the reader that opened its link last, as with the processors of other
/// SDKs; see [`OwnerLevel`].
///
/// # Memory
///
/// For each partition the client holds at most [`prefetch`](crate::processor::ProcessorConfig::prefetch) events that
/// its reader has not taken: this is the credit that the broker gets. In the worst case, if all readers are blocked,
/// this is `prefetch` times the event size for every partition: 300 KiB with the default of 300 events of 1 KiB each,
/// but 300 MiB with events of the maximum size of 1 MiB. Two batches are added, the one in the handler and the next.
/// AMQP counts events, so the client cannot limit the bytes. For large events, set a smaller `prefetch`.
#[derive(Debug)]
pub struct EventHubSource {
    group: ConsumerGroup,
    connections: Connections,
    owner_level: OwnerLevel,
}

impl EventHubSource {
    /// Returns a builder for a source that reads the events of a consumer group with a connection string of the
    /// namespace or of the event hub.
    ///
    /// With `UseDevelopmentEmulator=true`, which the Event Hubs emulator requires, the client connects without TLS to
    /// the host and port of the `Endpoint`. The default port is 5672.
    ///
    /// To rotate the key while the source is running, pass a [`ReplaceableConnectionString`].
    ///
    /// ```no_run
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(connection_string: String) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = ConsumerGroup::from_connection_string(&connection_string, ConsumerGroup::DEFAULT_NAME)?;
    /// let source = EventHubSource::from_connection_string(&group, connection_string).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection_string(
        group: &ConsumerGroup,
        connection_string: impl Into<ReplaceableConnectionString>,
    ) -> EventHubSourceBuilder {
        EventHubSourceBuilder::new(group, HubAccess::ConnectionString(connection_string.into()))
    }

    /// Returns a builder for a source that reads the events of a consumer group with a credential of Microsoft Entra
    /// ID. The credential needs the role *Azure Event Hubs Data Receiver*. The source wraps it in a
    /// [`RenewableCredential`](crate::eventhubs::RenewableCredential).
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use azure_core::credentials::TokenCredential;
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(credential: Arc<dyn TokenCredential>) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", ConsumerGroup::DEFAULT_NAME)?;
    /// let source = EventHubSource::from_credential(&group, credential).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_credential(group: &ConsumerGroup, credential: Arc<dyn TokenCredential>) -> EventHubSourceBuilder {
        EventHubSourceBuilder::new(group, HubAccess::from_credential(credential))
    }

    /// Returns a builder for a source that reads the events of this consumer group with the connection string in the
    /// environment variable `EVENTHUBS_CONNECTION_STRING`, which `ehcp` also uses. It must name the event hub, with an
    /// `EntityPath`. [`group`](Self::group) returns the group for the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), if the variable is not set, or names no event hub: correct it.
    ///
    /// ```no_run
    /// # use eventhubs_checkpoint::{AzureContainer, ConsumerGroup, EventHubSource, GroupStore, OwnerId};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let source = EventHubSource::from_env(ConsumerGroup::DEFAULT_NAME)?.connect().await?;
    /// let container = AzureContainer::from_env("checkpoints")?;
    /// let store = GroupStore::connect(container, source.group().clone(), OwnerId::random()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env(consumer_group: &str) -> Result<EventHubSourceBuilder> {
        let connection_string = read_variable("EVENTHUBS_CONNECTION_STRING")?;
        let group = ConsumerGroup::from_connection_string(&connection_string, consumer_group)?;
        Ok(Self::from_connection_string(&group, connection_string))
    }

    /// Returns the consumer group that it reads.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    async fn open_link_through(
        &self,
        client: Arc<SharedClient<Consumer>>,
        partition: &PartitionId,
        options: OpenReceiverOptions,
    ) -> Result<PartitionLink> {
        let used = self.connections.register_link(partition, &client).await?;
        let receiver = client
            .inner()
            .client
            .open_receiver_on_partition(partition.to_string(), Some(options))
            .await
            .map_err(|error| errors::receive_error(partition.as_str(), None, error))?;
        Ok(PartitionLink::new(partition, receiver, client, used))
    }
}

impl EventSource for EventHubSource {
    type Event = ReceivedEventData;

    fn consumer_group(&self) -> Option<&ConsumerGroup> {
        Some(&self.group)
    }

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        let properties = self
            .connections
            .request_properties(
                |client| async move { Some(client.inner().client.get_eventhub_properties().await) },
                |error| errors::properties_error("the event hub", error),
            )
            .await?;
        let partitions = properties.partition_ids.iter().map(PartitionId::new).collect::<Result<_, _>>()?;
        let known = EventHubProperties::new(properties.name, partitions);
        Ok(match properties.created_on {
            Some(time) => known.with_created_at(time.into()),
            None => known,
        })
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        self.connections
            .request_properties(
                |client| {
                    let partition = partition.clone();
                    async move {
                        response_for(
                            &partition,
                            client.inner().client.get_partition_properties(partition.as_str()).await,
                        )
                    }
                },
                |error| errors::properties_error(&format!("partition {partition}"), error),
            )
            .await
            .map(to_partition_properties)
    }

    async fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> Result<EventReceiver<ReceivedEventData>> {
        from.check_time("the start position")?;
        let level = self.owner_level.level_of_link(epoch)?;
        let credit = u32::try_from(prefetch.max(1)).unwrap_or(u32::MAX);
        let options = link_options(to_client_position(from.clone()), level, credit);
        let client = self.connections.client_for_link(partition).await?;
        let link = self.open_link_through(client, partition, options).await?;
        Ok(EventReceiver::from_batches(|limit, stopped| link.into_batches(&from, limit, stopped)))
    }

    /// Opens a link without an owner level, which displaces no other link: the broker rejects it if a processor reads
    /// the partition. A request before shows how slow the connection is.
    ///
    /// The link has a connection of its own. If a processor displaces it while it is opened or closed, the client may
    /// lose the session of the partition without noticing, and later links in it would deliver nothing.
    async fn check_access(&self, partition: &PartitionId) -> Result<()> {
        let started = Instant::now();
        self.partition_properties(partition).await?;
        let limit = check_limit(started.elapsed());
        let connection = self.connections.open_alone().await?;
        let options = link_options(to_client_position(StartPosition::Earliest), None, 1);
        let link = self.open_link_through(connection.usable_client().await, partition, options).await?;
        let rejection = link.wait_for_rejection(limit).await;
        // An unclean end of the connection does no harm.
        tokio::spawn(join_all(connection.into_clients().map(close_once_unused)));
        rejection.map_or(Ok(()), Err)
    }

    fn connection_suspect(&self, partition: &PartitionId) {
        self.connections.mark_suspect(partition);
    }

    async fn close(self) -> Result<()> {
        self.connections.close().await
    }
}

fn link_options(from: ClientPosition, owner_level: Option<i64>, credit: u32) -> OpenReceiverOptions {
    OpenReceiverOptions { owner_level, prefetch: Some(credit), start_position: Some(from), receive_timeout: None }
}

/// Returns how long to wait for a rejection of a link, after a request that took this long.
fn check_limit(request: Duration) -> Duration {
    (request * ROUND_TRIPS).clamp(SHORTEST_CHECK, LONGEST_CHECK)
}

/// Returns `None` for the properties of another partition.
fn response_for(
    partition: &PartitionId,
    response: Result<EventHubPartitionProperties, EventHubsError>,
) -> Option<Result<EventHubPartitionProperties, EventHubsError>> {
    match response {
        Ok(properties) if properties.id != partition.as_str() => None,
        response => Some(response),
    }
}

/// Configures an [`EventHubSource`]; see [`from_connection_string`](EventHubSource::from_connection_string) and
/// [`from_credential`](EventHubSource::from_credential).
#[must_use = "nothing happens until `connect` is called"]
pub struct EventHubSourceBuilder {
    group: ConsumerGroup,
    access: HubAccess,
    settings: Settings<Consumer>,
    owner_level: OwnerLevel,
}

impl EventHubSourceBuilder {
    fn new(group: &ConsumerGroup, access: HubAccess) -> Self {
        Self { group: group.clone(), access, settings: Box::new(|client| client), owner_level: OwnerLevel::default() }
    }

    /// Returns the consumer group that the source will read.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    /// Sets options of the client's own builder. The function is called for the first client and for every later one.
    ///
    /// Before, the source sets [`RetryOptions::max_retries`] to 0, because it reopens links and connections itself; see
    /// [broken connections](EventHubSource#broken-connections). Afterwards it sets its consumer group.
    ///
    /// For a network that blocks the port of AMQP, 5671, use AMQP over WebSockets, port 443. The client supports no
    /// HTTP proxy, for either transport.
    ///
    /// ```no_run
    /// # use azure_messaging_eventhubs::models::AmqpTransport;
    /// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
    /// # async fn example(group: ConsumerGroup, connection_string: String) -> eventhubs_checkpoint::Result<()> {
    /// let source = EventHubSource::from_connection_string(&group, connection_string)
    ///     .with_client_builder(|client| client.with_transport(AmqpTransport::WebSocket))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `with_application_id` names the connections, in the logs of a proxy for example. Version 0.16 of the client
    /// cannot name receivers: it sends the name of `with_instance_id` in a property that the service does not read, so
    /// the errors of the service call all receivers `nil`.
    pub fn with_client_builder(
        self,
        settings: impl Fn(ConsumerClientBuilder) -> ConsumerClientBuilder + Send + Sync + 'static,
    ) -> Self {
        Self { settings: Box::new(settings), ..self }
    }

    /// Sets the owner level of the links. Default `OwnerLevel::Fixed(0)`, which the processors of all SDKs use.
    ///
    /// With [`OwnerLevel::Epoch`] the broker rejects previous owners. Use it only in groups in which every processor
    /// does.
    pub fn with_owner_level(self, owner_level: OwnerLevel) -> Self {
        Self { owner_level, ..self }
    }

    /// Opens the first connection, within 20 s.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Config`](crate::ErrorKind::Config) if the connection string is invalid or names another namespace
    ///   or event hub than the consumer group, or if the owner level is negative. Correct the setting.
    /// - [`ErrorKind::EventSource`](crate::ErrorKind::EventSource) if the event hub cannot be reached. Retry.
    ///
    /// The first requests show whether the key or the credential is valid, and whether the event hub and its consumer
    /// group exist.
    pub async fn connect(self) -> Result<EventHubSource> {
        let Self { group, access, settings, owner_level } = self;
        owner_level.check_level()?;
        let name = group.name().to_owned();
        let settings: Settings<Consumer> = Box::new(move |client| {
            settings(client.with_retry_options(RetryOptions { max_retries: 0, ..RetryOptions::default() }))
                .with_consumer_group(name.clone())
        });
        let connector = Connector::new(group.namespace(), group.event_hub(), access, settings)?;
        Ok(EventHubSource { group, connections: Connections::open(connector).await?, owner_level })
    }
}

impl fmt::Debug for EventHubSourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHubSourceBuilder")
            .field("group", &self.group)
            .field("owner_level", &self.owner_level)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use azure_messaging_eventhubs::error::ErrorKind as ClientErrorKind;

    use super::*;

    #[test]
    fn properties_of_another_partition_are_no_response() {
        let properties = EventHubPartitionProperties {
            id: "1".into(),
            eventhub: "hub".into(),
            beginning_sequence_number: 3,
            last_enqueued_sequence_number: 5,
            last_enqueued_offset: "50".into(),
            last_enqueued_time_utc: None,
            is_empty: false,
        };
        let partition = |id: &str| PartitionId::new(id).unwrap();
        let own = response_for(&partition("1"), Ok(properties)).unwrap().unwrap();
        assert!(response_for(&partition("0"), Ok(own)).is_none());
        let error = EventHubsError::from(ClientErrorKind::InvalidManagementResponse);
        assert!(response_for(&partition("0"), Err(error)).unwrap().is_err());
    }

    #[test]
    fn a_slow_connection_gets_more_time_for_the_check() {
        for (request, limit) in [(1, 1000), (100, 1000), (300, 3000), (1500, 10_000)] {
            assert_eq!(check_limit(Duration::from_millis(request)), Duration::from_millis(limit), "{request} ms");
        }
    }
}
