//! The group, the hub and the storage of one run.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{
    PartitionState, PartitionStatus, Processor, ProcessorConfig, ProcessorHandle, ShutdownReport, StartPosition,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::testing::memory_hub::{MemoryHub, MemorySource};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Result};
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::application::{Application, Misdeeds, pull};
use crate::feature::{Case, SECOND, Sharing, Start};
use crate::ledger::Ledger;
use crate::witness::Witness;
use crate::world::{Instance, TIMEOUT, World};

pub const PARTITIONS: u32 = 5;

/// The partition that is paused, released, silenced.
pub const TARGET: u32 = 0;

const BESIDE: u32 = 1;

/// The partition that is published to now and then only.
pub const QUIET: u32 = 4;

/// Instances that are there all the time, but where a feature lets them end.
pub const MEMBERS: usize = 3;

pub const SECOND_MEMBER: usize = 1;

/// An instance that takes part for a while only.
pub const GUEST: usize = 3;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A start after a sequence number is after this one.
pub const LAST_BEFORE_START: i64 = 9;

/// A start after a time is this long before an instance comes up.
const STARTS_BEFORE: Duration = Duration::from_secs(5);

/// To each partition but the quiet one.
const PUBLISHED_EVERY: Duration = Duration::from_secs(5);

/// The place of one instance.
#[derive(Default)]
struct Seat {
    life: usize,
    /// It is about to be up.
    connects: bool,
    instance: Option<Instance>,
    faulty: Option<FaultyContainer>,
}

type ActiveFaults = (usize, Option<usize>, FaultPlan);

pub struct Scene {
    pub case: Case,
    pub hub: MemoryHub,
    pub ledger: Ledger,
    pub misdeeds: Misdeeds,
    world: World,
    /// When the group began, by the clock of the hub.
    began: OffsetDateTime,
    seats: Mutex<[Seat; NAMES.len()]>,
    active_faults: Mutex<Vec<ActiveFaults>>,
}

impl Scene {
    pub fn new(case: Case) -> Self {
        let ledger = Ledger::new(PARTITIONS, case.allowed.clone(), case.settings.invalid_to_latest);
        let world = World::new(PARTITIONS);
        let hub = world.hub.clone();
        hub.refuse_positions(case.draw.refuses);
        Self {
            hub,
            ledger,
            misdeeds: Misdeeds::default(),
            world,
            began: OffsetDateTime::UNIX_EPOCH,
            seats: Mutex::default(),
            active_faults: Mutex::default(),
            case,
        }
    }

    /// Events from before the group began. A quiet partition has had none for a while. The others have so many that a
    /// hub that is made again has fewer to the end: nothing shows that it was made again once its numbers pass those of
    /// the one before.
    pub async fn history(&mut self) {
        for second in 0..20 {
            for partition in (0..PARTITIONS).filter(|partition| *partition != QUIET) {
                self.publish(partition, 15);
            }
            if second < 10 {
                self.publish(QUIET, 1);
            }
            sleep(SECOND).await;
        }
        self.began = self.hub.now();
        let mut ledger = self.ledger.lock();
        for partition in 0..PARTITIONS {
            let start = match self.case.settings.start {
                Start::Earliest => -1,
                Start::Latest => ledger.end_of(partition) - 1,
                Start::EnqueuedAfter => ledger.first_after(partition, Instant::now() - STARTS_BEFORE) - 1,
                Start::AfterSequenceNumber => LAST_BEFORE_START,
            };
            ledger.starts_after(partition, start);
        }
        ledger.begins();
    }
}

/// The hub.
impl Scene {
    pub fn publish(&self, partition: u32, events: usize) {
        let mut ledger = self.ledger.lock();
        self.hub.publish_many(partition, events, ledger.generation.to_string());
        ledger.published(partition, events);
    }

    /// A steady publisher. At first the instances find out where to start.
    pub async fn publish_steadily(&self) {
        sleep(5 * SECOND).await;
        loop {
            for partition in (0..PARTITIONS).filter(|partition| *partition != QUIET) {
                self.publish(partition, 1);
            }
            sleep(PUBLISHED_EVERY).await;
        }
    }

    pub fn make_anew(&self) {
        let mut ledger = self.ledger.lock();
        self.hub.recreate();
        ledger.recreated();
    }
}

/// The instances.
impl Scene {
    /// Does nothing if it is up.
    pub async fn start(&self, member: usize) {
        {
            let seat = &mut self.seats.lock().unwrap()[member];
            if seat.instance.is_some() || std::mem::replace(&mut seat.connects, true) {
                return;
            }
        }
        let life = self.ledger.lock().comes_up();
        let faulty = FaultyContainer::new(Arc::new(self.container(life)), self.case.draw.seed ^ life as u64);
        self.seats.lock().unwrap()[member].faulty = Some(faulty.clone());
        self.apply_troubles();
        let store = self.connect(NAMES[member], &faulty, life).await;
        let world = World { config: self.config(member, life), faulty, ..self.world.clone() };
        let (ledger, hub, misdeeds) = (self.ledger.clone(), self.hub.clone(), self.misdeeds.clone());
        let application = Application::new(life, ledger, hub.clone(), misdeeds, self.case.settings.tracks);
        let source = hub.source();
        let instance = if self.case.settings.pull {
            start_pulling(&world, store, source, application)
        } else {
            world.start_on(store, source, application)
        };
        let seat = &mut self.seats.lock().unwrap()[member];
        (seat.life, seat.connects, seat.instance) = (life, false, Some(instance));
    }

    fn container(&self, life: usize) -> Witness {
        let inner: Arc<MemoryContainer> = self.world.container.clone();
        Witness { inner, ledger: self.ledger.clone(), life }
    }

    /// As a supervisor restarts a process that cannot connect.
    async fn connect(&self, name: &str, faulty: &FaultyContainer, life: usize) -> GroupStore {
        loop {
            let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
            let builder = GroupStore::builder(Arc::new(faulty.clone()), group, OwnerId::new(name).unwrap());
            match builder.with_seed(self.case.draw.seed ^ (life as u64) << 32).connect().await {
                Ok(store) => return store,
                Err(_) => sleep(2 * SECOND).await,
            }
        }
    }

    pub fn config(&self, member: usize, life: usize) -> ProcessorConfig {
        let mut settings = self.case.settings.clone();
        settings.configure_balancer(|balancer| balancer.with_seed(self.case.draw.seed ^ life as u64));
        if settings.start == Start::EnqueuedAfter {
            // The first lives are of one deployment.
            let now = if life < MEMBERS { self.began } else { self.hub.now() };
            let start = StartPosition::EnqueuedAfter(now - STARTS_BEFORE);
            settings.configure(|config| config.with_start_position(start));
        }
        if settings.sharing == Sharing::Static {
            let own = Assignment::index(member, MEMBERS).unwrap_or_else(|_| Assignment::partitions([]));
            settings.configure_balancer(|balancer| {
                balancer.with_load_balancing_strategy(LoadBalancingStrategy::Static(own))
            });
        }
        settings.config
    }

    pub async fn crash(&self, member: usize) {
        let (life, instance) = {
            let seat = &mut self.seats.lock().unwrap()[member];
            (seat.life, seat.instance.take())
        };
        if let Some(instance) = instance {
            self.ledger.lock().dies(life);
            instance.crash().await;
        }
    }

    /// Which were up.
    pub async fn crash_all(&self) -> Vec<usize> {
        let up: Vec<_> = (0..NAMES.len()).filter(|member| self.is_up(*member)).collect();
        for member in &up {
            self.crash(*member).await;
        }
        up
    }

    /// Does nothing if it is not up.
    pub async fn end_in_order(&self, member: usize) {
        let report = self.end(member).await;
        if !self.case.allowed.unclean_ends {
            self.must_be_clean(member, report);
        }
    }

    async fn end(&self, member: usize) -> Option<Result<ShutdownReport>> {
        let (life, instance) = {
            let seat = &mut self.seats.lock().unwrap()[member];
            (seat.life, seat.instance.take()?)
        };
        let report = instance.shut_down().await;
        self.ledger.lock().dies(life);
        Some(report)
    }

    fn must_be_clean(&self, member: usize, report: Option<Result<ShutdownReport>>) {
        if report.as_ref().is_some_and(|report| report.as_ref().is_ok_and(ShutdownReport::is_clean)) {
            return;
        }
        if let Some(report) = report {
            self.ledger.lock().violated(&format!("the end of {} is not clean: {report:?}", NAMES[member]));
        }
    }

    /// All at once.
    pub async fn end_all(&self) {
        let ends = futures::future::join_all((0..NAMES.len()).map(|member| self.end(member))).await;
        for (member, report) in ends.into_iter().enumerate() {
            self.must_be_clean(member, report);
        }
    }

    fn is_up(&self, member: usize) -> bool {
        self.seats.lock().unwrap()[member].instance.is_some()
    }

    pub fn steer(&self, member: usize, order: impl FnOnce(&ProcessorHandle)) {
        if let Some(instance) = &self.seats.lock().unwrap()[member].instance {
            order(&instance.handle);
        }
    }

    /// The instance that ends, or loses the storage.
    pub async fn victim(&self) -> usize {
        self.reader_of(if self.case.draw.beside { BESIDE } else { TARGET }).await
    }

    /// The instance that handles this partition. Waits until there is one; after a long wait it is the first instance.
    pub async fn reader_of(&self, partition: u32) -> usize {
        let waiting = async {
            loop {
                if let Some(member) = self.reads(partition) {
                    return member;
                }
                sleep(SECOND).await;
            }
        };
        timeout(TIMEOUT, waiting).await.unwrap_or_default()
    }

    fn reads(&self, partition: u32) -> Option<usize> {
        let seats = self.seats.lock().unwrap();
        let reads = |seat: &Seat| {
            let statuses = seat.instance.as_ref().map(|instance| instance.handle.partitions()).unwrap_or_default();
            statuses
                .iter()
                .any(|status| status.partition == partition.into() && !matches!(status.state, PartitionState::Stopping))
        };
        seats.iter().position(reads)
    }

    /// Wherever it is.
    pub fn resume(&self, partition: u32) {
        for instance in self.seats.lock().unwrap().iter().filter_map(|seat| seat.instance.as_ref()) {
            let _ = instance.handle.resume(&partition.into());
        }
    }

    /// An operator sees what is parked, and resumes it.
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
        let seats = self.seats.lock().unwrap();
        seats
            .iter()
            .filter_map(|seat| seat.instance.as_ref())
            .flat_map(|instance| instance.handle.partitions())
            .collect()
    }

    /// What is not well with the group.
    pub fn amiss(&self) -> Option<String> {
        for (seat, name) in self.seats.lock().unwrap().iter().zip(NAMES) {
            let Some(instance) = &seat.instance else { continue };
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

    /// An instance that ends by itself is not to be expected.
    pub fn must_run(&self) {
        for (seat, name) in self.seats.lock().unwrap().iter_mut().zip(NAMES) {
            if let Some(ended) = seat.instance.take_if(|instance| instance.running.is_finished()) {
                let how = futures::FutureExt::now_or_never(ended.running);
                let mut ledger = self.ledger.lock();
                ledger.dies(seat.life);
                ledger.violated(&format!("{name} has ended by itself: {how:?}"));
            }
        }
    }
}

fn start_pulling(world: &World, store: GroupStore, source: MemorySource, application: Application) -> Instance {
    let processor = Processor::streams(source, store).with_config(world.config.clone()).build().unwrap();
    let (snapshots, handle) = (processor.watch(), processor.handle());
    let (shutdown, asked) = oneshot::channel();
    let running = tokio::spawn(pull(processor, application, asked));
    Instance { snapshots, running, handle, shutdown: Some(shutdown) }
}

/// The storage.
impl Scene {
    /// From now on this befalls the requests of an instance, or of all. Returns what ends it.
    pub fn inject(&self, whose: Option<usize>, plan: FaultPlan) -> usize {
        let number = {
            let mut active_faults = self.active_faults.lock().unwrap();
            let number = active_faults.last().map_or(0, |(number, ..)| number + 1);
            active_faults.push((number, whose, plan));
            number
        };
        self.apply_troubles();
        number
    }

    pub fn end_faults(&self, number: usize) {
        self.active_faults.lock().unwrap().retain(|(other, ..)| *other != number);
        self.apply_troubles();
    }

    /// Of several, the last one counts.
    fn apply_troubles(&self) {
        let active_faults = self.active_faults.lock().unwrap();
        for (member, seat) in self.seats.lock().unwrap().iter().enumerate() {
            let own = active_faults.iter().rfind(|(_, whose, _)| whose.is_none_or(|whose| whose == member));
            let usual = || FaultPlan::always(Fault::Latency(SECOND / 20));
            if let Some(faulty) = &seat.faulty {
                faulty.set_plan(own.map_or_else(usual, |(_, _, plan)| plan.clone()));
            }
        }
    }
}
