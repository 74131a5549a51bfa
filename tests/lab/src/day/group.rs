//! The event hub, the storage and the credentials of a group.

use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::RenewableCredential;
use eventhubs_emulator::EventHubEmulator;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Failure;
use super::args::Args;
use super::instances::Instance;
use super::reading::Reading;
use super::relay::{Relay, Traffic};
use super::{official, processor};
use crate::entra::CachingCredential;

/// The name of the event hub.
pub(super) const HUB: &str = "hub";

/// How often each partition gets an event.
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// An encoded event: a data section of two bytes.
const EVENT: &[u8] = b"\x00\x53\x75\xa0\x02ok";

/// What one instance gets.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) endpoint: String,
    pub(super) container: Arc<dyn BlobContainer>,
    pub(super) credential: Arc<dyn TokenCredential>,
    pub(super) reading: Reading,
}

/// What all instances share.
pub(super) struct Group {
    pub(super) hub: EventHubEmulator,
    pub(super) reading: Reading,
    /// Between the instances and the event hub.
    relay: Relay,
    container: Arc<dyn BlobContainer>,
    credentials: Vec<Arc<CachingCredential>>,
    token_life: Duration,
}

impl Group {
    pub(super) async fn new(args: &Args, traffic: Traffic) -> Result<Self, Failure> {
        let hub = EventHubEmulator::builder(HUB).with_partitions(args.partitions).start("127.0.0.1:0").await?;
        let relay = Relay::start(hub.port(), traffic).await?;
        Ok(Self {
            hub,
            relay,
            reading: Reading::default(),
            container: Arc::new(MemoryContainer::new()),
            credentials: Vec::new(),
            token_life: Duration::from_secs(args.token_minutes * 60),
        })
    }

    /// Starts an instance with a credential of its own.
    pub(super) async fn start_instance(&mut self, args: &Args) -> Result<Instance, Failure> {
        let credential = Arc::new(CachingCredential::new(&self.hub, self.token_life));
        let host = Host {
            name: format!("instance-{}", self.credentials.len()),
            endpoint: self.relay.endpoint(),
            container: Arc::clone(&self.container),
            credential: credential.clone(),
            reading: self.reading.clone(),
        };
        self.credentials.push(credential);
        Ok(match (args.official, args.unwrapped) {
            (false, _) => Instance::Ours(Box::new(processor::Instance::start(host).await?)),
            (true, true) => Instance::Official(official::Instance::start(host).await?),
            (true, false) => {
                let credential = RenewableCredential::new(host.credential);
                Instance::Official(official::Instance::start(Host { credential, ..host }).await?)
            }
        })
    }

    /// Publishes an event to each partition once a second, until the task is aborted.
    pub(super) fn publish(&self) -> JoinHandle<()> {
        let hub = self.hub.clone();
        let reading = self.reading.clone();
        tokio::spawn(async move {
            let partitions = hub.partition_ids();
            loop {
                for partition in &partitions {
                    if hub.append_raw(partition, EVENT).is_some() {
                        reading.published(partition);
                    }
                }
                sleep(EVENT_EVERY).await;
            }
        })
    }

    /// Detaches the reader of a partition. There may be none at the moment.
    pub(super) fn detach_one(&self, rng: &mut StdRng) {
        if let Some(partition) = self.hub.partition_ids().choose(rng) {
            let _ = self.hub.detach_receivers(ConsumerGroup::DEFAULT_NAME, partition);
        }
    }

    /// Returns how many tokens were issued to all instances.
    pub(super) fn tokens_issued(&self) -> usize {
        self.credentials.iter().map(|credential| credential.issued()).sum()
    }
}
