//! A hub with a continuous load, a container, and the processors of all SDKs that share them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use azure_core::base64;
use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;
use eventhubs_checkpoint::admin::{Operator, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{CheckpointPolicy, Processor, ProcessorConfig};
use eventhubs_checkpoint::store::{BlobNameCase, GroupStore, NameCase, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId, Position};
use eventhubs_emulator::{DEFAULT_KEY, DEFAULT_KEY_NAME, EventHubEmulator, EventHubEmulatorBuilder};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::crate_processor::{CrateProcessor, Recorder};
use super::foreign_processor::ForeignProcessor;
use super::processed::Processed;
use super::sdk::Sdk;
use crate::publisher::{Address, Load, publish};
use crate::sas::{FUTURE, account_sas, fresh_name};
use crate::support::azurite;

/// Far longer than any step here takes, even on a busy machine. A client can lose a link without an error, and lag
/// checks find that after a minute or two.
pub const TIMEOUT: Duration = Duration::from_secs(240);

/// The load-balancing interval of all processors, and the lease duration for all of them.
const INTERVAL: Duration = Duration::from_secs(1);
pub const EXPIRY: Duration = Duration::from_secs(10);

/// How long an operator waits if other SDKs are in the group: several of their intervals.
const SETTLE: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(100);

/// Events are published for as long as the fleet exists.
const LOAD: Load = Load { events_per_batch: 5, event_size: 100, pace: Duration::from_millis(50) };

pub struct Fleet {
    pub hub: EventHubEmulator,
    pub container: Arc<AzureContainer>,
    pub container_name: String,
    /// The casing of the blob names that all processors use.
    pub case: NameCase,
    /// How the processors of this crate choose it.
    pub own_case: BlobNameCase,
    /// The lease duration of all processors.
    pub expiry: Duration,
    /// A processor without an owner level. The event hub refuses it while the previous owner of a partition reads on.
    pub refusable: Option<String>,
    /// Processors that read on when they lose an ownership, with an owner level.
    pub reading_on: Vec<String>,
    lower: GroupStore,
    verbatim: GroupStore,
    pub processed: Processed,
    /// How many batches to publish.
    wanted: watch::Sender<u32>,
    publishing: JoinHandle<()>,
}

/// The owner of each partition by the records, an empty name if it is unowned, and the age of the record.
pub type Records = BTreeMap<String, (String, Duration)>;

/// The position of each partition.
pub type Positions = BTreeMap<String, Position>;

impl Fleet {
    /// Creates a fleet without any processor. Events are published until it is dropped.
    pub async fn new(partitions: u16) -> Self {
        Self::with_batches(partitions, u32::MAX).await
    }

    /// Creates a fleet without any processor, for which this many batches are published.
    pub async fn with_batches(partitions: u16, batches: u32) -> Self {
        Self::on(Self::event_hub(partitions), batches).await
    }

    /// Creates a fleet that uses the blob names of this SDK. The instances of this crate are configured with their
    /// blob-name casing, because they may start before any record shows it.
    pub async fn with_names_of(sdk: Sdk, partitions: u16) -> Self {
        let mut fleet = Self::new(partitions).await;
        fleet.case = sdk.name_case();
        fleet.own_case = fleet.case.into();
        fleet
    }

    /// Describes the event hub of a fleet.
    pub fn event_hub(partitions: u16) -> EventHubEmulatorBuilder {
        EventHubEmulator::builder("orders")
            .with_partitions(partitions)
            .with_consumer_group("tools")
            .with_consumer_group("billing")
    }

    /// Creates a fleet without any processor on this event hub, for which this many batches are published.
    pub async fn on(event_hub: EventHubEmulatorBuilder, batches: u32) -> Self {
        let hub = event_hub.start("127.0.0.1:0").await.unwrap();
        let container_name = fresh_name();
        let connection_string = azurite::shared().await.unwrap().connection_string();
        let container = AzureContainer::from_connection_string(connection_string.clone(), &container_name).unwrap();
        container.create_container().await.unwrap();
        let container = Arc::new(container);
        let observer = async |case| observer(connection_string.clone(), &container_name, case).await;
        let (lower, verbatim) = (observer(NameCase::Lower).await, observer(NameCase::Verbatim).await);
        let (wanted, batches) = watch::channel(batches);
        let address = Address { endpoint: hub.endpoint(), connection_string: hub.connection_string() };
        let publishing = tokio::spawn(async { drop(publish(address, LOAD, batches).await.unwrap()) });
        Self {
            hub,
            container,
            container_name,
            case: NameCase::Lower,
            own_case: BlobNameCase::Auto,
            expiry: EXPIRY,
            refusable: None,
            reading_on: Vec::new(),
            lower,
            verbatim,
            processed: Processed::default(),
            wanted,
            publishing,
        }
    }

    /// Adds a processor of this crate.
    pub async fn own(&self, owner: &str) -> CrateProcessor {
        let config = ProcessorConfig::default().with_balancer(|balancer| {
            balancer.with_load_balancing_interval(INTERVAL).with_load_balancing_strategy(LoadBalancingStrategy::Greedy)
        });
        let checkpoints = CheckpointPolicy::default().with_interval(Duration::from_millis(200));
        let config = config.with_checkpoint_policy(checkpoints);
        let recorder = Recorder { owner: owner.to_owned(), processed: self.processed.clone() };
        let store = self.store(owner).await;
        let endpoint = self.hub.endpoint();
        let builder = EventHubSource::from_connection_string(store.group(), self.hub.connection_string())
            .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
        let source = timeout(TIMEOUT, builder.connect()).await.unwrap().unwrap();
        let processor = Processor::builder(source, store, recorder).with_config(config).build();
        CrateProcessor::run(owner, processor.unwrap())
    }

    fn store_config(&self) -> StoreConfig {
        StoreConfig::default()
            .with_blob_name_case(self.own_case)
            .with_lease_duration(self.expiry)
            .with_foreign_lease_duration(self.expiry)
    }

    /// Returns the store of a processor, whose requests may be late on a busy machine.
    async fn store(&self, owner: &str) -> GroupStore {
        let started = Instant::now();
        loop {
            let builder = GroupStore::builder(self.container.clone(), group(), OwnerId::new(owner).unwrap());
            match builder.with_config(self.store_config()).connect().await {
                Ok(store) => return store,
                Err(error) => assert!(started.elapsed() < TIMEOUT, "{owner}: {error}"),
            }
        }
    }

    /// Waits until a partition has an owner: an instance of this crate that connects before that chooses lower case,
    /// and ends if another SDK claims under names as given.
    pub async fn has_an_owner(&self) {
        let started = Instant::now();
        while !self.records().await.values().any(|(owner, _)| !owner.is_empty()) {
            assert!(started.elapsed() < TIMEOUT, "nothing is claimed");
            sleep(POLL).await;
        }
    }

    /// Adds a processor of another SDK.
    pub async fn foreign(&self, sdk: Sdk) -> ForeignProcessor {
        self.foreign_in(sdk, ConsumerGroup::DEFAULT_NAME).await
    }

    /// Adds a processor of another SDK, in this consumer group.
    pub async fn foreign_in(&self, sdk: Sdk, consumer_group: &str) -> ForeignProcessor {
        let storage = azurite::shared().await.unwrap().connection_string();
        let settings = json!({
            // Without the protocol the JavaScript SDK assumes a shared access signature.
            "storage": format!("DefaultEndpointsProtocol=http;{storage}"),
            "container": self.container_name,
            // States that there is no TLS. The port is passed separately: it is not part of the namespace, by which the
            // blobs are named.
            "event_hub": format!("{};UseDevelopmentEmulator=true", self.hub.connection_string()),
            "port": self.hub.port(),
            "consumer_group": consumer_group,
            // For the SDKs that need neither connection strings nor ports, or have no connection strings.
            "endpoint": self.hub.endpoint(),
            "namespace": group().namespace(),
            "event_hub_name": self.hub.name(),
            "event_hub_token": event_hub_sas(&format!("sb://localhost/{}", self.hub.name())),
            "container_url": self.container_url().await,
            "owner": fresh_name(),
            "interval_seconds": INTERVAL.as_secs(),
            "expiry_seconds": self.expiry.as_secs(),
        });
        ForeignProcessor::start(sdk, &settings, &self.processed).await
    }

    /// Returns the URL of the container, with a shared access signature.
    async fn container_url(&self) -> String {
        let endpoint = azurite::shared().await.unwrap().endpoint();
        format!("{endpoint}/{}?{}", self.container_name, account_sas("rwdlac", FUTURE))
    }

    /// Stops publishing, and waits until everything is published.
    pub async fn stops_publishing(&mut self) {
        self.wanted.send_replace(0);
        self.all_published().await;
    }

    /// Waits until all batches are published.
    pub async fn all_published(&mut self) {
        timeout(TIMEOUT, &mut self.publishing).await.unwrap().unwrap();
    }

    /// Waits until one owner has all partitions.
    pub async fn owns_all(&self, owner: &str) {
        self.shared_among(&[owner]).await;
    }

    /// Waits until these owners, and no others, have fair shares of the partitions.
    pub async fn shared_among(&self, owners: &[&str]) {
        let (started, partitions) = (Instant::now(), self.hub.partition_ids().len());
        while let Err(why) = are_fair_shares(owners, &self.records().await, partitions) {
            assert!(started.elapsed() < TIMEOUT, "{why}");
            sleep(POLL).await;
        }
    }

    /// Waits until the checkpoint of each partition is at its last event.
    pub async fn all_processed(&self) {
        let started = Instant::now();
        loop {
            let checkpoints = self.checkpoints().await.into_iter();
            let positions: BTreeMap<_, _> = checkpoints.map(|(id, position)| (id, position.sequence_number)).collect();
            if positions == self.published() {
                return;
            }
            assert!(started.elapsed() < TIMEOUT, "only up to {positions:?} of {:?}", self.published());
            sleep(POLL).await;
        }
    }

    /// Everything that was published is processed, and each processor has read on after the checkpoint that it found.
    pub async fn ends_without_loss(mut self) {
        self.stops_publishing().await;
        for (partition, last) in self.published() {
            self.processes_range(&partition, 0, last).await;
        }
        let (repeated, by_checkpoints) = self.processed.repeated();
        assert_eq!(repeated, by_checkpoints);
        println!("{repeated} events were processed again");
    }

    /// Returns the position of each partition, by its checkpoint.
    pub async fn checkpoints(&self) -> Positions {
        let listing = self.observer(self.case).list_checkpoints().await.unwrap();
        let positions = listing.records.into_iter().map(|seen| {
            let position = Position::new(seen.record.sequence_number.unwrap(), seen.record.offset.unwrap());
            (seen.partition.to_string(), position)
        });
        positions.collect()
    }

    /// Waits until each partition has a checkpoint. Returns them.
    pub async fn all_checkpoints(&self) -> Positions {
        let started = Instant::now();
        loop {
            let checkpoints = self.checkpoints().await;
            if checkpoints.len() == self.hub.partition_ids().len() {
                return checkpoints;
            }
            assert!(started.elapsed() < TIMEOUT, "only {checkpoints:?}");
            sleep(POLL).await;
        }
    }

    /// An operator resets all these partitions, repeatedly if a reset fails.
    pub async fn resets(&self, targets: &Positions) {
        let started = Instant::now();
        let mut left = targets.clone();
        while !left.is_empty() {
            assert!(started.elapsed() < TIMEOUT, "not reset: {left:?}");
            for partition in self.resets_once(&left).await {
                left.remove(&partition);
            }
        }
    }

    /// An operator tries to reset these partitions. Returns those that it reports as reset.
    pub async fn resets_once(&self, targets: &Positions) -> Vec<String> {
        let builder = Operator::builder(self.container.clone(), group()).with_config(self.store_config());
        let operator = builder.connect().await.unwrap();
        let options = ResetOptions::default().with_allow_foreign(true).with_settle(SETTLE);
        let resets = targets.iter().map(|(id, to)| (PartitionId::new(id).unwrap(), to.clone())).collect();
        let outcomes = operator.reset(resets, &options).await.unwrap();
        let done = outcomes.into_iter().filter_map(|(partition, outcome)| match outcome {
            ResetOutcome::Done => Some(partition.to_string()),
            outcome => {
                println!("partition {partition}: {outcome:?}");
                None
            }
        });
        done.collect()
    }

    /// Waits until everything from `first` to `last` was processed, and nothing before.
    pub async fn processes_range(&self, partition: &str, first: i64, last: i64) {
        let started = Instant::now();
        loop {
            let (oldest, missing) = (self.processed.oldest(partition), self.processed.missing(partition, first, last));
            if oldest == Some(first) && missing.is_empty() {
                return;
            }
            assert!(oldest.is_none_or(|oldest| oldest >= first), "partition {partition}: {oldest:?} before {first}");
            assert!(
                started.elapsed() < TIMEOUT,
                "partition {partition}: from {oldest:?}, not {first}; missing {missing:?}"
            );
            sleep(POLL).await;
        }
    }

    /// Returns a store for the records under names in this casing.
    pub fn observer(&self, case: NameCase) -> &GroupStore {
        match case {
            NameCase::Lower => &self.lower,
            NameCase::Verbatim => &self.verbatim,
        }
    }

    pub async fn records(&self) -> Records {
        self.records_in(self.case).await
    }

    /// Returns the records under names in this casing.
    pub async fn records_in(&self, case: NameCase) -> Records {
        owners_in(self.observer(case)).await
    }

    /// Returns the ages of this owner's records.
    pub async fn ages_of(&self, owner: &str) -> Vec<Duration> {
        self.records().await.into_values().filter(|(name, _)| name == owner).map(|(_, age)| age).collect()
    }

    /// Waits until all partitions belong only to these owners, each has a fair share, the new events of each partition
    /// are processed by its owner, and no earlier published event is missing.
    pub async fn settles_among(&self, owners: &[&str]) {
        let started = Instant::now();
        let newest = self.published();
        loop {
            let records = self.records().await;
            let Err(why) = self.is_settled(owners, &records, &newest) else { break };
            assert!(started.elapsed() < TIMEOUT, "{why}; the records: {records:?}");
            assert!(!self.publishing.is_finished(), "no events arrive anymore");
            sleep(POLL).await;
        }
    }

    fn is_settled(&self, owners: &[&str], records: &Records, newest: &BTreeMap<String, i64>) -> Result<(), String> {
        are_fair_shares(owners, records, newest.len())?;
        for (partition, last) in newest {
            let owner = &records[partition].0;
            let processor = self.processed.newest(partition).filter(|(number, _)| number > last).map(|(_, by)| by);
            let previous_reads_on =
                processor.as_ref().is_some_and(|by| self.reading_on.contains(by) && owners.contains(&by.as_str()));
            let is_refused = previous_reads_on && self.refusable.as_ref() == Some(owner);
            if processor.as_ref() != Some(owner) && !is_refused {
                return Err(format!("{owner} owns partition {partition}, but {processor:?} processes its new events"));
            }
            let lost = self.processed.missing(partition, 0, *last);
            if !lost.is_empty() {
                return Err(format!("lost in partition {partition}, or never published: {lost:?}"));
            }
        }
        Ok(())
    }

    /// Returns the last sequence number of each partition.
    pub fn published(&self) -> BTreeMap<String, i64> {
        let last = |id: &str| self.hub.partition_properties(id).unwrap().last_enqueued_sequence_number;
        self.hub.partition_ids().into_iter().map(|id| (id.clone(), last(&id))).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.wanted.send_replace(0);
    }
}

/// Returns a store that only reads: no request of it is ever late, even on a busy machine.
async fn observer(connection_string: String, container: &str, case: NameCase) -> GroupStore {
    let container = AzureContainer::from_connection_string(connection_string, container).unwrap();
    let config = StoreConfig::default()
        .with_blob_name_case(case.into())
        .with_lease_duration(4 * TIMEOUT)
        .with_foreign_lease_duration(4 * TIMEOUT)
        .with_request_timeout(TIMEOUT);
    let builder = GroupStore::builder(Arc::new(container), group(), OwnerId::new("observer").unwrap());
    builder.with_config(config).connect().await.unwrap()
}

/// Returns the owners in the records of this store.
pub async fn owners_in(store: &GroupStore) -> Records {
    let listing = store.list_ownerships().await.unwrap();
    assert!(listing.malformed.is_empty(), "{:?}", listing.malformed);
    let records = listing.records.into_iter().map(|seen| {
        let owner = seen.record.owner.map(|owner| owner.to_string()).unwrap_or_default();
        (seen.partition.to_string(), (owner, seen.age))
    });
    records.collect()
}

/// Returns a shared access signature for an event hub. The key is used as text, not decoded.
fn event_hub_sas(resource: &str) -> String {
    const EXPIRY: &str = "4070908800";
    let resource = resource.replace(':', "%3A").replace('/', "%2F");
    let signature = hmac_sha256(&format!("{resource}\n{EXPIRY}"), &Secret::new(base64::encode(DEFAULT_KEY))).unwrap();
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={EXPIRY}&skn={DEFAULT_KEY_NAME}")
}

fn group() -> ConsumerGroup {
    ConsumerGroup::new("localhost", "orders", "$Default").unwrap()
}

/// Every partition has one of these owners, and no owner has two more than another.
fn are_fair_shares(owners: &[&str], records: &Records, partitions: usize) -> Result<(), String> {
    let share = |owner: &&str| records.values().filter(|(name, _)| name == owner).count();
    let shares: Vec<_> = owners.iter().map(share).collect();
    let fair = partitions / owners.len()..=partitions.div_ceil(owners.len());
    if shares.iter().sum::<usize>() == partitions && shares.iter().all(|share| fair.contains(share)) {
        return Ok(());
    }
    Err(format!("of {partitions} partitions {owners:?} have {shares:?}, and each should have {fair:?}"))
}
