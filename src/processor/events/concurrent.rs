//! Events of one partition that are processed concurrently: a task for each, and one that begins them.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::EventHandler;
use super::queue::{EventQueue, Queued};
use super::work::{Attempted, EventWork, OpenEvent};
use crate::clock::wait_until;
use crate::processor::context::PartitionContext;
use crate::processor::handler_errors::EventError;
use crate::processor::monitoring::EventCounts;
use crate::processor::monitoring::progress::CountEvents;
use crate::processor::shutdown::StopReason;
use crate::source::Positioned;
use crate::util::lock;

/// The events of one start of a partition.
pub(super) struct EventSession<E> {
    events: Arc<OpenEvents<E>>,
    /// The task that begins events. Aborted when the session is dropped, with the tasks of the events.
    running: JoinSet<()>,
}

/// The events that were delivered and are not finished.
pub(super) struct OpenEvents<E> {
    queue: Mutex<EventQueue<OpenEvent<E>>>,
    /// Notified when events are added.
    added: Notify,
    /// Notified when the events that still run must end.
    overdue: Notify,
}

/// How a task of an event has ended.
enum Ended<E> {
    /// The event of this key is finished.
    Finished {
        key: Option<u64>,
        attempt: u64,
    },
    RetryIn(Duration, Queued<OpenEvent<E>>),
    /// The partition fails.
    Failed,
}

impl<E: Positioned + Send + Sync + 'static> EventSession<E> {
    pub(super) fn start_session<H: EventHandler<E>>(work: EventWork<E, H>, context: PartitionContext) -> Self {
        let events = Arc::new(OpenEvents {
            queue: Mutex::new(EventQueue::new(work.concurrency)),
            added: Notify::new(),
            overdue: Notify::new(),
        });
        context.control.progress.set_events(Some(Arc::clone(&events) as Arc<dyn CountEvents>));
        let mut running = JoinSet::new();
        running.spawn(process_events(Arc::clone(&events), Arc::new(work), context).in_current_span());
        Self { events, running }
    }

    pub(super) fn open_events(&self) -> Arc<OpenEvents<E>> {
        Arc::clone(&self.events)
    }

    /// Lets no other event begin, waits until those that run are finished, at most this long, and then until the rest
    /// have ended early.
    pub(super) async fn finish_running(mut self, limit: Duration) {
        let dropped = lock(&self.events.queue).drain_all_but(|_| false);
        drop(dropped);
        // A panic of the task has ended it, too.
        if timeout(limit, self.running.join_next()).await.is_err() {
            self.events.overdue.notify_one();
            let _ = self.running.join_next().await;
        }
    }
}

impl<E: Send + Sync> CountEvents for OpenEvents<E> {
    fn count_events(&self) -> EventCounts {
        lock(&self.queue).count_events()
    }

    fn longest_attempt(&self) -> Option<Duration> {
        lock(&self.queue).oldest_attempt().map(|began| began.elapsed())
    }
}

impl<E> fmt::Debug for OpenEvents<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenEvents").field("counts", &lock(&self.queue).count_events()).finish_non_exhaustive()
    }
}

/// The application's code may run when events are dropped, so the queue is not locked then.
impl<E: Positioned> OpenEvents<E> {
    /// Adds a batch. Each event holds the checkpoint back until it is finished.
    pub(super) fn add_batch<H>(&self, batch: Vec<E>, work: &EventWork<E, H>, context: &PartitionContext) {
        // All keys come first: if the application's function panics, no event is tracked.
        let keyed: Vec<_> = batch.into_iter().map(|event| (work.key_of(&event), event)).collect();
        let open: Vec<_> =
            keyed.into_iter().map(|(key, event)| (key, OpenEvent::new_tracked(event, context))).collect();
        let mut queue = lock(&self.queue);
        let rejected: Vec<_> = open.into_iter().filter_map(|(key, event)| queue.add_event(key, event)).collect();
        drop(queue);
        drop(rejected);
        self.added.notify_one();
    }

    fn begin_next(&self) -> Option<Queued<OpenEvent<E>>> {
        lock(&self.queue).begin_next(Instant::now())
    }

    fn record_end(&self, ended: Result<Ended<E>, JoinError>) {
        let mut queue = lock(&self.queue);
        let dropped = match ended {
            Ok(Ended::Finished { key, attempt }) => {
                queue.end_attempt(attempt);
                queue.finish_event(key);
                Vec::new()
            }
            Ok(Ended::RetryIn(wait, failed)) if !queue.is_draining() => {
                queue.end_attempt(failed.attempt);
                queue.retry_at(Instant::now() + wait, failed);
                Vec::new()
            }
            // Later events of the key must not be processed before the event is delivered again. They are dropped when
            // the partition stops, because until then they would count as dropped by mistake.
            _ => queue.fail_event(),
        };
        drop(queue);
        drop(dropped);
    }

    /// The partition is stopping. Events before one that has begun are still processed, because the checkpoint waits
    /// for them. All others are left to the next owner.
    fn drain(&self, last_begun: Option<i64>, context: &PartitionContext) {
        let is_lost = match context.control.stop_request() {
            Some((reason, _)) => matches!(reason, StopReason::OwnershipLost { .. } | StopReason::Replaced),
            None => true,
        };
        let dropped = lock(&self.queue).drain_all_but(|open| {
            let number = open.event.sequence_number();
            !is_lost && number.is_some() && number < last_begun
        });
        drop(dropped);
    }
}

/// Begins events as places and keys become free, until the partition is stopping and those that have begun have ended.
async fn process_events<E, H>(events: Arc<OpenEvents<E>>, work: Arc<EventWork<E, H>>, context: PartitionContext)
where
    E: Positioned + Send + Sync + 'static,
    H: EventHandler<E>,
{
    let context = Arc::new(context);
    let mut running = JoinSet::new();
    let mut last_begun = None;
    let mut stopping = std::pin::pin!(context.stopping());
    let mut is_stopping = false;
    loop {
        if !is_stopping && context.is_stopping() {
            is_stopping = true;
            events.drain(last_begun, &context);
        }
        while let Some(queued) = events.begin_next() {
            last_begun = last_begun.max(queued.item.event.sequence_number());
            running.spawn(process_event(queued, Arc::clone(&work), Arc::clone(&context)).in_current_span());
        }
        if is_stopping && running.is_empty() {
            return;
        }
        let next_retry = lock(&events.queue).next_retry();
        tokio::select! {
            biased;
            () = events.overdue.notified() => return running.shutdown().await,
            () = &mut stopping, if !is_stopping => {}
            Some(ended) = running.join_next() => {
                if let Err(error) = &ended {
                    context.checkpoints.fail_token(EventError::for_tracked_event(None, task_error(error)));
                }
                events.record_end(ended);
            }
            () = events.added.notified() => {}
            () = wait_until(next_retry) => {}
        }
    }
}

/// The error of a task that panicked outside of the handler's call, for example where an event is dropped.
fn task_error(error: &JoinError) -> String {
    format!("the task of an event ended: {error}")
}

async fn process_event<E, H>(
    mut queued: Queued<OpenEvent<E>>,
    work: Arc<EventWork<E, H>>,
    context: Arc<PartitionContext>,
) -> Ended<E>
where
    E: Positioned + Send + Sync + 'static,
    H: EventHandler<E>,
{
    match work.attempt_event(&mut queued.item, &context).await {
        Attempted::RetryIn(wait) => Ended::RetryIn(wait, queued),
        Attempted::Finished => {
            if let Some(token) = queued.item.token.take() {
                token.finish();
            }
            Ended::Finished { key: queued.key, attempt: queued.attempt }
        }
        Attempted::Failed(error) => {
            if let Some(token) = queued.item.token.take() {
                token.fail(error);
            }
            Ended::Failed
        }
    }
}
