//! Events that fail, and a sink for them.

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterPolicy, DeadLetterSink};
use eventhubs_checkpoint::processor::{Handler, HandlerError};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;

use crate::world::{Instance, World};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum SinkState {
    #[default]
    Up,
    Down,
    Hangs,
    Panics,
}

/// Keeps the dead letters. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Sink {
    state: Arc<Mutex<SinkState>>,
    letters: Arc<Mutex<Vec<DeadLetter<MemoryEvent>>>>,
    pub asked: Arc<AtomicUsize>,
}

impl Sink {
    pub fn new(state: SinkState) -> Self {
        Self { state: Arc::new(Mutex::new(state)), ..Self::default() }
    }

    pub fn set(&self, state: SinkState) {
        *self.state.lock().unwrap() = state;
    }

    /// Returns the numbers of the stored events.
    pub fn numbers(&self) -> Vec<i64> {
        self.letters.lock().unwrap().iter().map(|letter| letter.event.sequence_number).collect()
    }

    /// Returns the number, the attempts and the cause of each dead letter.
    pub fn letters(&self) -> Vec<(i64, u32, String)> {
        let letters = self.letters.lock().unwrap();
        let cause = |letter: &DeadLetter<MemoryEvent>| match letter.error.source() {
            Some(source) => source.source().unwrap_or(source).to_string(),
            None => letter.error.to_string(),
        };
        letters.iter().map(|letter| (letter.event.sequence_number, letter.attempts, cause(letter))).collect()
    }
}

impl DeadLetterSink<MemoryEvent> for Sink {
    async fn store(&self, letter: DeadLetter<MemoryEvent>) -> Result<(), HandlerError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let state = *self.state.lock().unwrap();
        match state {
            SinkState::Up => self.letters.lock().unwrap().push(letter),
            SinkState::Down => return Err("the sink is down".into()),
            SinkState::Hangs => std::future::pending().await,
            SinkState::Panics => panic!("the sink panicked"),
        }
        Ok(())
    }
}

/// Moves an event at its third failure.
pub fn quick() -> DeadLetterPolicy {
    DeadLetterPolicy::default().with_max_attempts(3).with_min_failing_time(Duration::ZERO)
}

/// A partition with events of which these are poison.
pub fn poisoned(events: i64, poison: &[i64]) -> World {
    let world = World::new(1);
    publish_poisoned(&world, events, poison);
    world
}

pub fn publish_poisoned(world: &World, events: i64, poison: &[i64]) {
    for number in 0..events {
        world.hub.publish(0, if poison.contains(&number) { "poison" } else { "good" });
    }
}

/// Starts an instance with this handler and dead letters.
pub async fn start(
    world: &World,
    handler: impl Handler<MemoryEvent>,
    sink: &Sink,
    policy: DeadLetterPolicy,
) -> Instance {
    world.start_with_dead_letters("a", handler, sink.clone(), policy).await
}
