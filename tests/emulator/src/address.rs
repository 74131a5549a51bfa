//! The addresses of an event hub's AMQP nodes.

use percent_encoding::percent_decode_str;

/// The last segment of the address of a node that responds to requests.
pub(super) const MANAGEMENT: &str = "$management";

/// The node that an address names. The hub, the group and the partition may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// `$cbs`: accepts tokens.
    Cbs,
    /// `$management`, alone or below a hub: responds to requests.
    Management,
    /// `{hub}`: accepts events for any partition.
    Hub { hub: String },
    /// `{hub}/Partitions/{id}`: accepts events for this partition.
    Partition { hub: String, partition: String },
    /// `{hub}/ConsumerGroups/{group}/Partitions/{id}`: sends events of this partition.
    ConsumerGroup { hub: String, group: String, partition: String },
}

impl Address {
    /// Parses an address, which clients send as a path or as a full URL. Returns `None` if it names no known node.
    pub(super) fn parse(address: &str) -> Option<Self> {
        let segments = segments(address);
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match segments[..] {
            ["$cbs"] => Some(Self::Cbs),
            [MANAGEMENT] | [_, MANAGEMENT] => Some(Self::Management),
            [hub] => Some(Self::Hub { hub: hub.to_owned() }),
            [hub, below, partition] if below.eq_ignore_ascii_case("partitions") => {
                Some(Self::Partition { hub: hub.to_owned(), partition: partition.to_owned() })
            }
            [hub, groups, group, below, partition]
                if groups.eq_ignore_ascii_case("consumergroups") && below.eq_ignore_ascii_case("partitions") =>
            {
                Some(Self::ConsumerGroup {
                    hub: hub.to_owned(),
                    group: group.to_owned(),
                    partition: partition.to_owned(),
                })
            }
            _ => None,
        }
    }
}

/// Returns the segments of an address in lower case, without the host.
pub(super) fn path(address: &str) -> Vec<String> {
    segments(address).iter().map(|segment| segment.to_lowercase()).collect()
}

fn segments(address: &str) -> Vec<String> {
    let path = match address.split_once("://") {
        Some((_scheme, rest)) => rest.split_once('/').map_or("", |(_host, path)| path),
        None => address,
    };
    path.split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls_are_equivalent() {
        let receiver = Address::ConsumerGroup { hub: "hub".into(), group: "$Default".into(), partition: "3".into() };
        for address in [
            "hub/ConsumerGroups/$Default/Partitions/3",
            "/hub/ConsumerGroups/$Default/Partitions/3",
            "amqps://localhost/hub/ConsumerGroups/$Default/Partitions/3",
            "amqps://localhost/hub/consumergroups/%24Default/partitions/3",
        ] {
            assert_eq!(Address::parse(address), Some(receiver.clone()), "{address}");
        }
    }

    #[test]
    fn every_node_is_parsed() {
        let partition = Address::Partition { hub: "hub".into(), partition: "0".into() };
        for (address, expected) in [
            ("$cbs", Address::Cbs),
            ("amqps://localhost/$cbs", Address::Cbs),
            ("$management", Address::Management),
            ("hub/$management", Address::Management),
            ("amqps://localhost/hub", Address::Hub { hub: "hub".into() }),
            ("hub/Partitions/0", partition),
        ] {
            assert_eq!(Address::parse(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn other_addresses_are_rejected() {
        for address in ["", "amqps://localhost", "hub/Publishers/me", "hub/ConsumerGroups/$Default", "a/b/c/d/e/f"] {
            assert_eq!(Address::parse(address), None, "{address}");
        }
    }
}
