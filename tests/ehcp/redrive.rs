//! Dead letters are sent back to where they came from, once, and in order.

use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{ProducerClient, SendEventOptions};
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::Program;
#[cfg(unix)]
use crate::program::Run;
use crate::support::{azurite, repository};

const LETTERS: &str = "orders-dead-letters";

/// What an event in the event hub of the dead letters is.
#[derive(Clone, Copy)]
enum Sent<'a> {
    /// A dead letter of partition 1 of this event hub.
    From(&'a str),
    /// A letter of an event that could not be decoded.
    Undecodable,
    /// An event that is no letter.
    Plain,
}

async fn fleet() -> (Fleet, Program) {
    let event_hub =
        Fleet::event_hub(2).with_event_hub(LETTERS, |hub| hub.with_partitions(2).with_consumer_group("tools"));
    let fleet = Fleet::on(event_hub, 0).await;
    let program = Program::for_fleet(&fleet).await;
    program.write("hub.txt", &fleet.hub.namespace_connection_string_with_port());
    (fleet, program)
}

async fn store_letters(fleet: &Fleet, letters: &[(&str, Sent<'_>)]) {
    let builder = ProducerClient::builder().with_custom_endpoint(fleet.hub.endpoint());
    let connection_string = fleet.hub.event_hub(LETTERS).unwrap().connection_string();
    let producer = builder.open_with_connection_string(&connection_string, None).await.unwrap();
    for (body, sent) in letters {
        let mut event = EventData::builder().with_body(body.as_bytes().to_vec());
        if let Sent::From(_) | Sent::Undecodable = sent {
            let event_hub = if let Sent::From(event_hub) = sent { *event_hub } else { "orders" };
            for (name, value) in [
                ("x-original-event-hub", event_hub),
                ("x-original-consumer-group", "billing"),
                ("x-original-partition", "1"),
                ("x-original-error", "no such customer"),
            ] {
                event = event.add_property(name.to_owned(), value);
            }
        }
        if let Sent::From(_) = sent {
            event = event.add_property("x-original-attempts".to_owned(), 5_i32);
        }
        let options = SendEventOptions { partition_id: Some("0".to_owned()) };
        timeout(TIMEOUT, producer.send_event(event.build(), Some(options))).await.unwrap().unwrap();
    }
}

/// Returns the bodies of all events in partition 1 of the event hub that the letters came from.
async fn returned(fleet: &Fleet, program: &Program) -> Vec<Value> {
    let count = fleet.hub.event_count("1").unwrap();
    if count == 0 {
        return Vec::new();
    }
    let peek = ["-e", "orders", "peek", "-p", "1", "--at", "0", "--wait", "60s", "--count", &count.to_string()];
    let events = program.json(&peek).await;
    events["events"].as_array().unwrap().iter().map(|event| event["body"].clone()).collect()
}

#[tokio::test]
async fn letters_are_sent_back_once() {
    let (fleet, program) = fleet().await;
    let letters = [
        ("first", Sent::From("orders")),
        ("plain", Sent::Plain),
        ("second", Sent::From("ORDERS")),
        ("", Sent::Undecodable),
        ("own", Sent::From(LETTERS)),
        ("third", Sent::From("orders")),
    ];
    store_letters(&fleet, &letters).await;
    program.run(&["-e", LETTERS, "redrive"]).await.ended(2);
    let plan = program.json(&["-e", LETTERS, "redrive"]).await;
    assert_eq!((&plan["dry_run"], &plan["letters"][0]["letters"]), (&json!(true), &json!(6)));
    assert_eq!(plan["letters"][0]["error"], json!("no such customer"), "of the first letter");
    assert_eq!(returned(&fleet, &program).await, Vec::<Value>::new(), "a dry run sends nothing");

    program.run(&["-e", LETTERS, "redrive", "--max", "1", "--execute"]).await.ended(0);
    assert_eq!(returned(&fleet, &program).await, [json!("first")]);
    let command = ["-e", LETTERS, "redrive", "--execute"];
    let rest = timeout(Duration::from_secs(30), program.json(&command)).await;
    let rest = rest.expect("it does not wait for the partition without letters");
    let effects: Vec<_> = rest["letters"].as_array().unwrap().iter().map(|row| row["effect"].clone()).collect();
    assert_eq!(effects, ["send_back", "send_back", "skip_no_letter", "skip_no_content", "skip_same_hub"]);
    assert_eq!(returned(&fleet, &program).await, [json!("first"), json!("second"), json!("third")]);
    let run = program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(0);
    assert!(run.stderr.contains("nothing to do"), "{}", run.stderr);
    assert_eq!(program.run(&["-e", LETTERS, "lag", "--sum"]).await.ended(0).stdout.trim(), "0");
    assert_eq!(returned(&fleet, &program).await.len(), 3, "nothing is sent twice");
}

#[tokio::test]
async fn a_letter_that_cannot_be_sent_stops_the_run() {
    let (fleet, program) = fleet().await;
    let letters = [("first", Sent::From("orders")), ("lost", Sent::From("removed")), ("last", Sent::From("orders"))];
    store_letters(&fleet, &letters).await;
    for _ in 0..2 {
        let run = program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(1);
        assert!(run.stderr.contains("letter 1 of partition 0 was not sent"), "{}", run.stderr);
        assert!(run.stderr.contains("event hub removed"), "{}", run.stderr);
        assert_eq!(returned(&fleet, &program).await, [json!("first")], "letters before it are not sent again");
    }
    program.run(&["-e", LETTERS, "reset", "-p", "0", "--to-sequence", "1", "--execute"]).await.ended(0);
    program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(0);
    assert_eq!(returned(&fleet, &program).await, [json!("first"), json!("last")]);
}

#[tokio::test]
async fn a_live_owner_of_the_letters_is_refused() {
    let (fleet, program) = fleet().await;
    store_letters(&fleet, &[("first", Sent::From("orders"))]).await;
    let connection_string = azurite::shared().await.unwrap().connection_string();
    let container = AzureContainer::from_connection_string(connection_string, &fleet.container_name).unwrap();
    let group = ConsumerGroup::new("localhost", LETTERS, "$Default").unwrap();
    let store = GroupStore::connect(container, group, OwnerId::new("reader").unwrap()).await.unwrap();
    let claimed = store.claim_all(vec![Claim::unowned(0.into())]).await;
    assert!(matches!(claimed[0].1, ClaimOutcome::Won(_)), "{claimed:?}");
    let run = program.run(&["-e", LETTERS, "redrive"]).await.ended(2);
    assert!(run.stderr.contains("--execute would be refused: reader is processing partition 0"), "{}", run.stderr);
    program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(3);
    program.run(&["-e", LETTERS, "-g", "tools", "redrive", "--execute"]).await.ended(0);
    assert_eq!(returned(&fleet, &program).await, [json!("first")]);
}

#[tokio::test]
async fn the_key_for_sending_may_be_another() {
    let (fleet, program) = fleet().await;
    store_letters(&fleet, &[("first", Sent::From("orders")), ("second", Sent::From("orders"))]).await;
    let run = program.run(&["-e", LETTERS, "redrive"]).await.ended(2);
    let page = std::fs::read_to_string(repository::root().join("docs/effects.md")).unwrap();
    assert!(page.contains(&format!("$ ehcp redrive -e {LETTERS}\n{}{}```", run.stdout, run.stderr)), "{run:?}");
    program
        .write("send.txt", &fleet.hub.connection_string_with_port().replace("SharedAccessKey=", "SharedAccessKey=x"));
    let command = ["-e", LETTERS, "redrive", "--execute", "--send-connection-string", "@send.txt"];
    let run = program.run(&command).await.ended(1);
    assert!(run.stderr.contains("letter 0 of partition 0 was not sent"), "{}", run.stderr);
    program.write("send.txt", &fleet.hub.connection_string_with_port());
    program.run(&command).await.ended(0);
    assert_eq!(returned(&fleet, &program).await, [json!("first"), json!("second")]);
    let run = program.run(&["-e", LETTERS, "redrive", "--send-connection-string", "SharedAccessKey=c2VjcmV0"]).await;
    assert!(!run.ended(64).stderr.contains("c2VjcmV0"));
}

#[tokio::test]
async fn a_letter_that_cannot_be_read_stops_the_run() {
    /// A body that is null: `{ body: null }` of the SDK for JavaScript.
    const NULL_BODY: &[u8] = b"\x00\x53\x75\x40";
    let (fleet, program) = fleet().await;
    store_letters(&fleet, &[("first", Sent::From("orders"))]).await;
    assert_eq!(fleet.hub.event_hub(LETTERS).unwrap().append_raw("0", NULL_BODY), Some(1));
    store_letters(&fleet, &[("last", Sent::From("orders"))]).await;
    let run = program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(1);
    assert!(run.stderr.contains("cannot decode event 1 of partition 0"), "{}", run.stderr);
    assert_eq!(returned(&fleet, &program).await, [json!("first")]);
    program.run(&["-e", LETTERS, "reset", "-p", "0", "--to-sequence", "1", "--execute"]).await.ended(0);
    program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(0);
    assert_eq!(returned(&fleet, &program).await, [json!("first"), json!("last")]);
}

/// The checkpoint is ahead of the letters of the new event hub.
#[tokio::test]
async fn letters_of_a_recreated_hub_are_sent() {
    let (fleet, program) = fleet().await;
    store_letters(&fleet, &[("first", Sent::From("orders")), ("second", Sent::From("orders"))]).await;
    program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(0);
    // By the clock of the storage, in seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    fleet.hub.event_hub(LETTERS).unwrap().recreate();
    store_letters(&fleet, &[("third", Sent::From("orders"))]).await;
    program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(0);
    assert_eq!(returned(&fleet, &program).await, [json!("first"), json!("second"), json!("third")]);
}

#[cfg(unix)]
#[tokio::test]
async fn an_interrupted_run_is_continued() {
    const COUNT: usize = 200;
    let (fleet, program) = fleet().await;
    let bodies: Vec<_> = (0..COUNT).map(|number| number.to_string()).collect();
    let letters: Vec<_> = bodies.iter().map(|body| (body.as_str(), Sent::From("orders"))).collect();
    store_letters(&fleet, &letters).await;
    let sent = || fleet.hub.event_count("1").unwrap();
    let running = program.spawn(&["-e", LETTERS, "redrive", "--execute"]);
    let id = running.id().and_then(|id| Pid::from_raw(id.try_into().unwrap())).unwrap();
    let some_are_sent = async {
        while sent() < COUNT / 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, some_are_sent).await.unwrap();
    kill_process(id, Signal::INT).unwrap();
    let run = Run::of(timeout(TIMEOUT, running.wait_with_output()).await.unwrap().unwrap()).ended(1);
    assert!(run.stderr.contains("interrupted: "), "{run:?}");
    assert!(sent() < COUNT, "it ended before the interrupt");
    program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(0);
    assert_eq!(returned(&fleet, &program).await, bodies, "each letter once, in order");

    store_letters(&fleet, &[("expired", Sent::From("orders"))]).await;
    assert_eq!(fleet.hub.event_hub(LETTERS).unwrap().expire_before("0", i64::MAX), Some(COUNT + 1));
    let run = program.run(&["-e", LETTERS, "redrive", "--execute"]).await.ended(0);
    assert!(run.stderr.contains("nothing to do"), "{run:?}");
}
