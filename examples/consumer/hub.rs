//! The event hub of the example: embedded, or the one in the arguments.

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
use crate::args::Args;

/// The timeout for opening a connection.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

enum Access {
    ConnectionString(String),
    Entra(Arc<DeveloperToolsCredential>),
}

/// Opens clients of one event hub.
pub struct Hub {
    group: ConsumerGroup,
    access: Access,
    endpoint: Option<String>,
    /// Kept so that the emulator runs as long as this value exists.
    _embedded: Option<EventHubEmulator>,
}

impl Hub {
    pub async fn open(args: &Args) -> Result<Self, Failure> {
        if args.is_embedded() {
            return Self::embed(args).await;
        }
        if let Some(namespace) = &args.namespace {
            let event_hub =
                args.event_hub.as_ref().ok_or("--namespace needs --event-hub, the name of the event hub")?;
            return Ok(Self {
                group: ConsumerGroup::new(namespace, event_hub, &args.consumer_group)?,
                access: Access::Entra(DeveloperToolsCredential::new(None)?),
                endpoint: args.hub_endpoint.clone(),
                _embedded: None,
            });
        }
        Self::with_connection_string(args, args.hub.clone().unwrap_or_default(), args.hub_endpoint.clone(), None)
    }

    async fn embed(args: &Args) -> Result<Self, Failure> {
        let name = args.event_hub.as_deref().unwrap_or("hub");
        let embedded = EventHubEmulator::builder(name)
            .with_partitions(args.partitions)
            .with_consumer_group(args.consumer_group.as_str())
            .start("127.0.0.1:0")
            .await?;
        let endpoint = embedded.endpoint();
        Self::with_connection_string(args, embedded.connection_string(), Some(endpoint), Some(embedded))
    }

    fn with_connection_string(
        args: &Args,
        connection_string: String,
        endpoint: Option<String>,
        embedded: Option<EventHubEmulator>,
    ) -> Result<Self, Failure> {
        let entity_path = args.event_hub.as_ref().map(|name| format!(";EntityPath={name}")).unwrap_or_default();
        let group = ConsumerGroup::from_connection_string(
            &format!("{connection_string}{entity_path}"),
            args.consumer_group.as_str(),
        )
        .map_err(|error| format!("the connection string of the event hub is invalid, or needs --event-hub: {error}"))?;
        Ok(Self { group, access: Access::ConnectionString(connection_string), endpoint, _embedded: embedded })
    }

    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    pub async fn source(&self) -> Result<EventHubSource, Failure> {
        let endpoint = self.endpoint.clone();
        let builder = match &self.access {
            Access::ConnectionString(secret) => EventHubSource::from_connection_string(&self.group, secret.as_str()),
            Access::Entra(credential) => EventHubSource::from_credential(&self.group, credential.clone()),
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
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_custom_endpoint(endpoint.clone());
        }
        let event_hub = self.group.event_hub();
        match &self.access {
            Access::ConnectionString(secret) => {
                self.open_in_time(builder.open_with_connection_string(secret, Some(event_hub))).await
            }
            Access::Entra(credential) => {
                self.open_in_time(builder.open(self.group.namespace(), event_hub, credential.clone())).await
            }
        }
    }

    async fn open_in_time<T, E>(&self, opening: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let host = self.endpoint.as_deref().unwrap_or(self.group.namespace());
        match timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(format!("the event hub cannot be reached at {host}: {error}").into()),
            Err(_) => Err(format!("the event hub at {host} did not respond within {OPEN_TIMEOUT:?}").into()),
        }
    }
}
