//! The checkpoint store of another SDK, as an owner of partitions.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use eventhubs_checkpoint::Position;
use eventhubs_checkpoint::blob::ETag;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::sdk::{Process, Sdk};
use crate::bench::{Backend, Bench};
use crate::support::azurite;

/// The owner of each partition, an empty name if it is unowned, and the version of the record.
pub type Owners = BTreeMap<u32, (String, ETag)>;

/// How far each partition was processed.
pub type Positions = BTreeMap<u32, Position>;

pub struct Peer {
    sdk: Sdk,
    process: &'static Mutex<Process>,
    container: String,
}

#[derive(Deserialize)]
struct Owned {
    partition: String,
    /// In Python an empty value is read as none.
    owner: Option<String>,
    etag: String,
}

#[derive(Deserialize)]
struct Reached {
    partition: String,
    sequence_number: i64,
    offset: String,
}

impl Peer {
    /// Joins the others on the container of the bench.
    pub async fn join(sdk: Sdk, bench: &Bench) -> Self {
        let Backend::Azurite(container) = &bench.backend else { panic!("only in Azurite") };
        let connection_string = azurite::shared().await.unwrap().connection_string();
        Self { sdk, process: sdk.process(&connection_string, bench.case), container: container.clone() }
    }

    /// Returns the name under which it owns partitions.
    pub fn name(&self) -> &'static str {
        match self.sdk {
            Sdk::JavaScript => "a-javascript-processor",
            Sdk::Python => "a-python-processor",
            Sdk::Java => "a-java-processor",
            Sdk::Go => "a-go-processor",
            Sdk::Rust => "a-rust-processor",
        }
    }

    pub fn owners(&self) -> Owners {
        let listed: Vec<Owned> = self.ask("ownerships", json!({}));
        listed
            .into_iter()
            .map(|owned| (owned.partition.parse().unwrap(), (owned.owner.unwrap_or_default(), ETag::new(&owned.etag))))
            .collect()
    }

    /// Claims or renews a partition over a version that it has read, or over none. Returns the version that it won.
    pub fn claim(&self, partition: u32, over: Option<&ETag>) -> Option<ETag> {
        self.write_ownership(partition, self.name(), over)
    }

    /// Claims a partition like its balancer, over the version that it lists.
    pub fn take(&self, partition: u32) {
        assert!(self.claim(partition, Some(&self.owners()[&partition].1)).is_some(), "refused");
    }

    /// Releases a partition as it does at shutdown.
    pub fn release(&self, partition: u32) {
        assert!(self.write_ownership(partition, "", Some(&self.owners()[&partition].1)).is_some(), "refused");
    }

    pub fn write_ownership(&self, partition: u32, owner: &str, over: Option<&ETag>) -> Option<ETag> {
        let partition = partition.to_string();
        let written: Vec<Owned> =
            self.ask("claim", json!({ "partition": partition, "owner": owner, "etag": over.map(ETag::quoted) }));
        written.first().map(|owned| ETag::new(&owned.etag))
    }

    pub fn positions(&self) -> Positions {
        let listed: Vec<Reached> = self.ask("checkpoints", json!({}));
        let position = |Reached { sequence_number, offset, .. }| Position::new(sequence_number, offset);
        listed.into_iter().map(|reached| (reached.partition.parse().unwrap(), position(reached))).collect()
    }

    pub fn checkpoint(&self, partition: u32, position: &Position) {
        let Position { sequence_number, offset, .. } = position;
        let partition = partition.to_string();
        let arguments = json!({ "partition": partition, "sequence_number": sequence_number, "offset": offset });
        self.ask::<()>("checkpoint", arguments);
    }

    fn ask<T: DeserializeOwned>(&self, what: &str, mut command: Value) -> T {
        command["do"] = what.into();
        command["container"] = self.container.as_str().into();
        // If another test failed, this one may still pass.
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::from_value(process.ask(&command)).unwrap()
    }
}
