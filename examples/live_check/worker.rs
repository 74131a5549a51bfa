//! One worker process: a processor that writes down what it does.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::processor::{Handler, HandlerError, ProcessorConfig};
use eventhubs_checkpoint::store::{BillingType, StoreConfig};
use eventhubs_checkpoint::{GroupStore, LOG_FILTER, OwnerId, PartitionContext, Processor, StopReason};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::Failure;
use crate::connection::{HubArgs, StorageArgs};
use crate::counted::Counts;
use crate::hub::Hub;
use crate::journal::{Happened, Journal};
use crate::runs::runs;

pub const LEASE_DURATION: Duration = Duration::from_secs(15);
const LOAD_BALANCING_INTERVAL: Duration = Duration::from_secs(3);
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// The environment variable with the settings. They contain secrets, which do not belong on a command line.
pub const SETTINGS: &str = "LIVE_CHECK_SETTINGS";

/// What the check passes to its workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub storage: StorageArgs,
    pub hub: HubArgs,
    pub folder: PathBuf,
}

impl Settings {
    pub fn journal(&self) -> PathBuf {
        self.folder.join("journal")
    }

    /// Returns the file in which a worker keeps the number of its requests.
    pub fn counts(&self, owner: &str) -> PathBuf {
        self.folder.join(format!("{owner}.counts"))
    }

    pub fn log(&self, owner: &str) -> PathBuf {
        self.folder.join(format!("{owner}.log"))
    }
}

struct Worker(Journal);

impl Handler<ReceivedEventData> for Worker {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.0.append(&context, [Happened::Started])
    }

    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        let numbers = events.iter().filter_map(ReceivedEventData::sequence_number);
        self.0.append(&context, runs(numbers).into_iter().map(|(first, last)| Happened::Handled(first, last)))?;
        for event in &events {
            context.checkpoint(event);
        }
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, _reason: StopReason) {
        if let Err(error) = self.0.append(&context, [Happened::Stopped]) {
            tracing::error!(%error, "the journal cannot be written");
        }
    }
}

/// Processes until SIGTERM.
pub async fn run(owner: &str) -> Result<(), Failure> {
    tracing_subscriber::fmt().with_env_filter(LOG_FILTER).with_ansi(false).with_writer(std::io::stderr).init();

    let settings: Settings = serde_json::from_str(&env::var(SETTINGS)?)?;
    let hub = Hub::open(&settings.hub, 0).await?;
    let container = AzureContainer::builder(settings.storage.access()?).build()?;
    let store = GroupStore::builder(Arc::new(container), hub.group().clone(), OwnerId::new(owner)?)
        .with_config(StoreConfig::default().with_lease_duration(LEASE_DURATION))
        .connect()
        .await?;
    let worker = Worker(Journal::open(&settings.journal(), owner)?);
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(LOAD_BALANCING_INTERVAL));
    let processor = Processor::builder(hub.source().await?, store.clone(), worker).with_config(config).build()?;
    let processing = processor.run_until_signal();
    tokio::pin!(processing);
    loop {
        let is_end = tokio::select! {
            ended = &mut processing => ended.map(|_| true)?,
            () = sleep(COUNT_INTERVAL) => false,
        };
        store_counts(&settings, owner, &store)?;
        if is_end {
            return Ok(());
        }
    }
}

/// Replaces the file as a whole, because the process may be killed at any time.
fn store_counts(settings: &Settings, owner: &str, store: &GroupStore) -> Result<(), Failure> {
    let requests = store.request_counts();
    let counts: Vec<_> = BillingType::ALL.iter().map(|billing| requests.billed_as(*billing)).collect();
    let file = settings.counts(owner);
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_string(&counts)?)?;
    Ok(fs::rename(new, file)?)
}

/// Returns the last stored counts of a worker. One that failed early has none.
pub fn read_counts(settings: &Settings, owner: &str) -> Counts {
    let text = fs::read_to_string(settings.counts(owner)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}
