//! Streams instead of a handler: the application takes the events, partition by partition.
//!
//! The processor runs with a handler that passes each batch to a stream and waits until the application asks for the
//! next one.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, ready};

use futures::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::Span;

use super::Processor;
use super::builder::ProcessorBuilder;
use super::config::ProcessorConfig;
use super::context::PartitionContext;
use super::dead_letters::DeadLetterSink;
use super::handle::ProcessorHandle;
use super::handler::Handler;
use super::handler_errors::{HandlerError, NotBegun};
use super::monitoring::SpanEvents;
use super::policies::DeadLetterPolicy;
use super::shutdown::{ShutdownReport, StopReason};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::source::EventSource;
use crate::store::GroupStore;
use crate::util::lock;

/// A batch on its way to the application.
#[derive(Debug)]
struct Delivery<E> {
    events: Vec<E>,
    /// Set when the application takes it.
    taken: Arc<AtomicBool>,
    /// Reports that the application is finished with it.
    done: oneshot::Sender<()>,
}

/// Describes a processor that provides the events as streams: see [`Processor::streams`]. Setters cannot fail;
/// [`start`](Self::start) can.
#[must_use = "nothing happens until `start` is called"]
pub struct StreamsBuilder<S: EventSource> {
    processor: ProcessorBuilder<S, StreamHandler<S::Event>>,
    started: mpsc::UnboundedReceiver<PartitionStream<S::Event>>,
}

impl<S: EventSource + fmt::Debug> fmt::Debug for StreamsBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamsBuilder").field("processor", &self.processor).finish_non_exhaustive()
    }
}

impl<S: EventSource> StreamsBuilder<S> {
    pub(super) fn new(source: S, store: GroupStore) -> Self {
        let (sender, started) = mpsc::unbounded_channel();
        let handler = StreamHandler { started: sender, outlets: Mutex::default() };
        Self { processor: ProcessorBuilder { streams: true, ..Processor::builder(source, store, handler) }, started }
    }

    /// Sets how the processor works. Default: [`ProcessorConfig::default`]. A second call replaces the settings of the
    /// first one.
    pub fn with_config(mut self, config: ProcessorConfig) -> Self {
        self.processor = self.processor.with_config(config);
        self
    }

    /// Moves events that cannot be processed to a sink. See
    /// [`PartitionContext::dead_letter`](super::PartitionContext::dead_letter) and [`TrackedEvent::fail`]; otherwise as
    /// [`ProcessorBuilder::with_dead_letters`].
    ///
    /// [`TrackedEvent::fail`]: super::TrackedEvent::fail
    pub fn with_dead_letters<K>(mut self, sink: K, policy: DeadLetterPolicy) -> Self
    where
        K: DeadLetterSink<S::Event>,
    {
        self.processor = self.processor.with_dead_letters(sink, policy);
        self
    }

    /// Calls this function with every span of a batch or a checkpoint. See [`ProcessorBuilder::with_span_hook`].
    pub fn with_span_hook(mut self, hook: impl Fn(&Span, SpanEvents<'_>) + Send + Sync + 'static) -> Self {
        self.processor = self.processor.with_span_hook(hook);
        self
    }

    /// Starts to process, until [`PartitionStreams::shutdown`] or [`ProcessorHandle::shutdown`] is called.
    ///
    /// # Errors
    ///
    /// The errors of [`ProcessorBuilder::build`].
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn start(self) -> Result<PartitionStreams<S::Event>> {
        self.start_with(|processor| processor.run(std::future::pending()))
    }

    /// Does the same as [`start`](Self::start), and a signal also requests the shutdown: see
    /// [`Processor::run_until_signal`]. The streams then end, [`PartitionStreams::next`] returns `None` when the
    /// processor has ended, and [`PartitionStreams::shutdown`] returns its report.
    ///
    /// # Errors
    ///
    /// The errors of [`ProcessorBuilder::build`]. [`PartitionStreams::shutdown`] returns [`ErrorKind::Config`] if the
    /// signal handlers cannot be installed.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn start_until_signal(self) -> Result<PartitionStreams<S::Event>> {
        self.start_with(Processor::run_until_signal)
    }

    fn start_with<F>(
        self,
        run: impl FnOnce(Processor<S, StreamHandler<S::Event>>) -> F,
    ) -> Result<PartitionStreams<S::Event>>
    where
        F: Future<Output = Result<ShutdownReport>> + Send + 'static,
    {
        let processor = self.processor.build()?;
        let handle = processor.handle();
        Ok(PartitionStreams { started: self.started, handle, running: RunningProcessor(tokio::spawn(run(processor))) })
    }
}

/// The partitions that this instance wins, each as a stream of its events: see [`Processor::streams`].
///
/// Dropping it is a crash: nothing is released, and all its streams end.
#[derive(Debug)]
pub struct PartitionStreams<E> {
    started: mpsc::UnboundedReceiver<PartitionStream<E>>,
    handle: ProcessorHandle,
    running: RunningProcessor,
}

/// Aborts the processor when it is dropped.
#[derive(Debug)]
struct RunningProcessor(JoinHandle<Result<ShutdownReport>>);

impl Drop for RunningProcessor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<E> PartitionStreams<E> {
    /// Waits for the next partition that starts: for the first time, after a handoff, or again after a failure. Returns
    /// `None` when the processor has ended; [`shutdown`](Self::shutdown) then returns its report. Cancel-safe.
    pub async fn next(&mut self) -> Option<PartitionStream<E>> {
        self.started.recv().await
    }

    /// Returns a handle that observes and controls the processor.
    #[must_use]
    pub fn handle(&self) -> &ProcessorHandle {
        &self.handle
    }

    /// Shuts down: streams end after their current batch, last checkpoints are written, partitions are released. Drops
    /// the streams that were not taken. If a shutdown was requested before, by [`ProcessorHandle::shutdown`], waits for
    /// it.
    ///
    /// # Errors
    ///
    /// The errors of [`Processor::run`](super::Processor::run). [`ErrorKind::Internal`] also if the processor panicked.
    pub async fn shutdown(mut self) -> Result<ShutdownReport> {
        self.handle.requests.request_once();
        // A partition does not stop before its stream is dropped, and the application cannot take these streams
        // anymore.
        self.started.close();
        while let Some(untaken) = self.started.recv().await {
            drop(untaken);
        }
        match (&mut self.running.0).await {
            Ok(outcome) => outcome,
            Err(panic) => {
                Err(Error::new(ErrorKind::Internal, "internal error: the processor panicked").with_source(panic))
            }
        }
    }
}

impl<E> Stream for PartitionStreams<E> {
    type Item = PartitionStream<E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.started.poll_recv(cx)
    }
}

/// The events of one partition, from its start until it stops, in batches. `Send` and `'static`, so that it can have
/// its own task.
///
/// Taking the next batch reports that the application is finished with the previous one, but does not checkpoint it:
/// use the [`context`](Self::context) for that. The stream ends when the partition is lost or released, when its end
/// position is reached, or when the processor shuts down. Drop it soon after its end: checkpoints requested until then
/// are still written, within the drain timeout.
///
/// A stream that is dropped before its end counts as a handler that fails with the current batch, or else the next one,
/// and [`OnFailure`](super::OnFailure) determines what follows.
#[derive(Debug)]
pub struct PartitionStream<E> {
    context: PartitionContext,
    batches: mpsc::Receiver<Delivery<E>>,
    current: Option<oneshot::Sender<()>>,
    stopped: Arc<OnceLock<StopReason>>,
    /// Closed when the stream is dropped.
    _dropped: oneshot::Sender<()>,
}

impl<E> PartitionStream<E> {
    /// Returns the operations on the partition, such as checkpoints.
    #[must_use]
    pub fn context(&self) -> &PartitionContext {
        &self.context
    }

    /// Waits for the next batch, which is never empty unless
    /// [`with_idle_interval`](super::ProcessorConfig::with_idle_interval) is set. Returns `None` when the partition has
    /// stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<E>> {
        std::future::poll_fn(|cx| self.poll_batch(cx)).await
    }

    /// Returns why the partition stopped, once it has.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&StopReason> {
        self.stopped.get()
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<E>>> {
        if let Some(done) = self.current.take() {
            // An error means that the handler no longer waits: it was aborted.
            let _ = done.send(());
        }
        if self.stopped.get().is_some() {
            return Poll::Ready(None);
        }
        let delivery = ready!(self.batches.poll_recv(cx));
        Poll::Ready(delivery.map(|delivery| {
            delivery.taken.store(true, Ordering::Relaxed);
            self.current = Some(delivery.done);
            delivery.events
        }))
    }
}

impl<E> Stream for PartitionStream<E> {
    type Item = Vec<E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Vec<E>>> {
        self.poll_batch(cx)
    }
}

/// The sending side of a partition's stream.
#[derive(Debug)]
struct Outlet<E> {
    batches: mpsc::Sender<Delivery<E>>,
    stopped: Arc<OnceLock<StopReason>>,
    dropped: oneshot::Receiver<()>,
}

/// The handler that feeds the streams.
#[derive(Debug)]
struct StreamHandler<E> {
    started: mpsc::UnboundedSender<PartitionStream<E>>,
    outlets: Mutex<HashMap<PartitionId, Outlet<E>>>,
}

impl<E> StreamHandler<E> {
    fn lock_outlets(&self) -> MutexGuard<'_, HashMap<PartitionId, Outlet<E>>> {
        lock(&self.outlets)
    }
}

/// The failure of a handler whose application has dropped the stream.
fn stream_loss_error(partition: &PartitionId) -> HandlerError {
    format!("the stream of partition {partition} was dropped before its end").into()
}

impl<E: Send + 'static> Handler<E> for StreamHandler<E> {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        let (batches, receiver) = mpsc::channel(1);
        let stopped = Arc::default();
        let (dropping, dropped) = oneshot::channel();
        let outlet = Outlet { batches, stopped: Arc::clone(&stopped), dropped };
        self.lock_outlets().insert(context.partition_id().clone(), outlet);
        // An error means that the application has dropped the partitions, and the processor is about to be dropped.
        let _ = self.started.send(PartitionStream {
            context,
            batches: receiver,
            current: None,
            stopped,
            _dropped: dropping,
        });
        Ok(())
    }

    async fn handle(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        let partition = context.partition_id();
        let batches = self
            .lock_outlets()
            .get(partition)
            .map(|outlet| outlet.batches.clone())
            .ok_or_else(|| stream_loss_error(partition))?;
        let taken = Arc::new(AtomicBool::new(false));
        let (done, finished) = oneshot::channel();
        batches
            .send(Delivery { events, taken: Arc::clone(&taken), done })
            .await
            .map_err(|_| stream_loss_error(partition))?;
        drop(batches);
        match finished.await {
            Err(_) if !context.is_stopping() => Err(stream_loss_error(partition)),
            Err(_) if !taken.load(Ordering::Relaxed) => Err(NotBegun.into()),
            _ => Ok(()),
        }
    }

    /// Ends the stream, and waits until the application drops it.
    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        let Some(outlet) = self.lock_outlets().remove(context.partition_id()) else { return };
        // Set once per start.
        let _ = outlet.stopped.set(reason);
        drop(outlet.batches);
        // Nothing is ever sent: the error reports the drop.
        let _ = outlet.dropped.await;
    }
}
