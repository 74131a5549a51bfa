//! The run: two workers, of which one is frozen and woken, and then the other one killed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::{AzureContainer, ConsumerGroup, GroupStore, OwnerId};
use eventhubs_emulator::EventHubEmulator;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::Adapter;
use crate::publisher::{Address, Load, publish};
use crate::support::azurite::Azurite;
use crate::worker::{Failure, Results, Worker};
use crate::workers::{WorkerProcess, count_owned};

const PARTITIONS: u16 = 4;
const LOAD: Load = Load { events_per_batch: 20, event_size: 100, pace: Duration::from_millis(60) };
/// How long a step may take, even on a busy machine.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Returns whether the promise of the adapter is kept.
pub async fn run(adapter: Adapter, events: u32) -> Result<bool, Failure> {
    let folder = tempfile::tempdir()?;
    let azurite = Azurite::start().await?;
    let hub = EventHubEmulator::builder("orders").with_partitions(PARTITIONS).start("127.0.0.1:0").await?;
    let observer = OwnerId::random()?;
    let settings = Worker {
        owner: observer.to_string(),
        folder: folder.path().to_owned(),
        container: format!("adapters-{observer}").to_lowercase(),
        storage: azurite.connection_string(),
        hub: hub.connection_string_with_port(),
    };
    let scenario = Scenario::new(adapter, settings, observer).await?;

    let address = Address { endpoint: hub.endpoint(), connection_string: hub.connection_string() };
    // There are events to process, however long the steps take.
    let (end, batches) = watch::channel(u32::MAX);
    let publishing = tokio::spawn(publish(address, LOAD, batches));
    let first = scenario.start("worker-1")?;
    let second = scenario.start("worker-2")?;
    let half = usize::from(PARTITIONS) / 2;
    scenario.until_owned(&[("worker-1", half), ("worker-2", half)]).await?;
    first.signal(Signal::STOP)?;
    scenario.until_owned(&[("worker-2", 2 * half)]).await?;
    scenario.until_processed(&hub, "worker-2 has continued with the partitions of worker-1").await?;
    first.signal(Signal::CONT)?;
    scenario.until_owned(&[("worker-1", half), ("worker-2", half)]).await?;
    eprintln!("worker-2 is killed");
    drop(second);
    end.send_replace(events.div_ceil(LOAD.events_per_batch));
    let last = publishing.await??;
    scenario.until_processed(&hub, "worker-1 has processed the rest").await?;
    first.end()?;
    Ok(report(adapter, &last, &adapter.results(&scenario.settings).await?))
}

/// Prints the counts. Returns whether the promise of the adapter is kept.
fn report(adapter: Adapter, last: &BTreeMap<String, i64>, results: &Results) -> bool {
    let published: BTreeSet<_> =
        last.iter().flat_map(|(partition, last)| (0..=*last).map(|number| (partition.clone(), number))).collect();
    let processed: BTreeSet<_> = results.iter().cloned().collect();
    let lost = published.difference(&processed).count();
    let twice = results.len() - processed.len();
    println!("{:<20}{:>8}\n{:<20}{:>8}", "published", published.len(), "processed", results.len());
    println!("{:<20}{:>8}\n{:<20}{:>8}", "lost", lost, "processed twice", twice);
    lost == 0 && (twice == 0 || !adapter.is_exact()) && processed.is_subset(&published)
}

struct Scenario {
    adapter: Adapter,
    /// The settings of the workers. Only the owner ID differs.
    settings: Worker,
    store: GroupStore,
}

impl Scenario {
    async fn new(adapter: Adapter, settings: Worker, observer: OwnerId) -> Result<Self, Failure> {
        let records = AzureContainer::from_connection_string(&settings.storage, &settings.container)?;
        records.create_container().await?;
        let group = ConsumerGroup::from_connection_string(&settings.hub, ConsumerGroup::DEFAULT_NAME)?;
        Ok(Self { adapter, store: GroupStore::connect(records, group, observer).await?, settings })
    }

    fn start(&self, owner: &str) -> Result<WorkerProcess, Failure> {
        let Worker { folder, container, storage, hub, .. } = &self.settings;
        let adapter = self.adapter.to_possible_value().ok_or("the adapter has no name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([adapter.get_name(), "worker", owner]).arg(folder).args([container, storage, hub]);
        WorkerProcess::start(&mut command, &folder.join(format!("{owner}.log")))
    }

    async fn until_owned(&self, expected: &[(&str, usize)]) -> Result<(), Failure> {
        let expected: BTreeMap<_, _> = expected.iter().map(|(owner, count)| ((*owner).to_owned(), *count)).collect();
        let deadline = Instant::now() + STEP_LIMIT;
        loop {
            let owned = count_owned(&self.store).await?;
            if owned == expected {
                eprintln!("partitions are owned: {owned:?}");
                return Ok(());
            }
            self.pause(deadline, &format!("the partitions are owned as {expected:?}")).await?;
        }
    }

    /// Waits until the events that the event hub has now are processed.
    async fn until_processed(&self, hub: &EventHubEmulator, what: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + STEP_LIMIT;
        let due: Vec<_> = hub
            .partition_ids()
            .into_iter()
            .filter_map(|id| Some((hub.partition_properties(&id)?.last_enqueued_sequence_number, id)))
            .filter(|(last, _)| *last >= 0)
            .collect();
        loop {
            let results = self.adapter.results(&self.settings).await?;
            if due.iter().all(|(last, id)| results.iter().any(|(partition, number)| partition == id && number >= last))
            {
                eprintln!("{what}");
                return Ok(());
            }
            self.pause(deadline, what).await?;
        }
    }

    async fn pause(&self, deadline: Instant, what: &str) -> Result<(), Failure> {
        if Instant::now() > deadline {
            let logs = ["worker-1", "worker-2"].map(|owner| {
                std::fs::read_to_string(self.settings.folder.join(format!("{owner}.log"))).unwrap_or_default()
            });
            return Err(format!("not within {STEP_LIMIT:?}: {what}; the logs are\n{}", logs.join("\n")).into());
        }
        sleep(Duration::from_millis(100)).await;
        Ok(())
    }
}
