//! Several processes of the sample share an event hub and a container, more join, and all are restarted one after the
//! other: the whole path on real components, over AMQP and HTTP.
#![cfg(unix)]

mod journal;
mod process;
#[path = "../../../../examples/support/publisher.rs"]
mod publisher;
#[path = "../../../common/sas.rs"]
#[expect(dead_code, reason = "only names for containers are used")]
mod sas;
#[path = "../../../../examples/support/mod.rs"]
mod support;
mod watcher;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use eventhubs_checkpoint_lab::history::Positions;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use journal::{Judgement, Run};
use process::{Process, build_examples};
use publisher::{Address, Load, publish};
use support::azurite;
use watcher::Watcher;

const PARTITIONS: usize = 16;
/// So many at first, and in the end.
const FIRST: usize = 2;
const WORKERS: usize = 4;

/// 100,000 events of 1 KiB, over 24 s at least.
const BATCHES: u32 = 500;
const LOAD: Load = Load { events_per_batch: 200, event_size: 1024, pace: Duration::from_millis(48) };

/// Far longer than anything here takes, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(120);

/// Nobody dies here, and nothing waits for it: so long that a busy machine makes nobody look dead, nor any request
/// late.
const EXPIRY: &str = "--lease-duration=20";

/// How long a worker may take to end in good order. All of it is bounded, and with this expiry that is: a handler and
/// the call of `stopped` 5 s each, the link 2 s, a last checkpoint and a release that each have to look and try again
/// 10 s each, the client 5 s.
const ENDS_WITHIN: Duration = Duration::from_secs(37);

/// The hub in a process of its own, a container for the records, and a folder for what the processes leave behind.
struct World {
    examples: BTreeMap<String, PathBuf>,
    folder: TempDir,
    container: String,
    hub: Address,
    hub_process: Process,
}

impl World {
    async fn start() -> Self {
        let examples = build_examples(&["event_hub", "consumer", "official_processor"]);
        let folder = TempDir::new().unwrap();
        let mut command = Command::new(&examples["event_hub"]);
        command.args(["--port=0", &format!("--partitions={PARTITIONS}")]);
        let mut process = Process::spawn("event_hub", &mut command, folder.path());
        let line = process.first_line(PATIENCE).await;
        let settings = line.strip_prefix("EVENTHUBS_ENDPOINT='").unwrap().strip_suffix('\'').unwrap();
        let (endpoint, connection_string) = settings.split_once("' EVENTHUBS_CONNECTION_STRING='").unwrap();
        let hub = Address { endpoint: endpoint.to_owned(), connection_string: connection_string.to_owned() };
        let world = Self { examples, folder, container: sas::fresh_name(), hub, hub_process: process };
        world.container().await.create_container().await.unwrap();
        world
    }

    async fn container(&self) -> AzureContainer {
        let azurite = azurite::shared().await.unwrap();
        let access = Access::connection_string(azurite.connection_string(), &self.container);
        AzureContainer::builder(access).with_request_timeout(PATIENCE).build().unwrap()
    }

    /// A look at the records.
    async fn store(&self) -> GroupStore {
        let group = ConsumerGroup::new("localhost", "hub", "$Default").unwrap();
        let builder = GroupStore::builder(Arc::new(self.container().await), group, OwnerId::new("watcher").unwrap());
        let (deadline, expiry) = (PATIENCE, 4 * PATIENCE);
        builder
            .with_lease_duration(expiry)
            .with_foreign_lease_duration(expiry)
            .with_request_timeout(deadline)
            .connect()
            .await
            .unwrap()
    }

    /// Tells an example where everything is.
    async fn equip(&self, command: &mut Command) {
        command
            .env("EVENTHUBS_ENDPOINT", &self.hub.endpoint)
            .env("EVENTHUBS_CONNECTION_STRING", &self.hub.connection_string)
            .env("STORAGE_CONNECTION_STRING", azurite::shared().await.unwrap().connection_string())
            .args(["--container", &self.container]);
    }

    async fn start_worker(&self, number: usize, life: usize) -> Worker {
        let name = format!("worker-{number}");
        let journal = self.folder.path().join(format!("{name}.journal"));
        let mut command = Command::new(&self.examples["consumer"]);
        self.equip(&mut command).await;
        command
            .args(["--owner-prefix", &name, "--json", "--load-balancing-interval=1", EXPIRY, "--journal"])
            .arg(&journal);
        let process = Process::spawn(&format!("{name}.{life}"), &mut command, self.folder.path());
        Worker { process }
    }

    /// Every one of so many workers owns as many partitions as the others, and none is left over.
    async fn wait_until_all_have_their_share(&self, workers: usize) {
        let store = self.store().await;
        let shared = async || {
            let mut shares = BTreeMap::<_, usize>::new();
            for owner in owners(&store).await.into_iter().flatten() {
                *shares.entry(owner).or_default() += 1;
            }
            shares.len() == workers && shares.values().all(|share| *share == PARTITIONS / workers)
        };
        wait_until("all have their share", shared).await;
    }

    /// What all workers processed.
    fn processed(&self) -> Vec<Run> {
        let files = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let journals = files.filter(|path| path.extension().is_some_and(|extension| extension == "journal"));
        journals.flat_map(|path| journal::read(&path)).collect()
    }
}

/// One life of a worker.
struct Worker {
    process: Process,
}

/// How the life of a worker went, and ended.
struct Life {
    /// How many events it processed.
    processed: u64,
    /// How many partitions were handed over to it.
    handed_over: u64,
    /// How long the end took.
    ended_within: Duration,
}

impl Worker {
    /// Ends it in good order.
    async fn end(&mut self, signal: Signal) -> Life {
        let asked = Instant::now();
        self.process.send(signal);
        let status = self.process.end(ENDS_WITHIN).await;
        let ended_within = asked.elapsed();
        assert!(status.success(), "{status}");
        let report: Value = serde_json::from_str(self.process.output().trim_end()).unwrap();
        let count = |what: &str| report[what].as_u64().unwrap();
        let (processed, handed_over) = (count("processed"), count("handed_over"));
        assert_ne!(processed, 0, "{report}");
        Life { processed, handed_over, ended_within }
    }
}

async fn owners(store: &GroupStore) -> Vec<Option<OwnerId>> {
    let ownerships = store.list_ownerships().await.unwrap().records;
    ownerships.into_iter().map(|ownership| ownership.record.owner).collect()
}

async fn wait_until(what: &str, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never came: {what}"));
}

/// One event for every partition.
async fn publish_last_words(hub: Address) -> Positions {
    let load = Load { events_per_batch: 1, event_size: 1024, pace: Duration::ZERO };
    publish(hub, load, watch::Sender::new(PARTITIONS.try_into().unwrap()).subscribe()).await.unwrap()
}

/// One after the other, each when it has its share of the partitions, until all have it again. Gives the lives that
/// ended.
async fn restart_all(world: &World, workers: &mut [Worker]) -> Vec<Life> {
    let mut lives = Vec::new();
    for (number, worker) in workers.iter_mut().enumerate() {
        world.wait_until_all_have_their_share(WORKERS).await;
        lives.push(worker.end(Signal::TERM).await);
        *worker = world.start_worker(number, 1).await;
    }
    world.wait_until_all_have_their_share(WORKERS).await;
    lives
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_join_and_are_restarted_one_after_the_other_lose_and_repeat_nothing() {
    let world = World::start().await;
    let started = Instant::now();
    let mut watcher = Watcher::start(world.store().await);
    let batches = watch::Sender::new(u32::MAX);
    let publishing = tokio::spawn(publish(world.hub.clone(), LOAD, batches.subscribe()));
    let mut workers = Vec::new();
    for number in 0..FIRST {
        workers.push(world.start_worker(number, 0).await);
    }
    world.wait_until_all_have_their_share(FIRST).await;
    for number in FIRST..WORKERS {
        workers.push(world.start_worker(number, 0).await);
    }
    let mut lives = restart_all(&world, &mut workers).await;
    let restarted = started.elapsed();
    batches.send_replace(BATCHES);
    let last = timeout(PATIENCE, publishing).await.expect("publishing takes for ever").unwrap().unwrap();
    watcher.wait_for(&last, PATIENCE).await;

    // What comes last is checkpointed by the end itself.
    let last = publish_last_words(world.hub.clone()).await;
    wait_until("the last is processed", async || journal::reaches(&world.processed(), &last)).await;
    let all = futures::future::join_all(workers.iter_mut().map(|worker| worker.end(Signal::INT))).await;
    lives.extend(all);

    let (checkpoints, looks) = watcher.finish().await;
    assert_eq!(checkpoints, last);
    assert_eq!(owners(&world.store().await).await, vec![None; PARTITIONS]);

    let judgement = Judgement::of(&world.processed(), &last);
    let events: i64 = last.values().map(|last| last + 1).sum();
    let ended_within = lives.iter().map(|life| life.ended_within).max().unwrap();
    let handed_over: u64 = lives.iter().map(|life| life.handed_over).sum();
    println!(
        "{events} events, processed again {}, {handed_over} partitions handed over, {looks} looks; restarted after \
         {restarted:?}, ends within {ended_within:?}, all in {:?}",
        judgement.duplicates,
        started.elapsed()
    );
    assert!(events >= i64::from(BATCHES * LOAD.events_per_batch));
    assert_eq!((judgement.lost, judgement.duplicates), (vec![], 0));
    assert_eq!(judgement.processed, lives.iter().map(|life| life.processed).sum::<u64>());
    // Half of all partitions moved when the later ones joined.
    assert!(handed_over >= u64::try_from(PARTITIONS - PARTITIONS * FIRST / WORKERS).unwrap(), "{handed_over}");
}

#[tokio::test]
async fn the_other_examples_end_in_good_order_too() {
    let mut world = World::start().await;
    let mut command = Command::new(&world.examples["official_processor"]);
    world.equip(&mut command).await;
    let mut processor = Process::spawn("official_processor", &mut command, world.folder.path());
    let store = world.store().await;
    publish_last_words(world.hub.clone()).await;
    // By then it is between two rounds of claims. One that is cut short may leave a partition owned until it expires.
    let processes = async || !store.list_checkpoints().await.unwrap().records.is_empty();
    wait_until("the processor processes", processes).await;
    processor.send(Signal::TERM);
    assert!(processor.end(PATIENCE).await.success());
    assert!(processor.output().contains(" partitions\n"), "{}", processor.output());
    assert!(owners(&store).await.iter().all(Option::is_none));

    world.hub_process.send(Signal::TERM);
    assert!(world.hub_process.end(PATIENCE).await.success());
}

/// Against a hub that never answers.
#[tokio::test]
async fn a_second_signal_ends_a_process_that_does_not_end() {
    let examples = build_examples(&["consumer"]);
    let folder = TempDir::new().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("amqp://{}", silent.local_addr().unwrap());
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut command = Command::new(&examples["consumer"]);
        command.env("EVENTHUBS_ENDPOINT", &endpoint).args(["--storage=memory", "--hub"]);
        command.arg("Endpoint=sb://localhost/;SharedAccessKeyName=x;SharedAccessKey=eA==;EntityPath=hub");
        let mut process = Process::spawn("consumer", &mut command, folder.path());
        let _connection = timeout(PATIENCE, silent.accept()).await.expect("does not connect").unwrap();
        process.send(Signal::TERM);
        wait_until("it was heard", async || process.complaints().contains("send it again")).await;
        assert_eq!(process.end_by(signal, PATIENCE).await.code(), Some(expected));
        assert!(process.complaints().ends_with("stopping immediately\n"), "{}", process.complaints());
    }
}
