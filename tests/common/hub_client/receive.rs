//! Receiving: consumers that do not retry, receivers, and how they end.

use std::error::Error;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{
    ConsumerClient, EventHubsError, EventReceiver, OpenReceiverOptions, RetryOptions, StartLocation, StartPosition,
};
use eventhubs_emulator::EventHubEmulator;
use futures::StreamExt;
use tokio::time::Instant;

use super::publish::{LIMIT, within};

pub async fn until(what: &str, condition: impl Fn() -> bool) {
    until_within(LIMIT, what, condition).await;
}

pub async fn until_within(limit: Duration, what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails at once if the default would retry for a minute.
fn no_retries() -> RetryOptions {
    RetryOptions { max_retries: 0, ..RetryOptions::default() }
}

pub async fn consumer_with(hub: &EventHubEmulator, group: &str, connection_string: &str) -> ConsumerClient {
    let opening = ConsumerClient::builder()
        .with_consumer_group(group.to_owned())
        .with_retry_options(no_retries())
        .with_custom_endpoint(hub.endpoint())
        .open_with_connection_string(connection_string, None);
    within("opening a consumer", opening).await.unwrap()
}

pub async fn consumer(hub: &EventHubEmulator) -> ConsumerClient {
    consumer_with(hub, "$Default", &hub.connection_string()).await
}

pub fn numbered(count: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|n| format!("event-{n}").into_bytes())
}

pub fn starting(location: StartLocation, inclusive: bool) -> OpenReceiverOptions {
    OpenReceiverOptions { start_position: Some(StartPosition { location, inclusive }), ..Default::default() }
}

pub fn earliest() -> OpenReceiverOptions {
    starting(StartLocation::Earliest, false)
}

pub async fn open(consumer: &ConsumerClient, partition: &str, options: OpenReceiverOptions) -> EventReceiver {
    let opening = consumer.open_receiver_on_partition(partition.to_owned(), Some(options));
    within("open_receiver_on_partition", opening).await.unwrap()
}

pub async fn next(receiver: &EventReceiver, count: usize) -> Vec<ReceivedEventData> {
    let mut stream = receiver.stream_events();
    let mut events = Vec::new();
    while events.len() < count {
        events.push(within("the next event", stream.next()).await.unwrap().unwrap());
    }
    events
}

/// Returns the sequence number of the first event from this position.
pub async fn first(consumer: &ConsumerClient, partition: &str, location: StartLocation, inclusive: bool) -> i64 {
    let receiver = open(consumer, partition, starting(location, inclusive)).await;
    let events = next(&receiver, 1).await;
    within("closing a receiver", receiver.close()).await.unwrap();
    events[0].sequence_number().unwrap()
}

/// Returns the error with which the receiver ends.
pub async fn failure(receiver: &EventReceiver) -> EventHubsError {
    let mut stream = receiver.stream_events();
    let ending = async {
        loop {
            if let Err(error) = stream.next().await.unwrap() {
                return error;
            }
        }
    };
    within("the receiver's failure", ending).await
}

pub fn assert_mentions(error: &dyn Error, words: &[&str]) {
    let mut shown = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        shown = format!("{shown}: {error}");
        cause = error.source();
    }
    for word in words {
        assert!(shown.contains(word), "{word:?} is not in {shown}");
    }
}
