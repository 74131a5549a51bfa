//! Events one by one over AMQP, some of which are bad and move to another event hub.

use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::EventHubDeadLetterSink;
use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterPolicy, DeadLetterSink};
use eventhubs_checkpoint::processor::{
    EventContext, EventError, EventHandler, EventOrder, HandlerError, PartitionContext, Processor, each_event,
};
use tokio::time::sleep;

use crate::cost::Cost;
use crate::each::{Counting, key_of};
use crate::processes::Address;
use crate::work::EVENT_HUB;
use crate::{Result, amqp, ours};

const PLACES: usize = 64;
const BAD_EVERY: i64 = 100;

/// The time of a call.
const CALL: Duration = Duration::from_millis(1);

struct Sorting {
    counting: Arc<Counting>,
    has_bad: bool,
}

impl EventHandler<ReceivedEventData> for Sorting {
    async fn handle(&self, event: Arc<ReceivedEventData>, _: EventContext) -> Result<(), HandlerError> {
        sleep(CALL).await;
        if self.has_bad && event.sequence_number().is_some_and(|number| number % BAD_EVERY == 0) {
            return Err(EventError::permanent(&*event, "an unknown format").into());
        }
        self.counting.count_event()
    }

    async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
        self.counting.start();
        Ok(())
    }
}

struct CountingSink {
    hub: EventHubDeadLetterSink,
    counting: Arc<Counting>,
}

impl DeadLetterSink<ReceivedEventData> for CountingSink {
    async fn store(&self, letter: DeadLetter<ReceivedEventData>) -> Result<(), HandlerError> {
        self.hub.store(letter).await?;
        self.counting.count_event()
    }
}

/// Processes all events, up to 64 of each partition at once, in the order of their keys. If some are bad, one in a
/// hundred moves to the other hub.
pub(crate) async fn process(events: u32, has_bad: bool, hub: &Address, dead_letters: &Address) -> Result<Cost> {
    let (counting, cost) = Counting::new(events, None);
    let counting = Arc::new(counting);
    let handler = each_event(Sorting { counting: Arc::clone(&counting), has_bad })
        .with_concurrency(PLACES)
        .with_order(EventOrder::by_key(key_of));
    let endpoint = dead_letters.endpoint.clone();
    let sink = EventHubDeadLetterSink::from_connection_string(EVENT_HUB, dead_letters.connection_string.as_str())
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    let sink = CountingSink { hub: sink.connect().await?, counting };
    let builder = Processor::builder(amqp::source(hub).await?, ours::store().await?, handler)
        .with_dead_letters(sink, DeadLetterPolicy::default());
    ours::run_until_counted(builder, cost).await
}
