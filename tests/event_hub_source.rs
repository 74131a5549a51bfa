//! `EventHubSource` over the Event Hubs stand-in: connections that die, readers that stand still, positions refused.
//!
//! All clients run on one thread: with more, a send of the client can miss its answer and hang.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what fails here fails the test, in helpers as well")]

#[path = "common/hub_client/publish.rs"]
mod publish;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{ConsumerClient, EventHubsError, RetryOptions};
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{EventReceiver, EventSource, StartPosition};
use eventhubs_checkpoint::testing::event_hub::{DEFAULT_KEY, EventHub};
use eventhubs_checkpoint::{ErrorKind, PartitionId};
use publish::{producer, send, within};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// Long enough for a dead connection to be noticed, and for a second try where the client's fresh connection dies, too.
const RECOVERY: Duration = Duration::from_secs(40);

async fn hub(partitions: u16) -> EventHub {
    EventHub::builder("hub").partitions(partitions).start("127.0.0.1:0").await.unwrap()
}

async fn publish(hub: &EventHub, partition: &str, count: usize, size: usize) {
    let producer = producer(hub).await;
    send(&producer, partition, (0..count).map(|_| vec![b'.'; size])).await;
    within("closing a producer", producer.close()).await.unwrap();
}

async fn connect(hub: EventHub, retries: u32) -> Result<ConsumerClient, EventHubsError> {
    ConsumerClient::builder()
        .with_retry_options(RetryOptions { max_retries: retries, ..RetryOptions::default() })
        .with_custom_endpoint(hub.endpoint())
        .open_with_connection_string(&hub.connection_string(), None)
        .await
}

async fn source(hub: &EventHub) -> EventHubSource {
    EventHubSource::new(within("opening a consumer", connect(hub.clone(), 8)).await.unwrap())
}

fn partition(id: &str) -> PartitionId {
    PartitionId::new(id).unwrap()
}

async fn next(receiver: &mut EventReceiver<ReceivedEventData>) -> Vec<ReceivedEventData> {
    within("a batch", receiver.next_batch(100)).await.unwrap()
}

// Connections that die.

/// Reads a partition as the processor does, and tells how many events it has read without a gap.
async fn read(source: Arc<EventHubSource>, id: PartitionId, read: watch::Sender<i64>) {
    let mut from = StartPosition::Earliest;
    loop {
        if let Ok(mut receiver) = source.open(&id, from.clone(), 300).await {
            while let Ok(events) = receiver.next_batch(100).await {
                for number in events.iter().map(|event| event.sequence_number().unwrap()) {
                    let expected = *read.borrow();
                    assert!(number <= expected, "partition {id}: {number} comes where {expected} was due");
                    read.send_replace(expected.max(number + 1));
                }
                from = StartPosition::AfterSequenceNumber(*read.borrow() - 1);
            }
            receiver.close(Duration::from_secs(2)).await;
        }
        sleep(Duration::from_millis(250)).await;
    }
}

async fn all_have_read(count: i64, readers: &mut [watch::Receiver<i64>]) {
    let deadline = Instant::now() + RECOVERY;
    for reader in &mut *readers {
        if timeout_at(deadline, reader.wait_for(|read| *read >= count)).await.is_err() {
            break;
        }
    }
    let read: Vec<_> = readers.iter().map(|reader| *reader.borrow()).collect();
    assert!(read.iter().all(|read| *read == count), "not all have read {count} within {RECOVERY:?}: {read:?}");
}

async fn eight_partitions_go_on_after(disturbance: impl Fn(&EventHub), retries: u32) {
    let hub = hub(8).await;
    let made = Arc::new(AtomicUsize::new(0));
    let source = {
        let (hub, made) = (hub.clone(), Arc::clone(&made));
        let client = within("opening a consumer", connect(hub.clone(), retries)).await.unwrap();
        EventHubSource::new(client).with_probe_after(Duration::from_secs(1)).with_reconnect(move || {
            made.fetch_add(1, Ordering::Relaxed);
            connect(hub.clone(), retries)
        })
    };
    let source = Arc::new(source);
    let mut tasks = JoinSet::new();
    let mut readers = Vec::new();
    for id in hub.partition_ids() {
        publish(&hub, &id, 50, 10).await;
        let (sender, reader) = watch::channel(0);
        tasks.spawn(read(Arc::clone(&source), partition(&id), sender));
        readers.push(reader);
    }
    all_have_read(50, &mut readers).await;
    assert_eq!(made.load(Ordering::Relaxed), 0);

    disturbance(&hub);

    for id in hub.partition_ids() {
        publish(&hub, &id, 50, 10).await;
    }
    all_have_read(100, &mut readers).await;
    let made = made.load(Ordering::Relaxed);
    assert!(made < 8, "{made} clients for 8 partitions: they do not share them");
    tasks.shutdown().await;
}

fn detach_all(hub: &EventHub) {
    let detached = hub.partition_ids().iter().filter_map(|id| hub.detach_receivers("$Default", id)).sum::<usize>();
    assert_eq!(detached, 8);
}

fn cut_all(hub: &EventHub) {
    assert!(hub.cut_connections() > 0);
}

#[tokio::test]
async fn links_that_break_at_once_are_read_on_without_loss() {
    eight_partitions_go_on_after(detach_all, 8).await;
}

#[tokio::test]
async fn a_connection_that_is_cut_is_made_anew_without_loss() {
    eight_partitions_go_on_after(cut_all, 8).await;
}

#[tokio::test]
async fn a_client_that_does_not_retry_is_replaced_as_well() {
    eight_partitions_go_on_after(cut_all, 0).await;
}

#[tokio::test]
async fn a_source_shows_no_key() {
    let hub = hub(1).await;
    let connecting = hub.clone();
    let source = source(&hub).await.with_reconnect(move || connect(connecting.clone(), 8));
    let shown = format!("{source:?}");
    assert!(!shown.contains(DEFAULT_KEY) && shown.contains("reconnects: true"), "{shown}");
    within("closing the source", source.close()).await.unwrap();
}

// Positions.

#[tokio::test]
async fn a_position_that_the_broker_refuses_is_told_as_such() {
    let hub = hub(1).await;
    publish(&hub, "0", 3, 10).await;
    let source = source(&hub).await;
    for (from, named) in [
        (StartPosition::AfterSequenceNumber(100), "after sequence number 100"),
        (StartPosition::AfterOffset("123456789".into()), "after offset \"123456789\""),
    ] {
        let mut refused = source.open(&partition("0"), from, 10).await.unwrap();
        let error = within("the refusal", refused.next_batch(10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidPosition, "{error:?}");
        assert!(error.to_string().contains(named), "{error}");
        refused.close(Duration::from_secs(2)).await;
    }
    let mut receiver = source.open(&partition("0"), StartPosition::AfterSequenceNumber(1), 10).await.unwrap();
    assert_eq!(next(&mut receiver).await.len(), 1, "another position is served");
}

// Readers that stand still.

/// How many events were sent, once that does not grow any more.
async fn settled(hub: &EventHub, id: &str) -> u64 {
    let mut sent = hub.sent_events(id).unwrap();
    loop {
        sleep(Duration::from_millis(300)).await;
        let before = std::mem::replace(&mut sent, hub.sent_events(id).unwrap());
        if sent > 0 && sent == before {
            return sent;
        }
    }
}

#[tokio::test]
async fn a_reader_that_stands_still_holds_no_more_than_was_asked_for() {
    let hub = hub(1).await;
    publish(&hub, "0", 2000, 1024).await;
    let source = source(&hub).await;
    let mut sent_before = 0;
    for (prefetch, most) in [(1, 3), (3, 3), (10, 10), (300, 300)] {
        let mut receiver = source.open(&partition("0"), StartPosition::Earliest, prefetch).await.unwrap();
        let held = within("the events to settle", settled(&hub, "0")).await - sent_before;
        assert!(held <= most && held > most / 2, "prefetch {prefetch}: {held} are held at first");

        let mut read = 0;
        while read < 5 * most {
            let batch = next(&mut receiver).await.len();
            assert!(batch <= prefetch.div_ceil(3), "a batch of {batch} with a prefetch of {prefetch}");
            read += u64::try_from(batch).unwrap();
            let held = hub.sent_events("0").unwrap() - sent_before - read;
            assert!(held <= most, "prefetch {prefetch}: {held} are held after {read}");
        }
        receiver.close(Duration::from_secs(2)).await;
        sent_before = within("the events to settle", settled(&hub, "0")).await;
    }
}

#[tokio::test]
async fn a_reader_that_stands_still_delays_no_other_partition() {
    let hub = hub(2).await;
    for id in ["0", "1"] {
        publish(&hub, id, 5000, 1024).await;
    }
    let source = source(&hub).await;
    let mut still = source.open(&partition("0"), StartPosition::Earliest, 300).await.unwrap();
    within("the events to settle", settled(&hub, "0")).await;

    let mut going = source.open(&partition("1"), StartPosition::Earliest, 300).await.unwrap();
    let mut read = 0;
    while read < 5000 {
        read += next(&mut going).await.len();
    }

    assert!(hub.sent_events("0").unwrap() <= 300);
    let mut read = 0;
    while read < 5000 {
        read += next(&mut still).await.len();
    }
}
