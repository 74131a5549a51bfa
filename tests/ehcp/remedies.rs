//! Messages name what the user can change.

use std::time::Duration;

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::testing::Overwrite;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::net::TcpListener;

use crate::fleet::Fleet;
use crate::program::Program;

/// A group with two partitions of 20 events each, without checkpoints.
async fn group() -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    (fleet, program)
}

#[tokio::test]
async fn settings_are_named_as_options() {
    let program = Program::for_fleet(&Fleet::with_batches(1, 0).await).await;
    let run = program.run(&["describe", "--foreign-lease-duration", "1s"]).await.ended(64);
    assert!(run.stderr.contains("--foreign-lease-duration is 1s") && !run.stderr.contains("with_"), "{}", run.stderr);
}

#[tokio::test]
async fn a_dry_run_shows_that_it_would_be_refused() {
    let (fleet, program) = group().await;
    let a = fleet.own("a").await;
    fleet.owns_all("a").await;
    for command in [&["reset", "--to-sequence", "3"][..], &["release", "-p", "0"], &["delete", "--ownerships"]] {
        let run = program.run(command).await.ended(2);
        assert!(run.stderr.contains("but --execute would be refused: "), "{command:?}: {}", run.stderr);
    }
    let run = program.run(&["reset", "--to-sequence", "3", "--live"]).await.ended(2);
    assert!(run.stderr.contains("add --execute to do it"), "{}", run.stderr);
    a.shut_down().await;
}

#[tokio::test]
async fn initial_checkpoints_can_be_undone() {
    let (fleet, program) = group().await;
    for target in [&["--shift-by", "1"][..], &["--to-current"]] {
        let run = program.run(&[&["init"], target].concat()).await.ended(64);
        assert!(run.stderr.contains("see `ehcp reset`"), "{}", run.stderr);
    }
    let run = program.run(&["init", "--to-earliest", "-p", "1", "--execute"]).await.ended(0);
    let undo = run.stderr.lines().find_map(|line| line.strip_prefix("undo: ehcp ")).unwrap_or_default();
    assert_eq!(undo, "delete --checkpoints -p 1 --execute");
    program.run(&undo.split(' ').collect::<Vec<_>>()).await.ended(0);
    assert!(fleet.checkpoints().await.is_empty());
}

#[tokio::test]
async fn the_partition_without_a_lag_is_named() {
    let (fleet, program) = group().await;
    // Some SDKs omit the sequence number.
    let metadata = Metadata::from([("offset".to_owned(), "70".to_owned())]);
    let blob = "localhost/orders/$default/checkpoint/1";
    fleet.container.overwrite(blob, &metadata).await.unwrap();
    let run = program.run(&["lag"]).await.ended(1);
    assert!(run.stderr.contains("the lag of partition 1 is unknown"), "{}", run.stderr);
}

#[tokio::test]
async fn peek_after_the_end_names_the_last_event() {
    let (_fleet, program) = group().await;
    let run = program.run(&["peek", "-p", "0", "--at", "500"]).await.ended(1);
    assert!(run.stderr.contains("partition 0 has no event 500: its last event is 19"), "{}", run.stderr);
    let run = program.run(&["peek", "-p", "0", "--at", "20", "--wait", "100ms"]).await.ended(0);
    assert!(run.stderr.contains("no event came within 100ms"), "{}", run.stderr);
}

/// A load balancer may accept connections for an event hub that does not exist.
#[tokio::test]
async fn a_silent_event_hub_is_given_up() {
    let (_fleet, mut program) = group().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("sb://localhost:{}/", silent.local_addr().unwrap().port());
    let hub = format!(
        "Endpoint={endpoint};SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=orders;UseDevelopmentEmulator=true"
    );
    program.set("EVENTHUBS_CONNECTION_STRING", &hub);
    let run = program.run(&["lag", "--timeout", "1s"]).await.ended(1);
    let message = "the event hub (--no-hub leaves it out): no connection within 1s";
    assert!(run.stderr.contains(message), "{}", run.stderr);
    let run = program.run(&["doctor", "--timeout", "1s"]).await.ended(2);
    assert!(run.stdout.contains("check the names, the network"), "{}", run.stdout);
}

#[tokio::test]
async fn check_is_unknown_if_it_cannot_look() {
    let (_fleet, program) = group().await;
    program.run(&["check", "--lag-warn", "many"]).await.ended(3);
    program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    // Servers report whole seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let checked = ["check", "--unowned-for", "1h", "--updated-within", "1ms"];
    let run = program.run(&[&checked[..], &["--no-hub"]].concat()).await.ended(3);
    assert!(run.stdout.starts_with("EHCP UNKNOWN - no checkpoint within"), "{}", run.stdout);
    program.run(&checked).await.ended(2);
}

#[tokio::test]
async fn csv_has_times_and_empty_cells() {
    let (_fleet, program) = group().await;
    program.run(&["init", "--to-sequence", "7", "-p", "0", "--execute"]).await.ended(0);
    let text = program.run(&["describe", "-o", "csv"]).await.ended(0).stdout;
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split(',').collect()).collect();
    let column = lines[0].iter().position(|name| *name == "updated").unwrap();
    assert!(OffsetDateTime::parse(lines[1][column], &Rfc3339).is_ok(), "{text}");
    assert_eq!(lines[2][column], "", "partition 1 has no checkpoint");
}

#[tokio::test]
async fn a_profile_keeps_the_durations_of_the_group() {
    let mut program = Program::for_fleet(&Fleet::with_batches(1, 0).await).await;
    program.unset("EHCP_FOREIGN_LEASE_DURATION");
    let settings = ["--foreign-lease-duration", "90s", "--auth", "managed-identity", "--blob-name-case", "lower"];
    program.run(&[&["profile", "add", "x"][..], &settings].concat()).await.ended(0);
    let profiles = program.json(&["profile", "list"]).await;
    let profile = &profiles["profiles"][0];
    assert_eq!((&profile["foreign_lease_duration"], &profile["auth"]), (&json!("1m 30s"), &json!("managed-identity")));
    program.run(&["describe", "--profile", "x", "--no-hub", "--foreign-lease-duration", "1s"]).await.ended(64);
    let run = program.run(&["profile", "add", "x", "--timeout", "1s"]).await.ended(64);
    assert!(run.stderr.contains("does not keep --timeout"), "{}", run.stderr);
}

/// A live owner in the other blob-name casing is no record in lower case.
#[tokio::test]
async fn a_live_group_under_verbatim_names_is_found() {
    let (fleet, program) = group().await;
    for partition in [0, 1] {
        for (kind, pairs) in
            [("ownership", &[("ownerid", "go")][..]), ("checkpoint", &[("sequencenumber", "7"), ("offset", "70")])]
        {
            let metadata: Metadata =
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let blob = format!("localhost/orders/$Default/{kind}/{partition}");
            fleet.container.overwrite(&blob, &metadata).await.unwrap();
        }
    }
    let described = program.json(&["describe"]).await;
    assert_eq!(described["group"]["blob_name_case"], json!("verbatim"));
    assert_eq!(described["group"]["lag"]["events"], json!(24));
    assert!(program.run(&["export"]).await.ended(0).stdout.contains("\"sequence_number\": 7"));
    let run = program.run(&["keda"]).await.ended(2);
    assert!(run.stderr.contains("KEDA finds no checkpoint of $Default: "), "{}", run.stderr);
}

#[tokio::test]
async fn a_wrong_group_is_named() {
    let (_fleet, program) = group().await;
    let run = program.run(&["describe", "-g", "a/b"]).await.ended(64);
    assert!(run.stderr.contains("a/b"), "{}", run.stderr);
    program.run(&["watch", "--count", "0"]).await.ended(64);
}
