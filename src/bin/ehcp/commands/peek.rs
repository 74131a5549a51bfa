//! `ehcp peek`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eventhubs_checkpoint::azure_messaging_eventhubs::models::{AmqpSimpleValue, ReceivedEventData};
use eventhubs_checkpoint::source::{EventReceiver, EventSource, Positioned, StartPosition};
use eventhubs_checkpoint::{EventHubSource, PartitionId};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::events::{open_receiver, shorten, start_after_checkpoint};
use crate::args::{Global, PeekArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, print_note};
use crate::progress::Progress;
use crate::text::{format_time, or_empty};

const COLUMNS: &[Column] = &[
    Column::number("SEQUENCE"),
    Column::text("OFFSET"),
    Column::text("ENQUEUED"),
    Column::text("KEY"),
    Column::number("BYTES"),
    Column::text("BODY"),
];

#[derive(Serialize)]
struct ShownEvent {
    sequence_number: Option<i64>,
    offset: Option<String>,
    enqueued_at: Option<String>,
    partition_key: Option<String>,
    bytes: usize,
    /// The body as text. Missing if it is none.
    body: Option<String>,
    /// The body in Base64, if it is no text.
    body_base64: Option<String>,
    properties: BTreeMap<String, Value>,
}

impl ShownEvent {
    fn new(received: &ReceivedEventData) -> Self {
        let data = received.event_data();
        let body = data.body().unwrap_or_default();
        let text = std::str::from_utf8(body).ok().map(str::to_owned);
        let properties = data.properties().into_iter().flatten();
        Self {
            sequence_number: Positioned::sequence_number(received),
            offset: Positioned::offset(received).map(str::to_owned),
            enqueued_at: Positioned::enqueued_at(received).map(format_time),
            partition_key: received.partition_key().clone(),
            bytes: body.len(),
            body_base64: text.is_none().then(|| STANDARD.encode(body)),
            body: text,
            properties: properties.map(|(name, value)| (name.clone(), property_to_json(value))).collect(),
        }
    }
}

#[derive(Serialize)]
struct EventsDocument<'a> {
    schema: &'static str,
    partition: &'a PartitionId,
    #[serde(rename = "events")]
    read: &'a [ShownEvent],
}

pub async fn run(global: &Global, peek: &PeekArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    let partition = PartitionId::new(&peek.partition)?;
    let start = if let Some(number) = peek.at {
        StartPosition::AfterSequenceNumber(number.saturating_sub(1))
    } else {
        let group = connection.connect_reader().await?.read().await?.describe(None);
        start_after_checkpoint(group.partition(&partition))
    };
    let hub = connection.require_hub().await?;
    check_event_exists(&connection, &hub, &partition, peek.at).await?;
    let progress = Progress::spinner("reading");
    let receiver = open_receiver(&connection, &hub, &partition, start, peek.count).await?;
    let events = receive_events(receiver, peek).await?;
    drop(progress);
    let events: Vec<_> = events.iter().map(ShownEvent::new).collect();
    let mut table = Table::new(COLUMNS);
    for event in &events {
        table.add_row([
            or_empty(event.sequence_number),
            or_empty(event.offset.as_deref()),
            or_empty(event.enqueued_at.as_deref()),
            or_empty(event.partition_key.as_deref()),
            event.bytes.to_string(),
            shorten(event.body.as_ref().or(event.body_base64.as_ref()).map_or("", String::as_str), global.output),
        ]);
    }
    let document = EventsDocument { schema: "ehcp.events/1", partition: &partition, read: &events };
    Output::new(global).show_document(&document, &events, &table)?;
    if events.is_empty() {
        print_note(format_args!("no event came within {:?}", peek.wait));
    }
    Ok(Exit::Done)
}

/// Fails if the event hub does not have the partition, or the partition does not have the event yet.
async fn check_event_exists(
    connection: &GroupConnection,
    hub: &EventHubSource,
    partition: &PartitionId,
    at: Option<i64>,
) -> Result<()> {
    let known = connection.within_timeout(hub.event_hub_properties()).await??.partitions;
    if !known.contains(partition) {
        let known: Vec<_> = known.iter().map(PartitionId::as_str).collect();
        return Err(Failure::usage(format!(
            "there is no partition {partition}: the partitions are {}",
            known.join(", ")
        )));
    }
    let last = connection
        .within_timeout(hub.partition_properties(partition))
        .await??
        .last_enqueued()
        .map_or(-1, |last| last.sequence_number);
    if let Some(at) = at.filter(|at| *at > last.saturating_add(1)) {
        let last = if last < 0 { "it has none yet".to_owned() } else { format!("its last event is {last}") };
        return Err(Failure::failed(format!("partition {partition} has no event {at}: {last}")));
    }
    Ok(())
}

async fn receive_events(
    mut receiver: EventReceiver<ReceivedEventData>,
    peek: &PeekArgs,
) -> Result<Vec<ReceivedEventData>> {
    let mut events = Vec::new();
    while events.len() < peek.count {
        match timeout(peek.wait, receiver.next_batch(peek.count - events.len())).await {
            Ok(Ok(batch)) if batch.is_empty() => break,
            Ok(batch) => events.extend(batch?),
            Err(_) => break,
        }
    }
    Ok(events)
}

/// Returns a property as the nearest value of JSON.
fn property_to_json(value: &AmqpSimpleValue) -> Value {
    match value {
        AmqpSimpleValue::Null => Value::Null,
        AmqpSimpleValue::Boolean(value) => json!(value),
        AmqpSimpleValue::UByte(value) => json!(value),
        AmqpSimpleValue::Byte(value) => json!(value),
        AmqpSimpleValue::UShort(value) => json!(value),
        AmqpSimpleValue::Short(value) => json!(value),
        AmqpSimpleValue::UInt(value) => json!(value),
        AmqpSimpleValue::Int(value) => json!(value),
        AmqpSimpleValue::ULong(value) => json!(value),
        AmqpSimpleValue::Long(value) => json!(value),
        AmqpSimpleValue::Float(value) => json!(value),
        AmqpSimpleValue::Double(value) => json!(value),
        AmqpSimpleValue::Char(value) => json!(value),
        AmqpSimpleValue::String(value) => json!(value),
        other => json!(format!("{other:?}")),
    }
}
