//! What a consumer needs to know.

use serde::{Deserialize, Serialize};

pub(crate) const PARTITIONS: u16 = 8;
pub(crate) const EVENT_HUB: &str = "orders";
pub(crate) const CONSUMER_GROUP: &str = "$Default";
pub(crate) const BATCH: u32 = 100;

/// The settings of one consumer, as its command line has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The connection string of the storage, through the proxy.
    pub(crate) storage: String,
    pub(crate) container: String,
    /// The connection string of the event hub.
    pub(crate) event_hub: String,
    /// The address of the event hub, which the connection string does not contain.
    pub(crate) endpoint: String,
    pub(crate) port: u16,
    pub(crate) consumer_group: String,
    /// Claims all partitions at once. Otherwise everything has its default.
    pub(crate) greedy: bool,
    /// Waits for each checkpoint, as the other SDKs do.
    pub(crate) durable: bool,
    /// The number of events after which the consumer reports that it has processed them.
    pub(crate) expected: u32,
}

/// A line that a consumer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Versions(String),
    /// The first event of this partition arrived.
    First(String),
    /// So many events were processed.
    Processed(u32),
    /// The consumer lost this partition.
    Lost(String),
}

/// The versions of all crates of this program.
const LOCK: &str = include_str!("../../../../Cargo.lock");

impl Line {
    /// Returns the line with the versions of these crates.
    pub(crate) fn versions(crates: &[&str]) -> Self {
        let version = |name: &str| {
            let (_, entry) = LOCK.split_once(&format!("name = \"{name}\"\nversion = \""))?;
            Some(format!("{name} {}", entry.split_once('"')?.0))
        };
        Self::Versions(crates.iter().filter_map(|name| version(name)).collect::<Vec<_>>().join(", "))
    }

    pub(crate) fn print(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            println!("{line}");
        }
    }
}
