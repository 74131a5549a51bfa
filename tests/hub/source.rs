//! `EventHubSource` over the Event Hubs emulator: stopped readers, rejected positions, requests, settings.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, PartitionState, PartitionStatus, Processor, ProcessorConfig, handler_fn,
};
use eventhubs_checkpoint::source::{EventReceiver, EventSource, StartPosition};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind};
use eventhubs_emulator::EmptiedReport;
use eventhubs_emulator::{DEFAULT_KEY, EventHubEmulator};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{Instant, advance, pause, resume, sleep, timeout};

use crate::hub_client::{until, within};
use crate::reading::{EPOCH, group, hub, next, partition, publish, retrying_source, source, store};
use crate::relay::Relay;

#[tokio::test]
async fn a_source_closes_in_time_after_aborted_links() {
    let hub = hub(2).await;
    publish(&hub, "0", 500, 10).await;
    let source = source(&hub).await;
    let mut cut_short = source.open_receiver(&partition("0"), StartPosition::Earliest, 300, EPOCH).await.unwrap();
    let mut dropped = source.open_receiver(&partition("1"), StartPosition::Earliest, 300, EPOCH).await.unwrap();
    assert!(!next(&mut cut_short).await.is_empty());
    assert!(timeout(Duration::from_millis(100), dropped.next_batch(1)).await.is_err());
    cut_short.close(Duration::ZERO).await;
    drop(dropped);
    let closing = Instant::now();
    // The client decides whether it succeeds. The limit is 4 s.
    let _ = source.close().await;
    assert!(closing.elapsed() < Duration::from_secs(20), "closing took {:?}", closing.elapsed());
}

#[tokio::test]
async fn a_source_shows_no_key() {
    let hub = hub(1).await;
    let source = source(&hub).await;
    let shown = format!("{source:?}");
    assert!(!shown.contains(DEFAULT_KEY) && shown.contains("$Default"), "{shown}");
    within("closing the source", source.close()).await.unwrap();
}

// Positions.

#[tokio::test]
async fn a_position_rejected_by_the_broker_is_reported() {
    let hub = hub(1).await;
    publish(&hub, "0", 3, 10).await;
    let source = source(&hub).await;
    for (from, named) in [
        (StartPosition::AfterSequenceNumber(100), "after sequence number 100"),
        (StartPosition::AfterOffset("123456789".into()), "after offset \"123456789\""),
    ] {
        let mut refused = source.open_receiver(&partition("0"), from, 10, EPOCH).await.unwrap();
        let error = within("the rejection", refused.next_batch(10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidPosition, "{error:?}");
        assert!(error.to_string().contains(named), "{error}");
        refused.close(Duration::from_secs(2)).await;
    }
    let mut receiver =
        source.open_receiver(&partition("0"), StartPosition::AfterSequenceNumber(1), 10, EPOCH).await.unwrap();
    assert_eq!(next(&mut receiver).await.len(), 1, "another position is served");
}

// Stopped readers.

/// Returns how many events were sent, once that number no longer grows.
async fn settled(hub: &EventHubEmulator, id: &str) -> u64 {
    let mut sent = hub.sent_events(id).unwrap();
    loop {
        sleep(Duration::from_millis(300)).await;
        let before = std::mem::replace(&mut sent, hub.sent_events(id).unwrap());
        if sent > 0 && sent == before {
            return sent;
        }
    }
}

/// The link is attached with the first wait for an event.
async fn first(receiver: &mut EventReceiver<ReceivedEventData>) -> u64 {
    u64::try_from(within("an event", receiver.next_batch(1)).await.unwrap().len()).unwrap()
}

#[tokio::test]
async fn a_stopped_reader_holds_no_more_than_requested() {
    let hub = hub(1).await;
    publish(&hub, "0", 2000, 1024).await;
    let source = source(&hub).await;
    let mut sent_before = 0;
    for (prefetch, most) in [(1, 1), (3, 3), (10, 10), (300, 300)] {
        let mut receiver =
            source.open_receiver(&partition("0"), StartPosition::Earliest, prefetch, EPOCH).await.unwrap();
        let mut read = first(&mut receiver).await;
        until("half of them are held", || hub.sent_events("0").unwrap() >= sent_before + read + most / 2).await;
        let held = within("the events to settle", settled(&hub, "0")).await - sent_before - read;
        assert!(held <= most, "prefetch {prefetch}: {held} are held at first");

        while read < 5 * most {
            let batch = next(&mut receiver).await.len();
            read += u64::try_from(batch).unwrap();
            let held = hub.sent_events("0").unwrap() - sent_before - read;
            assert!(held <= most, "prefetch {prefetch}: {held} are held after {read}");
        }
        receiver.close(Duration::from_secs(2)).await;
        until("the link is closed", || hub.open_receivers("$Default", "0") == Some(0)).await;
        sent_before = hub.sent_events("0").unwrap();
    }
}

#[tokio::test]
async fn a_stopped_reader_delays_no_other_partition() {
    let hub = hub(2).await;
    for id in ["0", "1"] {
        publish(&hub, id, 5000, 1024).await;
    }
    let source = source(&hub).await;
    let mut still = source.open_receiver(&partition("0"), StartPosition::Earliest, 300, EPOCH).await.unwrap();
    assert_eq!(first(&mut still).await, 1);
    within("the events to settle", settled(&hub, "0")).await;

    let mut going = source.open_receiver(&partition("1"), StartPosition::Earliest, 300, EPOCH).await.unwrap();
    let mut read = 0;
    while read < 5000 {
        read += next(&mut going).await.len();
    }

    assert!(hub.sent_events("0").unwrap() <= 301);
    let mut read = 1;
    while read < 5000 {
        read += next(&mut still).await.len();
    }
}

/// The client keeps one link per partition, and would continue it wherever the next one is to begin.
#[tokio::test]
async fn a_link_without_an_awaited_close_is_not_reused() {
    let hub = hub(1).await;
    publish(&hub, "0", 5000, 10).await;
    let source = source(&hub).await;
    for (after, only_dropped) in [(-1, false), (999, true), (1999, false), (-1, true)] {
        let from = StartPosition::AfterSequenceNumber(after);
        let mut receiver = source.open_receiver(&partition("0"), from, 300, EPOCH).await.unwrap();
        let events = next(&mut receiver).await;
        assert_eq!(events[0].sequence_number(), Some(after + 1));
        if only_dropped {
            drop(receiver);
        } else {
            receiver.close(Duration::ZERO).await;
        }
    }
}

/// The client would panic.
#[tokio::test]
async fn a_start_before_1970_is_rejected_at_open() {
    let hub = hub(1).await;
    let source = source(&hub).await;
    let start = StartPosition::EnqueuedAfter(OffsetDateTime::UNIX_EPOCH - Duration::from_secs(1));
    let error = source.open_receiver(&partition("0"), start, 10, EPOCH).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

/// The client re-attaches the link where it was opened.
#[tokio::test]
async fn a_detach_repeats_no_more_than_new_events() {
    const EVENTS: usize = 20_000;
    let hub = hub(1).await;
    publish(&hub, "0", EVENTS, 10).await;
    let handled = Arc::new(watch::Sender::new(Vec::new()));
    let running = tokio::spawn(
        processor(retrying_source(&hub).await, store().await, noting(&handled)).run(std::future::pending()),
    );
    let mut numbers = handled.subscribe();
    within("all events", numbers.wait_for(|numbers| numbers.len() == EVENTS)).await.unwrap();
    let sent = hub.sent_events("0").unwrap();

    assert_eq!(hub.detach_receivers("$Default", "0"), Some(1));
    publish(&hub, "0", 1, 10).await;

    within("the new event", numbers.wait_for(|numbers| numbers.len() > EVENTS)).await.unwrap();
    let again = hub.sent_events("0").unwrap() - sent;
    assert!(again < 2000, "{again} events were sent for one");
    let expected = 0..=i64::try_from(EVENTS).unwrap();
    assert!(numbers.borrow().iter().copied().eq(expected), "some came twice, or not at all");
    running.abort();
}

/// The link of a new group to a quiet partition has nothing to deliver, and must not be opened again for that
/// reason.
#[tokio::test]
async fn the_link_to_an_emptied_partition_stays_open() {
    for report in [EmptiedReport::BeginIsLast, EmptiedReport::BeginAfterLast] {
        let hub = EventHubEmulator::builder("hub")
            .with_partitions(1)
            .with_emptied_report(report)
            .start("127.0.0.1:0")
            .await
            .unwrap();
        publish(&hub, "0", 3, 10).await;
        assert_eq!(hub.expire_before("0", i64::MAX), Some(3));
        let handled = Arc::new(watch::Sender::new(Vec::new()));
        let processor = processor(source(&hub).await, store().await, noting(&handled));
        let handle = processor.handle();
        let running = tokio::spawn(processor.run(std::future::pending()));
        let is_idle = |status: &PartitionStatus| status.state == PartitionState::Idle;
        until("it waits for events", || handle.partitions().iter().any(is_idle)).await;
        until("its lag is known", || handle.partitions()[0].lag.to_string() == "0 (empty)").await;

        sleep(10 * PROBE_EVERY).await;
        let status = handle.partitions().remove(0);
        assert_eq!((status.failures, &status.last_error), (0, &None), "{report:?}");
        assert_eq!(status.lag.to_string(), "0 (empty)", "{report:?}");
        publish(&hub, "0", 1, 10).await;
        within("the event", handled.subscribe().wait_for(|numbers| *numbers == [3])).await.unwrap();
        running.abort();
    }
}

/// The service closes links with this condition for other reasons, too. The text names a missing entity.
#[tokio::test]
async fn a_link_that_ends_with_not_found_is_reopened() {
    let hub = hub(1).await;
    publish(&hub, "0", 1, 10).await;
    let source = source(&hub).await;
    let handled = Arc::new(watch::Sender::new(Vec::new()));
    let mut running = tokio::spawn(processor(source, store().await, noting(&handled)).run(std::future::pending()));
    let mut numbers = handled.subscribe();
    within("the first event", numbers.wait_for(|numbers| *numbers == [0])).await.unwrap();

    assert_eq!(hub.detach_receivers_with("$Default", "0", "amqp:not-found"), Some(1));
    publish(&hub, "0", 1, 10).await;

    let second = within("the second event", async {
        tokio::select! {
            ended = &mut running => Err(ended),
            _ = numbers.wait_for(|numbers| *numbers == [0, 1]) => Ok(()),
        }
    });
    second.await.unwrap();
    running.abort();
}

/// In the group for which the source was built, including through a fresh client.
#[tokio::test]
async fn every_client_reads_in_the_group_of_the_source() {
    let hub = EventHubEmulator::builder("hub")
        .with_partitions(1)
        .with_consumer_group("billing")
        .start("127.0.0.1:0")
        .await
        .unwrap();
    publish(&hub, "0", 1, 10).await;
    let endpoint = hub.endpoint();
    let builder = EventHubSource::from_connection_string(&group("billing"), hub.connection_string())
        .with_client_builder(move |client| {
            client.with_custom_endpoint(endpoint.clone()).with_consumer_group("$Default".into())
        });
    let source = within("opening a consumer", builder.connect()).await.unwrap();
    for _ in 0..2 {
        let mut receiver = source.open_receiver(&partition("0"), StartPosition::Earliest, 10, EPOCH).await.unwrap();
        assert_eq!(next(&mut receiver).await.len(), 1);
        assert_eq!([hub.open_receivers("billing", "0"), hub.open_receivers("$Default", "0")], [Some(1), Some(0)]);
        receiver.close(Duration::from_secs(2)).await;
        source.connection_suspect(&partition("0"));
    }
}

#[tokio::test]
async fn a_store_of_another_group_is_rejected() {
    let hub = EventHubEmulator::builder("hub")
        .with_partitions(1)
        .with_consumer_group("billing")
        .start("127.0.0.1:0")
        .await
        .unwrap();
    let endpoint = hub.endpoint();
    let builder = EventHubSource::from_connection_string(&group("billing"), hub.connection_string())
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    let source = within("opening a consumer", builder.connect()).await.unwrap();
    let handler = handler_fn(|_: Vec<ReceivedEventData>, _: PartitionContext| async { Ok::<_, HandlerError>(()) });
    let error = Processor::builder(source, store().await, handler).build().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    for named in ["localhost/hub/billing", "localhost/hub/$Default"] {
        assert!(error.to_string().contains(named), "{error}");
    }
}

/// Like the emulator.
#[tokio::test]
async fn a_hub_without_tls_needs_no_settings() {
    let hub = hub(1).await;
    let at = format!("Endpoint=sb://127.0.0.1:{}/", hub.port());
    let local = hub.connection_string().replace("Endpoint=sb://localhost/", &at);
    let connection_string = format!("{local};UseDevelopmentEmulator=true");
    let group = ConsumerGroup::from_connection_string(&connection_string, "$Default").unwrap();
    let connecting = EventHubSource::from_connection_string(&group, connection_string).connect();
    let source = within("opening a consumer", connecting).await.unwrap();
    assert_eq!(source.event_hub_properties().await.unwrap().partitions.len(), 1);
}

/// The official client returned the response to a canceled request to the next request.
#[tokio::test]
async fn a_canceled_request_leaves_its_response_to_no_other() {
    let delayed = EventHubEmulator::builder("hub").with_partitions(2).with_delay(Duration::from_millis(100));
    let hub = delayed.start("127.0.0.1:0").await.unwrap();
    publish(&hub, "0", 3, 10).await;
    let source = source(&hub).await;
    let (first, second) = (partition("0"), partition("1"));
    let ahead = within("properties", source.partition_properties(&first)).await.unwrap();
    assert!(!ahead.is_empty(), "{ahead:?}");
    tokio::select! {
        biased;
        () = sleep(Duration::from_millis(50)) => {}
        answered = source.partition_properties(&first) => panic!("before the response can be there: {answered:?}"),
    }
    let next = within("properties", source.partition_properties(&second)).await.unwrap();
    assert!(next.is_empty(), "{next:?}");
}

/// The official client can miss a response, and then waits forever.
#[tokio::test]
async fn a_request_without_a_response_is_sent_again() {
    let hub = hub(1).await;
    publish(&hub, "0", 3, 10).await;
    let relay = Relay::start(hub.port()).await;
    let (endpoint, made) = (relay.endpoint.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&made);
    let builder = EventHubSource::from_connection_string(&group("$Default"), hub.connection_string())
        .with_client_builder(move |client| {
            count.fetch_add(1, Ordering::Relaxed);
            client.with_custom_endpoint(endpoint.clone())
        });
    let source = within("opening a consumer", builder.connect()).await.unwrap();
    let id = partition("0");
    within("properties", source.partition_properties(&id)).await.unwrap();
    relay.silence();
    let mut request = pin!(source.partition_properties(&id));
    timeout(Duration::from_millis(200), &mut request).await.unwrap_err();
    // It waits that long for a response.
    pause();
    advance(Duration::from_secs(20)).await;
    resume();
    let again = within("properties", request).await.unwrap();
    assert_eq!(again.last_enqueued().map(|last| last.sequence_number), Some(2));
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

/// The emulator waited forever for the reply to its own detach, and meanwhile attached no other link of the
/// connection. Each link is to another partition: the client may lose the session of a link that it closes meanwhile.
#[tokio::test]
async fn a_link_closed_during_a_detach_delays_no_other() {
    let hub = hub(6).await;
    for id in hub.partition_ids() {
        publish(&hub, &id, 100, 10).await;
    }
    let source = source(&hub).await;
    for (round, id) in (0..).zip(hub.partition_ids()) {
        let mut receiver = source.open_receiver(&partition(&id), StartPosition::Earliest, 300, EPOCH).await.unwrap();
        assert!(!next(&mut receiver).await.is_empty());
        let detaching = async {
            sleep(Duration::from_millis(round)).await;
            assert!(hub.detach_receivers("$Default", &id).is_some());
        };
        tokio::join!(receiver.close(Duration::from_secs(2)), detaching);
    }
}

const PROBE_EVERY: Duration = Duration::from_millis(50);

fn processor<H: Handler<ReceivedEventData>>(
    source: EventHubSource,
    store: GroupStore,
    handler: H,
) -> Processor<EventHubSource, H> {
    let interval = Duration::from_millis(250);
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(interval))
        .with_lag_check_interval(PROBE_EVERY);
    Processor::builder(source, store, handler).with_config(config).build().unwrap()
}

fn noting(handled: &Arc<watch::Sender<Vec<i64>>>) -> impl Handler<ReceivedEventData> {
    let handled = Arc::clone(handled);
    handler_fn(move |events: Vec<ReceivedEventData>, _: PartitionContext| {
        handled.send_modify(|numbers| numbers.extend(events.iter().filter_map(ReceivedEventData::sequence_number)));
        async { Ok::<_, HandlerError>(()) }
    })
}
