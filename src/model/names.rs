//! Names of consumer groups and partitions, the rules for names, their conversions from and to text, and the casing of
//! blob names.
//!
//! If the name of a group contains capitals, some SDKs use blob names in lower case, and others the names as given.
//! `$Default` is such a name.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Serialize};

/// An invalid name and the rule that it violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} cannot be used: {rule}")]
pub struct InvalidName {
    what: &'static str,
    value: String,
    rule: &'static str,
}

impl InvalidName {
    pub(super) fn new(what: &'static str, value: &str, rule: &'static str) -> Self {
        Self { what, value: value.chars().take(80).collect(), rule }
    }
}

/// Reads an id that a configuration file has as text or as a number.
pub(super) struct IdVisitor<T>(pub(super) PhantomData<T>);

impl<T: for<'a> TryFrom<&'a str, Error: fmt::Display>> Visitor<'_> for IdVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id, as text or as a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::try_from(text).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

/// Implements the usual conversions for an id with `new(impl AsRef<str>) -> Result<Self, InvalidName>` and `as_str`.
macro_rules! text_conversions {
    ($id:ty) => {
        impl std::str::FromStr for $id {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $id {
            type Error = InvalidName;

            fn try_from(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $id {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $id {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl std::fmt::Display for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::fmt::Debug for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl serde::Serialize for $id {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $id {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(crate::model::names::IdVisitor(std::marker::PhantomData))
            }
        }
    };
}

pub(super) use text_conversions;

/// One [consumer group](crate::guide::glossary#consumer-group) of one event hub, which the instances of an application
/// share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ConsumerGroup {
    namespace: String,
    event_hub: String,
    name: String,
}

impl ConsumerGroup {
    /// The name of the consumer group that every event hub has.
    pub const DEFAULT_NAME: &'static str = "$Default";

    /// Creates a consumer group from the fully qualified namespace (`example.servicebus.windows.net`), the event hub
    /// and the name of the group (usually [`DEFAULT_NAME`](Self::DEFAULT_NAME)).
    ///
    /// # Errors
    ///
    /// If a part is empty, contains a `/` or a control character, ends with a dot, or is longer than 256 characters.
    /// The three parts are segments of blob names, and Azure drops dots at the end of segments. Write the namespace
    /// without the final dot of the DNS root.
    ///
    /// ```
    /// use eventhubs_checkpoint::ConsumerGroup;
    /// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    /// assert_eq!(group.event_hub(), "orders");
    /// # Ok::<(), eventhubs_checkpoint::InvalidName>(())
    /// ```
    pub fn new(
        namespace: impl Into<String>,
        event_hub: impl Into<String>,
        name: impl Into<String>,
    ) -> Result<Self, InvalidName> {
        let group = Self { namespace: namespace.into(), event_hub: event_hub.into(), name: name.into() };
        check_segment("namespace", &group.namespace)?;
        check_segment("event hub", &group.event_hub)?;
        check_segment("consumer group", &group.name)?;
        Ok(group)
    }

    /// Creates a consumer group of the event hub in a connection string. The portal shows the connection string of an
    /// event hub, which contains its `EntityPath`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and if the connection string contains no namespace or no event hub. The error contains
    /// nothing of the connection string, because that contains a key. The connection string of a whole namespace has no
    /// `EntityPath`: add `;EntityPath=NAME`, or use [`new`](Self::new).
    ///
    /// ```
    /// use eventhubs_checkpoint::ConsumerGroup;
    /// let hub = "Endpoint=sb://example.servicebus.windows.net/;SharedAccessKeyName=listen;SharedAccessKey=a2V5;EntityPath=orders";
    /// let group = ConsumerGroup::from_connection_string(hub, ConsumerGroup::DEFAULT_NAME)?;
    /// assert_eq!(group.to_string(), "example.servicebus.windows.net/orders/$Default");
    /// # Ok::<(), eventhubs_checkpoint::InvalidName>(())
    /// ```
    pub fn from_connection_string(connection_string: &str, name: impl Into<String>) -> Result<Self, InvalidName> {
        let names = HubNames::parse(connection_string);
        let namespace = names.namespace.ok_or_else(|| {
            InvalidName::new("namespace", "", "the connection string has no Endpoint=sb://NAMESPACE/")
        })?;
        let event_hub = names
            .event_hub
            .ok_or_else(|| InvalidName::new("event hub", "", "the connection string has no EntityPath=NAME: add it"))?;
        for (what, value) in [("namespace", &namespace), ("event hub", &event_hub)] {
            check_part(what, value)
                .map_err(|error| InvalidName { value: "(from the connection string)".to_owned(), ..error })?;
        }
        Self::new(namespace, event_hub, name)
    }

    /// Returns the fully qualified namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name of the event hub.
    #[must_use]
    pub fn event_hub(&self) -> &str {
        &self.event_hub
    }

    /// Returns the name of the consumer group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ConsumerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.event_hub, self.name)
    }
}

fn check_segment(what: &'static str, value: &str) -> Result<(), InvalidName> {
    if value.is_empty() {
        return Err(InvalidName::new(what, value, "it must not be empty"));
    }
    if value.contains('/') || value.chars().any(char::is_control) {
        return Err(InvalidName::new(what, value, "it must not contain '/' or control characters"));
    }
    if value.ends_with('.') {
        return Err(InvalidName::new(what, value, "it must not end with a dot, which the storage drops"));
    }
    if value.chars().count() > 256 {
        return Err(InvalidName::new(what, value, "it must not be longer than 256 characters"));
    }
    Ok(())
}

/// Checks a name from a connection string. With a wrong separator it contains the parts that follow, such as the key.
fn check_part(what: &'static str, value: &str) -> Result<(), InvalidName> {
    if value.contains('=') {
        return Err(InvalidName::new(what, value, "it must not contain '=': the parts are separated by ';'"));
    }
    check_segment(what, value)
}

/// The names in a connection string, read as the official clients do: keys in any case, each value up to the next `;`.
/// The rest of the string is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HubNames {
    /// The host of `Endpoint`.
    namespace: Option<String>,
    /// `EntityPath`.
    event_hub: Option<String>,
}

impl HubNames {
    fn parse(connection_string: &str) -> Self {
        let mut names = Self::default();
        for (key, value) in connection_string.split(';').filter_map(|part| part.trim().split_once('=')) {
            if key.eq_ignore_ascii_case("Endpoint") {
                names.namespace = parse_host(value);
            } else if key.eq_ignore_ascii_case("EntityPath") {
                names.event_hub = Some(value.to_owned()).filter(|name| !name.is_empty());
            }
        }
        names
    }
}

fn parse_host(endpoint: &str) -> Option<String> {
    let (_, rest) = endpoint.split_once("://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _port)| host);
    Some(host.to_owned()).filter(|host| !host.is_empty())
}

/// The id of one partition of an event hub. Numeric ids, as Event Hubs uses them, are ordered by number.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PartitionId {
    /// The order of the id, parsed once because ids are compared often. Ids that are not numbers come last.
    number: u64,
    text: Arc<str>,
}

impl PartitionId {
    /// Creates an id from the text that the event hub uses. [`FromStr`](std::str::FromStr), [`TryFrom`] and
    /// `Deserialize` do the same.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if the text is empty, contains a `/` or a control character, ends with a dot, or is longer than
    /// 256 characters, because it is the last segment of a blob name.
    pub fn new(id: impl AsRef<str>) -> Result<Self, InvalidName> {
        let id = id.as_ref();
        check_segment("partition id", id)?;
        Ok(Self { number: id.parse().unwrap_or(u64::MAX), text: id.into() })
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<u32> for PartitionId {
    fn from(number: u32) -> Self {
        Self { number: number.into(), text: number.to_string().into() }
    }
}

impl Ord for PartitionId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number).then_with(|| self.text.cmp(&other.text))
    }
}

impl PartialOrd for PartitionId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

text_conversions!(PartitionId);

/// How the first three segments of a blob name are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NameCase {
    /// In lower case, as the .NET, Java, JavaScript and Python processors do.
    Lower,
    /// As given, as the official Go and Rust stores do. The two casings already differ for `$Default`.
    Verbatim,
}

impl NameCase {
    /// Returns the other casing, which other programs may use for the names of the same group.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Lower => Self::Verbatim,
            Self::Verbatim => Self::Lower,
        }
    }
}

/// Writes the casing as it is serialized.
impl fmt::Display for NameCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lower => "lower",
            Self::Verbatim => "verbatim",
        })
    }
}

/// Which casing of the blob names a store uses. Without capitals in the names of the group, the casings are the same.
///
/// All instances of a group must use one casing, because an instance does not see records under the other one. So a
/// store does not connect while the group has a live owner in the other casing.
///
/// ```
/// use eventhubs_checkpoint::StoreConfig;
/// use eventhubs_checkpoint::store::BlobNameCase;
///
/// // For a group whose other instances use the official Rust or Go store.
/// let config = StoreConfig::default().with_blob_name_case(BlobNameCase::Verbatim);
/// # let _ = config;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BlobNameCase {
    /// The casing in which the group has records. If it has none, [`Lower`](Self::Lower), which most SDKs use. If it has
    /// records in both casings: the one with live owners, else the one with the newest checkpoint, else
    /// [`Lower`](Self::Lower). The default.
    #[default]
    Auto,
    /// [Lower case](NameCase::Lower).
    Lower,
    /// [As given](NameCase::Verbatim).
    Verbatim,
}

impl BlobNameCase {
    /// Returns the casing, unless the records of the group decide.
    #[must_use]
    pub fn explicit(self) -> Option<NameCase> {
        match self {
            Self::Auto => None,
            Self::Lower => Some(NameCase::Lower),
            Self::Verbatim => Some(NameCase::Verbatim),
        }
    }
}

impl From<NameCase> for BlobNameCase {
    fn from(case: NameCase) -> Self {
        match case {
            NameCase::Lower => Self::Lower,
            NameCase::Verbatim => Self::Verbatim,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::hostile::hostile_text;

    #[test]
    fn an_id_is_text_or_a_number_in_a_configuration() {
        for text in ["7", "\"7\""] {
            assert_eq!(serde_json::from_str::<PartitionId>(text).unwrap(), PartitionId::from(7), "{text}");
        }
        for text in ["{}", "-1", "\"\""] {
            assert!(serde_json::from_str::<PartitionId>(text).is_err(), "{text}");
        }
        let error = serde_json::from_str::<PartitionId>("{}").unwrap_err().to_string();
        assert!(error.contains("as text or as a number"), "{error}");
    }

    #[test]
    fn a_name_case_is_chosen_explicitly() {
        assert_eq!(BlobNameCase::default().explicit(), None);
        for case in [NameCase::Lower, NameCase::Verbatim] {
            assert_eq!(BlobNameCase::from(case).explicit(), Some(case));
        }
        assert_ne!(NameCase::Lower.to_string(), NameCase::Verbatim.to_string());
    }

    #[test]
    fn partition_ids_are_ordered_by_number() {
        let mut ids: Vec<_> = ["10", "9", "x", "1"].map(|id| PartitionId::new(id).unwrap()).into();
        ids.sort();
        assert_eq!(format!("{ids:?}"), "[1, 9, 10, x]");
    }

    #[test]
    fn invalid_names_are_rejected_with_value_and_rule() {
        let error = ConsumerGroup::new("ns", "a/b", "$Default").unwrap_err().to_string();
        assert_eq!(error, r#"event hub "a/b" cannot be used: it must not contain '/' or control characters"#);
        assert!(ConsumerGroup::new("", "hub", "$Default").is_err());
        assert!(ConsumerGroup::new("ns", "hub", "g".repeat(257)).is_err());
        let longest = ConsumerGroup::new("ns", "hub", "g".repeat(256)).unwrap();
        assert_eq!((longest.namespace(), longest.event_hub(), longest.name()), ("ns", "hub", &*"g".repeat(256)));
        assert_eq!(ConsumerGroup::new("ns", "hub", "$Default").unwrap().to_string(), "ns/hub/$Default");
        assert!(PartitionId::new("").is_err());
    }

    /// With a wrong separator, a name contains the key.
    #[test]
    fn errors_show_nothing_of_a_connection_string() {
        for text in [
            "Endpoint=sb://ns.servicebus.windows.net/;EntityPath=orders,SharedAccessKey=hush/hush=",
            "Endpoint=sb://ns.servicebus.windows.net,SharedAccessKey=hush.;EntityPath=orders",
            "Endpoint=sb://ns.servicebus.windows.net/;EntityPath=orders,SharedAccessKey=hush",
        ] {
            let error = ConsumerGroup::from_connection_string(text, "$Default").unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hush") && shown.contains("it must not"), "{shown}");
        }
        let hub = "Endpoint=sb://ns.servicebus.windows.net/;EntityPath=orders";
        let error = ConsumerGroup::from_connection_string(hub, "a/b").unwrap_err().to_string();
        assert!(error.contains("consumer group \"a/b\""), "{error}");
    }

    /// Azure drops the dot from the names of blobs, but not from the prefix of a listing, so that no listing would
    /// contain what is written.
    #[test]
    fn names_with_a_final_dot_are_rejected() {
        let error = ConsumerGroup::new("ns.servicebus.windows.net.", "hub", "g").unwrap_err().to_string();
        assert!(error.contains("\"ns.servicebus.windows.net.\"") && error.contains("end with a dot"), "{error}");
        assert!(ConsumerGroup::new("ns", "hub.", "g").is_err());
        assert!(ConsumerGroup::new("ns", "hub", "g.").is_err());
        assert!(PartitionId::new("0.").is_err());
        assert!(ConsumerGroup::new("ns.servicebus.windows.net", "hub.1", "g.1").is_ok());
    }

    #[test]
    fn finds_the_names() {
        let ns = "ns.servicebus.windows.net";
        for (text, namespace, event_hub) in [
            (
                "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=a==;EntityPath=orders",
                ns,
                "orders",
            ),
            ("endpoint=sb://ns.servicebus.windows.net; entitypath=orders ", ns, "orders"),
            ("Endpoint=sb://ns.servicebus.windows.net/;EntityPath=", ns, ""),
            ("Endpoint=sb://localhost:5673;UseDevelopmentEmulator=true;EntityPath=orders", "localhost", "orders"),
            ("Endpoint=sb://;EntityPath", "", ""),
            ("Endpoint=localhost", "", ""),
            ("", "", ""),
        ] {
            let names = HubNames::parse(text);
            assert_eq!(names.namespace.unwrap_or_default(), namespace, "{text}");
            assert_eq!(names.event_hub.unwrap_or_default(), event_hub, "{text}");
        }
    }

    const SAMPLES: &[&str] = &[
        "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=aHVzaC1odXNo;EntityPath=orders",
        "Endpoint=sb://localhost:5673;SharedAccessKey=aHVzaC1odXNo;UseDevelopmentEmulator=true;EntityPath=orders",
    ];

    proptest! {
        #[test]
        fn any_text_has_names_or_none(text in hostile_text(SAMPLES)) {
            let names = HubNames::parse(&text);
            for name in [names.namespace, names.event_hub].into_iter().flatten() {
                prop_assert!(!name.is_empty() && text.contains(&name) && !name.contains(';'), "{}", name);
            }
        }
    }
}
