//! The clients of the official crate, which are opened and closed in the same way.

use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_messaging_eventhubs::builders::{ConsumerClientBuilder, ProducerClientBuilder};
use azure_messaging_eventhubs::{ConsumerClient, EventHubsError, ProducerClient};

use super::REQUEST_TIMEOUT;
use super::request_queue::RequestQueue;

/// A client, for [`Connector`](super::connector::Connector).
pub(super) trait Client: Sized + Send + Sync + 'static {
    /// The builder of the official crate.
    type Builder: Send;

    fn builder() -> Self::Builder;

    fn at_endpoint(builder: Self::Builder, endpoint: String) -> Self::Builder;

    fn open_with_connection_string(
        builder: Self::Builder,
        connection_string: &str,
        event_hub: &str,
    ) -> impl Future<Output = Result<Self, EventHubsError>> + Send;

    fn open_with_credential(
        builder: Self::Builder,
        namespace: &str,
        event_hub: &str,
        credential: Arc<dyn TokenCredential>,
    ) -> impl Future<Output = Result<Self, EventHubsError>> + Send;

    fn close(self) -> impl Future<Output = Result<(), EventHubsError>> + Send;
}

/// A client that reads, and its requests for properties.
pub(super) struct Consumer {
    pub(super) client: ConsumerClient,
    pub(super) requests: RequestQueue,
}

impl Client for Consumer {
    type Builder = ConsumerClientBuilder;

    fn builder() -> ConsumerClientBuilder {
        ConsumerClient::builder()
    }

    fn at_endpoint(builder: ConsumerClientBuilder, endpoint: String) -> ConsumerClientBuilder {
        builder.with_custom_endpoint(endpoint)
    }

    async fn open_with_connection_string(
        builder: ConsumerClientBuilder,
        connection_string: &str,
        event_hub: &str,
    ) -> Result<Self, EventHubsError> {
        let client = builder.open_with_connection_string(connection_string, Some(event_hub)).await?;
        Ok(Self { client, requests: RequestQueue::new(Duration::ZERO) })
    }

    async fn open_with_credential(
        builder: ConsumerClientBuilder,
        namespace: &str,
        event_hub: &str,
        credential: Arc<dyn TokenCredential>,
    ) -> Result<Self, EventHubsError> {
        let client = builder.open(namespace, event_hub.to_owned(), credential).await?;
        // The first request includes the login, and a credential may start a tool for it.
        Ok(Self { client, requests: RequestQueue::new(REQUEST_TIMEOUT) })
    }

    async fn close(self) -> Result<(), EventHubsError> {
        self.client.close().await
    }
}

impl Client for ProducerClient {
    type Builder = ProducerClientBuilder;

    fn builder() -> ProducerClientBuilder {
        Self::builder()
    }

    fn at_endpoint(builder: ProducerClientBuilder, endpoint: String) -> ProducerClientBuilder {
        builder.with_custom_endpoint(endpoint)
    }

    async fn open_with_connection_string(
        builder: ProducerClientBuilder,
        connection_string: &str,
        event_hub: &str,
    ) -> Result<Self, EventHubsError> {
        builder.open_with_connection_string(connection_string, Some(event_hub)).await
    }

    async fn open_with_credential(
        builder: ProducerClientBuilder,
        namespace: &str,
        event_hub: &str,
        credential: Arc<dyn TokenCredential>,
    ) -> Result<Self, EventHubsError> {
        builder.open(namespace, event_hub, credential).await
    }

    async fn close(self) -> Result<(), EventHubsError> {
        Self::close(self).await
    }
}
