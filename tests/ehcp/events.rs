//! Events, found by number and time.

use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use crate::fleet::Fleet;
use crate::program::Program;

/// A wait that ends early, because the events are there.
const LONG: &str = "60s";

/// Publishes events to partition 0, one after another.
async fn publish(fleet: &Fleet, bodies: &[&[u8]]) {
    let builder = ProducerClient::builder().with_custom_endpoint(fleet.hub.endpoint());
    let producer = builder.open_with_connection_string(&fleet.hub.connection_string(), None).await.unwrap();
    for body in bodies {
        let options = EventDataBatchOptions { partition_id: Some("0".to_owned()), ..Default::default() };
        let batch = producer.create_batch(Some(options)).await.unwrap();
        assert!(batch.try_add_event_data(EventData::from(body.to_vec()), None).unwrap());
        producer.send_batch(batch, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn numbers(events: &Value) -> Vec<i64> {
    events["events"].as_array().unwrap().iter().map(|event| event["sequence_number"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn peek_shows_text_and_bytes() {
    let fleet = Fleet::with_batches(1, 0).await;
    let program = Program::for_fleet(&fleet).await;
    publish(&fleet, &[b"{\"order\": 1}", &[0xff, 0x00, 0x41], b"last"]).await;
    let events = program.json(&["peek", "-p", "0", "--count", "3", "--wait", LONG]).await;
    assert_eq!(numbers(&events), [0, 1, 2], "without a checkpoint it begins at the first event");
    assert_eq!(events["events"][0]["body"], json!("{\"order\": 1}"));
    assert_eq!((&events["events"][1]["body"], &events["events"][1]["body_base64"]), (&Value::Null, &json!("/wBB")));
    let one = program.json(&["peek", "-p", "0", "--at", "1", "--count", "1", "--wait", LONG]).await;
    assert_eq!(numbers(&one), [1]);
    program.run(&["reset", "--to-sequence", "1", "--execute"]).await.ended(0);
    let next = program.json(&["peek", "-p", "0", "--count", "1", "--wait", LONG]).await;
    assert_eq!(numbers(&next), [2], "it begins after the checkpoint");
    let run = program.run(&["peek", "-p", "0", "--at", "3", "--wait", "100ms"]).await.ended(0);
    assert!(run.stderr.contains("no event came"), "{}", run.stderr);
    let run = program.run(&["peek", "-p", "7"]).await.ended(64);
    assert!(run.stderr.contains("there is no partition 7: the partitions are 0"), "{}", run.stderr);
}

#[tokio::test]
async fn a_time_between_two_events_is_found() {
    let fleet = Fleet::with_batches(1, 0).await;
    let program = Program::for_fleet(&fleet).await;
    publish(&fleet, &[b"0", b"1", b"2", b"3"]).await;
    let events = program.json(&["peek", "-p", "0", "--count", "4", "--wait", LONG]).await;
    assert_eq!(numbers(&events), [0, 1, 2, 3]);
    // The tables show whole seconds, so the time comes from the event hub.
    let last = fleet.hub.partition_properties("0").unwrap().last_enqueued_time.unwrap();
    let before = last - Duration::from_millis(5);
    let plan = program.json(&["reset", "--to-datetime", &before.format(&Rfc3339).unwrap()]).await;
    assert_eq!(plan["changes"][0]["to"]["sequence_number"], json!(2));
    assert_eq!(plan["dry_run"], json!(true));
}

/// The processor of the group reads the partition, so it must be read for another group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_group_is_read_for_another_group() {
    let mut fleet = Fleet::with_batches(1, 4).await;
    fleet.all_published().await;
    let a = fleet.own("a").await;
    fleet.all_processed().await;
    let mut program = Program::for_fleet(&fleet).await;
    program.run(&["reset", "--to-sequence", "4"]).await.ended(2);
    program.unset("EHCP_READ_GROUP");
    let run = program.run(&["reset", "--to-sequence", "4"]).await.ended(1);
    assert!(run.stderr.contains("--read-group"), "{}", run.stderr);
    program.run(&["reset", "--to-earliest"]).await.ended(2);
    let run = program.run(&["peek", "-p", "0", "--at", "3"]).await.ended(1);
    assert!(run.stderr.contains("--read-group"), "{}", run.stderr);
    a.shut_down().await;
}
