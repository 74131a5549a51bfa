//! `ehcp keda`: what it shows, its exit codes and its refusals.

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::testing::Overwrite;
use serde_json::json;

use crate::fleet::Fleet;
use crate::program::Program;

const PREFIX: &str = "localhost/orders/$default/checkpoint";

async fn write(fleet: &Fleet, name: &str, number: &str) {
    let metadata =
        Metadata::from([("sequencenumber".to_owned(), number.to_owned()), ("offset".to_owned(), "70".to_owned())]);
    fleet.container.overwrite(name, &metadata).await.unwrap();
}

/// A group with three partitions of 20 events each, with checkpoints at 19, 9 and none.
async fn group() -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(3, 12).await;
    fleet.all_published().await;
    write(&fleet, &format!("{PREFIX}/0"), "19").await;
    write(&fleet, &format!("{PREFIX}/1"), "9").await;
    let program = Program::for_fleet(&fleet).await;
    (fleet, program)
}

#[tokio::test]
async fn it_counts_like_keda() {
    let (_fleet, program) = group().await;
    let run = program.run(&["keda", "--threshold", "12"]).await.ended(0);
    let headline = "localhost/orders/$Default  KEDA counts 30, lag 30, active, 3 replicas at 12 events each\n";
    assert!(run.stdout.starts_with(headline), "{}", run.stdout);
    assert!(run.stdout.contains("no checkpoint: counts the available events"), "{}", run.stdout);
    let shown = program.json(&["keda", "--max-replicas", "2", "--threshold", "1"]).await;
    assert_eq!((&shown["schema"], &shown["total"]), (&json!("ehcp.keda/1"), &json!(30)));
    assert_eq!(shown["scale"], json!({ "metric": 3, "active": true, "replicas": 2 }));
    let partition = &shown["partitions"][1];
    assert_eq!((&partition["events"], &partition["why"]), (&json!(10), &json!("after_checkpoint")));
    assert_eq!((&partition["sequence_number"], &partition["lag"]["events"]), (&json!(9), &json!(10)));
    program.run(&["keda", "--no-hub"]).await.ended(64);
    program.run(&["keda", "--threshold", "0"]).await.ended(64);
    program.run(&["keda", "-g", "billing"]).await.ended(1);
}

#[tokio::test]
async fn what_keda_counts_wrongly_is_a_finding() {
    let (fleet, program) = group().await;
    fleet.hub.expire_before("1", 15).unwrap();
    write(&fleet, &format!("{PREFIX}/2"), "5000").await;
    let run = program.run(&["keda"]).await.ended(2);
    assert!(run.stdout.contains("KEDA counts 10, lag 5,"), "{}", run.stdout);
    for line in [
        "partition 1: also counts expired events, because the checkpoint is before the first event: start a processor",
        "partition 2: counts no event, because the checkpoint is after the last event: the event hub was recreated",
    ] {
        assert!(run.stderr.contains(line), "{}", run.stderr);
    }
    program.run(&["reset", "--to-earliest", "-p", "1-2", "--execute"]).await.ended(0);
    program.run(&["keda"]).await.ended(0);
}

/// Its lag counts, so more replicas start, which do not process it. The other paused partition has no lag.
#[tokio::test]
async fn a_paused_partition_is_named() {
    let (_fleet, program) = group().await;
    program.run(&["pause", "-p", "0-1", "--reason", "a migration", "--execute"]).await.ended(0);
    let run = program.run(&["keda"]).await.ended(0);
    assert_eq!(run.stdout.matches("counts the events after the checkpoint; paused").count(), 2, "{}", run.stdout);
    let note = "KEDA counts the events of partition 1, although no replica processes them: paused: a migration";
    assert!(run.stderr.contains(note), "{}", run.stderr);
    let shown = program.json(&["keda"]).await;
    assert_eq!(shown["partitions"][1]["paused"]["reason"], json!("a migration"));
    assert_eq!(shown["partitions"][2]["paused"], json!(null));
}

#[tokio::test]
async fn a_checkpoint_without_a_number_fails_the_poll() {
    let (fleet, program) = group().await;
    write(&fleet, &format!("{PREFIX}/2"), "").await;
    let run = program.run(&["keda"]).await.ended(2);
    assert!(run.stdout.contains("KEDA's poll fails, lag unknown: it starts no replica from zero"), "{}", run.stdout);
    let remedy = "partition 2: fails, because the checkpoint has no sequence number: `ehcp reset --to-current`";
    assert!(run.stderr.contains(remedy), "{}", run.stderr);
    assert_eq!(program.json(&["keda"]).await["scale"], json!(null));
}

#[tokio::test]
async fn names_that_keda_does_not_find_are_refused() {
    let mut fleet = Fleet::with_batches(1, 2).await;
    fleet.all_published().await;
    write(&fleet, "localhost/orders/$Default/checkpoint/0", "9").await;
    let program = Program::for_fleet(&fleet).await;
    let run = program.run(&["keda"]).await.ended(2);
    assert!(run.stderr.contains("KEDA finds no checkpoint of $Default: "), "{}", run.stderr);
    assert!(run.stderr.contains("ehcp copy --to-case lower"), "{run:?}");
    let names = json!({ "namespace": "localhost", "event_hub": "orders", "consumer_group": "$Default", "finds_checkpoints": false });
    assert_eq!(program.json(&["keda"]).await["names"], names);
    // The remedy.
    program.run(&["copy", "--to-case", "lower", "--execute"]).await.ended(0);
    let run = program.run(&["keda", "--blob-name-case", "lower"]).await.ended(0);
    assert!(run.stdout.contains("KEDA counts 0, lag 0, not active, 0 replicas"), "{}", run.stdout);
}
