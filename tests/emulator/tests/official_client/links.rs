//! Links that the emulator ends on demand of a test.

use std::time::Duration;

use fe2o3_amqp::{Sender, Session};

use super::amqp::{connect, put_token};
use super::hub;
use crate::hub_client::{
    assert_mentions, consumer, earliest, failure, next, numbered, open, producer, send, until, within,
};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn detached_senders_get_the_condition() {
    let hub = hub(1).await;
    assert_eq!(hub.detach_senders(), 0);
    let mut connection = connect(&hub).await;
    let mut session = Session::begin(&mut connection).await.unwrap();
    let token = hub.entra_token(hub.now() + HOUR);
    assert_eq!(put_token(&mut session, "amqps://localhost/hub", token).await, 202);
    let mut sender = within("attaching", Sender::attach(&mut session, "sender", "hub")).await.unwrap();

    assert_eq!(hub.detach_senders_with("com.microsoft:server-busy"), 1);

    let detached = within("the detach", sender.on_detach()).await;
    assert!(format!("{detached:?}").contains("com.microsoft:server-busy"), "{detached:?}");
    assert_eq!(hub.detach_senders(), 0);
    within("attaching again", Sender::attach(&mut session, "again", "hub")).await.unwrap();
    assert_eq!(hub.detach_senders(), 1);
}

#[tokio::test]
async fn a_recreated_hub_is_empty_and_younger() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(2)).await;
    let consumer = consumer(&hub).await;
    let receiver = open(&consumer, "0", earliest()).await;
    assert_eq!(next(&receiver, 2).await.len(), 2);
    let created = hub.created_at();
    hub.advance_clock(Duration::from_secs(60));

    hub.recreate();

    assert!(hub.created_at() > created);
    assert_eq!(hub.event_count("0"), Some(0));
    assert_mentions(&failure(&receiver).await, &["NotFound", "The messaging entity 'hub' could not be found."]);
    until("the receiver is gone", || hub.open_receivers("$Default", "0") == Some(0)).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    assert_eq!(hub.partition_properties("0").unwrap().last_enqueued_sequence_number, 0);
}
