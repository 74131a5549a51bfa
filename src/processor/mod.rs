//! Runs the application's [`Handler`] on every partition that this instance owns.
//!
//! # Guarantees
//!
//! - Every event is delivered at least once, those of one partition in order and one batch at a time.
//! - Processing goes on behind the last checkpoint; without one, at the configured start, which is written down at once.
//! - A failing handler, a broken link or a refused checkpoint stops its own partition only.
//! - At shutdown every handler may finish its batch; then the last checkpoints are written, then the partitions released.
//!
//! # Non-guarantees
//!
//! After a crash, a failure or a move, events behind the last checkpoint come again. Dropping the future of
//! [`Processor::run`] is such a crash: nothing is released.

mod checkpointing;
mod config;
mod handler;
mod partition;
pub(crate) mod source;
mod supervisor;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::balancer::{Balancer, BalancerHandle, Snapshot, Vitals};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::store::GroupStore;
use crate::telemetry;

pub use config::{CheckpointPolicy, ProcessorConfig};
pub use handler::{Handler, HandlerError, HandlerFn, PartitionContext, StopReason, handler_fn};
pub use source::{
    EventReceiver, EventSender, EventSource, HubProperties, PartitionProperties, Positioned, StartPosition,
};

use partition::{CLOSE_LIMIT, Shared, stopping_time};
use supervisor::Supervisor;

/// How long the hub may take to tell its partitions.
const HUB_DEADLINE: Duration = Duration::from_secs(30);

/// How long the source may take to close at the end.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// One instance of a consumer: shares the hub's partitions with the others of its group, and processes its own.
///
/// ```
/// # #[cfg(feature = "testing")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use std::sync::Arc;
/// # use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// # use eventhubs_checkpoint::store::GroupStore;
/// # use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
/// # use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
/// use eventhubs_checkpoint::processor::{PartitionContext, Processor, handler_fn};
///
/// # let hub = MemoryHub::new("orders", 1);
/// # hub.publish(0, "hello");
/// # let source = hub.source();
/// # let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
/// # let container = Arc::new(MemoryContainer::new());
/// # let store = GroupStore::builder(container, group, OwnerId::new("worker-1")?).connect().await?;
/// let (done, finished) = tokio::sync::oneshot::channel();
/// let done = std::sync::Mutex::new(Some(done));
/// let handler = handler_fn(move |events: Vec<_>, context: PartitionContext| {
///     for event in &events {
///         context.checkpoint(event);
///     }
///     let done = done.lock().unwrap().take();
///     async move {
///         done.map(|done| done.send(events.len()));
///         Ok(())
///     }
/// });
/// let processor = Processor::builder(source, store, handler).build()?;
/// processor.run(async { assert_eq!(finished.await, Ok(1)) }).await?;
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Processor<S, H> {
    shared: Arc<Shared<S, H>>,
    balancer: Balancer,
    handle: BalancerHandle,
    partitions: watch::Sender<Arc<[PartitionId]>>,
}

/// Describes a [`Processor`]. Setters cannot fail; [`build`](Self::build) can.
#[derive(Debug)]
#[must_use = "nothing happens until `build` is called"]
pub struct ProcessorBuilder<S, H> {
    source: S,
    store: GroupStore,
    handler: H,
    config: ProcessorConfig,
}

impl<S: EventSource, H: Handler<S::Event>> ProcessorBuilder<S, H> {
    /// Sets how the processor works.
    pub fn config(mut self, config: ProcessorConfig) -> Self {
        self.config = config;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] names the setting and the rule.
    pub fn build(self) -> Result<Processor<S, H>> {
        self.config.check()?;
        let (partitions, named) = watch::channel(Arc::from([]));
        let (balancer, handle) = Balancer::new(self.store.clone(), self.config.balancer.clone(), named)?;
        let drain = self.config.drain.unwrap_or_else(|| self.config.balancer.default_drain(&self.store, CLOSE_LIMIT));
        let balancer = balancer.with_drain(stopping_time(drain))?;
        let shared = Shared {
            group: Arc::new(self.store.group().clone()),
            drain,
            vitals: handle.vitals().clone(),
            loads: handle.loads().clone(),
            source: self.source,
            handler: self.handler,
            store: self.store,
            config: self.config,
        };
        Ok(Processor { shared: Arc::new(shared), balancer, handle, partitions })
    }
}

impl<S: EventSource, H: Handler<S::Event>> Processor<S, H> {
    /// Starts to describe a processor of the store's consumer group, reading from `source`, on behalf of the store's
    /// owner.
    pub fn builder(source: S, store: GroupStore, handler: H) -> ProcessorBuilder<S, H> {
        ProcessorBuilder { source, store, handler, config: ProcessorConfig::default() }
    }

    /// What this instance knows of the group: who owns what.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Snapshot> {
        self.handle.watch()
    }

    /// Processes until `shutdown` is ready, then ends in good order: handlers finish, last checkpoints are written, the
    /// partitions released, the source closed; each within its time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for what only the operator can mend: no such hub, no partitions, no such consumer group.
    /// [`ErrorKind::Replaced`] if a later incarnation of this owner is at work. Everything else is reported and tried
    /// again. Before anything starts, also what the hub answered.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self { shared, balancer, handle, partitions } = self;
        tokio::pin!(shutdown);
        let named = tokio::select! {
            biased;
            () = &mut shutdown => None,
            named = start_up(&shared) => Some(named?),
        };
        let Some(named) = named else {
            close(shared).await;
            return Ok(());
        };
        partitions.send_replace(named);

        let mut background = JoinSet::new();
        background.spawn(refresh(Arc::clone(&shared), partitions));
        background.spawn(heartbeat(shared.vitals.clone(), shared.config.balancer.stall_after / 8));
        let mut balancing = JoinSet::new();
        if shared.config.balancer.own_thread {
            balancing.spawn(balancer.run_apart());
        } else {
            balancing.spawn(balancer.run());
        }

        let mut supervisor = Supervisor::new(Arc::clone(&shared), handle.clone());
        let ended = supervisor.run(&mut balancing, shutdown).await;
        handle.stop_claiming();
        supervisor.stop_all(&reason_for(&ended)).await;
        handle.shutdown().await;
        background.shutdown().await;
        drop(supervisor);
        close(shared).await;
        ended.map_err(unshared)
    }
}

/// What the handlers are told when the processor ends.
fn reason_for(ended: &Result<(), Arc<Error>>) -> StopReason {
    match ended {
        Err(error) if error.kind() == ErrorKind::Replaced => StopReason::Replaced,
        _ => StopReason::Shutdown,
    }
}

/// The error itself, unless a handler has kept it.
fn unshared(error: Arc<Error>) -> Error {
    Arc::try_unwrap(error).unwrap_or_else(|error| Error::new(error.kind(), error.to_string()).with_source(error))
}

/// Whatever can be known to be wrong before anything starts.
async fn start_up<S: EventSource, H>(shared: &Shared<S, H>) -> Result<Arc<[PartitionId]>> {
    let partitions = hub_partitions(shared).await?;
    answered(shared.source.check(&partitions[0])).await?;
    Ok(partitions)
}

async fn answered<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(HUB_DEADLINE, request).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, format!("the event hub did not answer within {HUB_DEADLINE:?}")))
    })
}

async fn hub_partitions<S: EventSource, H>(shared: &Shared<S, H>) -> Result<Arc<[PartitionId]>> {
    let hub = answered(shared.source.hub()).await?;
    let expected = shared.group.event_hub();
    if !hub.event_hub.eq_ignore_ascii_case(expected) {
        return Err(Error::config(format!(
            "the client reads event hub {:?}, but the store keeps the records of {expected:?}: name the same one",
            hub.event_hub
        )));
    }
    if hub.partitions.is_empty() {
        return Err(Error::config(format!("event hub {expected:?} has no partitions, so there is nothing to process")));
    }
    Ok(hub.partitions.into())
}

/// Reads the hub's partitions anew every interval: their number can grow.
async fn refresh<S: EventSource, H: Handler<S::Event>>(
    shared: Arc<Shared<S, H>>,
    partitions: watch::Sender<Arc<[PartitionId]>>,
) {
    loop {
        sleep(shared.config.balancer.interval).await;
        match hub_partitions(&shared).await {
            Ok(named) => {
                partitions.send_if_modified(|known| {
                    let changed = **known != *named;
                    *known = named;
                    changed
                });
            }
            Err(error) => telemetry::partition_list_failed(&error),
        }
    }
}

/// As long as this runs, the application's runtime does.
async fn heartbeat(vitals: Vitals, every: Duration) {
    loop {
        vitals.beat();
        sleep(every).await;
    }
}

/// Closes the source, if no task that was cut short still has it.
async fn close<S: EventSource, H>(shared: Arc<Shared<S, H>>) {
    let Some(shared) = Arc::into_inner(shared) else { return };
    match timeout(CLOSE_DEADLINE, shared.source.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => telemetry::source_not_closed(&error),
        Err(_) => telemetry::source_not_closed(&Error::new(ErrorKind::Source, "closing took too long")),
    }
}
