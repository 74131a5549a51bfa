//! The official Rust processor of this process, on the checkpoint store of this crate, in a fleet.

use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use azure_messaging_eventhubs::ConsumerClient;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::store::StoreConfig;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::fleet::Fleet;
use super::official::{self, Report, Store};
use super::processed::Processed;
use crate::support::azurite;

pub struct AdaptedProcessor {
    owner: String,
    shutdown: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

struct Recorder {
    owner: String,
    processed: Processed,
}

/// What it needs on its thread.
struct Settings {
    owner: String,
    endpoint: String,
    connection_string: String,
    storage: String,
    container: String,
    interval: Duration,
    expiry: Duration,
    processed: Processed,
}

impl Report for Recorder {
    fn started(&self, partition: &str, start: u64, checkpoint: Option<i64>) {
        self.processed.start(&self.owner, partition, Some(start), checkpoint);
    }

    fn processed(&self, partition: &str, start: u64, sequence_numbers: &[i64]) {
        self.processed.add(&self.owner, partition, Some(start), sequence_numbers);
    }

    fn failed(&self, partition: &str, error: String) {
        println!("{}, partition {partition}: {error}", self.owner);
    }
}

impl AdaptedProcessor {
    /// Starts it on a thread of its own, because its streams cannot leave it.
    pub async fn start(fleet: &Fleet, owner: &str) -> Self {
        let settings = Settings {
            owner: owner.to_owned(),
            endpoint: fleet.hub.endpoint(),
            connection_string: fleet.hub.connection_string(),
            storage: azurite::shared().await.unwrap().connection_string(),
            container: fleet.container_name.clone(),
            interval: Duration::from_secs(1),
            expiry: fleet.expiry,
            processed: fleet.processed.clone(),
        };
        let (shutdown, requested) = oneshot::channel();
        let (ending, ended) = oneshot::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, settings.run(requested));
            // An error means that the test has ended.
            let _ = ending.send(());
        });
        Self { owner: owner.to_owned(), shutdown, ended }
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Ends it, then releases its partitions.
    pub async fn shut_down(self) {
        assert!(self.shutdown.send(()).is_ok(), "{} has ended by itself", self.owner);
        self.ended.await.unwrap();
    }
}

impl Settings {
    async fn run(self, shutdown: oneshot::Receiver<()>) {
        let container = AzureContainer::from_connection_string(self.storage, &self.container).unwrap();
        let config = StoreConfig::default().with_lease_duration(self.expiry).with_foreign_lease_duration(self.expiry);
        let adapter: Arc<_> = BlobCheckpointStore::builder(container).with_config(config).build().unwrap();
        let store = Store::new(adapter.clone());
        let consumer = ConsumerClient::builder()
            .with_custom_endpoint(self.endpoint)
            .with_application_id(self.owner.clone())
            .open_with_connection_string(&self.connection_string, None)
            .await
            .unwrap();
        let durations = [self.interval, self.expiry].map(|duration| duration.try_into().unwrap());
        let processor = official::build(consumer, store.clone(), durations).await.unwrap();
        let report = Rc::new(Recorder { owner: self.owner, processed: self.processed });
        let running = official::start(processor, store, report);
        tokio::select! {
            ended = running => panic!("the processor has ended: {ended:?}"),
            _ = shutdown => drop(adapter.release_all().await),
        }
    }
}
