//! The group, the hub and the storage of one run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::admin::Operator;
use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{
    PartitionState, PartitionStatus, Processor, ProcessorConfig, ProcessorHandle, ShutdownReport,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::testing::memory_hub::{MemoryHub, MemorySource};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Result};
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::application::{Application, pull};
use crate::container::RecordingContainer;
use crate::feature::{Case, SECOND, Sharing, Start};
use crate::ledger::Ledger;
use crate::misbehaviors::Misbehaviors;
use crate::single_events::start_single_events;
use crate::world::{Instance, TIMEOUT, World};

pub const PARTITIONS: u32 = 5;

/// The partition that is paused, released or stalled.
pub const TARGET: u32 = 0;

const OTHER: u32 = 1;

/// The partition that receives events only occasionally.
pub const QUIET: u32 = 4;

/// The instances that always run, except while a feature stops them.
pub const MEMBERS: usize = 3;

pub const SECOND_MEMBER: usize = 1;

/// An instance that joins only for a while.
pub const GUEST: usize = 3;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// The position of a start after a sequence number.
pub const LAST_BEFORE_START: i64 = 9;

/// A start after a time begins this long before the instance starts.
const START_LEAD: Duration = Duration::from_secs(5);

/// The interval of events in each partition except the quiet one.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(5);

/// The state of one instance.
#[derive(Default)]
struct Slot {
    incarnation: usize,
    /// The instance is starting.
    starting: bool,
    instance: Option<Instance>,
    faulty: Option<FaultyContainer>,
}

type ActiveFaults = (usize, Option<usize>, FaultPlan);

pub struct Scene {
    pub case: Case,
    pub hub: MemoryHub,
    pub ledger: Ledger,
    pub misbehaviors: Misbehaviors,
    world: World,
    /// When the group started, according to the clock of the hub.
    group_started_at: OffsetDateTime,
    slots: Mutex<[Slot; NAMES.len()]>,
    active_faults: Mutex<Vec<ActiveFaults>>,
}

impl Scene {
    pub fn new(case: Case) -> Self {
        let ledger = Ledger::new(PARTITIONS, case.allowed.clone(), case.settings.invalid_to_latest);
        let world = World::new(PARTITIONS);
        let hub = world.hub.clone();
        hub.reject_positions(case.draw.refuses_positions);
        Self {
            hub,
            ledger,
            misbehaviors: Misbehaviors::default(),
            world,
            group_started_at: OffsetDateTime::UNIX_EPOCH,
            slots: Mutex::default(),
            active_faults: Mutex::default(),
            case,
        }
    }

    /// Publishes events before the group starts. The quiet partition has had none for a while. The other partitions
    /// have so many that a recreated hub never reaches their number: the recreation cannot be detected once the new
    /// sequence numbers pass the old ones.
    pub async fn publish_history(&mut self) {
        for second in 0..20 {
            for partition in (0..PARTITIONS).filter(|partition| *partition != QUIET) {
                self.publish(partition, 15);
            }
            if second < 10 {
                self.publish(QUIET, 1);
            }
            sleep(SECOND).await;
        }
        self.group_started_at = self.hub.now();
        let mut ledger = self.ledger.lock();
        for partition in 0..PARTITIONS {
            let start = match self.case.settings.start {
                Start::Earliest => -1,
                Start::Latest => ledger.end_of(partition) - 1,
                Start::EnqueuedAfter => ledger.first_after(partition, Instant::now() - START_LEAD) - 1,
                Start::AfterSequenceNumber => LAST_BEFORE_START,
            };
            ledger.set_start(partition, start);
        }
        ledger.group_started();
    }
}

/// The hub.
impl Scene {
    pub fn publish(&self, partition: u32, events: usize) {
        let mut ledger = self.ledger.lock();
        self.hub.publish_many(partition, events, ledger.generation.to_string());
        ledger.published(partition, events);
    }

    /// Publishes steadily. Waits first, while the instances determine their start positions.
    pub async fn publish_steadily(&self) {
        sleep(5 * SECOND).await;
        loop {
            for partition in (0..PARTITIONS).filter(|partition| *partition != QUIET) {
                self.publish(partition, 1);
            }
            sleep(PUBLISH_INTERVAL).await;
        }
    }

    pub fn recreate_hub(&self) {
        let mut ledger = self.ledger.lock();
        self.hub.recreate();
        ledger.recreated();
    }
}

/// The instances.
impl Scene {
    /// Does nothing if the instance is running.
    pub async fn start(&self, member: usize) {
        {
            let slot = &mut self.slots.lock().unwrap()[member];
            if slot.instance.is_some() || std::mem::replace(&mut slot.starting, true) {
                return;
            }
        }
        let incarnation = self.ledger.lock().incarnation_started();
        let faulty =
            FaultyContainer::new(Arc::new(self.container(incarnation)), self.case.draw.seed ^ incarnation as u64);
        self.slots.lock().unwrap()[member].faulty = Some(faulty.clone());
        self.apply_troubles();
        let store = self.connect(NAMES[member], &faulty, incarnation).await;
        let world = World { config: self.config(member, incarnation), faulty, ..self.world.clone() };
        let (ledger, hub, misbehaviors) = (self.ledger.clone(), self.hub.clone(), self.misbehaviors.clone());
        let application = Application::new(incarnation, ledger, hub.clone(), misbehaviors, self.case.settings.tracks);
        let source = hub.source();
        let instance = match self.case.settings.events.clone() {
            Some(settings) => start_single_events(&world, store, source, application, settings),
            None if self.case.settings.pull => start_pulling(&world, store, source, application),
            None => world.start_on(store, source, application),
        };
        let slot = &mut self.slots.lock().unwrap()[member];
        (slot.incarnation, slot.starting, slot.instance) = (incarnation, false, Some(instance));
    }

    fn container(&self, incarnation: usize) -> RecordingContainer {
        let inner: Arc<MemoryContainer> = self.world.container.clone();
        RecordingContainer { inner, ledger: self.ledger.clone(), incarnation }
    }

    /// Retries like a supervisor that restarts a process that cannot connect.
    async fn connect(&self, name: &str, faulty: &FaultyContainer, incarnation: usize) -> GroupStore {
        loop {
            let builder = GroupStore::builder(Arc::new(faulty.clone()), group(), OwnerId::new(name).unwrap());
            match builder.with_seed(self.case.draw.seed ^ (incarnation as u64) << 32).connect().await {
                Ok(store) => return store,
                Err(_) => sleep(2 * SECOND).await,
            }
        }
    }

    /// Connects an operator, whose requests do not fail.
    pub async fn operator(&self) -> Operator {
        let builder = Operator::builder(self.world.container.clone(), group());
        builder.with_seed(self.case.draw.seed).connect().await.unwrap()
    }

    pub fn config(&self, member: usize, incarnation: usize) -> ProcessorConfig {
        let mut settings = self.case.settings.clone();
        let seed = self.case.draw.seed ^ incarnation as u64;
        settings.balance(|balancer| balancer.with_seed(seed));
        if settings.start == Start::EnqueuedAfter {
            // The first incarnations belong to one deployment.
            let now = if incarnation < MEMBERS { self.group_started_at } else { self.hub.now() };
            let start = StartPosition::EnqueuedAfter(now - START_LEAD);
            settings.configure(|config| config.with_start_position(start));
        }
        if settings.sharing == Sharing::Static {
            let own = Assignment::index(member, MEMBERS).unwrap_or_else(|_| Assignment::partitions([]));
            let strategy = LoadBalancingStrategy::Static(own);
            settings.balance(|balancer| balancer.with_load_balancing_strategy(strategy));
        }
        settings.config
    }

    pub async fn crash(&self, member: usize) {
        let (incarnation, instance) = {
            let slot = &mut self.slots.lock().unwrap()[member];
            (slot.incarnation, slot.instance.take())
        };
        if let Some(instance) = instance {
            self.ledger.lock().incarnation_ended(incarnation);
            instance.crash().await;
        }
    }

    /// Returns the instances that were running.
    pub async fn crash_all(&self) -> Vec<usize> {
        let running: Vec<_> = (0..NAMES.len()).filter(|member| self.is_running(*member)).collect();
        for member in &running {
            self.crash(*member).await;
        }
        running
    }

    /// Does nothing if the instance is not running.
    pub async fn shut_down(&self, member: usize) {
        let report = self.end(member).await;
        if !self.case.allowed.unclean_ends {
            self.check_clean(member, report);
        }
    }

    async fn end(&self, member: usize) -> Option<Result<ShutdownReport>> {
        let (incarnation, instance) = {
            let slot = &mut self.slots.lock().unwrap()[member];
            (slot.incarnation, slot.instance.take()?)
        };
        let report = instance.shut_down().await;
        self.ledger.lock().incarnation_ended(incarnation);
        Some(report)
    }

    fn check_clean(&self, member: usize, report: Option<Result<ShutdownReport>>) {
        if report.as_ref().is_some_and(|report| report.as_ref().is_ok_and(ShutdownReport::is_clean)) {
            return;
        }
        if let Some(report) = report {
            self.ledger.lock().add_violation(&format!("the shutdown of {} is not clean: {report:?}", NAMES[member]));
        }
    }

    /// Shuts down all instances concurrently.
    pub async fn shut_down_all(&self) {
        let ends = futures::future::join_all((0..NAMES.len()).map(|member| self.end(member))).await;
        for (member, report) in ends.into_iter().enumerate() {
            self.check_clean(member, report);
        }
    }

    fn is_running(&self, member: usize) -> bool {
        self.slots.lock().unwrap()[member].instance.is_some()
    }

    pub fn control(&self, member: usize, order: impl FnOnce(&ProcessorHandle)) {
        if let Some(instance) = &self.slots.lock().unwrap()[member].instance {
            order(&instance.handle);
        }
    }

    /// Returns the instance that is shut down, crashes or loses the storage.
    pub async fn victim(&self) -> usize {
        self.reader_of(if self.case.draw.victim_reads_other { OTHER } else { TARGET }).await
    }

    /// Waits until an instance handles this partition, and returns it. Returns the first instance after a timeout.
    pub async fn reader_of(&self, partition: u32) -> usize {
        let waiting = async {
            loop {
                if let Some(member) = self.current_reader(partition) {
                    return member;
                }
                sleep(SECOND).await;
            }
        };
        timeout(TIMEOUT, waiting).await.unwrap_or_default()
    }

    fn current_reader(&self, partition: u32) -> Option<usize> {
        let slots = self.slots.lock().unwrap();
        let current_reader = |slot: &Slot| {
            let statuses = slot.instance.as_ref().map(|instance| instance.handle.partitions()).unwrap_or_default();
            statuses
                .iter()
                .any(|status| status.partition == partition.into() && !matches!(status.state, PartitionState::Stopping))
        };
        slots.iter().position(current_reader)
    }

    /// Resumes the partition on all instances.
    pub fn resume(&self, partition: u32) {
        for instance in self.slots.lock().unwrap().iter().filter_map(|slot| slot.instance.as_ref()) {
            let _ = instance.handle.resume(&partition.into());
        }
    }

    /// Acts as an operator that resumes parked partitions.
    pub async fn resume_parked(&self) {
        loop {
            sleep(30 * SECOND).await;
            if self.case.settings.resumes_parked {
                (0..PARTITIONS)
                    .filter(|partition| self.is_parked(*partition))
                    .for_each(|partition| self.resume(partition));
            }
        }
    }

    fn is_parked(&self, partition: u32) -> bool {
        let parked =
            |status: &PartitionStatus| status.partition == partition.into() && status.state == PartitionState::Parked;
        self.statuses().iter().any(parked)
    }

    fn statuses(&self) -> Vec<PartitionStatus> {
        let slots = self.slots.lock().unwrap();
        slots
            .iter()
            .filter_map(|slot| slot.instance.as_ref())
            .flat_map(|instance| instance.handle.partitions())
            .collect()
    }

    /// Returns the first problem of the group.
    pub fn problem(&self) -> Option<String> {
        for (slot, name) in self.slots.lock().unwrap().iter().zip(NAMES) {
            let Some(instance) = &slot.instance else { continue };
            let health = instance.handle.health();
            if !health.ready || !health.issues.is_empty() {
                return Some(format!("{name}: {health:?}"));
            }
        }
        let shares = match self.ledger.lock().shares() {
            Ok(shares) => shares,
            Err(unsettled) => return Some(unsettled),
        };
        let fair = match self.case.settings.sharing {
            Sharing::Weighted => true,
            Sharing::Balanced | Sharing::Greedy | Sharing::Static => {
                shares.iter().max().zip(shares.iter().min()).is_some_and(|(most, least)| most - least <= 1)
            }
        };
        (!fair).then(|| format!("the shares are {shares:?}"))
    }

    /// Reports instances that ended unexpectedly.
    pub fn check_running(&self) {
        for (slot, name) in self.slots.lock().unwrap().iter_mut().zip(NAMES) {
            if let Some(ended) = slot.instance.take_if(|instance| instance.running.is_finished()) {
                let how = futures::FutureExt::now_or_never(ended.running);
                let mut ledger = self.ledger.lock();
                ledger.incarnation_ended(slot.incarnation);
                ledger.add_violation(&format!("{name} ended unexpectedly: {how:?}"));
            }
        }
    }
}

fn group() -> ConsumerGroup {
    ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap()
}

fn start_pulling(world: &World, store: GroupStore, source: MemorySource, application: Application) -> Instance {
    let partitions = Processor::streams(source, store).with_config(world.config.clone()).start().unwrap();
    let handle = partitions.handle().clone();
    let snapshots = handle.snapshots();
    let (shutdown, shutdown_requested) = oneshot::channel();
    let running = tokio::spawn(pull(partitions, application, shutdown_requested));
    Instance { snapshots, running, handle, shutdown: Some(shutdown) }
}

/// The storage.
impl Scene {
    /// Injects faults into the requests of an instance, or of all instances. Returns the number for `end_faults`.
    pub fn inject(&self, target: Option<usize>, plan: FaultPlan) -> usize {
        let number = {
            let mut active_faults = self.active_faults.lock().unwrap();
            let number = active_faults.last().map_or(0, |(number, ..)| number + 1);
            active_faults.push((number, target, plan));
            number
        };
        self.apply_troubles();
        number
    }

    pub fn end_faults(&self, number: usize) {
        self.active_faults.lock().unwrap().retain(|(other, ..)| *other != number);
        self.apply_troubles();
    }

    /// If several faults apply, the last one wins.
    fn apply_troubles(&self) {
        let active_faults = self.active_faults.lock().unwrap();
        for (member, slot) in self.slots.lock().unwrap().iter().enumerate() {
            let own = active_faults.iter().rfind(|(_, target, _)| target.is_none_or(|target| target == member));
            let default_plan = || FaultPlan::always(Fault::Latency(SECOND / 20));
            if let Some(faulty) = &slot.faulty {
                faulty.set_plan(own.map_or_else(default_plan, |(_, _, plan)| plan.clone()));
            }
        }
    }
}
