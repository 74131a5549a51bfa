//! Creates the clients of a source or sink, the first and every later one in the same way.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::http::Url;
use azure_messaging_eventhubs::{ConnectionString, EventHubsError};
use tokio::time::timeout;

use super::REQUEST_TIMEOUT;
use super::client::Client;
use super::connection_string::{ReplaceableConnectionString, parsed};
use super::renewable_credential::RenewableCredential;
use crate::error::{Error, ErrorKind, Result};

/// The default port of AMQP without TLS.
const AMQP_PORT: u16 = 5672;

pub(super) type Settings<C> = Box<dyn Fn(<C as Client>::Builder) -> <C as Client>::Builder + Send + Sync>;

/// How clients authenticate.
#[derive(Clone)]
pub(super) enum Access {
    ConnectionString(ReplaceableConnectionString),
    Token(Arc<RenewableCredential>),
}

impl Access {
    pub(super) fn credential(credential: Arc<dyn TokenCredential>) -> Self {
        Self::Token(RenewableCredential::new(credential))
    }
}

/// Creates clients of an event hub.
pub(super) struct Connector<C: Client> {
    namespace: String,
    event_hub: String,
    access: Access,
    settings: Settings<C>,
}

impl<C: Client> Connector<C> {
    /// Creates a connector. Fails if a connection string is invalid or belongs to another event hub.
    pub(super) fn new(namespace: &str, event_hub: &str, access: Access, settings: Settings<C>) -> Result<Self> {
        if let Access::ConnectionString(connection_string) = &access {
            check(&connection_string.secret(), namespace, event_hub)?;
        }
        Ok(Self { namespace: namespace.to_owned(), event_hub: event_hub.to_owned(), access, settings })
    }

    pub(super) fn event_hub(&self) -> &str {
        &self.event_hub
    }

    /// Returns a number that changes when the access of later clients does.
    pub(super) fn access_version(&self) -> u64 {
        match &self.access {
            Access::ConnectionString(connection_string) => connection_string.version(),
            Access::Token(_) => 0,
        }
    }

    /// Opens a connection.
    pub(super) async fn client(&self) -> Result<C> {
        let failed = || {
            let (namespace, event_hub) = (&self.namespace, &self.event_hub);
            let endpoint = self.emulator_endpoint().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
            let message = format!("cannot connect to event hub {namespace}/{event_hub}{endpoint}");
            Error::new(ErrorKind::EventSource, message)
        };
        match timeout(REQUEST_TIMEOUT, self.open()).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(failed().with_source(error)),
            Err(elapsed) => Err(failed().with_source(elapsed)),
        }
    }

    async fn open(&self) -> Result<C, EventHubsError> {
        let endpoint = self.emulator_endpoint();
        let builder = (self.settings)(endpoint.into_iter().fold(C::builder(), C::at_endpoint));
        match &self.access {
            Access::ConnectionString(connection_string) => {
                let secret = connection_string.secret();
                let named = ConnectionString::try_from(&secret)?;
                // The client requires the name of the event hub in the spelling of the connection string.
                let event_hub = named.entity_path.as_deref().unwrap_or(&self.event_hub);
                C::open_with_connection_string(builder, secret.secret(), event_hub).await
            }
            Access::Token(credential) => {
                C::open_with_credential(builder, &self.namespace, &self.event_hub, credential.clone()).await
            }
        }
    }

    fn emulator_endpoint(&self) -> Option<String> {
        match &self.access {
            Access::ConnectionString(connection_string) => emulator_endpoint(&connection_string.secret()),
            Access::Token(_) => None,
        }
    }
}

/// Checks that the connection string belongs to this event hub.
fn check(secret: &Secret, namespace: &str, event_hub: &str) -> Result<()> {
    let named = parsed(secret)?;
    let host = &named.fully_qualified_namespace;
    if emulator_endpoint(secret).is_some() && host.contains(".servicebus.") {
        return Err(Error::config(format!(
            "the connection string has `UseDevelopmentEmulator=true`, which turns TLS off, but {host} is not an emulator: \
             remove that key"
        )));
    }
    for (what, named, expected) in
        [("namespace", Some(named.fully_qualified_namespace), namespace), ("event hub", named.entity_path, event_hub)]
    {
        if let Some(named) = named.filter(|named| !named.eq_ignore_ascii_case(expected)) {
            return Err(Error::config(format!(
                "the connection string names {what} {named:?}, but {expected:?} is configured: configure the same {what} for both"
            )));
        }
    }
    Ok(())
}

/// Returns the endpoint of the emulator, if the connection string is for one. The client ignores that key.
fn emulator_endpoint(secret: &Secret) -> Option<String> {
    let is_key = |part: &&str| part.trim().eq_ignore_ascii_case("UseDevelopmentEmulator=true");
    secret.secret().split(';').find(is_key)?;
    let endpoint = Url::parse(&ConnectionString::try_from(secret).ok()?.endpoint).ok()?;
    Some(format!("amqp://{}:{}", endpoint.host_str()?, endpoint.port().unwrap_or(AMQP_PORT)))
}

/// Omits the access, which is a secret.
impl<C: Client> fmt::Debug for Connector<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, event_hub) = (&self.namespace, &self.event_hub);
        f.debug_struct("Connector").field("namespace", namespace).field("event_hub", event_hub).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "c2VjcmV0";

    #[test]
    fn the_emulator_is_used_without_tls() {
        for (endpoint, key, expected) in [
            ("sb://localhost:5673", "UseDevelopmentEmulator=true;", Some("amqp://localhost:5673")),
            ("sb://emulator/", "usedevelopmentemulator=true", Some("amqp://emulator:5672")),
            ("sb://localhost", "UseDevelopmentEmulator=false", None),
            ("sb://localhost:5673", "", None),
        ] {
            let text = format!("Endpoint={endpoint};SharedAccessKeyName=a;SharedAccessKey=b; {key}");
            assert_eq!(emulator_endpoint(&Secret::new(text)).as_deref(), expected, "{endpoint} {key}");
        }
    }

    #[test]
    fn a_connection_string_of_another_hub_is_rejected() {
        for (connection_string, named) in [
            ("Endpoint=sb://ns.example.net/;KEY", None),
            ("Endpoint=sb://NS.example.net;KEY;EntityPath=Orders", None),
            ("Endpoint=sb://other.example.net;KEY;EntityPath=orders", Some("\"other.example.net\"")),
            ("Endpoint=sb://ns.example.net;KEY;EntityPath=payments", Some("\"payments\"")),
            ("Endpoint=sb://ns.example.net;EntityPath=orders", Some("missing shared access key")),
            (SECRET, Some("invalid connection string")),
        ] {
            let key = format!("SharedAccessKeyName=n;SharedAccessKey={SECRET}");
            let secret = Secret::new(connection_string.replace("KEY", &key));
            let rejection = check(&secret, "ns.example.net", "orders").err();
            assert_eq!(rejection.is_some(), named.is_some(), "{connection_string}: {rejection:?}");
            let Some(rejection) = rejection else { continue };
            assert_eq!(rejection.kind(), ErrorKind::Config);
            let shown = format!("{rejection} {rejection:?}");
            assert!(shown.contains(named.unwrap_or_default()) && !shown.contains(SECRET), "{shown}");
        }
    }
}
