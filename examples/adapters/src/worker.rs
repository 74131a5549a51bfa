//! One worker process: where it connects to, and where it writes.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::{
    AzureContainer, ConsumerGroup, EventHubSource, GroupStore, LOG_FILTER, OwnerId, PartitionId,
};

use crate::Adapter;
use crate::journal::Journal;
use crate::signals;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Partitions and numbers of events.
pub type Results = Vec<(String, i64)>;

/// Short, so that the example ends in seconds. The default is 60 s.
const LEASE_DURATION: Duration = Duration::from_secs(4);
const LOAD_BALANCING_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Args)]
pub struct Worker {
    pub owner: String,
    /// The folder of the run.
    pub folder: PathBuf,
    pub container: String,
    pub storage: String,
    /// The connection string of the event hub. Contains the address of the emulator.
    pub hub: String,
}

impl Worker {
    #[cfg(test)]
    pub fn new(folder: &Path) -> Self {
        let [owner, container, storage, hub] = Default::default();
        Self { owner, folder: folder.to_owned(), container, storage, hub }
    }

    /// Processes until SIGTERM.
    pub async fn run(&self, adapter: Adapter) -> Result<(), Failure> {
        tracing_subscriber::fmt().with_env_filter(LOG_FILTER).with_ansi(false).with_writer(std::io::stderr).init();
        adapter.run(self).await
    }

    pub async fn connect(&self) -> Result<(EventHubSource, GroupStore), Failure> {
        let group = ConsumerGroup::from_connection_string(&self.hub, ConsumerGroup::DEFAULT_NAME)?;
        let container = AzureContainer::from_connection_string(&self.storage, &self.container)?;
        container.create_container().await?;
        let store = GroupStore::builder(Arc::new(container), group.clone(), OwnerId::new(&self.owner)?)
            .with_config(StoreConfig::default().with_lease_duration(LEASE_DURATION))
            .connect()
            .await?;
        let source = EventHubSource::from_connection_string(&group, self.hub.clone()).connect().await?;
        Ok((source, store))
    }

    pub fn config(&self) -> ProcessorConfig {
        ProcessorConfig::default()
            .with_balancer(|balancer| balancer.with_load_balancing_interval(LOAD_BALANCING_INTERVAL))
    }

    pub fn asked_to_end(&self) -> impl Future<Output = ()> + Send + use<> {
        signals::asked_to_end()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes results that survive any end of the process.
    pub fn write_results(
        &self,
        partition: &PartitionId,
        numbers: impl IntoIterator<Item = i64>,
    ) -> Result<(), Failure> {
        Ok(Journal::open(&self.folder.join("results"))?.append(partition, numbers, &self.owner)?)
    }

    pub fn written_results(&self) -> Result<Results, Failure> {
        let lines = match fs::read_to_string(self.folder.join("results")) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Results::new()),
            lines => lines?,
        };
        let mut results = Results::new();
        for line in lines.lines() {
            let [partition, first, last, _] = line.split(' ').collect::<Vec<_>>()[..] else {
                return Err(format!("the results have the line {line:?}").into());
            };
            results.extend((first.parse()?..=last.parse()?).map(|number: i64| (partition.to_owned(), number)));
        }
        Ok(results)
    }

    /// Returns whether this has not happened in this run before.
    pub fn is_first_time(&self, what: impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        File::create_new(self.folder.join(format!("happened-{:x}", hasher.finish()))).is_ok()
    }
}
