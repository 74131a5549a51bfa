//! The handler of batches that processes their events one by one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::concurrent::EventSession;
use super::retries::RetryPolicy;
use super::work::{Attempted, EventWork, OpenEvent};
use super::{EventHandler, EventOrder};
use crate::error::Error;
use crate::model::PartitionId;
use crate::processor::context::PartitionContext;
use crate::processor::dead_letters::UndecodableEvent;
use crate::processor::handler::{Handler, OwnPosition, PartitionStart};
use crate::processor::handler_errors::{EventError, HandlerError, NotBegun};
use crate::processor::shutdown::StopReason;
use crate::source::Positioned;
use crate::util::lock;

/// How often a partition that processes its events in order reports that it is not stalled.
const REPORT_EVERY: Duration = Duration::from_secs(1);
const SHORTEST_STEP: Duration = Duration::from_millis(10);

/// Returns a handler that processes the events of a partition one by one, with an [`EventHandler`]. By default one
/// after another, with five attempts at each; the setters of [`EachEvent`] change that.
///
/// ```
/// use std::sync::Arc;
/// use eventhubs_checkpoint::processor::{
///     EventContext, EventOrder, Handler, HandlerError, each_event, event_handler_fn,
/// };
/// use eventhubs_checkpoint::source::Positioned;
///
/// # fn device<E>(_: &E) -> u64 { 7 }
/// # async fn store<E>(_: &E) -> Result<(), HandlerError> { Ok(()) }
/// fn handler<E: Positioned + Send + Sync + 'static>() -> impl Handler<E> {
///     each_event(event_handler_fn(|event: Arc<E>, _: EventContext| async move { store(&*event).await }))
///         .with_concurrency(64)
///         .with_order(EventOrder::by_key(|event: &E| device(event)))
/// }
/// ```
pub fn each_event<E, H: EventHandler<E>>(handler: H) -> EachEvent<E, H> {
    EachEvent {
        work: EventWork {
            handler: Arc::new(handler),
            concurrency: 1,
            order: EventOrder::default(),
            retries: RetryPolicy::default(),
            event_timeout: None,
        },
        sessions: Mutex::default(),
    }
}

/// A [`Handler`] that processes the events of a partition one by one: see [`each_event`].
///
/// With [dead letters](crate::processor::ProcessorBuilder::with_dead_letters), an event that fails as often and as long
/// as their policy requires is moved in its place: nothing restarts, and once the event is stored, the next one of its
/// order follows. Until then it is tried again with the waits of the [`RetryPolicy`]. Of the events that no
/// [`EventError`] names, at most one is moved within each
/// [`min_failing_time`](crate::processor::dead_letters::DeadLetterPolicy::min_failing_time), so that an outage moves
/// few. A sink that fails is asked again as often as the [`RetryPolicy`] says; then the partition fails.
///
/// At most [`max_in_flight`](crate::processor::ProcessorConfig::max_in_flight) events of a partition, and
/// [`max_in_flight_bytes`](crate::processor::ProcessorConfig::max_in_flight_bytes), are delivered and not finished, so
/// no more than that run at once. At that limit, for example because one key has most events, no more are delivered.
/// Events without a sequence number or an offset do not count, so nothing limits how many of them wait.
#[must_use = "a processor must run it"]
pub struct EachEvent<E, H> {
    work: EventWork<E, H>,
    /// Of the partitions that run, if their events are processed concurrently.
    sessions: Mutex<HashMap<PartitionId, EventSession<E>>>,
}

impl<E, H> fmt::Debug for EachEvent<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EventWork { concurrency, order, retries, event_timeout, .. } = &self.work;
        f.debug_struct("EachEvent")
            .field("concurrency", concurrency)
            .field("order", order)
            .field("retries", retries)
            .field("event_timeout", event_timeout)
            .finish_non_exhaustive()
    }
}

impl<E, H> EachEvent<E, H> {
    /// Sets how many events of one partition are processed at once. Default 1; 0 counts as 1. In the [order of the
    /// partition](EventOrder::Partition), which is the default, events are processed one at a time in any case.
    ///
    /// Each event then has a task of its own, so that events are also processed in parallel if the runtime has several
    /// threads.
    pub fn with_concurrency(mut self, concurrency: usize) -> Self {
        self.work.concurrency = concurrency.max(1);
        self
    }

    /// Sets which events are processed one after another. Default [`EventOrder::Partition`].
    pub fn with_order(mut self, order: EventOrder<E>) -> Self {
        self.work.order = order;
        self
    }

    /// Sets how often an event that fails is tried again. Default: see [`RetryPolicy`].
    pub fn with_retries(mut self, retries: RetryPolicy) -> Self {
        self.work.retries = retries;
        self
    }

    /// Sets how long one attempt may take, and one call of
    /// [`DeadLetterSink::store`](crate::processor::dead_letters::DeadLetterSink::store). A call that takes longer is
    /// dropped, which counts as a failure. Default: no limit.
    ///
    /// The [handler timeout](crate::processor::ProcessorConfig::handler_timeout) limits an attempt only in the [order
    /// of the partition](EventOrder::Partition).
    pub fn with_event_timeout(mut self, timeout: Duration) -> Self {
        self.work.event_timeout = Some(timeout);
        self
    }
}

impl<E, H> EventWork<E, H>
where
    E: Positioned + Send + Sync + 'static,
    H: EventHandler<E>,
{
    /// Processes a batch in its order. Once the partition is to stop, leaves the rest to the next owner.
    async fn process_in_order(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        let context = &Arc::new(context);
        let call_limit = &context.control.call_limit;
        let report_every = if call_limit.call_timeout().is_some() { Duration::ZERO } else { REPORT_EVERY };
        let mut reported = Instant::now();
        for event in events {
            let mut open = OpenEvent::new(event);
            loop {
                if context.is_stopping() {
                    return Err(NotBegun.into());
                }
                if reported.elapsed() >= report_every {
                    reported = Instant::now();
                    // Each attempt has the time of a call: it begins now, and ends with the batch.
                    drop(call_limit.begin_call());
                }
                match self.attempt_event(&mut open, context).await {
                    Attempted::Finished => break,
                    Attempted::RetryIn(wait) => wait_for_retry(wait, context).await,
                    Attempted::Failed(error) => {
                        return Err(EventError::for_tracked_event(open.event.sequence_number(), error).into());
                    }
                }
            }
            context.checkpoint(&*open.event);
        }
        Ok(())
    }
}

/// Waits until an event is tried again, or the partition is stopping. No call of the handler takes time meanwhile.
async fn wait_for_retry(wait: Duration, context: &PartitionContext) {
    let call_limit = &context.control.call_limit;
    let step = call_limit.call_timeout().map_or(REPORT_EVERY, |limit| (limit / 2).clamp(SHORTEST_STEP, REPORT_EVERY));
    let until = Instant::now() + wait;
    while Instant::now() < until && !context.is_stopping() {
        drop(call_limit.begin_call());
        context.run_until_stopping(sleep_until(until.min(Instant::now() + step))).await;
    }
}

impl<E, H> Handler<E> for EachEvent<E, H>
where
    E: Positioned + Send + Sync + 'static,
    H: EventHandler<E>,
{
    async fn handle(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        if self.work.is_in_order() {
            return self.work.process_in_order(events, context).await;
        }
        let open = lock(&self.sessions).get(context.partition_id()).map(EventSession::open_events);
        open.ok_or("internal error: the partition has not started")?.add_batch(events, &self.work, &context);
        Ok(())
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.work.handler.started(context.clone()).await?;
        if !self.work.is_in_order() {
            let partition = context.partition_id().clone();
            lock(&self.sessions).insert(partition, EventSession::start_session(self.work.clone(), context));
        }
        Ok(())
    }

    fn start_position(&self, start: PartitionStart) -> impl Future<Output = Result<OwnPosition, HandlerError>> + Send {
        self.work.handler.start_position(start)
    }

    fn undecodable(
        &self,
        event: UndecodableEvent,
        context: PartitionContext,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        self.work.handler.undecodable(event, context)
    }

    fn failed(&self, partition_id: &PartitionId, error: &Error) {
        self.work.handler.failed(partition_id, error);
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        context.control.progress.set_events(None);
        let session = lock(&self.sessions).remove(context.partition_id());
        if let Some(session) = session {
            // The other half is left to the application's `stopped`.
            session.finish_running(context.drain_timeout / 2).await;
        }
        self.work.handler.stopped(context, reason).await;
    }
}
