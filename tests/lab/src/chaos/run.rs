//! One run: starts the processes, executes the plan, lets the group settle and shut down, and collects the data.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::chaos::Failure;
use crate::chaos::args::Args;
use crate::chaos::checks::{self, unbalanced};
use crate::chaos::child::Child;
use crate::chaos::clock::Clock;
use crate::chaos::event_log;
use crate::chaos::faults::{Happened, Stage, start_storage};
use crate::chaos::fleet::{Fleet, Orders};
use crate::chaos::hub::Hello;
use crate::chaos::link::Link;
use crate::chaos::network_faults::NetworkFaults;
use crate::chaos::operators::Operators;
use crate::chaos::plan::{self, Incident};
use crate::chaos::proxy::ProxyShared;
use crate::chaos::raw_storage;
use crate::chaos::report::report;
use crate::chaos::run_data::RunData;
use crate::chaos::screen::{Screen, describe};
use crate::chaos::timeline;
use crate::chaos::watcher::{Seen, watch};
use crate::chaos::writes::settled as settled_writes;
use crate::draw::svg;
use crate::publisher::{Address, Load, publish};
use crate::signals;

const CONTAINER: &str = "chaos";
const EVENT_SIZE: usize = 256;
const PACE: Duration = Duration::from_millis(50);
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);
const HUB_STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The maximum number of events that a partition keeps.
const RETENTION: u32 = 50_000;

type Positions = BTreeMap<String, i64>;

/// Runs with these arguments, prints the report, and returns whether all checks hold.
pub async fn run(args: &Args) -> Result<bool, Failure> {
    args.check()?;
    if args.dry_run {
        for incident in plan::draw(args.seed, &args.scale()) {
            println!("{:>7.1} s  {}", incident.at.as_secs_f64(), describe(&incident));
        }
        return Ok(true);
    }
    let asked_to_end = signals::asked_to_end();
    let folder = Folder::open(args.keep_dir.as_deref())?;
    let Args { instances, partitions, seed, .. } = args;
    println!(
        "{instances} instances, {partitions} partitions, {} events, lease duration {:?}, seed {seed}; logs in {}",
        args.events(),
        args.lease_duration,
        folder.path().display()
    );
    let run_data = Run::start(args, folder.path()).await?.finish(asked_to_end).await?;
    let checks = checks::all(&run_data);
    print!("{}", report(&run_data, &checks));
    let title =
        format!("Seed {seed}: {instances} processes, {partitions} partitions, leases of {:?}", args.lease_duration);
    write(args.timeline.as_deref(), || svg::render(&timeline::picture(&run_data, title)))?;
    let hold = checks.iter().all(|check| check.holds);
    if !hold {
        println!("logs and event logs: {}", folder.keep().display());
    }
    Ok(hold)
}

fn write(path: Option<&Path>, picture: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let written = std::fs::write(path, picture());
    Ok(written.map_err(|error| format!("cannot write the picture {}: {error}", path.display()))?)
}

/// The folder for the output of the processes.
enum Folder {
    Given(PathBuf),
    Temporary(TempDir),
}

impl Folder {
    fn open(given: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = given else { return Ok(Self::Temporary(TempDir::with_prefix("chaos-")?)) };
        let cannot = |error| format!("cannot use the folder {}: {error}", path.display());
        std::fs::create_dir_all(path).map_err(cannot)?;
        if std::fs::read_dir(path).map_err(cannot)?.next().is_some() {
            return Err(format!("the folder {} is not empty: use a new one", path.display()).into());
        }
        // The emulator runs in another folder.
        Ok(Self::Given(path.canonicalize().map_err(cannot)?))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }

    fn keep(self) -> PathBuf {
        match self {
            Self::Given(path) => path,
            Self::Temporary(folder) => folder.keep(),
        }
    }
}

struct Run<'a> {
    args: &'a Args,
    screen: Screen,
    stage: Arc<Stage>,
    seen: watch::Receiver<Seen>,
    /// How many batches to publish.
    batches: watch::Sender<u32>,
    publishing: JoinHandle<Result<Positions, Failure>>,
    /// Runs as long as this value exists.
    _hub: Child,
}

impl<'a> Run<'a> {
    /// Starts everything and waits until all instances run.
    async fn start(args: &'a Args, folder: &'a Path) -> Result<Self, Failure> {
        let azurite = start_storage(folder).await?;
        let (hub, hello) = start_hub(args, folder).await?;
        // The first start may have installed the emulator.
        let clock = Clock::start();
        raw_storage::create_container(&reqwest::Client::new(), azurite.endpoint(), CONTAINER).await?;
        show_how_to_watch(args, folder, &azurite.connection_string(), &hello.connection_string_with_port)?;
        let shared = ProxyShared::new(NetworkFaults::new(args.seed), clock, azurite.endpoint());
        let hub_faults = Arc::new(NetworkFaults::new(args.seed));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, hello.port));
        let links = (0..args.instances).map(|instance| Link::open(hub_faults.clone(), address, instance));
        let orders = Orders {
            folder: folder.to_owned(),
            container: CONTAINER.to_owned(),
            hub: hello.clone(),
            lease_duration: args.lease_duration,
            interval: args.interval(),
            reading: args.reading.clone(),
            clock,
        };
        let operators = Operators::new(orders.clone(), shared.clone(), (args.partitions, retention(args)));
        let fleet = Arc::new(Fleet::new(orders, shared.clone(), try_join_all(links).await?));
        for instance in 0..args.instances {
            fleet.start(instance).await?;
        }
        let ends_within = ends_within(args.lease_duration);
        let place = (folder.to_owned(), args.lease_duration);
        let stage = Stage::new(clock, (fleet, ends_within), (shared, hub_faults), azurite, place, operators);
        let stage = Arc::new(stage);
        let seen = stage.seen.subscribe();
        tokio::spawn(watch(stage.clone(), CONTAINER.to_owned()));
        let (load, wanted) = load(args.events(), args.length());
        let batches = watch::Sender::new(wanted);
        let address = Address { endpoint: hello.endpoint.clone(), connection_string: hello.connection_string.clone() };
        let publishing = tokio::spawn(publish(address, load, batches.subscribe()));
        Ok(Self { args, screen: Screen::new(clock), stage, seen, batches, publishing, _hub: hub })
    }

    /// Executes the plan until it is done or the user stops the faults, and ends the run.
    async fn finish(mut self, asked_to_end: impl Future<Output = ()>) -> Result<RunData, Failure> {
        let plan = plan::draw(self.args.seed, &self.args.scale());
        tokio::pin!(asked_to_end);
        let interrupted = tokio::select! {
            carried = self.carry_out(plan) => { carried?; false }
            () = &mut asked_to_end => true,
        };
        if interrupted {
            // An aborted fault would never end.
            self.screen.print("no more faults");
            self.stage.restore().await?;
            self.batches.send_replace(0);
        }
        let published = (&mut self.publishing).await??;
        self.screen.print(&format!("{} events are published; the group settles", count(&published)));
        let settled = self.settle(&published).await?;
        self.end(published, settled).await
    }

    async fn carry_out(&self, plan: Vec<Incident>) -> Result<(), Failure> {
        let (mut striking, mut plan) = (JoinSet::new(), plan.into_iter().peekable());
        let mut observations = tokio::time::interval(OBSERVE_INTERVAL);
        while plan.peek().is_some() || !striking.is_empty() || self.stage.clock.now() < self.args.length() {
            let due = plan.peek().map(|incident| incident.at.saturating_sub(self.stage.clock.now()));
            tokio::select! {
                () = sleep(due.unwrap_or_default()), if due.is_some() => {
                    let Some(incident) = plan.next() else { continue };
                    self.screen.incident(&incident);
                    let stage = self.stage.clone();
                    striking.spawn(async move { stage.strike(&incident).await });
                }
                Some(struck) = striking.join_next() => self.over(&struck??),
                _ = observations.tick() => self.observe().await?,
            }
        }
        Ok(())
    }

    fn over(&self, happened: &Happened) {
        self.screen.over(happened);
    }

    async fn observe(&self) -> Result<(), Failure> {
        for (incarnation, status) in self.stage.fleet.observe().await? {
            self.screen.print(&format!("{incarnation} has exited unexpectedly: {status}"));
        }
        Ok(())
    }

    /// Waits until everything is processed and shared, or until the timeout: the checks then report what is missing.
    async fn settle(&mut self, published: &Positions) -> Result<raw_storage::Observation, Failure> {
        let started = Instant::now();
        while started.elapsed() < settle_timeout(self.args) {
            self.observe().await?;
            let observation = self.seen.borrow().last.clone();
            if observation.positions == *published
                && unbalanced(&observation, self.args.instances, self.args.partitions).is_none()
            {
                self.screen.print(&format!("settled after {:.1} s", started.elapsed().as_secs_f64()));
                return Ok(observation);
            }
            sleep(Duration::from_millis(250)).await;
        }
        self.screen.print(&format!("not settled after {:.1} s", started.elapsed().as_secs_f64()));
        Ok(self.seen.borrow().last.clone())
    }

    async fn end(self, published: Positions, settled: raw_storage::Observation) -> Result<RunData, Failure> {
        let fleet = &self.stage.fleet;
        let limit = self.stage.ends_within;
        try_join_all((0..fleet.size()).map(|instance| fleet.end(instance, limit))).await?;
        let endpoint = self.stage.storage().await.ok_or("the storage is gone")?;
        let ended = raw_storage::observe(&reqwest::Client::new(), &endpoint, CONTAINER).await?;
        // Before the folder of its data is deleted.
        drop(self.stage.stop_storage().await?);
        let incarnations = fleet.observed_incarnations().await;
        let mut event_logs = BTreeMap::new();
        for observed in &incarnations {
            let path = fleet.orders.event_log(observed.incarnation);
            // An incarnation that ended before it handled signals has none.
            let entries = if path.exists() { event_log::read(&path)? } else { Vec::new() };
            event_logs.insert(observed.incarnation, entries);
        }
        let seen = self.seen.borrow().clone();
        Ok(RunData {
            lease_duration: self.args.lease_duration,
            instances: self.args.instances,
            partitions: self.args.partitions,
            retention: retention(self.args),
            published,
            happened: self.stage.happened(),
            incarnations,
            event_logs,
            writes: settled_writes(self.stage.shared.take_writes()),
            resets: self.stage.operators.attempts(),
            seen,
            settled,
            ended,
        })
    }
}

/// Writes the connection strings to files, for `ehcp`. They bypass the proxies, so that the tool sees the group during
/// faults.
fn show_how_to_watch(args: &Args, folder: &Path, storage: &str, hub: &str) -> Result<(), Failure> {
    let (storage_file, hub_file) = (folder.join("storage.txt"), folder.join("hub.txt"));
    std::fs::write(&storage_file, storage)?;
    std::fs::write(&hub_file, hub)?;
    println!(
        "to watch: ehcp serve --refresh 2s -c {CONTAINER} --lease-duration {}ms --storage-connection-string @{} \
         --hub-connection-string @{}",
        args.lease_duration.as_millis(),
        storage_file.display(),
        hub_file.display()
    );
    Ok(())
}

async fn start_hub(args: &Args, folder: &Path) -> Result<(Child, Arc<Hello>), Failure> {
    let role = [
        "hub".into(),
        format!("--partitions={}", args.partitions).into(),
        format!("--retention={}", retention(args)).into(),
    ];
    let mut hub = Child::spawn("hub", role, folder)?;
    let started = Instant::now();
    loop {
        let said = std::fs::read_to_string(folder.join("hub.out"))?;
        if let Some((hello, _)) = said.split_once('\n') {
            return Ok((hub, Arc::new(serde_json::from_str(hello)?)));
        }
        if hub.ended()?.is_some() || started.elapsed() > HUB_STARTS_WITHIN {
            let log = std::fs::read_to_string(folder.join("hub.log"))?;
            return Err(format!("the event hub has not started: {log}").into());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// How many events a partition keeps.
fn retention(args: &Args) -> u32 {
    let per_partition = args.events() / u32::from(args.partitions) + 1;
    (2 * per_partition).min(RETENTION)
}

/// Returns an even load, and its number of batches.
fn load(events: u32, length: Duration) -> (Load, u32) {
    let steps = u32::try_from(length.as_millis() / PACE.as_millis()).unwrap_or(u32::MAX).max(1);
    let events_per_batch = events.div_ceil(steps).max(1);
    let batches = events.div_ceil(events_per_batch);
    (Load { events_per_batch, event_size: EVENT_SIZE, pace: length / batches }, batches)
}

fn count(published: &Positions) -> i64 {
    published.values().map(|last| last + 1).sum()
}

/// Handlers drain for a quarter of the lease duration and `stopped` takes as long; links, a last checkpoint and a
/// release take up to half a lease duration each; the client 5 s. A busy machine needs some more.
fn ends_within(lease_duration: Duration) -> Duration {
    lease_duration * 2 + Duration::from_secs(15)
}

/// Long enough for leases of killed instances to expire, for every partition to be claimed by one instance after the
/// other, and for the last batch of a partition to be delivered, twice if the partition moves.
fn settle_timeout(args: &Args) -> Duration {
    let claims = args.interval() * (2 * u32::from(args.partitions));
    args.lease_duration * 4 + claims + args.reading.max_batch_wait * 2 + Duration::from_secs(60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_even_and_at_least_the_requested_one() {
        for (events, seconds) in [(200_000, 120), (7, 120), (1_000_000, 3600), (1, 10)] {
            let (load, batches) = load(events, Duration::from_secs(seconds));
            assert!(load.events_per_batch * batches >= events);
            assert!(load.pace * batches <= Duration::from_secs(seconds));
            assert!(load.pace * batches > Duration::from_secs(seconds - 1));
        }
    }
}
