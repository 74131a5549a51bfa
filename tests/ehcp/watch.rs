//! `ehcp watch` without a terminal: lines of JSON.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::Program;

#[tokio::test]
async fn each_look_is_a_line() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    let run = program.run(&["watch", "--count", "3", "--interval", "200ms", "--hub-interval", "200ms"]).await.ended(0);
    let looks: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 3, "{run:?}");
    for look in &looks {
        assert_eq!(look["schema"], "ehcp.watch/1");
        assert_eq!(look["group"]["lag"]["events"], 40);
        assert_eq!((&look["partitions"][1]["id"], &look["changes"]), (&json!("1"), &json!([])));
        assert_eq!((&look["hub_failure"], &look["history"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(looks[0]["rates"]["0"]["processed"], Value::Null, "one look has no rate");
    assert_eq!(looks[2]["rates"]["0"]["processed"], 0.0);
}

/// The program ends when its reader has seen enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_have_the_changes_between_looks() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let worker = fleet.own("worker").await;
    fleet.owns_all("worker").await;
    let program = Program::for_fleet(&fleet).await;
    let mut running = program.spawn(&["watch", "--interval", "100ms", "-o", "ndjson"]);
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

#[tokio::test]
async fn a_wrong_command_line_of_watch() {
    let program = Program::bare();
    for (arguments, message) in [
        (&["watch", "--interval", "1ms"][..], "at least 100ms"),
        (&["watch", "-o", "csv"], "-o ndjson"),
        (&["watch"], "pass --container"),
    ] {
        let run = program.run(arguments).await.ended(64);
        assert!(run.stderr.contains(message), "{arguments:?}: {}", run.stderr);
    }
}
