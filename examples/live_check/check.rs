//! The check from its start to the report.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::source::EventSource;
use eventhubs_checkpoint::testing::conformance::Container;
use eventhubs_checkpoint::{EventHubSource, GroupStore, LOG_FILTER, OwnerId, PartitionId, Position};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing_subscriber::EnvFilter;

use crate::connection::StorageArgs;
use crate::counted::{CountedContainer, Counters, Counts};
use crate::hub::Hub;
use crate::publisher::publish;
use crate::report::{Report, storage_host};
use crate::rules::{self, CheckedRules};
use crate::scenario;
use crate::steps::{Step, Steps, Unmet};
use crate::support::azurite;
use crate::tally::{LastNumbers, Tally};
use crate::worker::{Settings, read_counts};
use crate::{Args, Failure, signals};

/// The partitions of an embedded event hub.
const PARTITIONS: u16 = 4;
/// So few blobs per page that the rule about pages needs several.
const SMALL_PAGES: u32 = 5;
/// What the service returns at most, by default.
const LARGE_PAGES: u32 = 5000;
/// How long a step may take, and how much longer for each partition.
const STEP_LIMIT: Duration = Duration::from_secs(60);
const STEP_LIMIT_PER_PARTITION: Duration = Duration::from_secs(4);
const HUB_LIMIT: Duration = Duration::from_secs(60);
/// How many lines of each log are shown if a step fails.
const SHOWN_LINES: usize = 10;

/// The position of the last event of each partition.
type Positions = BTreeMap<PartitionId, Option<Position>>;

/// Checks, prints the report, and returns whether everything holds.
pub async fn run(args: Args) -> Result<bool, Failure> {
    let directives = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| "warn".to_owned());
    let filter = format!("{LOG_FILTER},{directives}");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let interrupted = signals::asked_to_end();
    let began = Instant::now();
    let storage = choose_storage(&args).await?;
    let hub = Arc::new(Hub::open(&args.hub, PARTITIONS).await?);
    let folder = TempDir::new()?;
    let settings = Settings { storage, hub: hub.args.clone(), folder: folder.path().to_owned() };
    let counters = Counters::default();
    let container = Arc::new(open_container(&settings.storage, SMALL_PAGES, &counters)?);
    let date = rules::prepare(&*container, &settings.storage.container).await?;

    let checking =
        Check { settings: settings.clone(), hub: hub.clone(), counters: counters.clone(), events: args.events };
    let checked = tokio::select! {
        checked = checking.run(container.clone()) => checked,
        () = interrupted => Err("interrupted".into()),
    };
    // Also after an error, so that the next check finds an empty container.
    let removed = rules::remove_blobs(&*container).await;
    let Findings { partitions, rules, steps, tally } = checked?;
    removed?;
    let is_azurite = args.storage.storage_url.is_none() && args.storage.storage != settings.storage.storage;
    let report = Report {
        date,
        took: began.elapsed(),
        storage: if is_azurite { "emulator".to_owned() } else { storage_host(&settings.storage) },
        event_hub: if args.hub.is_embedded() { "emulator".to_owned() } else { hub.group().namespace().to_owned() },
        partitions,
        rules,
        steps,
        tally,
        requests: sum_requests(&settings, &counters),
    };
    print!("{report}");
    if let Some(file) = &args.report {
        fs::write(file, report.to_string())
            .map_err(|error| format!("the report cannot be written to {}: {error}", file.display()))?;
    }
    Ok(report.holds())
}

/// Returns the storage requests of this process and of its workers.
fn sum_requests(settings: &Settings, counters: &Counters) -> Counts {
    let mut requests = counters.current_counts();
    for counts in scenario::OWNERS.map(|owner| read_counts(settings, owner)) {
        requests.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    requests
}

/// Returns the storage to connect to. If the arguments name neither storage nor an event hub, starts Azurite.
async fn choose_storage(args: &Args) -> Result<StorageArgs, Failure> {
    let mut storage = args.storage.clone();
    if storage.storage_url.is_some() {
        return Ok(storage);
    }
    match storage.storage.as_deref() {
        None if !args.hub.is_embedded() => {
            Err("a real event hub needs storage in Azure: set --storage or --storage-url".into())
        }
        Some("memory") => Err("the worker processes cannot share storage in memory: use --storage azurite".into()),
        None | Some("azurite") => {
            storage.storage = Some(azurite::shared().await?.connection_string());
            Ok(storage)
        }
        Some(_) => Ok(storage),
    }
}

fn open_container(storage: &StorageArgs, page_size: u32, counters: &Counters) -> Result<CountedContainer, Failure> {
    let container = AzureContainer::builder(storage.access()?).with_page_size(page_size).build()?;
    Ok(CountedContainer { inner: Arc::new(container), counters: counters.clone(), page_size: page_size as usize })
}

struct Check {
    settings: Settings,
    hub: Arc<Hub>,
    counters: Counters,
    events: u32,
}

struct Findings {
    partitions: usize,
    rules: CheckedRules,
    steps: Vec<Step>,
    tally: Tally,
}

impl Check {
    async fn run(&self, container: Container) -> Result<Findings, Failure> {
        eprintln!("checking the rules of the storage");
        let rules = rules::check_all(&container).await?;
        eprintln!("connecting to the event hub");
        let source = self.hub.source().await?;
        let first = read_positions(&source).await?;
        File::create(self.settings.journal())?;
        let mut steps = Steps {
            taken: Vec::new(),
            settings: self.settings.clone(),
            store: self.open_store(&first).await?,
            partitions: first.len(),
            limit: STEP_LIMIT + STEP_LIMIT_PER_PARTITION * u32::try_from(first.len())?,
        };
        let (end, is_end) = watch::channel(false);
        let mut publishing = tokio::spawn(publish(self.hub.clone(), self.events, is_end));
        let taken = tokio::select! {
            taken = scenario::run(&mut steps) => taken,
            ended = &mut publishing => Err(ended?.err().unwrap_or_else(|| "the publisher ended too early".into())),
        };
        let last_worker = match taken {
            Err(failure) if failure.is::<Unmet>() => {
                self.show_logs();
                None
            }
            taken => Some(taken?),
        };
        end.send_replace(true);
        publishing.await??;
        let first = to_numbers(first);
        let last = to_numbers(read_positions(&source).await?);
        if let Some(worker) = last_worker {
            let all = "all published events are handled";
            let handled = steps.until(all, steps.limit, |entries| {
                let tally = Tally::of(entries, &first, &last);
                (tally.lost() == 0).then(|| tally.handled.to_string())
            });
            match handled.await {
                Err(failure) if !failure.is::<Unmet>() => return Err(failure),
                _ => worker.end()?,
            }
        }
        let tally = Tally::of(&steps.entries()?, &first, &last);
        Ok(Findings { partitions: steps.partitions, rules, steps: steps.taken, tally })
    }

    /// Opens a store that observes the workers. They start after the events that exist now.
    async fn open_store(&self, first: &Positions) -> Result<GroupStore, Failure> {
        let container = open_container(&self.settings.storage, LARGE_PAGES, &self.counters)?;
        let store = GroupStore::connect(container, self.hub.group().clone(), OwnerId::random()?).await?;
        for (partition, position) in first {
            if let Some(position) = position {
                store.init_checkpoint(partition, position).await?;
            }
        }
        Ok(store)
    }

    /// Prints what the workers logged last, because the folder is removed.
    fn show_logs(&self) {
        for owner in scenario::OWNERS {
            let log = fs::read_to_string(self.settings.log(owner)).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(SHOWN_LINES).collect();
            lines.iter().rev().for_each(|line| eprintln!("{owner}: {line}"));
        }
    }
}

/// Returns the position of the last event of each partition, if there ever was one.
async fn read_positions(source: &EventHubSource) -> Result<Positions, Failure> {
    let reading = async {
        let mut positions = Positions::new();
        for partition in source.event_hub_properties().await?.partitions {
            let properties = source.partition_properties(&partition).await?;
            positions.insert(partition, properties.last_enqueued().cloned());
        }
        Ok(positions)
    };
    timeout(HUB_LIMIT, reading).await.map_err(|_| format!("the event hub did not respond within {HUB_LIMIT:?}"))?
}

fn to_numbers(positions: Positions) -> LastNumbers {
    let number = |position: Option<Position>| position.map_or(-1, |position| position.sequence_number);
    positions.into_iter().map(|(partition, position)| (partition.to_string(), number(position))).collect()
}
