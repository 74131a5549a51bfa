//! The event hub of an example: embedded, or the one in the arguments.

use std::sync::Arc;
use std::time::Duration;

use azure_identity::DeveloperToolsCredential;
use azure_messaging_eventhubs::builders::ConsumerClientBuilder;
use azure_messaging_eventhubs::{ProducerClient, RetryOptions};
use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_emulator::EventHubEmulator;
use tokio::time::timeout;

use crate::Failure;
use crate::connection::HubArgs;

/// The timeout for opening a connection.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens clients of one event hub.
pub struct Hub {
    group: ConsumerGroup,
    /// Where this process, and others, connect to: the emulator, if it is embedded.
    pub args: HubArgs,
    /// Without one, the arguments have a connection string.
    credential: Option<Arc<DeveloperToolsCredential>>,
    /// Kept so that the emulator runs as long as this value exists.
    _embedded: Option<EventHubEmulator>,
}

impl Hub {
    /// Prepares connections. An embedded event hub has this many partitions.
    pub async fn open(args: &HubArgs, partitions: u16) -> Result<Self, Failure> {
        if !args.is_embedded() {
            return Self::connect_to(args.clone(), None);
        }
        if let Some(endpoint) = &args.hub_endpoint {
            return Err(format!(
                "the hub endpoint {endpoint:?} needs a hub: set --hub, EVENTHUBS_CONNECTION_STRING or --namespace"
            )
            .into());
        }
        let embedded = EventHubEmulator::builder(args.event_hub.as_deref().unwrap_or("hub"))
            .with_partitions(partitions)
            .with_consumer_group(args.consumer_group.as_str())
            .start("127.0.0.1:0")
            .await?;
        let args = HubArgs {
            hub: Some(embedded.connection_string()),
            hub_endpoint: Some(embedded.endpoint()),
            ..args.clone()
        };
        Self::connect_to(args, Some(embedded))
    }

    fn connect_to(args: HubArgs, embedded: Option<EventHubEmulator>) -> Result<Self, Failure> {
        if let Some(namespace) = &args.namespace {
            let event_hub =
                args.event_hub.as_ref().ok_or("--namespace needs --event-hub, the name of the event hub")?;
            let group = ConsumerGroup::new(namespace, event_hub, &args.consumer_group)?;
            let credential = Some(DeveloperToolsCredential::new(None)?);
            return Ok(Self { group, args, credential, _embedded: embedded });
        }
        let connection_string = args.hub.as_deref().unwrap_or_default();
        let entity_path = args.event_hub.as_ref().map(|name| format!(";EntityPath={name}")).unwrap_or_default();
        let group = ConsumerGroup::from_connection_string(
            &format!("{connection_string}{entity_path}"),
            args.consumer_group.as_str(),
        )
        .map_err(|error| format!("the connection string of the event hub is invalid, or needs --event-hub: {error}"))?;
        Ok(Self { group, args, credential: None, _embedded: embedded })
    }

    /// Returns the connection string, which there is without a credential.
    fn secret(&self) -> &str {
        self.args.hub.as_deref().unwrap_or_default()
    }

    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    pub async fn source(&self) -> Result<EventHubSource, Failure> {
        let endpoint = self.args.hub_endpoint.clone();
        let builder = match &self.credential {
            None => EventHubSource::from_connection_string(&self.group, self.secret()),
            Some(credential) => EventHubSource::from_credential(&self.group, credential.clone()),
        };
        let builder = builder.with_client_builder(move |client| {
            endpoint.clone().into_iter().fold(client, ConsumerClientBuilder::with_custom_endpoint)
        });
        self.open_in_time(builder.connect()).await
    }

    pub async fn producer(&self) -> Result<ProducerClient, Failure> {
        // With its default the client retries for a minute, which is too long for a wrong address.
        let retries = RetryOptions { max_retries: 3, ..RetryOptions::default() };
        let mut builder = ProducerClient::builder().with_retry_options(retries);
        if let Some(endpoint) = &self.args.hub_endpoint {
            builder = builder.with_custom_endpoint(endpoint.clone());
        }
        let event_hub = self.group.event_hub();
        match &self.credential {
            None => self.open_in_time(builder.open_with_connection_string(self.secret(), Some(event_hub))).await,
            Some(credential) => {
                self.open_in_time(builder.open(self.group.namespace(), event_hub, credential.clone())).await
            }
        }
    }

    async fn open_in_time<T, E>(&self, opening: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let host = self.args.hub_endpoint.as_deref().unwrap_or(self.group.namespace());
        match timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(format!("the event hub cannot be reached at {host}: {error}").into()),
            Err(_) => Err(format!("the event hub at {host} did not respond within {OPEN_TIMEOUT:?}").into()),
        }
    }
}
