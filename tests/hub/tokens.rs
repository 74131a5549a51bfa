//! `EventHubSource` with tokens that expire, and with keys that are replaced.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::eventhubs::{EventHubSource, ReplaceableConnectionString};
use eventhubs_checkpoint::source::EventSource;
use eventhubs_emulator::{DEFAULT_KEY_NAME, EventHubEmulator};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::entra::CachingCredential;
use crate::hub_client::{LIMIT, until, within};
use crate::reading::{Busy, counted, counting, group, have_read, hub, partition, publish, run, unread};

/// The client asks for the next token half a minute after it got one of this age. It sends the first token with each
/// request for properties as long as it exists, so the event hub of this test does not check those.
#[tokio::test]
async fn links_outlive_their_first_token() {
    let (log, _guard) = Captured::begin_with("eventhubs_emulator=debug");
    let builder = EventHubEmulator::builder("hub").with_partitions(2).with_management_token_check(false);
    let hub = builder.start("127.0.0.1:0").await.unwrap();
    let credential = CachingCredential::new(&hub, Duration::from_secs(270)).with_renewal(Duration::from_secs(250));
    let credential = Arc::new(credential);
    let builder = EventHubSource::from_credential(&group("$Default"), credential.clone());
    let (source, made) = counted(&hub, builder).await;
    let read = unread(&hub);
    let running = run(source, counting(Arc::clone(&read), |_| Ok(()))).await;
    for id in hub.partition_ids() {
        publish(&hub, &id, 1, 10).await;
    }
    have_read(1, &read, 0..2).await;
    let sent = || hub.partition_ids().iter().filter_map(|id| hub.sent_events(id)).sum::<u64>();
    let sent_before = sent();
    let put = || log.text().matches("service=Cbs code=202").count();
    let put_before = put();
    // A path for each partition, and that of the requests.
    until("the next token is put", || put() >= put_before + 3).await;
    assert_eq!(credential.issued(), 2);

    // The first token has expired, the second one has not.
    hub.advance_clock(Duration::from_secs(255));
    for id in hub.partition_ids() {
        publish(&hub, &id, 1, 10).await;
    }
    have_read(2, &read, 0..2).await;
    assert_eq!((sent(), made.load(Ordering::Relaxed)), (sent_before + 2, 2), "no link was reopened");
    running.abort();
}

#[tokio::test]
async fn a_credential_that_failed_is_asked_again() {
    let hub = hub(1).await;
    let credential = Arc::new(CachingCredential::new(&hub, Duration::from_secs(3600)));
    credential.set_failing(true);
    let builder = EventHubSource::from_credential(&group("$Default"), credential.clone());
    let (source, _) = counted(&hub, builder).await;
    within("properties", source.event_hub_properties()).await.unwrap_err();
    credential.set_failing(false);
    within("properties", source.event_hub_properties()).await.unwrap();
    assert_eq!((credential.asked(), credential.issued()), (2, 1));
}

/// Before the event hub refuses the old key.
#[tokio::test]
async fn a_replaced_key_replaces_the_client() {
    let hub = hub(1).await;
    let connection_string = ReplaceableConnectionString::new(hub.connection_string());
    let builder = EventHubSource::from_connection_string(&group("$Default"), connection_string.clone());
    let (source, made) = counted(&hub, builder).await;
    for clients in [1, 2] {
        within("properties", source.event_hub_properties()).await.unwrap();
        assert_eq!(made.load(Ordering::Relaxed), clients);
        connection_string.replace(hub.connection_string()).unwrap();
    }
}

#[tokio::test]
async fn a_replaced_key_is_used_without_a_restart() {
    let hub = hub(2).await;
    let connection_string = ReplaceableConnectionString::new(hub.connection_string());
    let builder = EventHubSource::from_connection_string(&group("$Default"), connection_string.clone());
    let (source, made) = counted(&hub, builder).await;
    let id = partition("1");
    let properties = || within("properties", source.partition_properties(&id));
    properties().await.unwrap();

    hub.replace_key(DEFAULT_KEY_NAME, "bmV3");
    let error = properties().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
    let clients = made.load(Ordering::Relaxed);

    connection_string.replace(hub.connection_string()).unwrap();
    // Not at once, because a client was created just before.
    let started = Instant::now();
    while let Err(error) = properties().await {
        assert!(started.elapsed() < LIMIT, "{error:?}");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(made.load(Ordering::Relaxed), clients + 1);
}

/// A busy link keeps its client until the event hub refuses the old key.
#[tokio::test]
async fn no_event_is_lost_when_a_key_is_replaced() {
    let hub = hub(4).await;
    let connection_string = ReplaceableConnectionString::new(hub.connection_string());
    let builder = EventHubSource::from_connection_string(&group("$Default"), connection_string.clone());
    let (source, _) = counted(&hub, builder).await;
    let read = unread(&hub);
    let running = run(source, counting(Arc::clone(&read), |_| Ok(()))).await;
    let busy = Busy::start(&hub, 0..2).await;
    have_read(20, &read, 0..2).await;

    hub.replace_key(DEFAULT_KEY_NAME, "bmV3");
    connection_string.replace(hub.connection_string()).unwrap();
    let read_before = *read[&partition("0")].borrow();
    have_read(read_before + 20, &read, 0..2).await;
    drop(busy);
    // The tokens of the old key expire.
    hub.expire_authorizations("");

    for id in hub.partition_ids() {
        publish(&hub, &id, 50, 10).await;
    }
    for id in 0..4 {
        let count = i64::try_from(hub.event_count(&id.to_string()).unwrap()).unwrap();
        have_read(count, &read, [id]).await;
    }
    running.abort();
}
