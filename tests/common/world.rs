//! Whole instances on a hub and a container in memory, and the events of their handlers.

#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Snapshot, Snapshots};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::processor::dead_letters::{DeadLetterPolicy, DeadLetterSink};
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, PartitionContext, PartitionState, PartitionStatus, Processor,
    ProcessorBuilder, ProcessorConfig, ProcessorHandle, ShutdownReport, StopReason,
};
use eventhubs_checkpoint::source::EventSource;
use eventhubs_checkpoint::store::{GroupStore, Ownership, StoreConfig};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::WallClock;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId, Result};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub const TIMEOUT: Duration = Duration::from_secs(600);

/// The events of the handlers of all instances.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// (owner, partition, body), in the order of processing.
    pub events: Arc<Mutex<Vec<(String, String, String)>>>,
    /// (owner, partition, why), in order.
    pub stops: Arc<Mutex<Vec<(String, String, StopReason)>>>,
    pub changed: Arc<watch::Sender<()>>,
    pub contiguity: Contiguity,
}

impl Log {
    fn of(hub: &MemoryHub, container: &Arc<MemoryContainer>) -> Self {
        let contiguity =
            Contiguity { hub: Some(hub.clone()), container: Some(container.clone()), ..Contiguity::default() };
        Self { contiguity, ..Self::default() }
    }

    pub fn bodies(&self) -> Vec<String> {
        self.events.lock().unwrap().iter().map(|(_, _, body)| body.clone()).collect()
    }

    pub fn times(&self, body: &str) -> usize {
        self.bodies().iter().filter(|seen| *seen == body).count()
    }

    /// Fails at once if a handler missed an event.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        self.wait(what, condition).await;
        self.contiguity.check();
    }

    async fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let mut changes = self.changed.subscribe();
        let waiting = async {
            while !condition(self) {
                changes.changed().await.unwrap();
            }
        };
        timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("timed out: {what}"));
    }
}

/// The events that each start of a handler must get: the event after the checkpoint, then one after another. Events
/// may be missing only if the hub no longer has them. A violation fails the test when the [`World`] is dropped, at the
/// latest.
#[derive(Clone, Debug, Default)]
pub struct Contiguity {
    hub: Option<MemoryHub>,
    container: Option<Arc<MemoryContainer>>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The next event of each (owner, partition), and whether one came in this start.
    due: BTreeMap<(String, String), (i64, bool)>,
    /// Events that the hub lacks, although its properties do not show it.
    lacking: BTreeSet<i64>,
    violations: Vec<String>,
}

impl Contiguity {
    /// The hub never delivers this event, as if compaction had removed it.
    pub fn lacks(&self, number: i64) {
        self.seen.lock().unwrap().lacking.insert(number);
    }

    async fn started(&self, owner: &str, partition: &str) {
        let due = self.recorded(partition).await.map(|number| (number + 1, false));
        let mut seen = self.seen.lock().unwrap();
        let key = (owner.to_owned(), partition.to_owned());
        seen.due.remove(&key);
        seen.due.extend(due.map(|due| (key, due)));
    }

    async fn recorded(&self, partition: &str) -> Option<i64> {
        let name = format!("ns.servicebus.windows.net/hub/$default/checkpoint/{partition}");
        let blob = self.container.as_ref()?.get(&name).await.ok()?;
        blob.metadata.get("sequencenumber")?.parse().ok()
    }

    async fn came(&self, owner: &str, partition: &str, number: i64) {
        let first = self.first_in_hub(partition).await;
        let mut seen = self.seen.lock().unwrap();
        let (due, running) =
            seen.due.get(&(owner.to_owned(), partition.to_owned())).copied().unwrap_or((number, false));
        let missing = due.max(first)..number;
        let is_missing = missing.clone().any(|number| !seen.lacking.contains(&number));
        if is_missing || (running && number < due) {
            seen.violations
                .push(format!("{owner} got event {number} of partition {partition}, although {due} was due"));
        }
        seen.due.insert((owner.to_owned(), partition.to_owned()), (number + 1, true));
    }

    async fn first_in_hub(&self, partition: &str) -> i64 {
        let Some(hub) = &self.hub else { return 0 };
        let partition = PartitionId::new(partition).unwrap();
        hub.source()
            .partition_properties(&partition)
            .await
            .map_or(0, |properties| properties.beginning_sequence_number())
    }

    pub fn violations(&self) -> Vec<String> {
        self.seen.lock().unwrap().violations.clone()
    }

    pub fn check(&self) {
        let violations = self.violations();
        assert!(violations.is_empty(), "events were skipped or repeated: {violations:?}");
    }
}

/// Fails its test if a handler missed an event.
#[derive(Clone, Debug)]
pub struct Checked(Contiguity);

impl Drop for Checked {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.check();
        }
    }
}

/// Records everything; fails or panics once at the bodies "fail" and "panic"; never finishes at "hang".
#[derive(Debug)]
pub struct Recorder {
    pub owner: String,
    pub log: Log,
    pub checkpoint: bool,
}

impl Handler<MemoryEvent> for Recorder {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.log.contiguity.started(&self.owner, context.partition_id().as_str()).await;
        Ok(())
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            self.log.contiguity.came(&self.owner, context.partition_id().as_str(), event.sequence_number).await;
            let entry = (self.owner.clone(), context.partition_id().to_string(), event.text().unwrap().to_owned());
            self.log.events.lock().unwrap().push(entry);
            self.log.changed.send_replace(());
            match event.text().unwrap() {
                "fail" if self.log.times("fail") == 1 => return Err("failed on request".into()),
                "panic" if self.log.times("panic") == 1 => panic!("panicked on request"),
                "hang" => std::future::pending().await,
                _ if self.checkpoint => context.checkpoint(event),
                _ => {}
            }
        }
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        self.log.stops.lock().unwrap().push((self.owner.clone(), context.partition_id().to_string(), reason));
        self.log.changed.send_replace(());
    }
}

pub struct Instance {
    pub snapshots: Snapshots,
    pub running: JoinHandle<Result<ShutdownReport>>,
    pub handle: ProcessorHandle,
    pub shutdown: Option<oneshot::Sender<()>>,
}

impl Instance {
    pub async fn wait_until(&mut self, what: &str, condition: impl FnMut(&Snapshot) -> bool) {
        let waited = timeout(TIMEOUT, self.snapshots.wait_for(condition)).await;
        waited.unwrap_or_else(|_| panic!("timed out: {what}")).unwrap();
    }

    pub async fn wait_until_it_holds(&mut self, count: usize) {
        self.wait_until(&format!("{count} partitions held"), |snapshot| snapshot.owned.len() == count).await;
    }

    /// Returns what the first partition is doing, and its position.
    pub fn status(&self) -> PartitionStatus {
        self.handle.partitions().into_iter().next().expect("no partition is running")
    }

    pub async fn wait_until_all_idle(&self, count: usize) {
        let idle = |status: &PartitionStatus| status.state == PartitionState::Idle;
        let waiting = async {
            while self.handle.partitions().iter().filter(|status| idle(status)).count() != count {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TIMEOUT, waiting).await.expect("never all idle");
    }

    pub async fn wait_for_status(&self, what: &str, condition: impl Fn(&PartitionStatus) -> bool) -> PartitionStatus {
        let waiting = async {
            loop {
                if let Some(status) = self.handle.partitions().into_iter().find(&condition) {
                    return status;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("timed out: {what}; {:?}", self.handle.partitions()))
    }

    pub fn held(&self) -> usize {
        self.snapshots.borrow().owned.len()
    }

    /// Crashes without any clean-up.
    pub async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }

    pub async fn shut_down(mut self) -> Result<ShutdownReport> {
        let _ = self.shutdown.take().unwrap().send(());
        timeout(TIMEOUT, self.running).await.expect("the shutdown timed out").unwrap()
    }

    pub async fn ended(self) -> Result<ShutdownReport> {
        timeout(TIMEOUT, self.running).await.expect("does not end").unwrap()
    }
}

/// Returns a plan in which about a tenth of all requests fails in one way or another.
pub fn random_faults() -> FaultPlan {
    FaultPlan::default()
        .with(0.5, Fault::Latency(Duration::from_secs(1)))
        .with(0.02, Fault::Unreachable)
        .with(0.02, Fault::RequestLost)
        .with(0.02, Fault::ResponseLost)
        .with(0.02, Fault::AppliedLate(Duration::from_secs(30)))
        .with(0.02, Fault::Hang)
        .with(0.02, Fault::Conflict)
        .with(0.02, Fault::StaleListing(Duration::from_secs(40)))
}

/// Two owners draw different ids.
fn seed_of(owner: &str) -> u64 {
    owner.bytes().fold(1, |seed, byte| seed * 31 + u64::from(byte))
}

#[derive(Clone)]
pub struct World {
    pub hub: MemoryHub,
    pub container: Arc<MemoryContainer>,
    /// The same container, as the instances reach it.
    pub faulty: FaultyContainer,
    pub log: Log,
    pub config: ProcessorConfig,
    pub checkpoint: bool,
    pub expiry: Duration,
    /// If set, an instance verifies the storage at its start, which is when it reads the local clock.
    pub wall_clock: Option<Arc<dyn WallClock>>,
    pub checked: Checked,
}

impl World {
    pub fn new(partitions: u32) -> Self {
        Self::on(MemoryHub::new("hub", partitions))
    }

    /// Returns a group without any record.
    pub fn on(hub: MemoryHub) -> Self {
        let config = ProcessorConfig::default()
            .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_secs(10)).with_seed(7))
            .with_checkpoint_policy(CheckpointPolicy::default().with_interval(Duration::from_secs(1)));
        let container = Arc::new(MemoryContainer::new());
        let faulty = FaultyContainer::new(container.clone(), 11);
        let log = Log::of(&hub, &container);
        Self {
            checked: Checked(log.contiguity.clone()),
            hub,
            container,
            faulty,
            log,
            config,
            checkpoint: true,
            expiry: Duration::from_secs(60),
            wall_clock: None,
        }
    }

    pub async fn store(&self, owner: &str) -> GroupStore {
        let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
        let (seed, owner) = (seed_of(owner), OwnerId::new(owner).unwrap());
        let mut builder = GroupStore::builder(Arc::new(self.faulty.clone()), group, owner);
        if let Some(clock) = &self.wall_clock {
            builder = builder.with_wall_clock(clock.clone());
        }
        let config =
            StoreConfig::default().with_verify_storage(self.wall_clock.is_some()).with_lease_duration(self.expiry);
        builder.with_config(config).with_seed(seed).connect().await.unwrap()
    }

    /// Returns a store with a short request timeout, for tests in real time.
    pub async fn quick_store(&self, owner: &str) -> GroupStore {
        let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
        let (seed, owner) = (seed_of(owner), OwnerId::new(owner).unwrap());
        let builder = GroupStore::builder(Arc::new(self.faulty.clone()), group, owner);
        let config = StoreConfig::default()
            .with_lease_duration(self.expiry)
            .with_request_timeout(Duration::from_secs(1))
            .with_verify_storage(false);
        builder.with_config(config).with_seed(seed).connect().await.unwrap()
    }

    /// Returns the handler of the instances that [`start`](Self::start) starts.
    pub fn recorder(&self, owner: &str) -> Recorder {
        Recorder { owner: owner.into(), log: self.log.clone(), checkpoint: self.checkpoint }
    }

    pub async fn start(&self, owner: &str) -> Instance {
        self.start_with(owner, self.hub.source(), self.recorder(owner)).await
    }

    pub async fn start_with<S, H>(&self, owner: &str, source: S, handler: H) -> Instance
    where
        S: EventSource,
        H: Handler<S::Event>,
    {
        self.start_on(self.store(owner).await, source, handler)
    }

    pub fn start_on<S, H>(&self, store: GroupStore, source: S, handler: H) -> Instance
    where
        S: EventSource,
        H: Handler<S::Event>,
    {
        self.start_built(Processor::builder(source, store, handler))
    }

    pub async fn start_with_dead_letters<H, K>(
        &self,
        owner: &str,
        handler: H,
        sink: K,
        policy: DeadLetterPolicy,
    ) -> Instance
    where
        H: Handler<MemoryEvent>,
        K: DeadLetterSink<MemoryEvent>,
    {
        let builder = Processor::builder(self.hub.source(), self.store(owner).await, handler);
        self.start_built(builder.with_dead_letters(sink, policy))
    }

    pub fn start_built<S, H>(&self, builder: ProcessorBuilder<S, H>) -> Instance
    where
        S: EventSource,
        H: Handler<S::Event>,
    {
        let processor = builder.with_config(self.config.clone()).build().unwrap();
        let handle = processor.handle();
        let snapshots = handle.snapshots();
        let (shutdown, requested) = oneshot::channel();
        let running = tokio::spawn(processor.run(async move {
            let _ = requested.await;
        }));
        Instance { snapshots, running, handle, shutdown: Some(shutdown) }
    }

    pub async fn owners(&self) -> BTreeMap<String, String> {
        let listing = self.store("observer").await.list_ownerships().await.unwrap();
        let owner = |record: &Ownership| record.record.owner.as_ref().map(ToString::to_string).unwrap_or_default();
        listing.records.iter().map(|record| (record.partition.to_string(), owner(record))).collect()
    }

    /// Returns the age of the oldest ownership.
    pub async fn oldest(&self) -> Duration {
        let listing = self.store("observer").await.list_ownerships().await.unwrap();
        listing.records.iter().map(|ownership| ownership.age).max().unwrap_or_default()
    }

    /// Writes the first partition's ownership like another SDK that takes it.
    pub async fn give_to(&self, owner: &str) {
        let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
        let record = Metadata::from([("ownerid", owner)]);
        self.container.overwrite(name, &record).await.unwrap();
    }

    /// Writes a partition's first checkpoint like another SDK: without a condition.
    pub async fn checkpoint_as_another_sdk(&self, partition: u32) {
        let name = format!("ns.servicebus.windows.net/hub/$default/checkpoint/{partition}");
        let record = Metadata::from([("sequencenumber", "-1"), ("offset", "-1")]);
        self.container.overwrite(&name, &record).await.unwrap();
    }

    pub async fn first_stop(&self) -> StopReason {
        self.log.wait_for("a stop", |log| !log.stops.lock().unwrap().is_empty()).await;
        self.log.stops.lock().unwrap()[0].2.clone()
    }

    /// Returns the owner to which the first partition that stopped was lost.
    pub async fn lost_to(&self) -> String {
        match self.first_stop().await {
            StopReason::OwnershipLost { by: Some(by) } => by.to_string(),
            other => panic!("not lost to any owner: {other:?}"),
        }
    }

    pub async fn checkpoint(&self) -> Option<i64> {
        self.store("observer").await.list_checkpoints().await.unwrap().records.first()?.record.sequence_number
    }
}
