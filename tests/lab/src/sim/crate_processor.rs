//! This crate's processor as an instance.

mod bad_events;
mod one_by_one;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::balancer::{BalancerConfig, LoadBalancingStrategy, OnLeaseExpiry};
use eventhubs_checkpoint::internal::clock::LeaseClock;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::processor::dead_letters::DeadLetterPolicy;
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, OnInvalidCheckpoint, OnShutdown, OwnPosition, PartitionContext,
    PartitionStart, Processor, ProcessorConfig, StopReason, TrackedEvent,
};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::one_by_one::Batches;
use super::blocked::only_while_open;
use super::host::{ExitStatus, Host, InstanceFuture, InstanceKind};
use super::ledger::Ledger;
use super::observer::BatchInProgress;
use super::plan::{LONGEST_COMMIT, OwnPositions, Settings, StartAt, Tuning};

/// The wait before a process that cannot connect tries again.
const RETRY: Duration = Duration::from_secs(2);

/// Where the lease clocks begin: far enough from zero that an earlier moment exists, too.
const LEASE_EPOCH: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// This crate's processor, with a handler that takes time, fails sometimes, and may track events.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrateProcessor;

impl InstanceKind for CrateProcessor {
    fn is_crate_processor(&self) -> bool {
        true
    }

    fn live(&self, host: Host) -> InstanceFuture {
        Box::pin(live(host))
    }
}

async fn live(host: Host) -> ExitStatus {
    let mut rng = StdRng::seed_from_u64(host.seed);
    let requested = host.shut_down();
    tokio::pin!(requested);
    let store = tokio::select! {
        biased;
        () = &mut requested => return ExitStatus::Shutdown { clean: true, report: "it never connected".to_owned() },
        store = connect(&host, rng.next_u64()) => store,
    };
    host.reporter.identified(store.identity());
    let config = config(&host.settings, host.source.inner.now(), rng.next_u64());
    let host = Arc::new(host);
    let handler = Worker {
        host: Arc::clone(&host),
        rng: Mutex::new(rng),
        under_way: Mutex::default(),
        failed_once: Mutex::default(),
    };
    // An application with its own positions commits batches.
    match host.member.one_by_one.filter(|_| host.ledger.is_none()) {
        Some(one_by_one) => run(host, store, config, Batches::new(handler, one_by_one), requested).await,
        None => run(host, store, config, handler, requested).await,
    }
}

async fn run<H: Handler<MemoryEvent>>(
    host: Arc<Host>,
    store: GroupStore,
    config: ProcessorConfig,
    handler: H,
    requested: impl Future<Output = ()> + Send,
) -> ExitStatus {
    let mut builder = Processor::builder(host.source.clone(), store, handler).with_config(config);
    if host.member.bad_events.is_some_and(|bad| bad.always) {
        builder = builder.with_dead_letters(bad_events::sink(&host), DeadLetterPolicy::default());
    }
    let processor = match builder.build() {
        Ok(processor) => processor,
        Err(error) => return ExitStatus::Failed(error.to_string()),
    };
    host.register_handle(processor.handle());
    let runtime = host.gates.runtime.clone();
    drop(host);
    match only_while_open(runtime, processor.run(requested)).await {
        Ok(report) => ExitStatus::Shutdown { clean: report.is_clean(), report: format!("{report:?}") },
        Err(error) if error.kind() == ErrorKind::Replaced => ExitStatus::Replaced,
        Err(error) => ExitStatus::Failed(error.to_string()),
    }
}

/// Each attempt has its own seed: with the same one, the blob of a failed check that may not be deleted would stop all
/// later attempts.
async fn connect(host: &Host, mut seed: u64) -> GroupStore {
    loop {
        let builder = GroupStore::builder(host.container.clone(), host.group.clone(), host.owner.clone());
        let config = shared_terms(&host.settings).with_verify_storage(host.member.skew_seconds != 0);
        let builder = builder.with_config(config).with_lease_clock(lease_clock()).with_wall_clock(host.clock.clone());
        match builder.with_seed(seed).connect().await {
            Ok(store) => return store,
            Err(_) => sleep(RETRY).await,
        }
        seed = seed.wrapping_add(1);
    }
}

/// Returns the settings that all instances of this crate share.
pub(super) fn shared_terms(settings: &Settings) -> StoreConfig {
    StoreConfig::default()
        .with_lease_duration(settings.expiry)
        .with_foreign_lease_duration(settings.foreign_lease_duration)
        .with_max_concurrent_requests(settings.tuning.concurrency.get())
        .with_request_timeout(settings.tuning.deadline(settings.expiry))
}

/// Returns a lease clock that follows tokio's clock only: a run must not depend on the machine's clock.
pub(super) fn lease_clock() -> Arc<dyn LeaseClock> {
    Arc::new(NeverSuspended(Instant::now()))
}

#[derive(Debug)]
struct NeverSuspended(Instant);

impl LeaseClock for NeverSuspended {
    fn now(&self) -> Duration {
        LEASE_EPOCH + self.0.elapsed()
    }
}

fn config(settings: &Settings, now: OffsetDateTime, seed: u64) -> ProcessorConfig {
    let tuning = &settings.tuning;
    let start = match tuning.start {
        Some(StartAt::After(number)) => StartPosition::AfterSequenceNumber(number),
        Some(StartAt::Ago(time)) => StartPosition::EnqueuedAfter(now - time),
        None if settings.latest => StartPosition::Latest,
        None => StartPosition::Earliest,
    };
    let mut config = ProcessorConfig::default()
        .with_balancer(|_| balancing(settings, seed))
        .with_start_position(start)
        .with_checkpoint_policy(checkpoints(settings))
        .with_max_batch_size(tuning.batch)
        .with_max_batch_wait(tuning.batch_wait)
        .with_prefetch(tuning.prefetch)
        .with_max_in_flight(tuning.max_in_flight)
        .with_on_failure(tuning.on_failure)
        .with_on_shutdown(if settings.keep { OnShutdown::Keep } else { OnShutdown::Release });
    if tuning.invalid_to_latest {
        config = config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Latest);
    }
    (config.lag_check_interval, config.drain_timeout, config.handler_timeout) =
        (tuning.lag_check_interval, tuning.drain, tuning.handler_timeout);
    config
}

fn balancing(settings: &Settings, seed: u64) -> BalancerConfig {
    let strategy = match settings {
        Settings { tuning: Tuning { weighted: true, .. }, .. } => LoadBalancingStrategy::weighted(),
        Settings { greedy: true, .. } => LoadBalancingStrategy::Greedy,
        _ => LoadBalancingStrategy::Balanced,
    };
    BalancerConfig::default()
        .with_load_balancing_interval(settings.interval)
        .with_load_balancing_strategy(strategy)
        .with_on_lease_expiry(if settings.strict { OnLeaseExpiry::Stop } else { OnLeaseExpiry::Continue })
        .with_stall_timeout(settings.tuning.stall_timeout)
        .with_handoff(settings.handoff)
        .with_lease_scope(settings.lease_scope)
        .with_seed(seed)
}

fn checkpoints(settings: &Settings) -> CheckpointPolicy {
    let tuning = &settings.tuning;
    CheckpointPolicy {
        interval: tuning.checkpoints_by_time.then_some(settings.checkpoint_every),
        max_events: tuning.checkpoint_events.map(std::num::NonZero::get),
    }
}

struct Worker {
    host: Arc<Host>,
    rng: Mutex<StdRng>,
    /// Tracked events that are finished later, and commits.
    under_way: Mutex<JoinSet<()>>,
    /// The bad events that have failed.
    failed_once: Mutex<BTreeSet<(PartitionId, i64)>>,
}

impl Worker {
    fn up_to(&self, longest: Duration) -> Duration {
        let share = lock(&self.rng).random_range(0.0..1.0);
        longest.mul_f64(share)
    }

    fn fails(&self) -> bool {
        let chance = self.host.member.failures_per_mille;
        lock(&self.rng).random_range(0..1000) < chance
    }

    /// One event is a small part of a batch.
    fn fails_at_one_event(&self) -> bool {
        let chance = self.host.member.failures_per_mille;
        lock(&self.rng).random_range(0..1000 * bad_events::BATCH) < chance
    }

    async fn work(&self) {
        let usual = self.host.member.work.mul_f64(self.host.settings.tuning.pace());
        let time = self.up_to(usual) + self.up_to(*self.host.extra_work.borrow());
        if !time.is_zero() {
            sleep(time).await;
        }
        self.host.runs().await;
    }

    fn finish_later(&self, handling: &BatchInProgress, event: &MemoryEvent, token: TrackedEvent) {
        let (handling, host, event) = (handling.clone(), Arc::clone(&self.host), event.clone());
        let longest = self.host.member.work + Duration::from_millis(500);
        let time = self.up_to(longest.mul_f64(self.host.settings.tuning.pace()));
        self.in_background(async move {
            sleep(time).await;
            host.runs().await;
            handling.done(std::slice::from_ref(&event));
            token.finish();
        });
    }

    /// Runs work that ends with the process, but not with the call of the handler.
    fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut under_way = lock(&self.under_way);
        while under_way.try_join_next().is_some() {}
        under_way.spawn(work);
    }
}

/// The transactions of an application that keeps its own positions.
impl Worker {
    /// Returns the epoch, unless the application does not compare epochs.
    fn checked(&self, epoch: i64) -> Option<i64> {
        (self.host.settings.own_positions != OwnPositions::Unfenced).then_some(epoch)
    }

    /// Commits in the background, as a database does: the commit may arrive after the call was dropped.
    async fn count(
        &self,
        ledger: &Ledger,
        handling: &BatchInProgress,
        events: &[MemoryEvent],
        context: &PartitionContext,
    ) -> Result<(), HandlerError> {
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return Ok(()) };
        let range = (first.sequence_number, last.sequence_number);
        let (partition, epoch) = (context.partition_id().clone(), self.checked(context.epoch()));
        let (ledger, handling, events) = (ledger.clone(), handling.clone(), events.to_vec());
        let longest = LONGEST_COMMIT.mul_f64(self.host.settings.tuning.pace());
        let (host, time) = (Arc::clone(&self.host), self.up_to(longest));
        let (committed, outcome) = oneshot::channel();
        self.in_background(async move {
            sleep(time).await;
            host.runs().await;
            let accepted = ledger.commit(&partition, epoch, range);
            if accepted {
                handling.counted(&events);
                handling.done(&events);
            }
            // An error means that the call was dropped.
            let _ = committed.send(accepted);
        });
        match outcome.await {
            Ok(true) => Ok(()),
            _ => Err(Error::new(ErrorKind::Handler, "a later start has begun").into()),
        }
    }
}

impl Handler<MemoryEvent> for Worker {
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        self.host.runs().await;
        let Some(ledger) = &self.host.ledger else { return Ok(OwnPosition::NotKept) };
        if self.fails() {
            return Err(Error::new(ErrorKind::Handler, "the database is down").into());
        }
        Ok(OwnPosition::after(ledger.begin(start.partition_id(), start.epoch())))
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.host.reporter.started(context.partition_id(), Some(context.epoch()));
        if let (Some(ledger), Some(position)) = (&self.host.ledger, context.started_elsewhere())
            && ledger.move_to(context.partition_id(), context.epoch(), position)
        {
            self.host.reporter.moved(context.partition_id());
        }
        Ok(())
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.host.runs().await;
        let handling = self.host.reporter.begins(context.partition_id(), &events);
        let ledger = self.host.ledger.as_ref();
        if self.host.member.tracks && ledger.is_none() {
            for event in &events {
                self.finish_later(&handling, event, context.track(event));
            }
            return Ok(());
        }
        if let Some(bad) = self.host.member.bad_events {
            return self.handle_until_bad(bad, &events, &handling, &context).await;
        }
        self.work().await;
        if self.fails() {
            let half = &events[..events.len() / 2];
            match ledger {
                Some(ledger) => self.count(ledger, &handling, half, &context).await?,
                None => handling.done(half),
            }
            return Err(Error::new(ErrorKind::Handler, "an occasional failure").into());
        }
        match ledger {
            Some(ledger) => self.count(ledger, &handling, &events, &context).await?,
            None => handling.done(&events),
        }
        if let Some(last) = events.last() {
            context.checkpoint(last);
        }
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        self.host.reporter.stopped(context.partition_id(), &reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::plan::{Plan, Scale};
    use eventhubs_checkpoint::blob::memory::MemoryContainer;
    use eventhubs_checkpoint::processor::handler_fn;
    use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
    use eventhubs_checkpoint::{ConsumerGroup, OwnerId};

    #[tokio::test(start_paused = true)]
    async fn drawn_settings_are_accepted() {
        for seed in 0..1000 {
            let settings = Plan::draw(seed, &Scale { wild: true, ..Scale::default() }).settings;
            let group = ConsumerGroup::new("ns", "hub", "group").unwrap();
            let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
            let store =
                builder.with_config(shared_terms(&settings)).with_lease_clock(lease_clock()).connect().await.unwrap();
            let source = MemoryHub::new("hub", 1).source();
            let config = config(&settings, source.now(), 1);
            let handler = handler_fn(|_: Vec<MemoryEvent>, _: PartitionContext| async { Ok(()) });
            let built = Processor::builder(source, store, handler).with_config(config).build();
            assert!(built.is_ok(), "seed {seed}: {:?}", built.err());
        }
    }
}
