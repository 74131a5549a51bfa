//! The application that processes single events, and its dead letters.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterPolicy};
use eventhubs_checkpoint::processor::{
    EventContext, EventError, EventHandler, EventOrder, HandlerError, PartitionContext, Processor, RetryPolicy,
    StopReason, each_event,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemorySource};
use rand::RngExt;
use tokio::time::sleep;

use crate::application::{Application, number_of};
use crate::misbehaviors::Misbehavior;
use crate::world::{Instance, World};

/// How many events of a partition are processed at once, unless they are processed in the order of the partition.
const PLACES: usize = 8;

const KEYS: i64 = 7;

/// Time to process an event in the order of the partition.
const TIME_IN_ORDER: Duration = Duration::from_millis(2);

/// The longest time to process one event out of twenty, and any other one, concurrently.
const SLOW_TIME: Duration = Duration::from_secs(1);
const USUAL_TIME: Duration = Duration::from_millis(20);

/// Which events are processed one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Partition,
    Key,
    None,
}

impl Order {
    /// Returns what the events that are processed one after another have in common.
    pub fn lane_of(self, number: i64) -> i64 {
        match self {
            Self::Partition => 0,
            Self::Key => number % KEYS,
            Self::None => number,
        }
    }

    /// Returns the distance of two events of a lane, if a lane has more than one.
    pub fn step(self) -> Option<i64> {
        match self {
            Self::Partition => Some(1),
            Self::Key => Some(KEYS),
            Self::None => None,
        }
    }
}

/// How the application processes single events.
#[derive(Clone, Debug, Default)]
pub struct SingleEvents {
    pub order: Order,
    pub retries: RetryPolicy,
    pub dead_letters: bool,
}

struct SingleEventHandler {
    application: Arc<Application>,
    order: Order,
}

impl SingleEventHandler {
    async fn attempt(&self, session: usize, event: &MemoryEvent, partition: u32) -> Result<(), HandlerError> {
        let Application { misbehaviors, ledger, .. } = &*self.application;
        if let Some(misbehavior) = misbehaviors.of_attempt(partition, event, session) {
            if !matches!(misbehavior, Misbehavior::Hang(_)) {
                ledger.lock().failed(session, event, self.order);
            }
            if misbehavior == Misbehavior::Bad {
                return Err(EventError::permanent(event, "bad on request").into());
            }
            self.application.misbehave(misbehavior, partition).await?;
        }
        sleep(self.time()).await;
        ledger.lock().finished(session, event, self.order);
        Ok(())
    }

    fn time(&self) -> Duration {
        if self.order == Order::Partition {
            return TIME_IN_ORDER;
        }
        let mut rng = self.application.rng.lock().unwrap();
        let longest = if rng.random_bool(0.05) { SLOW_TIME } else { USUAL_TIME };
        longest.mul_f64(rng.random_range(0.0..1.0))
    }
}

impl EventHandler<MemoryEvent> for SingleEventHandler {
    async fn handle(&self, event: Arc<MemoryEvent>, context: EventContext) -> Result<(), HandlerError> {
        let partition = number_of(context.partition_id());
        let session = self.application.session(partition);
        self.application.ledger.lock().begun(session, &event, self.order);
        self.attempt(session, &event, partition).await
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.application.open_session(&context);
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, _: StopReason) {
        self.application.close_session(&context);
    }
}

/// Stores a dead letter, unless the partition is to fail.
fn store_letter(application: &Application, order: Order, letter: &DeadLetter<MemoryEvent>) -> Result<(), HandlerError> {
    let partition = number_of(&letter.partition_id);
    let session = application.session(partition);
    if application.misbehaviors.is_meant_for_partition(partition, &letter.event, session) {
        return Err("the sink failed on request".into());
    }
    let mut ledger = application.ledger.lock();
    if !application.misbehaviors.is_marked(partition, &letter.event) {
        let number = letter.event.sequence_number;
        ledger.add_violation(&format!("event {number} of partition {partition} was moved, but can be processed"));
    }
    ledger.finished(session, &letter.event, order);
    Ok(())
}

pub fn start_single_events(
    world: &World,
    store: GroupStore,
    source: MemorySource,
    application: Application,
    settings: SingleEvents,
) -> Instance {
    let SingleEvents { order, retries, dead_letters } = settings;
    let application = Arc::new(application);
    let handler = each_event(SingleEventHandler { application: Arc::clone(&application), order })
        .with_concurrency(PLACES)
        .with_retries(retries)
        .with_order(match order {
            Order::Partition => EventOrder::Partition,
            Order::Key => EventOrder::by_key(|event: &MemoryEvent| Order::Key.lane_of(event.sequence_number)),
            Order::None => EventOrder::None,
        });
    let builder = Processor::builder(source, store, handler);
    if !dead_letters {
        return world.start_built(builder);
    }
    let sink = move |letter| std::future::ready(store_letter(&application, order, &letter));
    let policy = DeadLetterPolicy::default().with_max_attempts(3).with_min_failing_time(Duration::ZERO);
    world.start_built(builder.with_dead_letters(sink, policy))
}
