//! An instance of the group, in its own process: `chaos worker`.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use clap::Parser;
use eventhubs_checkpoint::balancer::OwnershipEvent;
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, StopReason,
};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;
use tracing_subscriber::EnvFilter;

use crate::chaos::Failure;
use crate::chaos::child;
use crate::chaos::clock::Clock;
use crate::chaos::event_log::{EventLog, LogEntryKind};
use crate::chaos::reading::Reading;
use crate::chaos::seconds;
use crate::chaos::waits::publications;
use crate::runs::runs;
use crate::signals;

pub const GROUP: &str = "$Default";

/// How often the tasks of the runtime are counted.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// The entry of a graceful shutdown in the event log.
pub const CLEAN: &str = "clean";

/// The wait before a service that does not respond at the start is tried again.
const TRY_EVERY: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Parser)]
pub struct Args {
    #[arg(long)]
    pub owner: String,
    /// When the run began, in nanoseconds of the monotonic clock.
    #[arg(long)]
    pub began: u64,
    #[arg(long)]
    pub event_log: PathBuf,
    #[arg(long)]
    pub storage: String,
    #[arg(long)]
    pub container: String,
    #[arg(long)]
    pub hub: String,
    #[arg(long)]
    pub hub_endpoint: String,
    #[arg(long, value_parser = seconds)]
    pub lease_duration: Duration,
    #[arg(long, value_parser = seconds)]
    pub interval: Duration,
    #[command(flatten)]
    pub reading: Reading,
}

/// A clock that can be set wrong.
#[derive(Clone, Debug, Default)]
struct SkewedClock(Arc<AtomicI64>);

impl WallClock for SkewedClock {
    fn now(&self) -> OffsetDateTime {
        SystemWallClock.now() + time::Duration::seconds(self.0.load(Ordering::Relaxed))
    }
}

/// Records its events, and checkpoints them.
struct Worker {
    event_log: Arc<EventLog>,
    clock: Clock,
}

impl Worker {
    /// Returns when the events were published.
    fn published(&self, partition: &str, events: &[ReceivedEventData]) -> Vec<LogEntryKind> {
        let times = events.iter().filter_map(|event| Some((event.sequence_number()?, event.enqueued_time()?)));
        let published = publications(times).into_iter().map(|(first, time)| {
            let at = self.clock.moment_of(time.into()).as_micros();
            LogEntryKind::Published(partition.to_owned(), first, u64::try_from(at).unwrap_or(u64::MAX))
        });
        published.collect()
    }
}

impl Handler<ReceivedEventData> for Worker {
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        let numbers = events.iter().filter_map(ReceivedEventData::sequence_number);
        let partition = context.partition_id().to_string();
        let processed =
            runs(numbers).into_iter().map(|(first, last)| LogEntryKind::Processed(partition.clone(), first, last));
        self.event_log.write(self.published(&partition, &events).into_iter().chain(processed))?;
        for event in &events {
            context.checkpoint(event);
        }
        Ok(())
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        note(&self.event_log, LogEntryKind::Started(context.partition_id().to_string()));
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        note(&self.event_log, LogEntryKind::Stopped(context.partition_id().to_string(), format!("{reason:?}")));
    }
}

/// Runs until SIGTERM, or until the runner is gone.
pub async fn run(args: Args) -> Result<(), Failure> {
    let asked_to_end = signals::asked_to_end();
    let clock = SkewedClock::default();
    obey(clock.clone());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("off,eventhubs_checkpoint=info"))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // Its event log shows the runner that it handles signals.
    let run_clock = Clock::of_run(args.began);
    let event_log = Arc::new(EventLog::open(&args.event_log, run_clock)?);
    tokio::pin!(asked_to_end);
    let (store, source) = tokio::select! {
        both = async { (persistently(|| store(&args, &clock)).await, persistently(|| source(&args)).await) } => both,
        () = &mut asked_to_end => {
            note(&event_log, LogEntryKind::Ended(CLEAN.to_owned()));
            return Ok(());
        }
    };
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(args.interval))
        .with_checkpoint_policy(CheckpointPolicy::default().with_interval(args.interval))
        .with_lag_check_interval(args.lease_duration);
    let config = args.reading.configure(config);
    let worker = Worker { event_log: event_log.clone(), clock: run_clock };
    let processor = Processor::builder(source, store, worker).with_config(config).build()?;
    tokio::spawn(listen(processor.handle().ownership_events(), event_log.clone()));
    tokio::spawn(count_tasks(event_log.clone()));
    let report = processor.run(asked_to_end).await?;
    let how = if report.is_clean() { CLEAN.to_owned() } else { format!("{report:?}") };
    note(&event_log, LogEntryKind::Ended(how));
    Ok(())
}

/// Opens a connection to a service that may not respond yet, as a supervisor would by restarting the process.
async fn persistently<T, F: Future<Output = Result<T, Failure>>>(open: impl Fn() -> F) -> T {
    loop {
        match open().await {
            Ok(opened) => return opened,
            Err(failure) => eprintln!("not yet: {failure}"),
        }
        sleep(TRY_EVERY).await;
    }
}

async fn store(args: &Args, clock: &SkewedClock) -> Result<GroupStore, Failure> {
    let access = Access::connection_string(&args.storage, &args.container);
    let container = AzureContainer::builder(access).with_wall_clock(Arc::new(clock.clone())).build()?;
    let group = ConsumerGroup::from_connection_string(&args.hub, GROUP)?;
    let builder = GroupStore::builder(Arc::new(container), group, OwnerId::new(&args.owner)?)
        .with_config(StoreConfig::default().with_lease_duration(args.lease_duration));
    Ok(builder.connect().await?)
}

async fn source(args: &Args) -> Result<EventHubSource, Failure> {
    let group = ConsumerGroup::from_connection_string(&args.hub, GROUP)?;
    let endpoint = args.hub_endpoint.clone();
    let builder = EventHubSource::from_connection_string(&group, &args.hub)
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    Ok(builder.connect().await?)
}

/// Standard input transmits commands, and its end means that the runner is gone.
fn obey(clock: SkewedClock) {
    child::kill_with_parent();
    thread::spawn(move || {
        for order in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(offset) = order.strip_prefix("clock ").and_then(|offset| offset.parse().ok()) {
                clock.0.store(offset, Ordering::Relaxed);
            }
        }
        child::abandoned();
    });
}

async fn listen(mut events: broadcast::Receiver<OwnershipEvent>, event_log: Arc<EventLog>) {
    loop {
        match events.recv().await {
            Ok(OwnershipEvent::DuplicatesPossible { partition, cause }) => {
                note(&event_log, LogEntryKind::DuplicatesPossible(partition.to_string(), format!("{cause:?}")));
            }
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

async fn count_tasks(event_log: Arc<EventLog>) {
    loop {
        sleep(COUNT_EVERY).await;
        note(&event_log, LogEntryKind::Tasks(Handle::current().metrics().num_alive_tasks()));
    }
}

fn note(event_log: &EventLog, kind: LogEntryKind) {
    if let Err(error) = event_log.write([kind]) {
        eprintln!("cannot write the event log: {error}");
    }
}
