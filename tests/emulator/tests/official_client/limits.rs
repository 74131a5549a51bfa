//! Limits of the service: links to `$cbs`, sessions, idle links, and requests for properties.

use std::time::Duration;

use azure_messaging_eventhubs::OpenReceiverOptions;
use eventhubs_emulator::EventHubEmulator;
use fe2o3_amqp::{Connection, Sender, Session};
use fe2o3_amqp_types::definitions::{Handle, ReceiverSettleMode, Role, SenderSettleMode};
use fe2o3_amqp_types::messaging::{Source, Target, TargetArchetype};
use fe2o3_amqp_types::performatives::{Attach, Begin, Detach, Flow, Open, Performative};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::amqp::connect;
use super::frames::{attaches, descriptors};
use super::hub;
use crate::hub_client::{
    assert_mentions, consumer, earliest, failure, next, numbered, open, producer, send, until, within,
};

#[tokio::test]
async fn a_connection_has_one_link_to_cbs() {
    let hub = hub(1).await;
    let mut connection = connect(&hub).await;
    let mut session = Session::begin(&mut connection).await.unwrap();
    let first = within("attaching", Sender::attach(&mut session, "first", "$cbs")).await.unwrap();

    let refused = within("attaching", Sender::attach(&mut session, "second", "$cbs")).await.expect_err("the second");
    assert!(format!("{refused:?}").contains("$cbs node has already been opened"), "{refused:?}");

    within("closing", first.close()).await.unwrap();
    // After a refusal, fe2o3-amqp 0.18 may confuse the links of a session.
    let mut session = Session::begin(&mut connection).await.unwrap();
    within("attaching", Sender::attach(&mut session, "third", "$cbs")).await.unwrap();
    let mut elsewhere = connect(&hub).await;
    let mut session = Session::begin(&mut elsewhere).await.unwrap();
    within("attaching", Sender::attach(&mut session, "first", "$cbs")).await.unwrap();
}

#[tokio::test]
async fn sasl_may_be_left_out() {
    let hub = hub(1).await;
    let endpoint = hub.endpoint();
    let opening = Connection::builder().container_id("client").open(endpoint.as_str());
    let mut connection = within("opening a connection", opening).await.unwrap();
    let mut session = Session::begin(&mut connection).await.unwrap();
    within("attaching", Sender::attach(&mut session, "link", "$cbs")).await.unwrap();
}

#[tokio::test]
async fn a_connection_has_no_more_sessions_than_the_limit() {
    let hub = EventHubEmulator::builder("hub").with_max_sessions(2).start("127.0.0.1:0").await.unwrap();
    let mut connection = connect(&hub).await;
    let _first = Session::begin(&mut connection).await.unwrap();
    let _second = Session::begin(&mut connection).await.unwrap();
    assert!(within("a third session", Session::begin(&mut connection)).await.is_err());
}

/// Returns the attach of a link for the responses of `$cbs`.
fn attach(name: &str, handle: u32) -> Performative {
    Performative::Attach(Attach {
        name: name.into(),
        handle: Handle(handle),
        role: Role::Receiver,
        snd_settle_mode: SenderSettleMode::default(),
        rcv_settle_mode: ReceiverSettleMode::default(),
        source: Some(Box::new(Source::from("$cbs"))),
        target: Some(Box::new(TargetArchetype::Target(Target::from("client")))),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: None,
        max_message_size: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    })
}

fn frame(performative: &Performative) -> Vec<u8> {
    let body = serde_amqp::to_vec(performative).unwrap();
    let length = u32::try_from(body.len() + 8).unwrap().to_be_bytes();
    [&length[..], &[2, 0, 0, 0], &body].concat()
}

/// The service closes the link. The library of the emulator would end the session because of the flow, and would forget
/// the detach, so that the next link to `$cbs` would be one too many.
#[tokio::test]
async fn a_link_dropped_while_it_attaches_ends_no_session() {
    const END: u8 = 0x17;
    const CLOSE: u8 = 0x18;
    const SASL: &[u8] = b"AMQP\x03\x01\x00\x00";
    const AMQP: &[u8] = b"AMQP\x00\x01\x00\x00";
    const ANONYMOUS: &[u8] = b"\x00\x00\x00\x19\x02\x01\x00\x00\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS";
    let open = Open {
        container_id: "client".into(),
        hostname: None,
        max_frame_size: 65536.into(),
        channel_max: 9.into(),
        idle_time_out: None,
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    let begin = Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 100,
        outgoing_window: 100,
        handle_max: Handle(9),
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    let flow = Flow {
        next_incoming_id: Some(0),
        incoming_window: 100,
        next_outgoing_id: 0,
        outgoing_window: 100,
        handle: Some(Handle(0)),
        delivery_count: Some(0),
        link_credit: Some(1),
        available: None,
        drain: false,
        echo: false,
        properties: None,
    };
    let detach = Detach { handle: Handle(0), closed: true, error: None };
    let sent = [
        Performative::Open(open),
        Performative::Begin(begin),
        attach("first", 0),
        Performative::Flow(flow),
        Performative::Detach(detach),
        attach("second", 1),
    ];

    let hub = hub(1).await;
    let mut socket = TcpStream::connect(("127.0.0.1", hub.port())).await.unwrap();
    socket.write_all(&[SASL, ANONYMOUS, AMQP].concat()).await.unwrap();
    socket.write_all(&sent.iter().flat_map(frame).collect::<Vec<_>>()).await.unwrap();

    let mut received = Vec::new();
    let second_attached = async {
        while attaches(&received).len() < 2 {
            let found = descriptors(&received);
            assert!(!found.contains(&END) && !found.contains(&CLOSE), "{found:x?}");
            assert!(socket.read_buf(&mut received).await.unwrap() > 0, "{found:x?}");
        }
    };
    within("the second attach", second_attached).await;
    assert!(attaches(&received).iter().all(|attach| attach.source.is_some()), "one is refused");
}

#[tokio::test]
async fn idle_links_are_detached() {
    let limit = Duration::from_millis(500);
    let hub = EventHubEmulator::builder("hub").with_idle_limit(limit).start("127.0.0.1:0").await.unwrap();
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(20)).await;
    let slow_client = consumer(&hub).await;
    let quick_client = consumer(&hub).await;
    let slow = open(&slow_client, "0", OpenReceiverOptions { prefetch: Some(5), ..earliest() }).await;
    assert_eq!(next(&slow, 1).await.len(), 1);
    let quick = open(&quick_client, "0", earliest()).await;
    assert_eq!(next(&quick, 20).await.len(), 20);

    until("the slow receiver is detached", || hub.open_receivers("$Default", "0") == Some(1)).await;

    assert_mentions(&failure(&slow).await, &["AmqpEventHubConsumer.IdleTimerExpired"]);
    assert_eq!(hub.detach_senders(), 0, "the sender was idle before the receiver");
    send(&producer, "0", numbered(1)).await;
    assert_eq!(next(&quick, 1).await.len(), 1, "a receiver with credit is not idle");
}

#[tokio::test]
async fn requests_above_the_quota_are_rejected() {
    let hub = EventHubEmulator::builder("hub").with_management_quota(1).start("127.0.0.1:0").await.unwrap();
    let consumer = consumer(&hub).await;
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap();
    // On a busy machine, the next request may come a second later.
    let rejection = async {
        loop {
            if let Err(error) = consumer.get_eventhub_properties().await {
                return error;
            }
        }
    };
    assert_mentions(&within("a rejection", rejection).await, &["503"]);
}
