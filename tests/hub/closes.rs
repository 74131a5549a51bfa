//! Links that are closed under full load, on a machine without spare CPU: the next link begins where it was opened.
//!
//! A few closes for each prefetch by default. `CLOSES=1000` sets their number, `PREFETCH=3000` selects one prefetch,
//! `CPU_THREADS=2` is the number of threads that load the CPU, and `--nocapture` shows the table.

use std::env;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::{ConsumerGroup, PartitionId};
use eventhubs_emulator::EventHubEmulator;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};

use crate::hub_client::{producer, send, within};

const PREFETCHES: [usize; 4] = [300, 1000, 3000, 10_000];
/// More than are read between an open and a close, so that the link is under full load until the end.
const EVENTS: usize = 40_000;
/// The epoch with which the partition is opened.
const EPOCH: i64 = 1;
/// That of the processor.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

fn setting(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Threads that spin until dropped.
struct CpuLoad {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl CpuLoad {
    fn new(count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: Arc<AtomicBool>| move || while !stop.load(Ordering::Relaxed) {};
        let threads = (0..count).map(|_| thread::spawn(spin(Arc::clone(&stop)))).collect();
        Self { stop, threads }
    }
}

impl Drop for CpuLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|hog| hog.join().unwrap());
    }
}

#[derive(Debug, Default)]
struct Outcome {
    prefetch: usize,
    closes: usize,
    /// The event that was due, and the one that came first.
    wrong_starts: Vec<(i64, i64)>,
    errors: Vec<String>,
    time_outs: usize,
    clients_replaced: usize,
    longest: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefetch, closes, wrong_starts, errors, time_outs, clients_replaced, longest } = self;
        let (wrong, errors, longest) = (wrong_starts.len(), errors.len(), longest.as_millis());
        write!(
            f,
            "prefetch {prefetch:>5}: {closes} closes, {wrong} wrong starts, {errors} errors, {time_outs} time-outs, \
             {clients_replaced} clients replaced, longest close {longest} ms"
        )
    }
}

async fn source(hub: &EventHubEmulator, made: &Arc<AtomicUsize>) -> EventHubSource {
    let (endpoint, made) = (hub.endpoint(), Arc::clone(made));
    let group = ConsumerGroup::from_connection_string(&hub.connection_string(), "$Default").unwrap();
    let builder =
        EventHubSource::from_connection_string(&group, hub.connection_string()).with_client_builder(move |client| {
            made.fetch_add(1, Ordering::Relaxed);
            client.with_custom_endpoint(endpoint.clone())
        });
    within("a client", builder.connect()).await.unwrap()
}

impl Outcome {
    /// Opens a link, reads a batch, and closes it while the next events arrive.
    async fn open_and_close(&mut self, source: &EventHubSource) {
        // Far apart, so that a link that continues another one is detected.
        let due = i64::try_from(self.closes % 7).unwrap() * 1000;
        let from = StartPosition::AfterSequenceNumber(due - 1);
        let partition = PartitionId::new("0").unwrap();
        let mut receiver = match source.open_receiver(&partition, from, self.prefetch, EPOCH).await {
            Ok(receiver) => receiver,
            Err(error) => return self.errors.push(error.to_string()),
        };
        match within("a batch", receiver.next_batch(100)).await {
            Ok(batch) => {
                let came = batch[0].sequence_number().unwrap();
                self.wrong_starts.extend((came != due).then_some((due, came)));
            }
            Err(error) => self.errors.push(error.to_string()),
        }
        sleep(Duration::from_millis(10) * u32::try_from(self.closes % 6).unwrap()).await;
        let closing = Instant::now();
        receiver.close(CLOSE_LIMIT).await;
        let took = closing.elapsed();
        self.time_outs += usize::from(took >= CLOSE_LIMIT);
        self.longest = self.longest.max(took);
        self.closes += 1;
    }
}

async fn closes(hub: EventHubEmulator, prefetch: usize) -> Outcome {
    let made = Arc::default();
    let source = source(&hub, &made).await;
    let mut outcome = Outcome { prefetch, ..Outcome::default() };
    for _ in 0..setting("CLOSES", 8) {
        outcome.open_and_close(&source).await;
    }
    outcome.clients_replaced = made.load(Ordering::Relaxed) - 1;
    outcome
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Publishes from one thread: with more threads a send of the client can hang.
fn full_hub(servers: &Runtime) -> EventHubEmulator {
    let hub = EventHubEmulator::builder("hub").with_partitions(1).with_delay(Duration::ZERO).start("127.0.0.1:0");
    let hub = servers.block_on(hub).unwrap();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let producer = producer(&hub).await;
        send(&producer, "0", (0..EVENTS).map(|_| vec![b'.'; 100])).await;
        within("closing a producer", producer.close()).await.unwrap();
    });
    hub
}

#[test]
fn a_link_begins_where_it_was_opened() {
    let (servers, clients) = (runtime(), runtime());
    let hub = full_hub(&servers);
    let cpu_load = CpuLoad::new(setting("CPU_THREADS", 2));
    let chosen = setting("PREFETCH", 0);
    let mut wrong = Vec::new();
    for prefetch in PREFETCHES.into_iter().filter(|prefetch| [0, *prefetch].contains(&chosen)) {
        let outcome = clients.block_on(async { tokio::spawn(closes(hub.clone(), prefetch)).await.unwrap() });
        println!("{outcome}");
        if !outcome.wrong_starts.is_empty() || !outcome.errors.is_empty() {
            wrong.push(outcome);
        }
    }
    drop(cpu_load);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
