//! Panics of the application's code outside of the calls of its handler, or in the last moment of one.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{Handler, HandlerError, PartitionContext, StopReason, handler_fn};
use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, Positioned, StartPosition,
};
use eventhubs_checkpoint::testing::memory_hub::MemorySource;
use eventhubs_checkpoint::{Error, PartitionId, Result};
use futures::{StreamExt, stream};
use tokio::time::sleep;

use crate::captured::Captured;
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// What panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PanicIn {
    /// Dropping the call at the handler timeout.
    DropAtTimeout,
    /// Dropping the call at the drain timeout.
    DropAtDrain,
    /// The text of the handler's error.
    ErrorText,
    /// The position of an event.
    Position,
}

/// Panics when it is dropped, formatted, or asked for its position.
#[derive(Debug)]
struct Panicking;

impl Drop for Panicking {
    fn drop(&mut self) {
        panic!("panicked in drop");
    }
}

#[derive(Debug)]
struct PanickingError;

impl std::error::Error for PanickingError {}

impl fmt::Display for PanickingError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("panicked in the text of an error");
    }
}

/// An event whose position cannot be read.
struct PanickingEvent;

impl Positioned for PanickingEvent {
    fn sequence_number(&self) -> Option<i64> {
        panic!("panicked in the position of an event");
    }

    fn offset(&self) -> Option<&str> {
        None
    }
}

/// Delivers one such event with every link.
struct PanickingSource(MemorySource);

impl EventSource for PanickingSource {
    type Event = PanickingEvent;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        self.0.event_hub_properties().await
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        self.0.partition_properties(partition).await
    }

    async fn open_receiver(
        &self,
        _: &PartitionId,
        _: StartPosition,
        _: usize,
        _: i64,
    ) -> Result<EventReceiver<PanickingEvent>> {
        Ok(EventReceiver::new(move |_| stream::iter([Ok(PanickingEvent)]).chain(stream::pending())))
    }
}

/// An event whose position can be read, unless it is event 10.
struct Fragile(i64);

impl Positioned for Fragile {
    fn sequence_number(&self) -> Option<i64> {
        assert_ne!(self.0, 10, "panicked in the position of an event");
        Some(self.0)
    }

    fn offset(&self) -> Option<&str> {
        Some("x")
    }
}

/// Delivers the events up to 9, and event 10 a moment later.
struct FragileSource(MemorySource);

impl EventSource for FragileSource {
    type Event = Fragile;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        self.0.event_hub_properties().await
    }

    async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
        self.0.partition_properties(partition).await
    }

    async fn open_receiver(
        &self,
        _: &PartitionId,
        from: StartPosition,
        _: usize,
        _: i64,
    ) -> Result<EventReceiver<Fragile>> {
        let next = if let StartPosition::AfterSequenceNumber(last) = from { last + 1 } else { 0 };
        let good = stream::iter((next..10).map(|number| Ok(Fragile(number))));
        let last = stream::once(sleep(SECOND / 100)).map(|()| Ok(Fragile(10)));
        Ok(EventReceiver::new(move |_| good.chain(last.boxed()).chain(stream::pending())))
    }
}

/// Records its starts, failures and stops. Its calls panic in one way.
#[derive(Clone, Debug)]
struct PanickingHandler {
    panics_in: PanicIn,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl<E: Send + 'static> Handler<E> for PanickingHandler {
    async fn handle(&self, _: Vec<E>, _: PartitionContext) -> Result<(), HandlerError> {
        match self.panics_in {
            PanicIn::DropAtTimeout | PanicIn::DropAtDrain => {
                let panicking = Panicking;
                pending::<()>().await;
                drop(panicking);
                Ok(())
            }
            PanicIn::ErrorText => Err(PanickingError.into()),
            PanicIn::Position => Ok(()),
        }
    }

    async fn started(&self, _: PartitionContext) {
        self.calls.lock().unwrap().push("started");
    }

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        let failed = matches!(reason, StopReason::Failed { .. });
        self.calls.lock().unwrap().push(if failed { "stopped after a failure" } else { "stopped" });
    }

    fn failed(&self, _: &PartitionId, _: &Error) {
        self.calls.lock().unwrap().push("failed");
    }
}

/// Returns what an instance calls within a minute, and when it shuts down.
async fn calls_with_panics_in(panics_in: PanicIn) -> Vec<&'static str> {
    // Only a subscriber formats errors.
    let (_captured, _guard) = Captured::begin();
    let mut world = World::new(1);
    if panics_in == PanicIn::DropAtTimeout {
        world.config = world.config.with_handler_timeout(5 * SECOND);
    }
    world.hub.publish(0, "x");
    let handler = PanickingHandler { panics_in, calls: Arc::default() };
    let mut a = if panics_in == PanicIn::Position {
        world.start_with("a", PanickingSource(world.hub.source()), handler.clone()).await
    } else {
        world.start_with("a", world.hub.source(), handler.clone()).await
    };
    a.wait_until_it_holds(1).await;
    sleep(60 * SECOND).await;
    a.shut_down().await.unwrap();
    handler.calls.lock().unwrap().clone()
}

/// The handler is called again and again, and every start ends.
async fn assert_every_start_ends(panics_in: PanicIn) {
    let calls = calls_with_panics_in(panics_in).await;
    assert!(calls.len() > 6, "{calls:?}");
    for start in calls.chunks_exact(3) {
        assert_eq!(start, ["started", "failed", "stopped after a failure"], "{calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_at_the_handler_timeout_ends_the_start() {
    assert_every_start_ends(PanicIn::DropAtTimeout).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_at_the_drain_timeout_ends_the_start() {
    assert_eq!(calls_with_panics_in(PanicIn::DropAtDrain).await, ["started", "failed", "stopped"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_text_of_an_error_ends_the_start() {
    assert_every_start_ends(PanicIn::ErrorText).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_position_of_an_event_is_a_failure() {
    assert_every_start_ends(PanicIn::Position).await;
}

/// Each start finishes one more event before the panic.
#[tokio::test(start_paused = true)]
async fn progress_before_a_panic_ends_the_back_off() {
    let (world, open) = (World::new(1), Mutex::new(Vec::new()));
    world.hub.publish_many(0, 11, "x");
    let handler = handler_fn(move |events: Vec<Fragile>, context: PartitionContext| {
        let mut tokens: Vec<_> = events.iter().map(|event| context.track(event)).collect();
        tokens.remove(0).finish();
        *open.lock().unwrap() = tokens;
        std::future::ready(Ok(()))
    });
    let mut a = world.start_with("a", FragileSource(world.hub.source()), handler).await;
    a.wait_until_it_holds(1).await;
    sleep(10 * SECOND).await;
    assert_eq!(world.checkpoint().await, Some(9), "{:?}", a.status());
    a.shut_down().await.unwrap();
}
