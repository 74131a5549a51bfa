//! `ehcp watch` without a terminal: lines of JSON.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::{Program, Run};
use crate::relay::Relay;

#[tokio::test]
async fn each_look_is_a_line() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    // The server's clock has whole seconds.
    let often = ["--interval", "600ms", "--refresh", "600ms", "--hub-interval", "200ms"];
    let run = program.run(&[&["watch", "--count", "3"], &often[..]].concat()).await.ended(0);
    let looks: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 3, "{run:?}");
    for look in &looks {
        assert_eq!(look["schema"], "ehcp.watch/1");
        assert_eq!(look["group"]["lag"]["events"], 40);
        assert_eq!((&look["partitions"][1]["id"], &look["changes"]), (&json!("1"), &json!([])));
        assert_eq!(look["behind"]["1"]["is_exact"], false, "{look}");
        assert_eq!((&look["hub_failure"], &look["history"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(looks[0]["rates"]["0"]["processed"], Value::Null, "one look has no rate");
    assert_eq!(looks[2]["rates"]["0"]["processed"], 0.0);
}

/// The instance that ends lights the beacon, so that its releases are listed before the refresh. The program ends at
/// the first look after its reader has seen enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_have_the_changes_between_looks() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let worker = fleet.own("worker").await;
    fleet.owns_all("worker").await;
    let program = Program::for_fleet(&fleet).await;
    let mut running = program.spawn(&["watch", "--interval", "100ms", "--refresh", "5s", "-o", "ndjson"]);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(next().await["partitions"][0]["owner"]["id"], "worker");
    worker.shut_down().await;
    let mut kinds = Vec::new();
    while !kinds.contains(&json!("left")) {
        let look = next().await;
        kinds.extend(look["changes"].as_array().unwrap().iter().map(|change| change["kind"].clone()));
    }
    assert_eq!(kinds.iter().filter(|kind| *kind == "released").count(), 2, "{kinds:?}");
    drop(lines);
    let ended = timeout(TIMEOUT, running.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
}

/// It is part of every line, and the program goes on.
#[tokio::test]
async fn an_event_hub_that_does_not_respond() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let mut program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("localhost:{}/", silent.local_addr().unwrap().port());
    let hub = fleet.hub.connection_string_with_port();
    let port = format!("localhost:{}/", fleet.hub.port());
    assert!(hub.contains(&port), "{hub}");
    program.set("EVENTHUBS_CONNECTION_STRING", &hub.replace(&port, &address));
    let often = ["--interval", "100ms", "--refresh", "100ms", "--hub-interval", "100ms"];
    let run = program.run(&[&["watch", "--count", "3", "--timeout", "1s"], &often[..]].concat()).await.ended(0);
    let looks: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 3, "{run:?}");
    for look in looks {
        assert!(look["hub_failure"].as_str().unwrap().contains("no connection within 1s"), "{look}");
        assert_eq!(look["partitions"].as_array().unwrap().len(), 2, "those with records");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_that_fail_end_with_1() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let mut program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    let relay = Relay::start().await;
    program.set("AZURE_STORAGE_CONNECTION_STRING", &relay.connection_string);
    // The storage is cut between the two looks.
    let mut running = program.spawn(&["watch", "--no-hub", "--count", "2", "--interval", "5s", "--refresh", "5s"]);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
    drop(relay);
    assert_eq!(timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap(), None);
    let run = Run::of(timeout(TIMEOUT, running.wait_with_output()).await.unwrap().unwrap()).ended(1);
    assert!(run.stderr.contains("error: "), "{run:?}");
}

#[tokio::test]
async fn a_wrong_command_line_of_watch() {
    let program = Program::bare();
    for (arguments, message) in [
        (&["watch", "--interval", "1ms"][..], "at least 100ms"),
        (&["watch", "--refresh", "1ms"], "at least 100ms"),
        (&["watch", "-o", "csv"], "-o ndjson"),
        (&["watch"], "pass --account"),
    ] {
        let run = program.run(arguments).await.ended(64);
        assert!(run.stderr.contains(message), "{arguments:?}: {}", run.stderr);
    }
}
