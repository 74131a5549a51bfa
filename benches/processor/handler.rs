//! A handler that only completes every event.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use eventhubs_checkpoint::processor::{Handler, HandlerError, PartitionContext};
use eventhubs_checkpoint::source::Positioned;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cost::{Cost, Stopwatch};

/// How the handler completes events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    Checkpoint,
    /// Only the calls are measured.
    CheckpointTimed,
    /// Begins with the last event of a batch.
    TrackReversed,
}

/// Measures from the first `started` until all events were processed.
#[derive(Debug)]
pub(crate) struct Done {
    completion: Completion,
    left: AtomicU32,
    watch: OnceLock<Stopwatch>,
    in_calls: Mutex<Duration>,
    finished: Mutex<Option<oneshot::Sender<Cost>>>,
}

impl Done {
    pub(crate) fn new(completion: Completion, events: u32) -> (Self, oneshot::Receiver<Cost>) {
        let (finished, cost) = oneshot::channel();
        let done = Self {
            completion,
            left: AtomicU32::new(events),
            watch: OnceLock::new(),
            in_calls: Mutex::default(),
            finished: Mutex::new(Some(finished)),
        };
        (done, cost)
    }

    fn complete<E: Positioned>(&self, events: &[E], context: &PartitionContext) -> Result<(), HandlerError> {
        match self.completion {
            Completion::Checkpoint => checkpoint(events, context),
            Completion::TrackReversed => {
                for event in events.iter().rev() {
                    context.track(event).finish();
                }
            }
            Completion::CheckpointTimed => {
                let started = Instant::now();
                checkpoint(events, context);
                *self.in_calls.lock().map_err(|_| "poisoned")? += started.elapsed();
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), HandlerError> {
        let mut cost = self.watch.get().ok_or("not started")?.stop();
        if self.completion == Completion::CheckpointTimed {
            cost.elapsed = *self.in_calls.lock().map_err(|_| "poisoned")?;
        }
        let finished = self.finished.lock().map_err(|_| "poisoned")?.take();
        finished.ok_or("too many events")?.send(cost).map_err(|_| "the receiver was dropped".into())
    }
}

fn checkpoint<E: Positioned>(events: &[E], context: &PartitionContext) {
    for event in events {
        context.checkpoint(event);
    }
}

impl<E: Positioned + Send + Sync + 'static> Handler<E> for Done {
    async fn handle(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
        self.complete(&events, &context)?;
        let count = u32::try_from(events.len())?;
        if self.left.fetch_sub(count, Ordering::Relaxed) == count { self.finish() } else { Ok(()) }
    }

    async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
        self.watch.get_or_init(Stopwatch::start);
        Ok(())
    }
}
