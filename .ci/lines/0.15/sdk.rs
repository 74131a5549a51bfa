//! What depends on the version of the official client. Version 0.15 has no connection strings.
//!
//! It presents every token as a JSON web token, which Azure does not document for shared access signatures. The
//! connection strings of emulators work, for tests and examples. Connection strings of Azure are rejected.

use std::fmt;
use std::sync::Arc;

use azure_core::base64;
use azure_core::credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions};
use azure_core::hmac::hmac_sha256;
use azure_messaging_eventhubs::builders::{ConsumerClientBuilder, ProducerClientBuilder};
use azure_messaging_eventhubs::{ConsumerClient, EventHubsError, ProducerClient};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use time::Duration;

use super::errors::INVALID_CONNECTION_STRING;
use crate::clock::{SystemWallClock, WallClock};
use crate::error::{Error, Result};

/// How long a shared access signature is valid.
const TOKEN_LIFETIME: Duration = Duration::HOUR;

/// A connection string of an event hub or a namespace of an emulator.
pub(super) struct HubConnectionString {
    secret: Secret,
    endpoint: String,
    namespace: String,
    event_hub: Option<String>,
    key_name: String,
    key: Secret,
}

impl HubConnectionString {
    /// Parses a connection string. The error names no part of it.
    pub(super) fn parse(secret: &Secret) -> Result<Self> {
        let value_of = |name: &str| {
            let mut parts = secret.secret().split(';').filter_map(|part| part.trim().split_once('='));
            parts.find_map(|(key, value)| {
                (key.eq_ignore_ascii_case(name) && !value.is_empty()).then(|| value.to_owned())
            })
        };
        let required = |name: &str| {
            value_of(name).ok_or_else(|| {
                Error::config(INVALID_CONNECTION_STRING).with_source(format!("missing {}", shown_name(name)))
            })
        };
        let endpoint = required("Endpoint")?;
        let host = endpoint.split_once("://").map_or(endpoint.as_str(), |(_, host)| host).trim_end_matches('/');
        let parsed = Self {
            secret: secret.clone(),
            namespace: host.split(':').next().unwrap_or_default().to_owned(),
            event_hub: value_of("EntityPath"),
            key_name: required("SharedAccessKeyName")?,
            key: Secret::new(required("SharedAccessKey")?),
            endpoint,
        };
        if parsed.namespace.contains(".servicebus.") {
            return Err(Error::config(
                "version 0.15 of azure_messaging_eventhubs has no connection strings: use `from_credential`, or the \
                 release line 0.16 of this crate",
            ));
        }
        Ok(parsed)
    }

    pub(super) fn text(&self) -> &str {
        self.secret.secret()
    }

    /// Returns the fully qualified namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the event hub, unless the connection string is for all event hubs of the namespace.
    pub(super) fn event_hub(&self) -> Option<&str> {
        self.event_hub.as_deref()
    }

    /// Returns the value of `Endpoint`, a URL.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) async fn open_consumer(
        &self,
        builder: ConsumerClientBuilder,
        event_hub: &str,
    ) -> Result<ConsumerClient, EventHubsError> {
        builder.open(&self.namespace, event_hub.to_owned(), self.credential_for(event_hub)).await
    }

    pub(super) async fn open_producer(
        &self,
        builder: ProducerClientBuilder,
        event_hub: &str,
    ) -> Result<ProducerClient, EventHubsError> {
        builder.open(&self.namespace, event_hub, self.credential_for(event_hub)).await
    }

    fn credential_for(&self, event_hub: &str) -> Arc<SharedAccessKeyCredential> {
        Arc::new(SharedAccessKeyCredential {
            resource: format!("sb://{}/{event_hub}", self.namespace),
            key_name: self.key_name.clone(),
            key: Secret::new(base64::encode(self.key.secret())),
        })
    }
}

/// Returns the name of a key of connection strings as words.
fn shown_name(name: &str) -> String {
    let mut shown = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !shown.is_empty() {
            shown.push(' ');
        }
        shown.extend(letter.to_lowercase());
    }
    shown
}

/// Signs tokens for one event hub, as Azure's page on shared access signatures of Event Hubs describes.
struct SharedAccessKeyCredential {
    resource: String,
    key_name: String,
    /// In Base64, as the signing function requires.
    key: Secret,
}

/// Omits the key.
impl fmt::Debug for SharedAccessKeyCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedAccessKeyCredential").field("resource", &self.resource).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl TokenCredential for SharedAccessKeyCredential {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        let expires_at = SystemWallClock.now() + TOKEN_LIFETIME;
        let expiry = expires_at.unix_timestamp();
        let resource = utf8_percent_encode(&self.resource, NON_ALPHANUMERIC);
        let signature = hmac_sha256(&format!("{resource}\n{expiry}"), &self.key)?;
        let signature = utf8_percent_encode(&signature, NON_ALPHANUMERIC);
        let key_name = utf8_percent_encode(&self.key_name, NON_ALPHANUMERIC);
        let token = format!("SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={key_name}");
        Ok(AccessToken::new(token, expires_at))
    }
}

/// Opens clients of an emulator with its connection string, as version 0.16 of the official client does.
pub trait OpenWithConnectionString {
    /// The client.
    type Client;

    /// Opens a client. The event hub is needed if the connection string has none.
    ///
    /// # Errors
    ///
    /// If the connection string is invalid or belongs to Azure, or the emulator cannot be reached.
    fn open_with_connection_string(
        self,
        connection_string: &str,
        event_hub: Option<&str>,
    ) -> impl Future<Output = Result<Self::Client, EventHubsError>> + Send;
}

impl OpenWithConnectionString for ConsumerClientBuilder {
    type Client = ConsumerClient;

    async fn open_with_connection_string(
        self,
        connection_string: &str,
        event_hub: Option<&str>,
    ) -> Result<ConsumerClient, EventHubsError> {
        let parsed = parse_for_client(connection_string)?;
        parsed.open_consumer(self, event_hub.or(parsed.event_hub()).unwrap_or_default()).await
    }
}

impl OpenWithConnectionString for ProducerClientBuilder {
    type Client = ProducerClient;

    async fn open_with_connection_string(
        self,
        connection_string: &str,
        event_hub: Option<&str>,
    ) -> Result<ProducerClient, EventHubsError> {
        let parsed = parse_for_client(connection_string)?;
        parsed.open_producer(self, event_hub.or(parsed.event_hub()).unwrap_or_default()).await
    }
}

fn parse_for_client(connection_string: &str) -> Result<HubConnectionString, EventHubsError> {
    HubConnectionString::parse(&Secret::new(connection_string.to_owned()))
        .map_err(|error| azure_core::Error::new(azure_core::error::ErrorKind::Credential, error).into())
}
