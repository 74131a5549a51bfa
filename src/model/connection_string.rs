//! The names in the connection string of an event hub.

/// The names in a connection string, read as the official clients do: keys in any case, each value up to the next `;`.
/// The rest of the string is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HubNames {
    /// The host of `Endpoint`.
    pub(super) namespace: Option<String>,
    /// `EntityPath`.
    pub(super) event_hub: Option<String>,
}

impl HubNames {
    pub(super) fn of(connection_string: &str) -> Self {
        let mut names = Self::default();
        for (key, value) in connection_string.split(';').filter_map(|part| part.trim().split_once('=')) {
            if key.eq_ignore_ascii_case("Endpoint") {
                names.namespace = host(value);
            } else if key.eq_ignore_ascii_case("EntityPath") {
                names.event_hub = Some(value.to_owned()).filter(|name| !name.is_empty());
            }
        }
        names
    }
}

fn host(endpoint: &str) -> Option<String> {
    let (_, rest) = endpoint.split_once("://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _port)| host);
    Some(host.to_owned()).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hostile::hostile_text;

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
            let names = HubNames::of(text);
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
            let names = HubNames::of(&text);
            for name in [names.namespace, names.event_hub].into_iter().flatten() {
                prop_assert!(!name.is_empty() && text.contains(&name) && !name.contains(';'), "{}", name);
            }
        }
    }
}
