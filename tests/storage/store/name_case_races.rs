//! Instances that may choose different casings of the blob names, started at once or one by one. No partition has live
//! owners in both casings for longer than a lease: the instances choose alike, or one of them ends with a clear refusal.
//!
//! `EVENTHUBS_CHECKPOINT_SEED` replays one run.

use std::collections::BTreeMap;
use std::env;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::admin::Operator;
use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig, LoadBalancingStrategy};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{Blob, BlobContainer, Condition, ListResult, Metadata, WriteResult};
use eventhubs_checkpoint::store::{BlobNameCase, GroupStore, StoreConfig};
use eventhubs_checkpoint::{ErrorKind, LeaseScope, OwnerId, PartitionId, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::group;
use crate::intercepted::{Intercept, Intercepted};

const RUNS: u64 = 500;
const PARTITIONS: u32 = 8;
const LEASE: Duration = Duration::from_secs(60);
/// How often the records are read, and for how long.
const LOOK: Duration = Duration::from_secs(5);
const LOOKS: u32 = 48;
const CHOICES: [BlobNameCase; 3] = [BlobNameCase::Auto, BlobNameCase::Lower, BlobNameCase::Verbatim];

/// Requests and responses take up to 100 ms each.
struct Jitter(Mutex<StdRng>);

impl Jitter {
    async fn pass(&self) {
        let wait = self.0.lock().unwrap().random_range(0..=100);
        sleep(Duration::from_millis(wait)).await;
    }
}

#[async_trait]
impl Intercept for Jitter {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        self.pass().await;
        let listed = inner.list(prefix).await;
        self.pass().await;
        listed
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        self.pass().await;
        let read = inner.get(name).await;
        self.pass().await;
        read
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        self.pass().await;
        let written = inner.write(name, metadata, condition).await;
        self.pass().await;
        written
    }
}

/// How an instance has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Stopped,
    RefusedAtStart,
    RefusedLater,
}

struct Running {
    task: JoinHandle<End>,
    stop: oneshot::Sender<()>,
}

/// The settings that all instances of a run have.
#[derive(Clone, Debug)]
struct Settings {
    strategy: LoadBalancingStrategy,
    scope: LeaseScope,
}

fn assert_refused(error: &eventhubs_checkpoint::Error) {
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("ehcp copy"), "{error}");
}

/// Runs an instance until it is stopped or refused.
async fn live(
    container: MemoryContainer,
    number: u32,
    choice: BlobNameCase,
    settings: Settings,
    seed: u64,
    stopped: oneshot::Receiver<()>,
) -> End {
    let jitter = Jitter(Mutex::new(StdRng::seed_from_u64(seed)));
    let container = Intercepted { inner: Arc::new(container), interceptor: jitter };
    let config = StoreConfig::default().with_blob_name_case(choice).with_verify_storage(false);
    let builder = GroupStore::builder(container, group(), OwnerId::new(format!("i{number}")).unwrap());
    let store = match builder.with_config(config).with_seed(seed).connect().await {
        Ok(store) => store,
        Err(error) => {
            assert_refused(&error);
            return End::RefusedAtStart;
        }
    };
    let config = BalancerConfig::default()
        .with_load_balancing_strategy(settings.strategy)
        .with_lease_scope(settings.scope)
        .with_seed(seed);
    let (_partitions, named) = watch::channel((0..PARTITIONS).map(PartitionId::from).collect());
    let (balancer, handle) = Balancer::new(store, config, named).unwrap();
    let stopping = async {
        if stopped.await.is_ok() {
            handle.shutdown().await;
        }
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = balancer.run() => ended,
        () = stopping => Ok(()),
    };
    match ended {
        Ok(()) => End::Stopped,
        Err(error) => {
            assert_refused(&error);
            End::RefusedLater
        }
    }
}

/// Starts instances at once, or replaces them one by one, and returns how they ended.
async fn begin(container: MemoryContainer, seed: u64) -> Vec<End> {
    let mut draw = StdRng::seed_from_u64(seed);
    let settings = Settings {
        strategy: [LoadBalancingStrategy::Greedy, LoadBalancingStrategy::Balanced][draw.random_range(0..2)].clone(),
        scope: [LeaseScope::Partition, LeaseScope::Instance][draw.random_range(0..2)],
    };
    let mut choose = || CHOICES[draw.random_range(0..3)];
    let (before, after) = (choose(), choose());
    let count = [2, 4][draw.random_range(0..2)];
    let start = |number: u32, choice| {
        let (stop, stopped) = oneshot::channel();
        let seed = seed.wrapping_mul(64).wrapping_add(u64::from(number));
        let task = tokio::spawn(live(container.clone(), number, choice, settings.clone(), seed, stopped));
        Running { task, stop }
    };
    let mut ends = Vec::new();
    if draw.random() {
        let running: Vec<_> =
            (0..count).map(|number| start(number, if number % 2 == 0 { before } else { after })).collect();
        sleep(LOOK * (LOOKS - 1)).await;
        for Running { task, stop } in running {
            let _ = stop.send(());
            ends.push(task.await.unwrap());
        }
        return ends;
    }
    let mut old: Vec<_> = (0..count).map(|number| start(number, before)).collect();
    let mut new = Vec::new();
    sleep(Duration::from_secs(60)).await;
    for number in count..2 * count {
        // The next one may come before or after the last one has gone.
        let pauses = [draw.random_range(0..2000), draw.random_range(0..2000)].map(Duration::from_millis);
        let Running { task, stop } = old.remove(0);
        let _ = stop.send(());
        sleep(pauses[0]).await;
        new.push(start(number, after));
        sleep(pauses[1]).await;
        ends.push(task.await.unwrap());
    }
    sleep(LOOK * (LOOKS - 15)).await;
    for Running { task, stop } in new {
        let _ = stop.send(());
        ends.push(task.await.unwrap());
    }
    ends
}

/// Watches the records until the end, and fails if a partition is owned twice for too long.
async fn watch_records(container: MemoryContainer) {
    let reader = async |case| {
        let config = StoreConfig::default().with_blob_name_case(case);
        Operator::builder(container.clone(), group()).with_config(config).connect_reader().await.unwrap()
    };
    let readers = [reader(BlobNameCase::Lower).await, reader(BlobNameCase::Verbatim).await];
    let mut twice = BTreeMap::new();
    for look in 0..LOOKS {
        let mut owners = BTreeMap::<_, Vec<_>>::new();
        for reader in &readers {
            let group = reader.read().await.unwrap().describe(None);
            for partition in group.partitions.into_iter().filter(|partition| partition.state.is_live()) {
                owners.entry(partition.id).or_default().push(partition.owner.map(|owner| owner.id));
            }
        }
        twice.retain(|id, _| owners.get(id).is_some_and(|owners| owners.len() > 1));
        for (id, owners) in owners.into_iter().filter(|(_, owners)| owners.len() > 1) {
            let since = *twice.entry(id.clone()).or_insert(look);
            assert!((look - since) * LOOK <= LEASE, "{owners:?} have both owned partition {id} since look {since}");
        }
        sleep(LOOK).await;
    }
}

fn run(seed: u64) -> Vec<End> {
    println!("EVENTHUBS_CHECKPOINT_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let container = MemoryContainer::new();
        let (ends, ()) = tokio::join!(begin(container.clone(), seed), watch_records(container));
        ends
    })
}

#[test]
fn no_partition_is_owned_in_both_cases_for_long() {
    if let Ok(seed) = env::var("EVENTHUBS_CHECKPOINT_SEED") {
        println!("{:?}", run(seed.parse().expect("a number")));
        return;
    }
    let first = RandomState::new().hash_one(());
    let mut ends = BTreeMap::<_, u32>::new();
    for end in (0..RUNS).flat_map(|number| run(first.wrapping_add(number))) {
        *ends.entry(end).or_default() += 1;
    }
    println!("{ends:?}");
    assert!(ends.len() == 3, "{ends:?}: each end must be seen, or nothing was raced");
}
