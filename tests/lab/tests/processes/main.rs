//! Tests of real processes, over AMQP and HTTP. Several processes of the sample share an event hub and a container,
//! more join, and all are restarted one after another. The other examples and `day` have tests here, too.
#![cfg(unix)]

#[cfg(target_os = "linux")]
mod day;
mod exactly_once;
mod journal;
mod live_check;
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
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use eventhubs_checkpoint_lab::history::Positions;
use eventhubs_emulator::EventHubEmulator;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use journal::{Run, Summary};
use process::{EMULATOR, Process, build_examples};
use publisher::{Address, Load, publish};
use support::azurite;
use watcher::Watcher;

const PARTITIONS: usize = 16;
/// The number of workers at first, and in the end.
const FIRST: usize = 2;
const WORKERS: usize = 4;

/// 100,000 events of 1 KiB, over at least 24 s.
const BATCHES: u32 = 500;
const LOAD: Load = Load { events_per_batch: 200, event_size: 1024, pace: Duration::from_millis(48) };

/// Far longer than any step here takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How long a process with the default settings may take to shut down gracefully, by the table in docs/kubernetes.md.
/// No process crashes here, so no test waits for the default lease duration, and on a busy machine no lease expires and
/// no request times out.
const ENDS_WITHIN: Duration = Duration::from_secs(94);

/// The hub in its own process, a container for the records, and a folder for the output of the processes.
struct World {
    examples: BTreeMap<String, PathBuf>,
    folder: TempDir,
    container: String,
    hub: Address,
    hub_process: Process,
}

impl World {
    async fn start() -> Self {
        let examples = build_examples(&["consumer", "official_processor"]);
        let folder = TempDir::new().unwrap();
        let mut command = Command::new(&examples[EMULATOR]);
        command.args(["--port=0", &format!("--partitions={PARTITIONS}")]);
        let mut process = Process::spawn(EMULATOR, &mut command, folder.path());
        let line = process.first_line(TIMEOUT).await;
        let settings = line.strip_prefix("EVENTHUBS_ENDPOINT='").unwrap().strip_suffix('\'').unwrap();
        let (endpoint, connection_string) = settings.split_once("' EVENTHUBS_CONNECTION_STRING='").unwrap();
        let hub = Address { endpoint: endpoint.to_owned(), connection_string: connection_string.to_owned() };
        let world = Self { examples, folder, container: sas::fresh_name(), hub, hub_process: process };
        world.container().await.create_container().await.unwrap();
        world
    }

    async fn container(&self) -> AzureContainer {
        let azurite = azurite::shared().await.unwrap();
        AzureContainer::from_connection_string(azurite.connection_string(), &self.container).unwrap()
    }

    /// Returns a store to read the records.
    async fn store(&self) -> GroupStore {
        let group = ConsumerGroup::new("localhost", "hub", "$Default").unwrap();
        let builder = GroupStore::builder(Arc::new(self.container().await), group, OwnerId::new("watcher").unwrap());
        let (deadline, expiry) = (TIMEOUT, 4 * TIMEOUT);
        let config = StoreConfig::default()
            .with_lease_duration(expiry)
            .with_foreign_lease_duration(expiry)
            .with_request_timeout(deadline);
        builder.with_config(config).connect().await.unwrap()
    }

    /// Passes the addresses to an example.
    async fn configure(&self, command: &mut Command) {
        command
            .env("EVENTHUBS_ENDPOINT", &self.hub.endpoint)
            .env("EVENTHUBS_CONNECTION_STRING", &self.hub.connection_string)
            .env("AZURE_STORAGE_CONNECTION_STRING", azurite::shared().await.unwrap().connection_string())
            .args(["--container", &self.container]);
    }

    async fn start_worker(&self, number: usize, incarnation: usize) -> Worker {
        let name = format!("worker-{number}");
        let journal = self.folder.path().join(format!("{name}.journal"));
        let mut command = Command::new(&self.examples["consumer"]);
        self.configure(&mut command).await;
        command.args(["--owner-prefix", &name, "--json", "--load-balancing-interval=1", "--journal"]).arg(&journal);
        let process = Process::spawn(&format!("{name}.{incarnation}"), &mut command, self.folder.path());
        Worker { process, journal }
    }

    /// Waits until each of this many workers owns the same number of partitions, and none is left over.
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

    /// Returns what all workers processed.
    fn processed(&self) -> Vec<Run> {
        let files = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let journals = files.filter(|path| path.extension().is_some_and(|extension| extension == "journal"));
        journals.flat_map(|path| journal::read(&path)).collect()
    }
}

/// One incarnation of a worker.
struct Worker {
    process: Process,
    /// The file with the events that all its incarnations have processed.
    journal: PathBuf,
}

/// The outcome of one incarnation of a worker.
struct Outcome {
    /// How many events it processed.
    processed: u64,
    /// How many partitions were handed over to it.
    handed_over: u64,
    /// How long the shutdown took.
    ended_within: Duration,
}

impl Worker {
    /// Shuts the worker down gracefully.
    async fn end(&mut self, signal: Signal) -> Outcome {
        let requested = Instant::now();
        self.process.send(signal);
        let status = self.process.end(ENDS_WITHIN).await;
        let ended_within = requested.elapsed();
        assert!(status.success(), "{status}");
        let report: Value = serde_json::from_str(self.process.output().trim_end()).unwrap();
        let count = |what: &str| report[what].as_u64().unwrap();
        let (processed, handed_over) = (count("processed"), count("handed_over"));
        assert_ne!(processed, 0, "{report}");
        Outcome { processed, handed_over, ended_within }
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
    timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}

/// Publishes one event to every partition.
async fn publish_last_events(hub: Address) -> Positions {
    let load = Load { events_per_batch: 1, event_size: 1024, pace: Duration::ZERO };
    publish(hub, load, watch::Sender::new(PARTITIONS.try_into().unwrap()).subscribe()).await.unwrap()
}

/// Restarts the workers one after another, each when it has its share of the partitions, until all have their share
/// again. Returns the outcomes of the stopped incarnations.
async fn restart_all(world: &World, workers: &mut [Worker]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (number, worker) in workers.iter_mut().enumerate() {
        world.wait_until_all_have_their_share(WORKERS).await;
        wait_until("it has processed an event", async || !journal::read(&worker.journal).is_empty()).await;
        outcomes.push(worker.end(Signal::TERM).await);
        *worker = world.start_worker(number, 1).await;
    }
    world.wait_until_all_have_their_share(WORKERS).await;
    outcomes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_and_restarts_lose_and_repeat_nothing() {
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
    let mut outcomes = restart_all(&world, &mut workers).await;
    let restarted = started.elapsed();
    batches.send_replace(BATCHES);
    let last = timeout(TIMEOUT, publishing).await.expect("publishing timed out").unwrap().unwrap();
    watcher.wait_for(&last, TIMEOUT).await;

    // The shutdown itself checkpoints the last events.
    let last = publish_last_events(world.hub.clone()).await;
    wait_until("the last event is processed", async || journal::reaches(&world.processed(), &last)).await;
    let all = futures::future::join_all(workers.iter_mut().map(|worker| worker.end(Signal::INT))).await;
    outcomes.extend(all);

    let (checkpoints, observations) = watcher.finish().await;
    assert_eq!(checkpoints, last);
    assert_eq!(owners(&world.store().await).await, vec![None; PARTITIONS]);

    let summary = Summary::of(&world.processed(), &last);
    let events: i64 = last.values().map(|last| last + 1).sum();
    let ended_within = outcomes.iter().map(|outcome| outcome.ended_within).max().unwrap();
    let handed_over: u64 = outcomes.iter().map(|outcome| outcome.handed_over).sum();
    println!(
        "{events} events, processed again {}, {handed_over} partitions handed over, {observations} observations; restarted after \
         {restarted:?}, shutdown within {ended_within:?}, all in {:?}",
        summary.duplicates,
        started.elapsed()
    );
    assert!(events >= i64::from(BATCHES * LOAD.events_per_batch));
    assert_eq!((summary.lost, summary.duplicates), (vec![], 0));
    assert_eq!(summary.processed, outcomes.iter().map(|outcome| outcome.processed).sum::<u64>());
    // Half of all partitions moved when the later workers joined.
    assert!(handed_over >= u64::try_from(PARTITIONS - PARTITIONS * FIRST / WORKERS).unwrap(), "{handed_over}");
}

#[tokio::test]
async fn the_other_examples_shut_down_gracefully() {
    let mut world = World::start().await;
    let mut command = Command::new(&world.examples["official_processor"]);
    world.configure(&mut command).await;
    let mut processor = Process::spawn("official_processor", &mut command, world.folder.path());
    let store = world.store().await;
    publish_last_events(world.hub.clone()).await;
    // At this point it is between two rounds of claims. An interrupted claim may leave a partition owned until it
    // expires.
    let processes = async || !store.list_checkpoints().await.unwrap().records.is_empty();
    wait_until("the processor processes", processes).await;
    processor.send(Signal::TERM);
    assert!(processor.end(TIMEOUT).await.success());
    assert!(processor.output().contains(" partitions\n"), "{}", processor.output());
    assert!(owners(&store).await.iter().all(Option::is_none));

    world.hub_process.send(Signal::TERM);
    assert!(world.hub_process.end(TIMEOUT).await.success());
}

#[tokio::test]
async fn hello_prints_events_and_shuts_down_gracefully() {
    let examples = build_examples(&["hello"]);
    // Its event hub has a name of its own, because other tests use the container, too.
    let emulator = EventHubEmulator::builder("orders").with_partitions(2).start("127.0.0.1:0").await.unwrap();
    let hub = Address { endpoint: emulator.endpoint(), connection_string: emulator.connection_string() };
    publish(hub, LOAD, watch::Sender::new(2).subscribe()).await.unwrap();
    let storage = azurite::shared().await.unwrap().connection_string();
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(&examples["hello"]);
    command.env_remove("EVENTHUBS_CONNECTION_STRING");
    let mut process = Process::spawn("without settings", &mut command, folder.path());
    assert!(!process.end(TIMEOUT).await.success());
    let missing = "the environment variable EVENTHUBS_CONNECTION_STRING is not set";
    assert!(process.stderr().contains(missing), "{}", process.stderr());
    command
        .env("EVENTHUBS_CONNECTION_STRING", emulator.connection_string_with_port())
        .env("AZURE_STORAGE_CONNECTION_STRING", storage)
        .env("NO_COLOR", "1");
    let mut process = Process::spawn("hello", &mut command, folder.path());
    wait_until("an event is printed", async || process.output().contains("partition 0: ")).await;
    process.send(Signal::TERM);
    assert!(process.end(TIMEOUT).await.success(), "{}", process.stderr());
    assert!(process.stderr().contains("processor stopped"), "{}", process.stderr());
}

/// Returns the port in the line with which the service reports that it serves.
fn served_port(log: &str) -> Option<u16> {
    let (_, rest) = log.split_once("serving port=")?;
    rest.split_once('\n')?.0.parse().ok()
}

/// With the connection strings, and no other settings.
#[tokio::test]
async fn the_service_serves_probes_and_metrics() {
    let world = World::start().await;
    publish_last_events(world.hub.clone()).await;
    let service = build_examples(&["service"]).remove("service").unwrap();
    let mut command = Command::new(service);
    command
        .env("EVENTHUBS_CONNECTION_STRING", &world.hub.connection_string)
        .env("AZURE_STORAGE_CONNECTION_STRING", azurite::shared().await.unwrap().connection_string())
        .env("OWNER_ID", "pod-1")
        .env("PORT", "0")
        .env("NO_COLOR", "1");
    let mut process = Process::spawn("service", &mut command, world.folder.path());
    wait_until("it serves", async || served_port(&process.stderr()).is_some()).await;
    let port = served_port(&process.stderr()).unwrap();
    let get = async |path: &str| match reqwest::get(format!("http://127.0.0.1:{port}/{path}")).await {
        Ok(response) => (response.status().as_u16(), response.text().await.unwrap_or_default()),
        Err(_) => (0, String::new()),
    };
    wait_until("it is ready", async || get("ready").await.0 == 200).await;
    assert_eq!(get("alive").await.0, 200);
    let handled = "eventhubs_checkpoint_events_handled_total{";
    let counts_all =
        async || get("metrics").await.1.lines().filter(|line| line.starts_with(handled)).count() == PARTITIONS;
    wait_until("all partitions are read", counts_all).await;
    let status: Value = serde_json::from_str(&get("status").await.1).unwrap();
    assert_eq!(status.as_array().map(Vec::len), Some(PARTITIONS), "{status}");
    process.send(Signal::TERM);
    assert!(process.end(ENDS_WITHIN).await.success(), "{}", process.stderr());
    assert!(process.stderr().contains("ended clean=true"), "{}", process.stderr());
}

/// Against a hub that never responds.
#[tokio::test]
async fn a_second_signal_ends_a_hanging_process() {
    let examples = build_examples(&["consumer"]);
    let folder = TempDir::new().unwrap();
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        // Its own: the process before may have left connections.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("amqp://{}", silent.local_addr().unwrap());
        let mut command = Command::new(&examples["consumer"]);
        command.env("EVENTHUBS_ENDPOINT", &endpoint).args(["--storage=memory", "--hub"]);
        command.arg("Endpoint=sb://localhost/;SharedAccessKeyName=x;SharedAccessKey=eA==;EntityPath=hub");
        let mut process = Process::spawn("consumer", &mut command, folder.path());
        let _connection = timeout(TIMEOUT, silent.accept()).await.expect("does not connect").unwrap();
        process.send(Signal::TERM);
        wait_until("the first signal is handled", async || process.stderr().contains("send it again")).await;
        assert_eq!(process.end_by(signal, TIMEOUT).await.code(), Some(expected));
        assert!(process.stderr().ends_with("stopping immediately\n"), "{}", process.stderr());
    }
}
