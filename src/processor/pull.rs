//! The processor turned round: the application asks for events, partition by partition.
//!
//! It is the same processor with a handler that hands each batch to a stream and waits until the next is asked for.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, ready};

use futures::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::context::PartitionContext;
use super::handle::ProcessorHandle;
use super::handler::Handler;
use super::shutdown::ShutdownReport;
use super::stop::{HandlerError, StopReason};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::model::PartitionId;

/// A batch, and how to say that it is done with.
type Delivery<E> = (Vec<E>, oneshot::Sender<()>);

/// The partitions that this instance comes to own, each as a stream of its events: see
/// [`Processor::streams`](super::Processor::streams).
///
/// Dropping it is a crash: nothing is released, and all its streams end.
#[derive(Debug)]
pub struct PartitionStreams<E> {
    pub(super) started: mpsc::UnboundedReceiver<PartitionStream<E>>,
    pub(super) handle: ProcessorHandle,
    pub(super) running: Running,
}

/// Ends the processor when it is dropped.
#[derive(Debug)]
pub(super) struct Running(pub(super) JoinHandle<Result<ShutdownReport>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<E> PartitionStreams<E> {
    /// The next partition that starts: at first, after a move, or again after a failure. Nothing, when the processor
    /// has ended: [`shutdown`](Self::shutdown) then tells how.
    pub async fn next(&mut self) -> Option<PartitionStream<E>> {
        self.started.recv().await
    }

    /// Watches and steers the processor.
    #[must_use]
    pub fn handle(&self) -> &ProcessorHandle {
        &self.handle
    }

    /// Shuts down: streams end after the batch at hand, last checkpoints are written, the partitions released. If the
    /// end was asked for already, by [`ProcessorHandle::shutdown`], this waits for it.
    ///
    /// # Errors
    ///
    /// Those of [`Processor::run`](super::Processor::run); [`ErrorKind::Internal`] if it panicked, which is a bug.
    pub async fn shutdown(mut self) -> Result<ShutdownReport> {
        self.handle.requests.request_once();
        let panicked =
            |error| Error::new(ErrorKind::Internal, "internal error: the processor panicked").with_source(error);
        (&mut self.running.0).await.map_err(panicked)?
    }
}

impl<E> Stream for PartitionStreams<E> {
    type Item = PartitionStream<E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.started.poll_recv(cx)
    }
}

/// The events of one partition, from its start until it stops, in batches. `Send` and `'static`: give it a task of its
/// own.
///
/// Asking for the next batch says that the one before is done with, but checkpoints nothing: do that with the
/// [`context`](Self::context). The end comes when the partition is lost, given back, or the processor ends. Drop the
/// stream soon then: what is marked until that is still written, within the drain time.
///
/// Dropped before its end, it counts as a handler that failed with its next batch, and [`OnFailure`](super::OnFailure)
/// says what follows.
#[derive(Debug)]
pub struct PartitionStream<E> {
    context: PartitionContext,
    batches: mpsc::Receiver<Delivery<E>>,
    at_hand: Option<oneshot::Sender<()>>,
    stopped: Arc<OnceLock<StopReason>>,
    /// Dropped with the stream.
    _dropped: oneshot::Sender<()>,
}

impl<E> PartitionStream<E> {
    /// What can be done with the partition: checkpoints above all.
    #[must_use]
    pub fn context(&self) -> &PartitionContext {
        &self.context
    }

    /// The next batch, which is never empty; nothing, when the partition has stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<E>> {
        std::future::poll_fn(|cx| self.poll_batch(cx)).await
    }

    /// Why it stopped, once it has.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&StopReason> {
        self.stopped.get()
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<E>>> {
        if let Some(done) = self.at_hand.take() {
            // An error means that nobody waits any more: it was cut short.
            let _ = done.send(());
        }
        if self.stopped.get().is_some() {
            return Poll::Ready(None);
        }
        let delivery = ready!(self.batches.poll_recv(cx));
        Poll::Ready(delivery.map(|(batch, done)| {
            self.at_hand = Some(done);
            batch
        }))
    }
}

impl<E> Stream for PartitionStream<E> {
    type Item = Vec<E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Vec<E>>> {
        self.poll_batch(cx)
    }
}

/// The sending end of a partition's stream.
#[derive(Debug)]
struct Outlet<E> {
    batches: mpsc::Sender<Delivery<E>>,
    stopped: Arc<OnceLock<StopReason>>,
    dropped: oneshot::Receiver<()>,
}

/// The handler that feeds the streams.
#[derive(Debug)]
pub struct StreamHandler<E> {
    started: mpsc::UnboundedSender<PartitionStream<E>>,
    /// Until [`Partitions`] takes it.
    streams: Mutex<Option<mpsc::UnboundedReceiver<PartitionStream<E>>>>,
    outlets: Mutex<HashMap<PartitionId, Outlet<E>>>,
}

impl<E> StreamHandler<E> {
    pub(super) fn new() -> Self {
        let (started, streams) = mpsc::unbounded_channel();
        Self { started, streams: Mutex::new(Some(streams)), outlets: Mutex::default() }
    }

    /// The receiving end. Once.
    pub(super) fn streams(&self) -> Option<mpsc::UnboundedReceiver<PartitionStream<E>>> {
        lock(&self.streams).take()
    }

    fn outlets(&self) -> MutexGuard<'_, HashMap<PartitionId, Outlet<E>>> {
        lock(&self.outlets)
    }
}

impl<E: Send + 'static> Handler<E> for StreamHandler<E> {
    async fn started(&self, context: PartitionContext) {
        let (batches, receiver) = mpsc::channel(1);
        let stopped = Arc::default();
        let (dropping, dropped) = oneshot::channel();
        let outlet = Outlet { batches, stopped: Arc::clone(&stopped), dropped };
        self.outlets().insert(context.partition_id().clone(), outlet);
        let stream = PartitionStream { context, batches: receiver, at_hand: None, stopped, _dropped: dropping };
        // An error means that the partitions are not asked for any more: the processor is about to be dropped.
        let _ = self.started.send(stream);
    }

    async fn handle(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        let gone = || format!("the stream of partition {} was dropped before its end", context.partition_id());
        let batches =
            self.outlets().get(context.partition_id()).map(|outlet| outlet.batches.clone()).ok_or_else(gone)?;
        let (done, finished) = oneshot::channel();
        batches.send((events, done)).await.map_err(|_| gone())?;
        drop(batches);
        match finished.await {
            Err(_) if !context.is_stopping() => Err(gone().into()),
            _ => Ok(()),
        }
    }

    /// The stream ends, and has the drain time to be dropped.
    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        let Some(outlet) = self.outlets().remove(context.partition_id()) else { return };
        // Set once per start.
        let _ = outlet.stopped.set(reason);
        drop(outlet.batches);
        // Nothing is ever sent: the error is the sign.
        let _ = outlet.dropped.await;
    }
}
