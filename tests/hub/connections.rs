//! Connections of `EventHubSource` that break, and links that end: which client is replaced, and which link reopened.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::ShutdownReport;
use eventhubs_checkpoint::source::EventSource;
use eventhubs_checkpoint::{ErrorKind, Result};
use eventhubs_emulator::EventHubEmulator;
use futures::future::{select_all, try_join_all};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use crate::hub_client::{until, until_within, within};
use crate::key_credential::KeyCredential;
use crate::reading::{
    Busy, RECOVERY, Read, attach, counted, counted_source, counting, group, have_read, hub, next, open, partition,
    publish, run, unread,
};

/// Enough to attach hundreds of links on a busy machine.
const MANY_LINKS: Duration = Duration::from_secs(180);

/// A processor that has read the first events of all partitions.
struct Group {
    hub: EventHubEmulator,
    /// How many clients its source has created.
    made: Arc<AtomicUsize>,
    read: Arc<Read>,
    running: JoinHandle<Result<ShutdownReport>>,
}

impl Group {
    /// Starts it with this many events in each partition.
    async fn start(partitions: u16, events: u16) -> Self {
        let hub = hub(partitions).await;
        let (source, made) = counted_source(&hub).await;
        let read = unread(&hub);
        for id in hub.partition_ids() {
            publish(&hub, &id, events.into(), 10).await;
        }
        let running = run(source, counting(Arc::clone(&read), |_| Ok(()))).await;
        have_read(events.into(), &read, 0..partitions).await;
        Self { hub, made, read, running }
    }
}

async fn eight_partitions_continue_after(disturbance: impl Fn(&EventHubEmulator)) {
    let Group { hub, made, read, running } = Group::start(8, 50).await;
    assert_eq!(made.load(Ordering::Relaxed), 2, "one is that of the check at the start");

    disturbance(&hub);

    for id in hub.partition_ids() {
        publish(&hub, &id, 50, 10).await;
    }
    have_read(100, &read, 0..8).await;
    let made = made.load(Ordering::Relaxed);
    assert!(made <= 8, "{made} clients for 8 partitions: they do not share them");
    running.abort();
}

#[tokio::test]
async fn links_that_break_at_once_continue_without_loss() {
    eight_partitions_continue_after(|hub| {
        let ids = hub.partition_ids();
        assert_eq!(ids.iter().filter_map(|id| hub.detach_receivers("$Default", id)).sum::<usize>(), 8);
    })
    .await;
}

#[tokio::test]
async fn unauthorized_links_continue_without_loss() {
    eight_partitions_continue_after(|hub| assert!(hub.expire_authorizations("") >= 8)).await;
}

#[tokio::test]
async fn a_cut_connection_is_replaced_without_loss() {
    eight_partitions_continue_after(|hub| assert!(hub.cut_connections() > 0)).await;
}

/// The other links of the client stay as they are: each of their events is sent once.
#[tokio::test]
async fn a_detached_link_is_reopened_alone() {
    let Group { hub, made, read, running } = Group::start(16, 1).await;

    assert_eq!(hub.detach_receivers("$Default", "0"), Some(1));

    for id in hub.partition_ids() {
        publish(&hub, &id, 1, 10).await;
    }
    have_read(2, &read, 0..16).await;
    for id in &hub.partition_ids()[1..] {
        assert_eq!(hub.sent_events(id), Some(2), "partition {id}");
    }
    assert_eq!(made.load(Ordering::Relaxed), 2, "one is that of the check at the start");
    running.abort();
}

/// The client has a token for each path that it uses, and presents it as long as the client exists.
#[tokio::test]
async fn busy_links_do_not_hide_that_others_are_refused() {
    let Group { hub, made, read, running } = Group::start(8, 50).await;
    let _busy = Busy::start(&hub, 2..8).await;
    have_read(60, &read, 2..8).await;

    let expired = ["0", "1"].map(|id| hub.expire_authorizations(&format!("$Default/Partitions/{id}")));
    assert_eq!(expired, [1, 1]);

    let started = Instant::now();
    for id in ["0", "1"] {
        publish(&hub, id, 50, 10).await;
    }
    have_read(100, &read, 0..2).await;
    assert!(started.elapsed() < Duration::from_secs(30), "it took {:?}", started.elapsed());
    assert_eq!(made.load(Ordering::Relaxed), 3, "one is that of the check at the start");
    running.abort();
}

/// The client sends the token with which it opened its management link in each request, also after it has expired.
#[tokio::test]
async fn busy_links_do_not_hide_that_requests_are_refused() {
    let hub = hub(2).await;
    let credential = KeyCredential::new();
    let builder = EventHubSource::from_credential(&group("$Default"), credential.clone());
    let (source, made) = counted(&hub, builder).await;
    let _busy = Busy::start(&hub, [0]).await;
    let mut receiver = open(&source, "0").await;
    let reading = async {
        loop {
            next(&mut receiver).await;
        }
    };
    let requests = async {
        let id = partition("1");
        within("properties", source.partition_properties(&id)).await.unwrap();
        until("the link is attached", || hub.open_receivers("$Default", "0") == Some(1)).await;
        credential.replace_key(&hub, "bmV3");
        within("properties", source.partition_properties(&id)).await.unwrap();
    };
    tokio::select! {
        () = reading => {}
        () = requests => {}
    }
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

/// A partition that starts again needs its properties.
#[tokio::test]
async fn a_handler_starts_again_after_refused_requests() {
    let hub = hub(4).await;
    let credential = KeyCredential::new();
    let builder = EventHubSource::from_credential(&group("$Default"), credential.clone());
    let (source, _) = counted(&hub, builder).await;
    let read = unread(&hub);
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let handler = counting(Arc::clone(&read), move |id| {
        let fails = id.as_str() == "0" && failing.swap(false, Ordering::Relaxed);
        if fails { Err("fails once".into()) } else { Ok(()) }
    });
    publish(&hub, "0", 1, 10).await;
    let running = run(source, handler).await;
    let _busy = Busy::start(&hub, 1..4).await;
    have_read(1, &read, 0..4).await;

    credential.replace_key(&hub, "bmV3");
    fails.store(true, Ordering::Relaxed);
    publish(&hub, "0", 1, 10).await;
    until("the handler has failed", || !fails.load(Ordering::Relaxed)).await;

    publish(&hub, "0", 1, 10).await;
    have_read(3, &read, 0..1).await;
    running.abort();
}

/// A connection of the official client has 256 sessions, and each link needs one.
#[tokio::test]
async fn more_partitions_than_a_connection_has_sessions() {
    const PARTITIONS: u16 = 300;
    let hub = hub(PARTITIONS).await;
    let (source, made) = counted_source(&hub).await;
    let ids = hub.partition_ids();
    // The second time in the places of the closed links.
    for _ in 0..2 {
        let opening = ids.iter().map(async |id| Ok::<_, ()>(open(&source, id).await));
        let mut receivers = within("opening all", try_join_all(opening)).await.unwrap();
        let waiting = receivers.iter_mut().map(|receiver| Box::pin(receiver.next_batch(1)));
        let is_attached = |id: &String| hub.open_receivers("$Default", id) == Some(1);
        tokio::select! {
            (ended, index, _) = select_all(waiting) => panic!("link {index} ended: {:?}", ended.err()),
            () = until_within(MANY_LINKS, "all are attached", || ids.iter().all(is_attached)) => {}
        }
        for receiver in receivers {
            receiver.close(RECOVERY).await;
        }
        assert_eq!(made.load(Ordering::Relaxed), 2, "not more connections than needed");
    }
    if let Err(error) = within("closing the source", source.close()).await {
        // Hundreds of sessions end with the connection, for which a busy machine needs longer than the limit.
        assert!(error.source().and_then(<dyn Error>::downcast_ref::<Elapsed>).is_some(), "{error:?}");
    }
}

/// The client keeps the session of each partition, also after the link is closed.
#[tokio::test]
async fn one_source_opens_260_partitions_one_by_one() {
    let hub = hub(260).await;
    let (source, made) = counted_source(&hub).await;
    let _busy = Busy::start(&hub, [0]).await;
    let mut busy = open(&source, "0").await;
    let reading = async {
        loop {
            next(&mut busy).await;
        }
    };
    let others = async {
        for id in (1..260).map(|id: u16| id.to_string()) {
            let mut receiver = open(&source, &id).await;
            attach(&hub, &id, &mut receiver).await;
            receiver.close(RECOVERY).await;
        }
    };
    tokio::select! {
        () = reading => {}
        () = others => {}
    }
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

/// A client is created for up to 20 s if the event hub does not respond. The request lasts that long.
#[tokio::test]
async fn a_broken_connection_delays_no_link_of_another_one() {
    let hub = hub(201).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_endpoint = format!("amqp://{}", silent.local_addr().unwrap());
    let endpoint = hub.endpoint();
    let is_silent = Arc::new(AtomicBool::new(false));
    let silenced = Arc::clone(&is_silent);
    let builder = EventHubSource::from_connection_string(&group("$Default"), hub.connection_string())
        .with_client_builder(move |client| {
            let endpoint = if silenced.load(Ordering::Relaxed) { &silent_endpoint } else { &endpoint };
            client.with_custom_endpoint(endpoint.clone())
        });
    let source = within("opening a consumer", builder.connect()).await.unwrap();
    for id in hub.partition_ids() {
        open(&source, &id).await.close(RECOVERY).await;
    }

    let first = partition("0");
    source.connection_suspect(&first);
    is_silent.store(true, Ordering::Relaxed);
    let request = source.partition_properties(&first);
    let link = async {
        let mut receiver = open(&source, "200").await;
        attach(&hub, "200", &mut receiver).await;
    };
    tokio::select! {
        biased;
        properties = request => panic!("the request ended: {properties:?}"),
        () = link => {}
    }
}

#[tokio::test]
async fn a_suspect_link_gets_a_fresh_client() {
    let hub = hub(2).await;
    publish(&hub, "0", 1, 10).await;
    publish(&hub, "1", 1, 10).await;
    let (source, made) = counted_source(&hub).await;
    let mut distrusted = open(&source, "0").await;
    let mut other = open(&source, "1").await;
    assert_eq!((next(&mut distrusted).await.len(), next(&mut other).await.len()), (1, 1));

    source.connection_suspect(&partition("0"));
    distrusted.close(Duration::from_secs(2)).await;
    assert_eq!(next(&mut open(&source, "0").await).await.len(), 1);
    assert_eq!(made.load(Ordering::Relaxed), 2);
    let error = within("the end of the old link", other.next_batch(10)).await.unwrap_err();
    assert!(error.to_string().contains("replaced"), "{error}");
    other.close(Duration::from_secs(2)).await;
    assert_eq!(next(&mut open(&source, "1").await).await.len(), 1, "through the fresh client");
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

/// A rejection of the link needs several round trips.
#[tokio::test]
async fn a_slow_connection_hides_no_missing_group() {
    let slow = EventHubEmulator::builder("hub").with_partitions(1).with_delay(Duration::from_millis(200));
    let hub = slow.start("127.0.0.1:0").await.unwrap();
    let endpoint = hub.endpoint();
    let builder = EventHubSource::from_connection_string(&group("missing"), hub.connection_string())
        .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()));
    let source = within("opening a consumer", builder.connect()).await.unwrap();
    let error = within("the check", source.check_access(&partition("0"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

/// Another instance starts to read while this one checks its access. The client may lose the session of the partition.
#[tokio::test]
async fn a_check_that_is_displaced_delays_no_later_link() {
    let hub = hub(1).await;
    publish(&hub, "0", 1, 10).await;
    let (reader, _) = counted_source(&hub).await;
    for _ in 0..5 {
        let (joining, _) = counted_source(&hub).await;
        let displacing = async {
            // Its link may be open for only a few milliseconds.
            let checking = async {
                while hub.open_receivers("$Default", "0") == Some(0) {
                    yield_now().await;
                }
            };
            within("the check", checking).await;
            let mut receiver = open(&reader, "0").await;
            assert_eq!(next(&mut receiver).await.len(), 1);
            receiver.close(Duration::from_secs(2)).await;
        };
        let zero = partition("0");
        let (checked, ()) = tokio::join!(within("the check", joining.check_access(&zero)), displacing);
        checked.unwrap();
        assert_eq!(next(&mut open(&joining, "0").await).await.len(), 1);
    }
}
