//! The frames that the emulator sends.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use azure_messaging_eventhubs::ConsumerClient;
use eventhubs_emulator::EventHubEmulator;
use fe2o3_amqp_types::performatives::{Attach, Performative};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use super::hub;
use crate::hub_client::{earliest, failure, next, numbered, open, producer, send, within};

const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const TRANSFER: u8 = 0x14;
const DETACH: u8 = 0x16;

/// By the AMQP specification 1.0: the descriptor of each performative that is read by position, and its last field.
const WHOLE: [(u8, usize); 4] = [(0x10, 10), (BEGIN, 8), (ATTACH, 14), (TRANSFER, 11)];

pub type Bytes = Arc<Mutex<Vec<u8>>>;

/// Connects one client to the hub, and records what the hub sends.
async fn tap(port: u16) -> (String, Bytes) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("amqp://{}", listener.local_addr().unwrap());
    let bytes = Bytes::default();
    let taken = bytes.clone();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut hub = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let ((mut from_client, mut to_client), (mut from_hub, mut to_hub)) = (client.split(), hub.split());
        let back = async {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = from_hub.read(&mut buffer).await {
                taken.lock().unwrap().extend_from_slice(&buffer[..length]);
                to_client.write_all(&buffer[..length]).await.unwrap();
            }
        };
        // The test ends when either side ends.
        let _ = tokio::join!(back, copy(&mut from_client, &mut to_hub));
    });
    (endpoint, bytes)
}

pub async fn tapped(hub: &EventHubEmulator) -> (ConsumerClient, Bytes) {
    let (endpoint, bytes) = tap(hub.port()).await;
    let connection_string = hub.connection_string();
    let builder = ConsumerClient::builder().with_custom_endpoint(endpoint);
    let opening = builder.open_with_connection_string(&connection_string, None);
    (within("opening", opening).await.unwrap(), bytes)
}

/// A performative as it was sent.
#[derive(Debug)]
struct Sent {
    channel: [u8; 2],
    descriptor: u8,
    /// The number of fields.
    fields: usize,
}

fn performatives(mut bytes: &[u8]) -> Vec<Sent> {
    let mut found = Vec::new();
    while let Some(header) = bytes.first_chunk::<8>() {
        let (size, body) = match header {
            [b'A', b'M', b'Q', b'P', ..] => (8, 8),
            [a, b, c, d, offset, kind, ..] => {
                let size = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap();
                // SASL frames are of another kind, and an empty frame keeps the connection alive.
                (size, if *kind == 0 { usize::from(*offset) * 4 } else { size })
            }
        };
        let Some(frame) = bytes.get(body..size) else { break };
        if let [0, 0x53, descriptor, 0xc0, _, count, ..] | [0, 0x53, descriptor, 0xd0, _, _, _, _, 0, 0, 0, count, ..] =
            *frame
        {
            found.push(Sent { channel: [header[6], header[7]], descriptor, fields: count.into() });
        }
        bytes = &bytes[size..];
    }
    found
}

/// Returns the descriptors of the performatives in these bytes, in their order.
pub fn descriptors(bytes: &[u8]) -> Vec<u8> {
    performatives(bytes).iter().map(|sent| sent.descriptor).collect()
}

/// Returns the attaches in these bytes.
pub fn attaches(mut bytes: &[u8]) -> Vec<Attach> {
    let mut found = Vec::new();
    while let Some(&[a, b, c, d, offset, ..]) = bytes.first_chunk::<8>() {
        let is_header = [a, b, c, d] == *b"AMQP";
        let size = if is_header { 8 } else { usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap() };
        let Some(frame) = bytes.get(..size) else { break };
        if let Some(Ok(Performative::Attach(attach))) =
            frame.get(usize::from(offset) * 4..).filter(|_| !is_header).map(serde_amqp::from_slice)
        {
            found.push(attach);
        }
        bytes = &bytes[size..];
    }
    found
}

#[tokio::test]
async fn a_refused_link_has_neither_source_nor_target() {
    let hub = hub(1).await;
    let (consumer, bytes) = tapped(&hub).await;
    let receiver = open(&consumer, "7", earliest()).await;
    failure(&receiver).await;

    let sent = attaches(&bytes.lock().unwrap());
    let refused: Vec<_> = sent.iter().filter(|attach| attach.source.is_none() && attach.target.is_none()).collect();
    assert_eq!((sent.len(), refused.len()), (3, 1), "two links to $cbs, and the refused one: {sent:?}");
}

/// The Python client reads fields by position, and so fails if the last ones are omitted.
#[tokio::test]
async fn no_field_that_is_read_by_position_is_omitted() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(2)).await;
    let (consumer, bytes) = tapped(&hub).await;
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap();
    let receiver = open(&consumer, "0", earliest()).await;
    next(&receiver, 2).await;

    let sent = performatives(&bytes.lock().unwrap());
    for (descriptor, fields) in WHOLE {
        let counts: Vec<_> = sent.iter().filter(|it| it.descriptor == descriptor).map(|it| it.fields).collect();
        assert!(!counts.is_empty(), "no performative {descriptor:#x} among {sent:?}");
        assert!(counts.iter().all(|count| *count == fields), "{descriptor:#x} with {counts:?} fields, not {fields}");
    }
    // A token, the hub's properties, and two events.
    assert!(sent.iter().filter(|it| it.descriptor == TRANSFER).count() >= 4, "{sent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_comes_after_its_link_was_detached() {
    // Not sent by a client: on several threads, a send may miss its response.
    const EVENT: &[u8] = b"\x00\x53\x75\xa0\x05event";
    let hub = hub(1).await;
    assert!((0..3000).all(|_| hub.append_raw("0", EVENT).is_some()));
    let (consumer, bytes) = tapped(&hub).await;
    for _ in 0..40 {
        let receiver = open(&consumer, "0", earliest()).await;
        next(&receiver, 1).await;
        within("closing", receiver.close()).await.unwrap();
    }

    let sent = performatives(&bytes.lock().unwrap());
    let mut detached = HashSet::new();
    for it in &sent {
        if it.descriptor == ATTACH {
            detached.remove(&it.channel);
        } else if it.descriptor == DETACH {
            detached.insert(it.channel);
        }
        assert!(it.descriptor != TRANSFER || !detached.contains(&it.channel), "{it:?}");
    }
    // One for tokens, and one for all receivers of a partition.
    assert_eq!(sent.iter().filter(|it| it.descriptor == BEGIN).count(), 2);
}
