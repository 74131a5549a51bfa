//! Handlers that take their time, and handlers that leave their events to the test.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{Handler, HandlerError, PartitionContext, StopReason, TrackedEvent};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;

use crate::world::{Instance, Recorder, World};

/// Takes `stop_delay` to stop.
pub struct SlowStop {
    pub recorder: Recorder,
    pub stop_delay: Duration,
}

impl Handler<MemoryEvent> for SlowStop {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.recorder.started(context).await
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.recorder.handle(events, context).await
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        sleep(self.stop_delay).await;
        self.recorder.stopped(context, reason).await;
    }
}

/// Starts an instance whose handler takes `stop_delay` to stop, and waits until it owns all partitions.
pub async fn owner_of_all(world: &World, partitions: usize, stop_delay: Duration) -> Instance {
    let handler = SlowStop { recorder: world.recorder("a"), stop_delay };
    let mut a = world.start_with("a", world.hub.source(), handler).await;
    a.wait_until_it_holds(partitions).await;
    a
}

/// Records its calls, and takes the given time.
#[derive(Clone, Debug, Default)]
pub struct CallRecorder {
    pub calls: Arc<Mutex<Vec<String>>>,
    pub starting: Duration,
    pub handling: Duration,
    /// Waits until its checkpoints are written.
    pub durable: bool,
}

impl CallRecorder {
    fn record(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl Handler<MemoryEvent> for CallRecorder {
    async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
        sleep(self.starting).await;
        self.record("started");
        Ok(())
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.record(format!("handle {}", events[0].text().unwrap()));
        sleep(self.handling).await;
        if self.durable {
            context.checkpoint_now(&events[0]).await?;
        } else {
            context.checkpoint(&events[0]);
        }
        self.record(format!("handled {}", events[0].text().unwrap()));
        Ok(())
    }

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        let reason = match reason {
            StopReason::OwnershipLost { by } => format!("lost to {}", by.map(|by| by.to_string()).unwrap_or_default()),
            other => format!("{other:?}"),
        };
        self.record(format!("stopped: {reason}"));
    }
}

/// Tracks every event and lets the test finish it.
#[derive(Clone, Debug, Default)]
pub struct OpenTokens {
    pub tokens: Arc<Mutex<BTreeMap<i64, TrackedEvent>>>,
    pub delivered: Arc<Mutex<usize>>,
    /// Fails at this event.
    pub poison: Option<i64>,
}

impl Handler<MemoryEvent> for OpenTokens {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        *self.delivered.lock().unwrap() += events.len();
        let tokens = events.iter().map(|event| (event.sequence_number, context.track(event)));
        self.tokens.lock().unwrap().extend(tokens);
        let poisoned = events.iter().any(|event| Some(event.sequence_number) == self.poison);
        if poisoned { Err("failed on request".into()) } else { Ok(()) }
    }
}

impl OpenTokens {
    pub fn finish(&self, numbers: impl IntoIterator<Item = i64>) {
        for number in numbers {
            self.tokens.lock().unwrap().remove(&number).expect("no such token").finish();
        }
    }

    /// Returns the tokens that are open.
    pub fn take(&self) -> BTreeMap<i64, TrackedEvent> {
        std::mem::take(&mut *self.tokens.lock().unwrap())
    }

    /// Returns how many events came, repeated ones included.
    pub fn delivered(&self) -> usize {
        *self.delivered.lock().unwrap()
    }
}
