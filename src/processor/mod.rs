//! Runs the application's [`Handler`] on every partition that this instance owns.
//!
//! # Guarantees
//!
//! - Every event is delivered at least once. The events of one partition arrive in order, one batch at a time.
//! - Processing continues after the last checkpoint; without one, it starts at the configured position. The start is
//!   recorded as a position before anything is read from there.
//! - A failing handler, a failed receiver or a rejected checkpoint stops its own partition only. A slow handler delays
//!   no other partition.
//! - A checkpoint never passes an event that is [tracked](PartitionContext::track) and not finished, and never moves
//!   backward.
//! - A receiver that delivers nothing although there are events is reopened. A checkpoint after which the partition
//!   cannot be read is reported, and [`OnInvalidCheckpoint`] determines where to continue.
//! - At shutdown every handler may finish its batch. Then the last checkpoint of its partition is written, and the
//!   partition is released, while other partitions still drain. Each step has a time limit, within which failed
//!   requests are retried. [`Processor::run`] returns a [`ShutdownReport`].
//!
//! # Non-guarantees
//!
//! After a crash, a failure or a handoff that was not completed, events after the last checkpoint are redelivered.
//! Dropping the future of [`Processor::run`] is a crash: nothing is released.

mod background;
mod boxed;
mod builder;
mod checkpoints;
mod config;
mod context;
pub mod dead_letters;
mod events;
mod handle;
mod handler;
mod handler_errors;
mod monitoring;
mod partition;
mod partition_handler;
mod policies;
mod position_table;
mod shared;
mod shutdown;
mod start;
mod streams;
mod supervisor;

/// Where traces come from: the trace contexts of events, and the spans of batches. See
/// [`ProcessorBuilder::with_span_hook`].
pub mod traces {
    pub use super::monitoring::SpanEvents;
    pub use crate::source::TraceContext;
}

/// What `testing` builds a start of a partition from, without the task of the partition.
#[cfg(feature = "testing")]
pub(crate) mod internal {
    pub(crate) use super::checkpoints::pending::Start;
    pub(crate) use super::checkpoints::writer::{CheckpointWriter, WritingEnd};
    pub(crate) use super::dead_letters::DeadLetters;
    pub(crate) use super::handler_errors::{HANDLER, handler_error};
    pub(crate) use super::monitoring::spans::BatchSpans;
    pub(crate) use super::partition::control::Control;
    pub(crate) use super::partition::handler_call::CallLimit;
    pub(crate) use super::partition::orders::SessionEnd;
}

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use crate::balancer::Balancer;
use crate::clock::wait_until;
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::source::{CLOSE_LIMIT, EventSource};
use crate::store::GroupStore;
use crate::telemetry;

#[doc(no_inline)]
pub use crate::balancer::{Assignment, BalancerConfig, LoadBalancingStrategy, OnLeaseExpiry, ReleaseReason};
pub use boxed::BoxHandler;
pub use builder::ProcessorBuilder;
pub use config::ProcessorConfig;
pub use context::{PartitionContext, TrackedEvent};
pub use events::{EachEvent, EventContext, EventHandler, EventOrder, KeyOf, RetryPolicy, each_event, event_handler_fn};
pub use handle::ProcessorHandle;
pub use handler::{Handler, OwnPosition, PartitionStart, handler_fn};
pub use handler_errors::{EventError, HandlerError};
pub use monitoring::{ErrorSummary, EventCounts, Health, HealthIssue, PartitionState, PartitionStatus};
pub use partition_handler::{PartitionHandler, per_partition};
pub use policies::{CheckpointPolicy, OnEarlierStart, OnFailure, OnShutdown, OnUndecodable};
pub use position_table::PositionTable;
pub use shutdown::{PhaseReport, ShutdownReport, StopReason};
pub use start::{InvalidCheckpoint, InvalidReason, OnInvalidCheckpoint};
pub use streams::{PartitionStream, PartitionStreams, StreamsBuilder};

use background::{spawn_background_tasks, tick_liveness};
use shared::SharedResources;
use shutdown::Signals;
use start::discovery::start_up;
use supervisor::Supervisor;

/// How long the event source may take to close.
const SOURCE_CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// One instance of a consumer: shares the partitions of an event hub with the other instances of its consumer group,
/// and processes its own.
///
/// ```
/// # #[cfg(feature = "testing")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
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
/// # let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::new("worker-1")?).await?;
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
/// Processor::builder(source, store, handler).run(async { assert_eq!(finished.await, Ok(1)) }).await?;
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "EventProcessor")]
#[doc(alias = "EventProcessorClient")]
pub struct Processor<S, H> {
    shared: Arc<SharedResources<S, H>>,
    balancer: Balancer,
    handle: ProcessorHandle,
    partitions: watch::Sender<Arc<[PartitionId]>>,
}

impl<S: fmt::Debug, H> fmt::Debug for Processor<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedResources { source, store, config, .. } = &*self.shared;
        f.debug_struct("Processor")
            .field("source", source)
            .field("store", store)
            .field("config", config)
            .finish_non_exhaustive()
    }
}

impl<S: EventSource, H: Handler<S::Event>> Processor<S, H> {
    /// Returns a builder for a processor of the store's consumer group that reads from `source`, on behalf of the
    /// store's owner.
    pub fn builder(source: S, store: GroupStore, handler: H) -> ProcessorBuilder<S, H> {
        ProcessorBuilder {
            source,
            store,
            handler,
            config: ProcessorConfig::default(),
            dead_letters: None,
            span_hook: None,
            streams: false,
        }
    }

    /// Returns a handle that observes and controls the processor while it runs.
    #[must_use]
    pub fn handle(&self) -> ProcessorHandle {
        self.handle.clone()
    }

    /// Processes until `shutdown` completes or [`ProcessorHandle::shutdown`] is called, and then shuts down cleanly:
    /// handlers finish, last checkpoints are written, partitions are released and the source is closed. Each phase has
    /// a time limit. A second request through the handle, at least a second later, ends the processor at once. With an
    /// [end position](ProcessorConfig::with_end_position), the processor also shuts down when that is reached.
    ///
    /// Dropping the future is a crash: nothing is written or released, and other instances claim the partitions when
    /// their leases expire. The handle then shows that this instance is not ready and owns nothing.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Config`] if the event hub, its partitions or the consumer group do not exist, or another setting
    ///   is wrong. Correct the setting.
    /// - [`ErrorKind::Replaced`] if a newer incarnation of this owner is running. Give every instance a unique owner
    ///   id.
    /// - [`ErrorKind::Internal`] if the load-balancing loop panicked.
    /// - At the start also any other error of the event hub or the storage for which [`Error::is_retryable`] and
    ///   [`Error::is_indeterminate`] are false, such as [`ErrorKind::Unauthorized`]. Correct the setting or the
    ///   permission, and start again.
    ///
    /// The processor logs and retries all other errors, also at the start.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<ShutdownReport> {
        let span = self.shared.store.telemetry().span().clone();
        let liveness = self.shared.liveness.clone();
        tokio::select! {
            biased;
            // Boxed, because it has some 16 KiB, which callers would have to move.
            report = Box::pin(self.run_in_span(shutdown)).instrument(span) => report,
            never = tick_liveness(liveness) => match never {},
        }
    }

    async fn run_in_span(self, shutdown: impl Future<Output = ()>) -> Result<ShutdownReport> {
        let Self { shared, balancer, handle, partitions } = self;
        let _ending = EndsHandle(handle.clone());
        // Dropped with this future, although an aborted task of the loop may be dropped later.
        let _permit = balancer.loop_permit();
        let requested = async {
            tokio::select! {
                () = shutdown => handle.requests.request_once(),
                () = handle.requests.wait_for_request() => {}
            }
        };
        tokio::pin!(requested);
        let started = tokio::select! {
            biased;
            () = &mut requested => {
                let nothing_to_do = PhaseReport { took: Duration::ZERO, complete: true };
                return Ok(ShutdownReport {
                    drain: nothing_to_do,
                    release: nothing_to_do,
                    close: close_source(shared).await,
                    ..ShutdownReport::default()
                });
            }
            started = start_up(&shared) => started,
        };
        match started {
            Ok(partition_ids) => {
                telemetry::processor_started(partition_ids.len(), &shared.store.identity().incarnation);
                partitions.send_replace(partition_ids);
                process_partitions(shared, balancer, &handle, partitions, requested).await
            }
            Err(error) => {
                close_source(shared).await;
                Err(error)
            }
        }
    }

    /// Does the same as [`run`](Self::run), until a signal requests the shutdown: Ctrl-C, or SIGTERM on Unix, as
    /// container runtimes send. A second signal, at least a second later, ends the processor at once.
    ///
    /// The signals stay captured after this has returned, even with an error: from then on they no longer end the
    /// process by themselves, and the program must end on its own.
    ///
    /// With the default settings a shutdown may take 94 s. Kubernetes kills a process 30 s after SIGTERM, unless
    /// `terminationGracePeriodSeconds` is longer. [`ProcessorConfig::with_shutdown_timeout`] limits it;
    /// [Kubernetes](crate::guide::kubernetes) has the limits of all phases.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run). [`ErrorKind::Config`] also if the signal handlers cannot be installed.
    pub async fn run_until_signal(self) -> Result<ShutdownReport> {
        let requests = self.handle.requests.clone();
        let mut signals = Signals::listen()?;
        let listening = async {
            loop {
                signals.next().await;
                requests.request_shutdown();
            }
        };
        tokio::select! {
            report = self.run(std::future::pending()) => report,
            never = listening => never,
        }
    }
}

/// Ends the handle together with the processor, however it ends: also if its future is dropped, or panics.
struct EndsHandle(ProcessorHandle);

impl Drop for EndsHandle {
    fn drop(&mut self) {
        self.0.requests.mark_ended();
        self.0.registry.clear();
    }
}

impl<S: EventSource> Processor<S, ()> {
    /// Returns a builder for a processor that provides the events as streams, one per partition, instead of calling a
    /// handler.
    ///
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use eventhubs_checkpoint::blob::memory::MemoryContainer;
    /// # use eventhubs_checkpoint::store::GroupStore;
    /// # use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
    /// # use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
    /// use eventhubs_checkpoint::processor::Processor;
    ///
    /// # let hub = MemoryHub::new("orders", 1);
    /// # hub.publish(0, "hello");
    /// # let source = hub.source();
    /// # let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    /// # let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::new("worker-1")?).await?;
    /// let mut partitions = Processor::streams(source, store).start_until_signal()?;
    /// # let handle = partitions.handle().clone();
    /// while let Some(mut partition) = partitions.next().await {
    /// #   let handle = handle.clone();
    ///     tokio::spawn(async move {
    ///         while let Some(events) = partition.next().await {
    ///             for event in &events {
    ///                 partition.context().checkpoint(event);
    ///             }
    /// #           handle.shutdown();
    ///         }
    ///     });
    /// }
    /// let report = partitions.shutdown().await?;
    /// assert!(report.is_clean());
    /// # Ok::<(), eventhubs_checkpoint::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn streams(source: S, store: GroupStore) -> StreamsBuilder<S> {
        StreamsBuilder::new(source, store)
    }
}

/// Processes the partitions that the balancer wins, until a shutdown is requested, the end positions are reached, or an
/// error ends the processor. Then shuts down.
async fn process_partitions<S: EventSource, H: Handler<S::Event>>(
    shared: Arc<SharedResources<S, H>>,
    balancer: Balancer,
    handle: &ProcessorHandle,
    partitions: watch::Sender<Arc<[PartitionId]>>,
    requested: impl Future<Output = ()>,
) -> Result<ShutdownReport> {
    let background = spawn_background_tasks(&shared, partitions, handle);
    let mut balancing = JoinSet::new();
    balancing.spawn(balancer.run_beside_handlers());
    let mut supervisor = Supervisor::new(Arc::clone(&shared), handle.balancer.clone(), handle.registry.clone());
    let ended = supervisor.run(&mut balancing, requested).await;
    handle.requests.mark_ended();
    let reason = match &ended {
        Err(error) if error.kind() == ErrorKind::Replaced => StopReason::Replaced,
        _ => StopReason::Shutdown,
    };
    let keep = ended.is_ok() && shared.config.on_shutdown == OnShutdown::Keep;
    let limit = shared.config.shutdown_timeout;
    let forced = ShutdownReport { forced: true, ..ShutdownReport::default() };
    let report = tokio::select! {
        biased;
        () = handle.requests.wait_for_second_request() => forced,
        report = shut_down(shared, supervisor, background, handle, reason, keep) => report,
        () = wait_until(limit.map(|limit| Instant::now() + limit)) => {
            telemetry::shutdown_timed_out(limit);
            forced
        }
    };
    telemetry::shut_down(ended.as_ref().err().map(|error| &**error), report.is_clean(), &report);
    match ended {
        Ok(()) => Ok(report),
        // The error itself, unless a handler has kept a reference.
        Err(error) => Err(Arc::try_unwrap(error)
            .unwrap_or_else(|error| Error::new(error.kind(), error.to_string()).with_source(error))),
    }
}

/// Shuts down: stops and drains each partition, writes its last checkpoint and releases it, independently of the
/// others. Then closes the source.
async fn shut_down<S: EventSource, H: Handler<S::Event>>(
    shared: Arc<SharedResources<S, H>>,
    mut supervisor: Supervisor<S, H>,
    mut background: JoinSet<()>,
    handle: &ProcessorHandle,
    reason: StopReason,
    keep: bool,
) -> ShutdownReport {
    let balancer = &handle.balancer;
    balancer.stop_claiming();
    let mut report = supervisor.stop_all(reason, keep).await;
    let releasing = async { if keep { balancer.shutdown_and_keep().await } else { balancer.shutdown().await } };
    let left = report.release.run_phase(Duration::MAX, releasing).await.unwrap_or_default();
    report.kept = left.kept;
    report.unreleased = left.unreleased;
    // Both own the source.
    drop(supervisor);
    let _ = timeout(CLOSE_LIMIT, background.shutdown()).await;
    report.close = close_source(shared).await;
    report
}

/// Closes the source, unless an aborted task still owns it.
async fn close_source<S: EventSource, H>(shared: Arc<SharedResources<S, H>>) -> PhaseReport {
    let mut report = PhaseReport::default();
    let Some(shared) = Arc::into_inner(shared) else { return report };
    match report.run_phase(SOURCE_CLOSE_LIMIT, shared.source.close()).await {
        Some(Ok(())) => {}
        Some(Err(error)) => telemetry::source_not_closed(&error),
        None => telemetry::source_not_closed(&Error::new(ErrorKind::EventSource, "timed out")),
    }
    report
}
