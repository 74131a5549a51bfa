//! The run: two workers, of which one is frozen and woken, and then the other one killed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::{AzureContainer, ConsumerGroup, GroupStore, OwnerId};
use eventhubs_emulator::EventHubEmulator;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::database::Database;
use crate::publisher::{Address, Load, publish};
use crate::report::{Report, last_delivered};
use crate::support::azurite::Azurite;
use crate::workers::{WorkerProcess, count_owned};
use crate::workspace::Workspace;
use crate::{Args, Failure};

const PARTITIONS: u16 = 4;
const LOAD: Load = Load { events_per_batch: 20, event_size: 100, pace: Duration::from_millis(60) };
/// How long a step may take, even on a busy machine.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Returns whether every event was counted once.
pub async fn run(args: &Args) -> Result<bool, Failure> {
    let temporary = tempfile::tempdir()?;
    let folder = args.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder)?;
    step("starting the storage and the event hub");
    let azurite = Azurite::start().await?;
    let hub = EventHubEmulator::builder("orders").with_partitions(PARTITIONS).start("127.0.0.1:0").await?;
    let scenario = Scenario::new(folder, &azurite, &hub, !args.without_fence).await?;

    let address = Address { endpoint: hub.endpoint(), connection_string: hub.connection_string() };
    // A worker needs events to freeze at, however long the steps before take.
    let (end, batches) = watch::channel(u32::MAX);
    let publishing = tokio::spawn(publish(address, LOAD, batches));
    let first = scenario.start("worker-1")?;
    let second = scenario.start("worker-2")?;
    scenario.freeze_and_wake(&first).await?;
    step("worker-2 is killed");
    drop(second);
    end.send_replace(args.events.div_ceil(LOAD.events_per_batch));
    let last = publishing.await??;
    scenario.until("worker-1 has counted the rest", || Ok(scenario.positions()? == last)).await?;
    first.end()?;

    let report = Report::new(&scenario.workspace, &scenario.database, &last)?;
    println!("{report}");
    Ok(report.is_exact())
}

struct Scenario {
    workspace: Workspace,
    database: Database,
    store: GroupStore,
    is_fenced: bool,
}

impl Scenario {
    async fn new(folder: PathBuf, azurite: &Azurite, hub: &EventHubEmulator, is_fenced: bool) -> Result<Self, Failure> {
        let storage = azurite.connection_string();
        let hub = hub.connection_string_with_port();
        let observer = OwnerId::random()?;
        let container = format!("exactly-once-{observer}").to_lowercase();
        let records = AzureContainer::from_connection_string(&storage, &container)?;
        records.create_container().await?;
        let group = ConsumerGroup::from_connection_string(&hub, "$Default")?;
        let store = GroupStore::connect(records, group, observer).await?;
        let workspace = Workspace { folder, container, storage, hub };
        Ok(Self { database: Database::open(&workspace.database(), is_fenced)?, workspace, store, is_fenced })
    }

    fn start(&self, owner: &str) -> Result<WorkerProcess, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        self.workspace.pass_to(&mut command);
        command.args((!self.is_fenced).then_some("--without-fence")).args(["worker", owner]);
        WorkerProcess::start(&mut command, &self.workspace.folder.join(format!("{owner}.log")))
    }

    async fn freeze_and_wake(&self, worker: &WorkerProcess) -> Result<(), Failure> {
        let half = usize::from(PARTITIONS) / 2;
        self.until_owned(&[("worker-1", half), ("worker-2", half)]).await?;
        self.workspace.request_freeze("worker-1")?;
        self.until("worker-1 is frozen before a transaction", || Ok(self.workspace.is_frozen("worker-1"))).await?;
        self.until_owned(&[("worker-2", 2 * half)]).await?;
        let frozen = last_delivered(&self.workspace, "worker-1")?;
        self.until("worker-2 has counted the same events", || {
            let positions = self.positions()?;
            Ok(frozen.iter().all(|(partition, last)| positions.get(partition) >= Some(last)))
        })
        .await?;
        worker.signal(Signal::CONT)?;
        step("worker-1 is awake");
        self.until_owned(&[("worker-1", half), ("worker-2", half)]).await
    }

    fn positions(&self) -> Result<BTreeMap<String, i64>, Failure> {
        Ok(self.database.positions()?.into_iter().collect())
    }

    async fn until_owned(&self, expected: &[(&str, usize)]) -> Result<(), Failure> {
        let expected: BTreeMap<_, _> = expected.iter().map(|(owner, count)| ((*owner).to_owned(), *count)).collect();
        let deadline = Instant::now() + STEP_LIMIT;
        loop {
            let owned = count_owned(&self.store).await?;
            if owned == expected {
                step(&format!("partitions are owned: {owned:?}"));
                return Ok(());
            }
            self.pause(deadline, "the partitions are shared").await?;
        }
    }

    async fn until(&self, what: &str, reached: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
        let deadline = Instant::now() + STEP_LIMIT;
        while !reached()? {
            self.pause(deadline, what).await?;
        }
        step(what);
        Ok(())
    }

    async fn pause(&self, deadline: Instant, what: &str) -> Result<(), Failure> {
        if Instant::now() > deadline {
            let folder = self.workspace.folder.display();
            return Err(format!("not within {STEP_LIMIT:?}: {what}; the logs are in {folder}, see --folder").into());
        }
        sleep(Duration::from_millis(50)).await;
        Ok(())
    }
}

fn step(text: &str) {
    eprintln!("{text}");
}
