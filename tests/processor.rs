//! Whole instances on a hub and a container in memory, in paused time: they share, move, stop and resume.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::balancer::{BalancerConfig, Snapshot};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, EventSource, Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, StartPosition,
    StopReason,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultKind, FaultPlan, Faulty, Operation};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, Result};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(600);

/// What the handlers of all instances saw.
#[derive(Clone, Debug, Default)]
struct Log {
    /// (owner, partition, body), in the order of processing.
    events: Arc<Mutex<Vec<(String, String, String)>>>,
    /// (owner, partition, why), in order.
    stops: Arc<Mutex<Vec<(String, String, StopReason)>>>,
    changed: Arc<watch::Sender<()>>,
}

impl Log {
    fn bodies(&self) -> Vec<String> {
        self.events.lock().unwrap().iter().map(|(_, _, body)| body.clone()).collect()
    }

    fn times(&self, body: &str) -> usize {
        self.bodies().iter().filter(|seen| *seen == body).count()
    }

    async fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let mut changes = self.changed.subscribe();
        let waiting = async {
            while !condition(self) {
                changes.changed().await.unwrap();
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never came: {what}"));
    }
}

/// Notes everything; fails or panics once at the bodies "fail" and "panic"; never finishes at "hang".
#[derive(Debug)]
struct Recorder {
    owner: String,
    log: Log,
    checkpoint: bool,
}

impl Handler<MemoryEvent> for Recorder {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            let entry = (self.owner.clone(), context.partition().to_string(), event.body.clone());
            self.log.events.lock().unwrap().push(entry);
            self.log.changed.send_replace(());
            match event.body.as_str() {
                "fail" if self.log.times("fail") == 1 => return Err("told to fail".into()),
                "panic" if self.log.times("panic") == 1 => panic!("told to panic"),
                "hang" => std::future::pending().await,
                _ if self.checkpoint => context.checkpoint(event),
                _ => {}
            }
        }
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        self.log.stops.lock().unwrap().push((self.owner.clone(), context.partition().to_string(), reason));
        self.log.changed.send_replace(());
    }
}

struct Instance {
    snapshots: watch::Receiver<Snapshot>,
    running: JoinHandle<Result<()>>,
    shutdown: Option<oneshot::Sender<()>>,
}

impl Instance {
    async fn wait_until(&mut self, what: &str, condition: impl FnMut(&Snapshot) -> bool) {
        let waited = timeout(PATIENCE, self.snapshots.wait_for(condition)).await;
        waited.unwrap_or_else(|_| panic!("never came: {what}")).unwrap();
    }

    async fn wait_until_it_holds(&mut self, count: usize) {
        self.wait_until(&format!("{count} partitions held"), |snapshot| snapshot.held.len() == count).await;
    }

    fn held(&self) -> usize {
        self.snapshots.borrow().held.len()
    }

    /// Dies without any clean-up.
    async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }

    async fn shut_down(mut self) -> Result<()> {
        let _ = self.shutdown.take().unwrap().send(());
        timeout(PATIENCE, self.running).await.expect("shutdown takes for ever").unwrap()
    }

    async fn ended(self) -> Result<()> {
        timeout(PATIENCE, self.running).await.expect("does not end").unwrap()
    }
}

#[derive(Clone)]
struct World {
    hub: MemoryHub,
    container: Arc<MemoryContainer>,
    /// The same container, as the instances reach it.
    faulty: Faulty,
    log: Log,
    config: ProcessorConfig,
    checkpoint: bool,
}

impl World {
    fn new(partitions: u32) -> Self {
        let config = ProcessorConfig::default()
            .with_balancer(BalancerConfig::default().with_interval(Duration::from_secs(10)).with_seed(7))
            .with_checkpoints(CheckpointPolicy::default().with_every(Duration::from_secs(1)));
        let container = Arc::new(MemoryContainer::new());
        let faulty = Faulty::new(container.clone(), 11);
        Self {
            hub: MemoryHub::new("hub", partitions),
            container,
            faulty,
            log: Log::default(),
            config,
            checkpoint: true,
        }
    }

    async fn store(&self, owner: &str) -> GroupStore {
        let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
        let owner = OwnerId::new(owner).unwrap();
        GroupStore::builder(Arc::new(self.faulty.clone()), group, owner).seed(1).connect().await.unwrap()
    }

    async fn processor(
        &self,
        owner: &str,
    ) -> Processor<eventhubs_checkpoint::testing::memory_hub::MemorySource, Recorder> {
        let handler = Recorder { owner: owner.into(), log: self.log.clone(), checkpoint: self.checkpoint };
        let builder = Processor::builder(self.hub.source(), self.store(owner).await, handler);
        builder.config(self.config.clone()).build().unwrap()
    }

    async fn start(&self, owner: &str) -> Instance {
        let processor = self.processor(owner).await;
        let snapshots = processor.watch();
        let (shutdown, asked) = oneshot::channel();
        let running = tokio::spawn(processor.run(async move {
            let _ = asked.await;
        }));
        Instance { snapshots, running, shutdown: Some(shutdown) }
    }

    async fn owners(&self) -> BTreeMap<String, String> {
        let listing = self.store("observer").await.list_ownerships().await.unwrap();
        let owner = |record: &eventhubs_checkpoint::store::Ownership| {
            record.record.owner.as_ref().map(ToString::to_string).unwrap_or_default()
        };
        listing.records.iter().map(|record| (record.partition.to_string(), owner(record))).collect()
    }

    /// Writes the first partition's ownership as another SDK does that takes it.
    async fn give_to(&self, owner: &str) {
        let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
        let record = Metadata::from([("ownerid".into(), owner.into())]);
        self.container.write(name, &record, &Condition::Any).await.unwrap();
    }

    async fn first_stop(&self) -> StopReason {
        self.log.wait_for("a stop", |log| !log.stops.lock().unwrap().is_empty()).await;
        self.log.stops.lock().unwrap()[0].2.clone()
    }

    /// To whom the first partition that stopped was lost.
    async fn lost_to(&self) -> String {
        match self.first_stop().await {
            StopReason::Lost { by: Some(by) } => by.to_string(),
            other => panic!("not lost to anybody: {other:?}"),
        }
    }

    async fn checkpoint(&self) -> Option<i64> {
        self.store("observer").await.list_checkpoints().await.unwrap().records.first()?.record.sequence_number
    }
}

#[tokio::test(start_paused = true)]
async fn three_instances_share_eight_partitions_and_process_every_event_once() {
    let world = World::new(8);
    let mut instances = [world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut instances {
        instance
            .wait_until("all owned, by three", |s| s.counts().values().sum::<usize>() == 8 && s.counts().len() == 3)
            .await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut held: Vec<_> = instances.iter().map(Instance::held).collect();
    held.sort_unstable();
    assert_eq!(held, [2, 3, 3]);
    for number in 0..80u32 {
        world.hub.publish(number % 8, number.to_string());
    }
    world.log.wait_for("80 events", |log| log.bodies().len() >= 80).await;
    let mut bodies: Vec<u32> = world.log.bodies().iter().map(|body| body.parse().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..80).collect::<Vec<_>>());
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_instance_is_replaced_after_its_expiry_and_nothing_is_lost() {
    let world = World::new(4);
    let mut a = world.start("a").await;
    let mut b = world.start("b").await;
    a.wait_until_it_holds(2).await;
    b.wait_until_it_holds(2).await;
    for number in 0..40u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    a.crash().await;
    let died = tokio::time::Instant::now();
    for number in 40..80u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    b.wait_until_it_holds(4).await;
    let dark = died.elapsed();
    assert!(dark >= Duration::from_secs(30), "taken from a live lease after {dark:?}");
    assert!(dark <= Duration::from_secs(62 + 11 + 11), "still dark after {dark:?}");
    world.log.wait_for("all 80", |log| (0..80).all(|number| log.times(&number.to_string()) > 0)).await;
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_writes_the_last_checkpoint_and_releases_so_that_others_need_not_wait() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "x");
    world.hub.publish(0, "y");
    world.log.wait_for("y", |log| log.times("y") == 1).await;
    a.shut_down().await.unwrap();
    assert!(world.owners().await.values().all(String::is_empty));
    assert_eq!(world.checkpoint().await, Some(1));
    assert!(world.log.stops.lock().unwrap().iter().all(|(_, _, reason)| matches!(reason, StopReason::Shutdown)));

    let began = tokio::time::Instant::now();
    let mut b = world.start("b").await;
    b.wait_until_it_holds(2).await;
    assert!(began.elapsed() < Duration::from_secs(12));
    world.hub.publish(0, "z");
    world.log.wait_for("z", |log| log.times("z") == 1).await;
    assert_eq!((world.log.times("x"), world.log.times("y")), (1, 1));
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failing_or_panicking_handler_restarts_its_own_partition_from_the_checkpoint() {
    for misdeed in ["fail", "panic"] {
        let world = World::new(2);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(2).await;
        for body in ["before", misdeed, "after"] {
            world.hub.publish(0, body);
        }
        world.hub.publish(1, "elsewhere");
        world.log.wait_for("after", |log| log.times("after") == 1 && log.times("elsewhere") == 1).await;
        assert_eq!(world.log.times(misdeed), 2);
        assert_eq!(world.log.times("elsewhere"), 1);
        let stops = world.log.stops.lock().unwrap().clone();
        assert!(matches!(&stops[..], [(_, partition, StopReason::Failed { .. })] if partition == "0"), "{stops:?}");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_does_not_hold_up_the_shutdown_beyond_its_drain_time() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "done");
    world.log.wait_for("done", |log| log.times("done") == 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    let began = tokio::time::Instant::now();
    a.shut_down().await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(world.checkpoint().await, Some(0));
    assert!(world.owners().await.values().all(String::is_empty));
}

/// The renewal would notice it, too, but only at half the expiry.
#[tokio::test(start_paused = true)]
async fn a_partition_taken_by_another_sdk_stops_at_the_next_cycle_and_names_the_taker() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.give_to("python").await;
    let taken = tokio::time::Instant::now();
    a.wait_until_it_holds(0).await;
    assert!(taken.elapsed() <= Duration::from_secs(11), "{:?}", taken.elapsed());
    assert_eq!(world.lost_to().await, "python");
    a.shut_down().await.unwrap();
}

/// The new owner's adoption is what refuses the checkpoint.
#[tokio::test(start_paused = true)]
async fn a_refused_checkpoint_stops_its_partition_at_once() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.give_to("b").await;
    let name = "ns.servicebus.windows.net/hub/$default/checkpoint/0";
    let adopted = Metadata::from([("sequencenumber".into(), "-1".into()), ("offset".into(), "-1".into())]);
    world.container.write(name, &adopted, &Condition::Any).await.unwrap();
    let taken = tokio::time::Instant::now();
    world.hub.publish(0, "x");
    assert_eq!(world.lost_to().await, "b");
    a.wait_until_it_holds(0).await;
    assert!(taken.elapsed() < Duration::from_secs(3), "{:?}", taken.elapsed());
    assert_eq!(world.checkpoint().await, Some(-1));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reader_displaced_at_the_broker_stops_at_once_if_the_records_name_another_owner() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.give_to("b").await;
    let taken = tokio::time::Instant::now();
    let _rival = world.hub.source().open(&0.into(), StartPosition::Earliest, 1).await.unwrap();
    assert_eq!(world.lost_to().await, "b");
    assert!(taken.elapsed() < Duration::from_secs(1), "{:?}", taken.elapsed());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_settled_group_moves_nothing_for_hours_and_its_ownerships_stay_young() {
    let world = World::new(5);
    let mut instances = [world.start("a").await, world.start("b").await];
    for instance in &mut instances {
        instance.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 5).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let held = || instances.iter().map(|instance| instance.snapshots.borrow().held.clone()).collect::<Vec<_>>();
    let before = held();
    let observer = world.store("observer").await;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_secs(37)).await;
        assert_eq!(held(), before);
        for ownership in observer.list_ownerships().await.unwrap().records {
            assert!(ownership.age <= Duration::from_secs(31), "{ownership:?}");
        }
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_at_the_latest_is_pinned_so_that_a_crash_before_the_first_checkpoint_loses_nothing() {
    let mut world = World::new(1);
    world.config = world.config.with_start(StartPosition::Latest);
    world.checkpoint = false;
    world.hub.publish(0, "old");
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    a.crash().await;
    world.hub.publish(0, "while nobody looked");
    let b = world.start("b").await;
    world.log.wait_for("the event", |log| log.times("while nobody looked") > 0).await;
    assert_eq!(world.log.times("old"), 0);
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restarted_instance_with_the_same_owner_id_reclaims_its_partitions_at_once() {
    let world = World::new(4);
    let mut first = world.start("a").await;
    first.wait_until_it_holds(4).await;
    first.crash().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut second = world.start("a").await;
    let began = tokio::time::Instant::now();
    second.wait_until_it_holds(4).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    second.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_with_the_same_owner_id_ends_the_first() {
    let world = World::new(2);
    let mut first = world.start("a").await;
    first.wait_until_it_holds(2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut second = world.start("a").await;
    second.wait_until_it_holds(2).await;
    let error = first.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced);
    assert!(error.to_string().contains("give every instance an id of its own"), "{error}");
    second.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn new_partitions_of_a_growing_hub_are_taken_up() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.grow_to(3);
    world.hub.publish(2, "new");
    world.log.wait_for("new", |log| log.times("new") == 1).await;
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_ownership_record_that_somebody_deleted_is_written_again() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    let name = "ns.servicebus.windows.net/hub/$default/ownership/0";
    world.container.delete(name, &Condition::Any).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    a.wait_until_it_holds(2).await;
    assert_eq!(world.owners().await["0"], "a");
    a.shut_down().await.unwrap();
}

/// Lets every request fail for a while, and asserts that both instances work on, during it and afterwards. Gives the stops
/// that there were.
async fn outlive_an_outage(fault: Fault, outage: Duration) -> Vec<(String, String, StopReason)> {
    let world = World::new(4);
    let mut instances = [world.start("a").await, world.start("b").await];
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;

    world.faulty.set_plan(FaultPlan::always(fault));
    for number in 0..40u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    world.log.wait_for("events in the outage", |log| log.bodies().len() >= 40).await;
    tokio::time::sleep(outage).await;
    assert!(instances.iter().all(|instance| !instance.running.is_finished()));
    world.faulty.set_plan(FaultPlan::default());

    for instance in &mut instances {
        let cycles = instance.snapshots.borrow().cycles;
        instance.wait_until("another cycle", |snapshot| snapshot.cycles > cycles + 1).await;
    }
    let stops = world.log.stops.lock().unwrap().clone();
    for number in 40..80u32 {
        world.hub.publish(number % 4, number.to_string());
    }
    world.log.wait_for("all 80", |log| (0..80).all(|number| log.times(&number.to_string()) > 0)).await;
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    assert_eq!(world.checkpoint().await, Some(19));
    stops
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_expiry_moves_nothing() {
    for fault in [Fault::Unreachable, Fault::RequestLost, Fault::Throttled { retry_after: None }] {
        let stops = outlive_an_outage(fault.clone(), Duration::from_secs(50)).await;
        assert!(stops.is_empty(), "{fault:?}: {stops:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_expiry_ends_no_instance() {
    for fault in [Fault::Unreachable, Fault::Hang, Fault::RequestLost, Fault::AnswerLost] {
        outlive_an_outage(fault, Duration::from_secs(300)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_cycle_comes_no_sooner_than_a_throttling_storage_asks_for() {
    for (retry_after, at_least) in [(Some(Duration::from_secs(35)), 35), (Some(Duration::from_secs(1)), 10), (None, 10)]
    {
        let world = World::new(1);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        // A latency of nothing writes every listing down.
        world.faulty.set_plan(FaultPlan::default().with_on(1.0, Operation::List, Fault::Latency(Duration::ZERO)));
        world.faulty.next_on(Operation::List, Fault::Throttled { retry_after });
        let cycles = a.snapshots.borrow().cycles;
        a.wait_until("a cycle", |snapshot| snapshot.cycles > cycles).await;
        let trace = world.faulty.trace();
        let [throttled, next] = trace.as_slice() else { panic!("{trace:?}") };
        assert_eq!(throttled.fault.kind(), FaultKind::Throttled);
        let pause = next.at.saturating_sub(throttled.at).as_secs_f64();
        let at_least = f64::from(at_least);
        assert!((at_least..at_least * 1.1 + 0.1).contains(&pause), "{retry_after:?}: {pause}");
        a.shut_down().await.unwrap();
    }
}

/// Half an hour in which a tenth of all requests goes wrong in one way or another.
#[tokio::test(start_paused = true)]
async fn on_a_bad_day_nothing_is_lost_and_afterwards_all_is_well() {
    let world = World::new(4);
    let mut instances = [world.start("a").await, world.start("b").await];
    let plan = FaultPlan::default()
        .with(0.5, Fault::Latency(Duration::from_secs(1)))
        .with(0.02, Fault::Unreachable)
        .with(0.02, Fault::RequestLost)
        .with(0.02, Fault::AnswerLost)
        .with(0.02, Fault::AppliedLate(Duration::from_secs(30)))
        .with(0.02, Fault::Hang)
        .with(0.02, Fault::Conflict)
        .with(0.02, Fault::StalePage(Duration::from_secs(40)))
        .with(0.02, Fault::PageCutOff);
    world.faulty.set_plan(plan);
    for number in 0..360u32 {
        world.hub.publish(number % 4, number.to_string());
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    world.faulty.set_plan(FaultPlan::default());
    world.log.wait_for("all 360", |log| (0..360).all(|number| log.times(&number.to_string()) > 0)).await;
    for instance in &mut instances {
        instance.wait_until_it_holds(2).await;
    }
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
    assert_eq!(world.checkpoint().await, Some(89));
}

#[tokio::test(start_paused = true)]
async fn what_only_the_operator_can_mend_is_told_before_anything_starts() {
    let empty = World::new(0);
    let error = empty.start("a").await.ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("has no partitions"), "{error}");

    let world = World { hub: MemoryHub::new("another", 1), ..World::new(1) };
    let error = world.start("a").await.ended().await.unwrap_err();
    assert!(error.to_string().contains(r#"the client reads event hub "another""#), "{error}");
    assert!(world.owners().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_refused_with_the_value_and_the_rule() {
    let world = World::new(1);
    let seconds = Duration::from_secs;
    let balancing =
        |interval| ProcessorConfig::default().with_balancer(BalancerConfig::default().with_interval(interval));
    let checkpoints = CheckpointPolicy::default().with_every(Duration::ZERO);
    for (config, named) in [
        (balancing(seconds(21)), "the expiry is 60s, but must be at least three intervals of 21s"),
        (balancing(Duration::ZERO), "the interval is zero"),
        (ProcessorConfig::default().with_batch(0), "the batch is 0"),
        (ProcessorConfig::default().with_prefetch(0), "the prefetch is 0"),
        (ProcessorConfig::default().with_checkpoints(checkpoints), "every 0s"),
    ] {
        let handler = Recorder { owner: "a".into(), log: Log::default(), checkpoint: true };
        let built = Processor::builder(world.hub.source(), world.store("a").await, handler).config(config).build();
        let error = built.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(named), "{error}");
    }
}
