//! Connection strings of an event hub, which can be replaced while clients use them.

use std::fmt;
use std::sync::{Arc, Mutex};

use azure_core::credentials::Secret;
use azure_messaging_eventhubs::ConnectionString;

use crate::error::{Error, Result};
use crate::lock::lock;

/// A connection string that can be replaced while an [`EventHubSource`](crate::EventHubSource) and an
/// [`EventHubDeadLetters`](crate::EventHubDeadLetters) use it, for the rotation of a key.
///
/// Keep a clone, and call [`replace`](Self::replace) before the old key ends. All clones share the string.
///
/// ```no_run
/// # use eventhubs_checkpoint::{ConsumerGroup, eventhubs::EventHubSource};
/// use eventhubs_checkpoint::eventhubs::ReplaceableConnectionString;
///
/// # async fn example(first: String, second: String) -> Result<(), Box<dyn std::error::Error>> {
/// let group = ConsumerGroup::from_connection_string(&first, ConsumerGroup::DEFAULT_NAME)?;
/// let connection_string = ReplaceableConnectionString::new(first);
/// let source = EventHubSource::from_connection_string(&group, connection_string.clone()).connect().await?;
/// // Later, in a task of the application:
/// connection_string.replace(second)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ReplaceableConnectionString {
    current: Arc<Mutex<Versioned>>,
}

#[derive(Clone)]
struct Versioned {
    secret: Secret,
    version: u64,
}

impl ReplaceableConnectionString {
    /// Takes the first connection string. It is checked when a source or sink connects.
    pub fn new(connection_string: impl Into<String>) -> Self {
        let secret = Secret::new(connection_string.into());
        Self { current: Arc::new(Mutex::new(Versioned { secret, version: 0 })) }
    }

    /// Replaces the connection string. Later clients use the new one, and the next request for properties, link or dead
    /// letter opens such a client. A link that is busy stays with its client, and is reopened after the last delivered
    /// event when the event hub rejects the old key, so no event is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the connection string is invalid, or names another namespace
    /// or event hub than the current one. The current one stays in use.
    pub fn replace(&self, connection_string: impl Into<String>) -> Result<()> {
        let secret = Secret::new(connection_string.into());
        let mut current = lock(&self.current);
        check_same_hub(&parsed(&current.secret)?, &parsed(&secret)?)?;
        *current = Versioned { secret, version: current.version + 1 };
        Ok(())
    }

    pub(super) fn secret(&self) -> Secret {
        lock(&self.current).secret.clone()
    }

    /// Returns how many times it was replaced.
    pub(super) fn version(&self) -> u64 {
        lock(&self.current).version
    }
}

impl From<String> for ReplaceableConnectionString {
    fn from(connection_string: String) -> Self {
        Self::new(connection_string)
    }
}

impl From<&String> for ReplaceableConnectionString {
    fn from(connection_string: &String) -> Self {
        Self::new(connection_string)
    }
}

impl From<&str> for ReplaceableConnectionString {
    fn from(connection_string: &str) -> Self {
        Self::new(connection_string)
    }
}

/// Omits the connection string, which holds a key.
impl fmt::Debug for ReplaceableConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplaceableConnectionString").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// Parses a connection string. The error names no part of it.
pub(super) fn parsed(secret: &Secret) -> Result<ConnectionString> {
    let unusable = |error| Error::config("invalid connection string of the event hub").with_source(error);
    ConnectionString::try_from(secret).map_err(unusable)
}

fn check_same_hub(current: &ConnectionString, new: &ConnectionString) -> Result<()> {
    let namespace = |named: &ConnectionString| Some(named.fully_qualified_namespace.clone());
    for (what, current, new) in [
        ("namespace", namespace(current), namespace(new)),
        ("event hub", current.entity_path.clone(), new.entity_path.clone()),
    ] {
        let (Some(current), Some(new)) = (current, new) else { continue };
        if !current.eq_ignore_ascii_case(&new) {
            return Err(Error::config(format!(
                "the new connection string names {what} {new:?}, but the current one names {current:?}: pass a \
                 connection string of the same {what}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const FIRST: &str = "Endpoint=sb://ns.example.net/;SharedAccessKeyName=n;SharedAccessKey=first;EntityPath=orders";

    #[test]
    fn only_a_key_of_the_same_event_hub_is_accepted() {
        for (new, rejection) in [
            (FIRST.replace("first", "second"), None),
            (FIRST.replace("ns.example", "NS.example").replace("=orders", "=Orders"), None),
            (FIRST.replace(";EntityPath=orders", ""), None),
            (FIRST.replace("ns.example", "other.example"), Some("namespace \"other.example.net\"")),
            (FIRST.replace("=orders", "=payments"), Some("event hub \"payments\"")),
            ("second".to_owned(), Some("invalid connection string")),
        ] {
            let connection_string = ReplaceableConnectionString::from(FIRST);
            let shared = connection_string.clone();
            let replaced = connection_string.replace(new.as_str());
            let expected = if rejection.is_some() { FIRST } else { &new };
            assert_eq!(
                (shared.secret().secret(), shared.version()),
                (expected, u64::from(rejection.is_none())),
                "{new}"
            );
            let Some(rejection) = rejection else { continue };
            let error = replaced.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(rejection), "{error}");
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        let connection_string = ReplaceableConnectionString::from(FIRST);
        let error = connection_string.replace("SharedAccessKey=second").unwrap_err();
        for shown in [format!("{connection_string:?}"), format!("{error} {error:?}")] {
            assert!(!shown.contains("first") && !shown.contains("second"), "{shown}");
        }
    }
}
