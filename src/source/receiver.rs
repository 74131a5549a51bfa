//! Reads one partition. An event source creates the receiver, and the processor takes batches from it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{BoxStream, Fuse, Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::{catch_panic, catch_panic_in};
use crate::error::{Error, ErrorKind, Result};

/// How long the link of a dropped receiver may take to close.
const DROPPED_LIMIT: Duration = Duration::from_secs(2);

/// The sending side of a receiver, for a task of the event source.
#[derive(Debug)]
pub struct EventSender<E> {
    events: mpsc::Sender<Result<E>>,
}

impl<E> EventSender<E> {
    /// Sends an event, or the error that ends the reading. Waits while the processor is busy. Returns false if the
    /// receiver was closed: then close the link.
    pub async fn send(&self, event: Result<E>) -> bool {
        let Ok(room) = self.events.reserve().await else { return false };
        room.send(event);
        true
    }

    /// Sends several events in their order. Waits while the processor is busy. Returns false if the receiver was
    /// closed: then close the link.
    pub async fn send_all(&self, events: Vec<E>) -> bool {
        let mut events = events.into_iter();
        while events.len() > 0 {
            // To reserve more than the capacity would wait until all events fit.
            let room = self.events.capacity().clamp(1, events.len());
            let Ok(permits) = self.events.reserve_many(room).await else { return false };
            permits.zip(&mut events).for_each(|(permit, event)| permit.send(Ok(event)));
        }
        true
    }

    /// Waits until the receiver has capacity, and returns the number of events that it can take at once. 0 if the
    /// receiver was closed.
    pub async fn ready_capacity(&self) -> usize {
        match self.events.reserve().await {
            Ok(_permit) => self.events.capacity() + 1,
            Err(_) => 0,
        }
    }

    /// Waits until the receiver is closed.
    pub async fn closed(&self) {
        self.events.closed().await;
    }
}

/// Signals to a stream that its receiver was closed: the stream must close its link and end.
///
/// As a future it completes when the receiver is closed. A stream that awaits it only while it has no events ready does
/// not notice as long as events arrive. Check [`is_stopped`](Self::is_stopped) before each event.
#[derive(Debug)]
pub struct StopSignal {
    sender_gone: oneshot::Receiver<()>,
    stopped: bool,
}

impl StopSignal {
    fn new(sender_gone: oneshot::Receiver<()>) -> Self {
        Self { sender_gone, stopped: false }
    }

    /// Returns whether to close the link now. Costs one atomic load. Unlike a poll, it does not depend on the
    /// cooperative budget that tokio gives a task.
    pub fn is_stopped(&mut self) -> bool {
        self.stopped = self.stopped || self.sender_gone.try_recv() != Err(TryRecvError::Empty);
        self.stopped
    }
}

/// Completes when the receiver is closed.
impl Future for StopSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_stopped() {
            return Poll::Ready(());
        }
        let sender_gone = Pin::new(&mut self.sender_gone).poll(context);
        self.stopped = sender_gone.is_ready();
        sender_gone.map(|_| ())
    }
}

/// Reads one partition: polls a stream in the reader's own task, or receives what a task of the source forwards.
///
/// Dropping the receiver also closes the link, but does not wait for it.
pub struct EventReceiver<E> {
    reading: Reading<E>,
    /// Returned after the events before it.
    pub(super) failure: Option<Error>,
    pub(crate) gathered: GatheredEvents<E>,
}

/// The received events that no batch contains yet.
#[derive(Debug)]
pub(crate) struct GatheredEvents<E> {
    pub(crate) events: Vec<E>,
    /// When the first of them was received.
    pub(crate) since: Option<Instant>,
    /// How many events were received since the caller last took this number.
    pub(crate) received: u64,
}

impl<E> Default for GatheredEvents<E> {
    fn default() -> Self {
        Self { events: Vec::new(), since: None, received: 0 }
    }
}

impl<E> GatheredEvents<E> {
    pub(crate) fn count_received(&mut self, events: &[E]) {
        self.received = self.received.saturating_add(events.len() as u64);
    }

    pub(crate) fn add_events(&mut self, events: Vec<E>) {
        self.count_received(&events);
        self.since.get_or_insert_with(Instant::now);
        if self.events.is_empty() {
            self.events = events;
        } else {
            self.events.extend(events);
        }
    }

    pub(crate) fn take_first(&mut self, count: usize) -> Vec<E> {
        let rest = self.events.split_off(count);
        self.since = self.since.filter(|_| !rest.is_empty());
        std::mem::replace(&mut self.events, rest)
    }
}

enum Reading<E> {
    Stream(StreamReading<E>),
    #[cfg_attr(not(feature = "eventhubs"), expect(dead_code, reason = "only the official client has large events"))]
    Batches(StreamReading<Vec<E>>, BatchLimit),
    Task {
        events: mpsc::Receiver<Result<E>>,
        forwarding: JoinHandle<()>,
    },
}

impl<E: Send + 'static> EventReceiver<E> {
    /// Creates a receiver that polls a stream in the task that takes the events: two wakes and a channel per event less
    /// than [`spawn`](Self::spawn). The stream is polled only while the processor waits for events. Once it is
    /// [stopped](StopSignal::is_stopped), it must close its link and end; the events that it yields until then are
    /// dropped.
    pub fn new<S>(open: impl FnOnce(StopSignal) -> S) -> Self
    where
        S: Stream<Item = Result<E>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let events = open(StopSignal::new(stopped)).boxed().fuse();
        Self::from_reading(Reading::Stream(StreamReading { open: Some((events, stop)), close_later }))
    }

    /// Creates a receiver over a stream of batches, each of at least one event and at most as many as the limit says
    /// when it is collected. The rules for the stream are as for [`new`](Self::new).
    #[cfg(feature = "eventhubs")]
    pub(crate) fn from_batches<S>(open: impl FnOnce(BatchLimit, StopSignal) -> S) -> Self
    where
        S: Stream<Item = Result<Vec<E>>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let limit = BatchLimit::default();
        let batches = open(limit.clone(), StopSignal::new(stopped)).boxed().fuse();
        Self::from_reading(Reading::Batches(StreamReading { open: Some((batches, stop)), close_later }, limit))
    }

    /// Creates a receiver and starts a task that forwards events until [`EventSender::closed`], and then closes its
    /// link. The receiver holds at most `prefetch` events.
    pub fn spawn<F>(prefetch: usize, forward: impl FnOnce(EventSender<E>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, events) = mpsc::channel(prefetch.clamp(1, tokio::sync::Semaphore::MAX_PERMITS));
        let forwarding = tokio::spawn(forward(EventSender { events: sender }).in_current_span());
        Self::from_reading(Reading::Task { events, forwarding })
    }

    /// Returns whether events are read only while the processor polls the receiver.
    pub(crate) fn is_polled_here(&self) -> bool {
        matches!(self.reading, Reading::Stream(_) | Reading::Batches(..))
    }

    fn from_reading(reading: Reading<E>) -> Self {
        Self { reading, failure: None, gathered: GatheredEvents::default() }
    }

    /// Waits for the next event and returns it with the other events that are available, at most `limit`. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The error of the source, after all earlier events; [`ErrorKind::EventSource`] if the source ended without an
    /// error.
    pub async fn next_batch(&mut self, limit: usize) -> Result<Vec<E>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let limit = limit.max(1);
        let (events, failure) = match &mut self.reading {
            Reading::Stream(stream) => poll_fn(|context| stream.poll_batch(context, limit)).await,
            Reading::Batches(stream, shared) => {
                shared.0.most.store(limit, Ordering::Relaxed);
                let (events, failure) = poll_fn(|context| stream.poll_next(context)).await;
                shared.0.last.store(events.len(), Ordering::Relaxed);
                (events, failure)
            }
            Reading::Task { events, .. } => {
                let mut received = Vec::with_capacity(events.len().clamp(1, limit));
                events.recv_many(&mut received, limit).await;
                // Split off the failure, after which nothing is received. Collect in place: events are large, and a
                // second vector of them costs more than all else here.
                let mut failure = None;
                let events = received.into_iter().map_while(|event| event.map_err(|error| failure = Some(error)).ok());
                (events.collect(), failure)
            }
        };
        if !events.is_empty() {
            self.failure = failure;
            return Ok(events);
        }
        Err(failure.unwrap_or_else(|| Error::new(ErrorKind::EventSource, "the event source ended")))
    }

    /// Stops reading and waits until the link is closed, for at most `limit`.
    pub async fn close(self, limit: Duration) {
        match self.reading {
            Reading::Stream(stream) => stream.close(limit).await,
            Reading::Batches(stream, _) => stream.close(limit).await,
            Reading::Task { events, mut forwarding } => {
                drop(events);
                if timeout(limit, &mut forwarding).await.is_err() {
                    forwarding.abort();
                }
            }
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for EventReceiver<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReceiver")
            .field("failure", &self.failure)
            .field("gathered", &self.gathered)
            .finish_non_exhaustive()
    }
}

/// How many events the next batch of a stream may have. The receiver sets it, and the stream reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchLimit(Arc<Sizes>);

#[derive(Debug, Default)]
struct Sizes {
    most: AtomicUsize,
    /// The size of the last batch. The next one is usually as large.
    last: AtomicUsize,
}

impl BatchLimit {
    #[cfg(feature = "eventhubs")]
    pub(crate) fn max_events(&self) -> usize {
        self.0.most.load(Ordering::Relaxed)
    }

    /// Returns an empty batch that need not grow if it becomes as large as the last one.
    #[cfg(feature = "eventhubs")]
    pub(crate) fn new_batch<E>(&self) -> Vec<E> {
        Vec::with_capacity(self.0.last.load(Ordering::Relaxed).min(self.max_events()).max(1))
    }
}

type OpenStream<I> = (Fuse<BoxStream<'static, Result<I>>>, oneshot::Sender<()>);

/// A stream with the sender that stops it. `None` after it was stopped.
struct StreamReading<I> {
    open: Option<OpenStream<I>>,
    /// For the `Drop` implementation, which does not know that events are `'static`.
    close_later: fn(OpenStream<I>),
}

impl<I> StreamReading<I> {
    async fn close(mut self, limit: Duration) {
        if let Some(open) = self.open.take() {
            close_stream(open, limit).await;
        }
    }
}

impl<E> StreamReading<Vec<E>> {
    /// Returns the next batch, or the failure that ends the stream; a panic is a failure. Returns neither at the end of
    /// the stream.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<(Vec<E>, Option<Error>)> {
        let Some((stream, _)) = &mut self.open else { return Poll::Ready((Vec::new(), None)) };
        match catch_panic_in(|| stream.poll_next_unpin(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(None)) => Poll::Ready((Vec::new(), None)),
            Ok(Poll::Ready(Some(Ok(batch)))) => Poll::Ready((batch, None)),
            Ok(Poll::Ready(Some(Err(failure)))) => Poll::Ready((Vec::new(), Some(failure))),
            Err(panicked) => {
                // A stream that has panicked must not be polled again.
                self.open = None;
                Poll::Ready((Vec::new(), Some(panicked)))
            }
        }
    }
}

impl<E> StreamReading<E> {
    /// Returns all events that are ready, and the failure after them; a panic is a failure. Returns neither at the end
    /// of the stream. One call takes events from the stream and returns them, so none can be lost in between.
    fn poll_batch(&mut self, context: &mut Context<'_>, limit: usize) -> Poll<(Vec<E>, Option<Error>)> {
        let mut events = Vec::new();
        let Some((stream, _)) = &mut self.open else { return Poll::Ready((events, None)) };
        match catch_panic_in(|| poll_events(stream, context, limit, &mut events)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(failure)) => Poll::Ready((events, failure)),
            Err(panicked) => {
                // A stream that has panicked must not be polled again.
                self.open = None;
                Poll::Ready((events, Some(panicked)))
            }
        }
    }
}

impl<E> Drop for StreamReading<E> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            (self.close_later)(open);
        }
    }
}

/// Takes the events that are ready, up to the limit. Pending if there are none.
fn poll_events<E>(
    stream: &mut (impl Stream<Item = Result<E>> + Unpin),
    context: &mut Context<'_>,
    limit: usize,
    events: &mut Vec<E>,
) -> Poll<Option<Error>> {
    while events.len() < limit {
        match stream.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(event))) => events.push(event),
            Poll::Ready(Some(Err(failure))) => return Poll::Ready(Some(failure)),
            Poll::Pending if events.is_empty() => return Poll::Pending,
            Poll::Pending | Poll::Ready(None) => break,
        }
    }
    Poll::Ready(None)
}

async fn close_stream<E>((mut stream, stop): OpenStream<E>, limit: Duration) {
    drop(stop);
    let ending = async {
        while stream.next().await.is_some() {
            // A stream that ignores the signal may always have another event: yield, so that the time limit is checked,
            // too.
            yield_now().await;
        }
        Ok(())
    };
    // Neither a panic nor a timeout is an error here: the link is dropped.
    let _ = timeout(limit, catch_panic(ending)).await;
}

fn close_later<E: Send + 'static>(open: OpenStream<E>) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(close_stream(open, DROPPED_LIMIT).in_current_span());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::stream;

    use super::*;

    mod spawned_task {
        use super::*;

        #[tokio::test]
        async fn an_error_follows_the_events_before_it() {
            let mut receiver = EventReceiver::spawn(8, |sender| async move {
                for number in 0..3 {
                    sender.send(Ok(number)).await;
                }
                sender.send(Err(Error::new(ErrorKind::EventSource, "broken"))).await;
            });
            tokio::task::yield_now().await;
            assert_eq!(receiver.next_batch(2).await.unwrap(), [0, 1]);
            assert_eq!(receiver.next_batch(2).await.unwrap(), [2]);
            assert_eq!(receiver.next_batch(2).await.unwrap_err().to_string(), "broken");
        }

        #[tokio::test]
        async fn many_events_wait_for_capacity_in_order() {
            let mut receiver = EventReceiver::spawn(3, |sender| async move {
                assert_eq!(sender.ready_capacity().await, 3);
                assert!(sender.send(Ok(0)).await);
                assert_eq!(sender.ready_capacity().await, 2);
                assert!(sender.send_all((1..10).collect()).await);
                sender.closed().await;
                assert_eq!(sender.ready_capacity().await, 0);
                assert!(!sender.send_all(vec![10]).await);
            });
            let mut numbers = Vec::new();
            while numbers.len() < 10 {
                let batch = receiver.next_batch(100).await.unwrap();
                assert!(batch.len() <= 3, "more than the prefetch was held");
                numbers.extend(batch);
            }
            assert_eq!(numbers, (0..10).collect::<Vec<_>>());
            let Reading::Task { events, forwarding } = receiver.reading else { panic!("it was spawned") };
            drop(events);
            forwarding.await.unwrap();
        }

        #[tokio::test(start_paused = true)]
        async fn closing_stops_the_task_within_the_limit() {
            let receiver = EventReceiver::<()>::spawn(1, |sender| async move { sender.closed().await });
            receiver.close(Duration::from_secs(1)).await;
            let unresponsive = EventReceiver::<()>::spawn(1, |_sender| std::future::pending());
            unresponsive.close(Duration::from_secs(1)).await;
        }
    }

    fn broken() -> Error {
        Error::new(ErrorKind::EventSource, "broken")
    }

    mod polled_stream {
        use super::*;

        #[tokio::test]
        async fn a_stream_is_read_in_batches_of_ready_events() {
            let ready = stream::iter([Ok(0), Ok(1), Ok(2), Err(broken())]);
            let later = stream::once(tokio::task::yield_now()).map(|()| Ok(3));
            let mut receiver = EventReceiver::new(|_stopped| later.chain(ready));
            assert_eq!(receiver.next_batch(3).await.unwrap(), [3, 0, 1]);
            assert_eq!(receiver.next_batch(3).await.unwrap(), [2]);
            assert_eq!(receiver.next_batch(3).await.unwrap_err().to_string(), "broken");
            assert_eq!(receiver.next_batch(3).await.unwrap_err().to_string(), "the event source ended");
        }

        #[tokio::test]
        async fn a_canceled_wait_loses_no_events() {
            let (sender, events) = futures::channel::mpsc::unbounded();
            let mut receiver = EventReceiver::new(|_stopped| events);
            for number in 0..3 {
                assert!(receiver.next_batch(2).now_or_never().is_none());
                sender.unbounded_send(Ok(number)).unwrap();
                sender.unbounded_send(Ok(number)).unwrap();
                assert_eq!(receiver.next_batch(1).await.unwrap(), [number]);
                assert!(matches!(receiver.next_batch(2).now_or_never(), Some(Ok(rest)) if rest == [number]));
            }
        }

        /// A stream that ends this many seconds after it was stopped. It drops the sender unused if it is dropped
        /// earlier.
        fn slow_to_close(seconds: u64, held: oneshot::Sender<()>) -> EventReceiver<()> {
            EventReceiver::new(move |stopped| {
                stream::once(async move {
                    stopped.await;
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    let _ = held.send(());
                    Err(broken())
                })
            })
        }

        #[tokio::test(start_paused = true)]
        async fn a_stopped_stream_has_a_limited_time_to_close() {
            for (seconds, closed) in [(1, true), (3, false)] {
                for drop_only in [false, true] {
                    let (held, gone) = oneshot::channel();
                    let receiver = slow_to_close(seconds, held);
                    if drop_only {
                        drop(receiver);
                    } else {
                        receiver.close(DROPPED_LIMIT).await;
                    }
                    assert_eq!(gone.await.is_ok(), closed, "{seconds} s, only dropped: {drop_only}");
                }
            }
        }
    }

    mod defects {
        use super::*;

        #[tokio::test]
        async fn a_stream_stops_without_any_task_budget() {
            let (stop, stopped) = oneshot::channel();
            let mut stopped = StopSignal::new(stopped);
            let (sender, mut events) = mpsc::unbounded_channel();
            (0..1000).for_each(|number| sender.send(number).unwrap());
            drop(stop);
            while events.recv().now_or_never().is_some() {}
            assert!(!events.is_empty(), "the budget is spent");
            assert!((&mut stopped).now_or_never().is_some() && stopped.is_stopped());
            stopped.await;
        }

        #[tokio::test]
        async fn an_endless_stream_is_dropped_at_the_limit() {
            let receiver = EventReceiver::new(|_stopped| stream::repeat_with(|| Ok(())));
            receiver.close(Duration::from_millis(50)).await;
        }
    }
}
