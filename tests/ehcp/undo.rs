//! How a change is undone, and what is refused, shown or hidden.

use std::collections::BTreeMap;
use std::process::Stdio;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::testing::Overwrite;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::{Program, Run};

const SECRET: &str = "c2VjcmV0c2VjcmV0";

/// A group with two partitions of 20 events each, and these checkpoints.
async fn group(checkpoints: &str) -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.write("start.csv", &format!("partition,sequence_number\n{checkpoints}"));
    program.run(&["init", "--from-file", "start.csv", "--execute"]).await.ended(0);
    (fleet, program)
}

/// Returns the sequence number of each checkpoint.
async fn numbers(program: &Program, options: &[&str]) -> BTreeMap<String, i64> {
    let group = program.json(&[&["describe", "--no-hub"], options].concat()).await;
    let partitions = group["partitions"].as_array().unwrap().iter();
    let number = |partition: &Value| {
        let number = partition["checkpoint"]["sequence_number"].as_i64()?;
        Some((partition["id"].as_str().unwrap().to_owned(), number))
    };
    partitions.filter_map(number).collect()
}

fn at(positions: &[(&str, i64)]) -> BTreeMap<String, i64> {
    positions.iter().map(|(partition, number)| ((*partition).to_owned(), *number)).collect()
}

pub async fn write(fleet: &Fleet, blob: &str, pairs: &[(&str, &str)]) {
    let metadata: Metadata = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    fleet.container.overwrite(&format!("localhost/orders/{blob}"), &metadata).await.unwrap();
}

/// A shell runs the commands that a run shows for its undoing.
async fn undo(program: &Program, stderr: &str) {
    let lines: Vec<_> = stderr.lines().filter_map(|line| line.strip_prefix("undo: ")).collect();
    assert!(!lines.is_empty(), "{stderr}");
    for line in lines {
        let ehcp = program.command(&[]);
        let ehcp = ehcp.as_std();
        let mut shell = Command::new("/bin/sh");
        let set = ehcp.get_envs().filter_map(|(name, value)| Some((name, value?)));
        shell.env_clear().envs(set).current_dir(program.folder()).stdin(Stdio::null());
        shell.arg("-c").arg(format!("ehcp() {{ \"$0\" \"$@\"; }}; {line}")).arg(ehcp.get_program());
        Run::of(shell.output().await.unwrap()).ended(0);
    }
}

async fn run_with(command: &mut Command) -> Run {
    Run::of(timeout(TIMEOUT, command.spawn().unwrap().wait_with_output()).await.unwrap().unwrap())
}

/// Returns a pipe whose reader has gone.
fn broken_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[tokio::test]
async fn an_undo_changes_no_other_partition() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    let run = program.run(&["reset", "-p", "0", "--to-sequence", "7", "--execute"]).await.ended(0);
    // In the meantime, the other partition goes on.
    program.run(&["reset", "-p", "1", "--to-sequence", "11", "--execute"]).await.ended(0);
    undo(&program, &run.stderr).await;
    assert_eq!(numbers(&program, &[]).await, at(&[("0", 19), ("1", 11)]));
}

#[tokio::test]
async fn an_undo_restores_positions_beyond_the_end() {
    let (fleet, program) = group("0,19\n").await;
    write(&fleet, "$default/checkpoint/1", &[("sequencenumber", "5000"), ("offset", "5000")]).await;
    let run = program.run(&["reset", "--to-earliest", "--execute"]).await.ended(0);
    undo(&program, &run.stderr).await;
    assert_eq!(numbers(&program, &[]).await, at(&[("0", 19), ("1", 5000)]));
}

#[tokio::test]
async fn an_undo_writes_in_the_same_letter_case() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-latest", "--blob-name-case", "verbatim", "--execute"]).await.ended(0);
    let run = program.run(&["delete", "--checkpoints", "--ownerships", "--execute"]).await.ended(0);
    undo(&program, &run.stderr).await;
    assert_eq!(numbers(&program, &["--blob-name-case", "verbatim"]).await, at(&[("0", 19), ("1", 19)]));
    program.run(&["describe", "--no-hub", "--blob-name-case", "lower"]).await.ended(1);
}

#[tokio::test]
async fn an_undo_is_a_command_of_a_shell() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    std::fs::create_dir(program.folder().join("it's $HOME")).unwrap();
    let named = ["--backup", "it's $HOME", "-g", "$Default", "-c", &program_container(&program).await];
    let run = program.run(&[&["reset", "--to-sequence", "7", "--execute"], &named[..]].concat()).await.ended(0);
    undo(&program, &run.stderr).await;
    assert_eq!(numbers(&program, &[]).await, at(&[("0", 19), ("1", 19)]));
}

/// Returns the container, as its only group shows it.
async fn program_container(program: &Program) -> String {
    let run = program.run(&["doctor", "--only", "storage", "-o", "json"]).await.ended(0);
    let checks: Value = serde_json::from_str(&run.stdout).unwrap();
    checks["checks"][0]["detail"].as_str().unwrap().split('"').nth(1).unwrap().to_owned()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_undo_is_shown_if_the_output_fails() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    for arguments in [&["reset", "--to-sequence", "7", "--execute"][..], &["delete", "--checkpoints", "--execute"]] {
        let before = numbers(&program, &[]).await;
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let run = run_with(program.command(arguments).stdout(full).stderr(Stdio::piped())).await.ended(1);
        undo(&program, &run.stderr).await;
        assert_eq!(numbers(&program, &[]).await, before, "{arguments:?}");
    }
}

#[tokio::test]
async fn files_without_positions_are_refused() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    let import = ["import", "--from", "file", "--overwrite"];
    for text in ["", "\n", "[1, 2]", "partition,seq\n0,3\n", r#"{"schema": "ehcp.export/1", "partitions": []}"#] {
        program.write("file", text);
        let run = program.run(&import).await.ended(64);
        assert!(run.stderr.contains("it has no positions"), "{text:?}: {}", run.stderr);
    }
    let json = r#"{"schema": "ehcp.export/1", "partitions": [{"id": "0", "checkpoint": {"sequence_number": 3}}]}"#;
    for text in ["partition,sequence_number\r\n0,3\r\n", "offset,sequence_number,partition\n,3,0\n", json] {
        for mark in ["", "\u{feff}"] {
            program.write("file", &[mark, text].concat());
            let plan = program.json(&import).await;
            assert_eq!(plan["changes"][0]["to"]["sequence_number"], json!(3), "{mark:?}{text:?}");
        }
    }
}

#[tokio::test]
async fn checks_that_were_not_made_are_not_ok() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    let run = program.run(&["doctor", "--only", "expired-checkpoint", "-c", "absent"]).await.ended(2);
    assert!(run.stdout.starts_with("error   storage: "), "{}", run.stdout);
    program.run(&["doctor", "--only", "storage-write"]).await.ended(64);
    program.run(&["doctor", "--only", "orphan-record", "--no-hub"]).await.ended(64);
    let report = program.json(&["doctor", "--no-hub"]).await;
    let checks = report["checks"].as_array().unwrap().iter();
    let result = |name: &str| checks.clone().find(|check| check["check"] == name).unwrap()["result"].clone();
    assert_eq!((result("expired-checkpoint"), result("expired-owner")), (json!("skipped"), json!("ok")));
}

#[tokio::test]
async fn a_missing_group_is_not_exported_or_copied() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    for command in [&["export", "--to", "empty.json"][..], &["copy", "--to-group", "tools", "--execute"]] {
        let run = program.run(&[command, &["-g", "mistyped"]].concat()).await.ended(1);
        assert!(run.stderr.contains("no records of localhost/orders/mistyped"), "{}", run.stderr);
    }
    assert!(!program.folder().join("empty.json").exists());
}

/// An option counts more than the environment.
#[tokio::test]
async fn another_account_is_not_ignored() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    let run = program.run(&["reset", "--to-earliest", "-a", "production", "--execute"]).await.ended(64);
    assert!(run.stderr.contains("is for another account than --account production"), "{}", run.stderr);
    for same in ["devstoreaccount1", "http://127.0.0.1:1/devstoreaccount1/"] {
        program.run(&["describe", "-a", same]).await.ended(0);
    }
}

#[tokio::test]
async fn secrets_in_names_are_not_shown() {
    let mut program = Program::bare();
    program.set("EHCP_CONTAINER", "c");
    let hub = format!("Endpoint=sb://ns/;SharedAccessKeyName=n;SharedAccessKey={SECRET}");
    let storage = format!("AccountName=a;AccountKey={SECRET};EndpointSuffix=core.windows.net");
    let url = format!("https://a.blob.core.windows.net/?sv=2020&sig={SECRET}");
    for command in [&["list"][..], &["describe"], &["check"], &["profile", "add", "x"]] {
        for (option, value) in [("-n", &hub), ("-e", &hub), ("-a", &storage), ("-a", &url)] {
            let run = program.run(&[command, &[option, value]].concat()).await.ended(64);
            assert!(run.stderr.contains("has a key or a signature"), "{command:?} {option}: {}", run.stderr);
            assert!(!format!("{run:?}").contains(SECRET), "{command:?} {option}: {run:?}");
        }
    }
    assert!(!program.folder().join("config").exists());
}

#[tokio::test]
async fn a_time_before_all_times_is_refused() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    for target in [["--by-duration", "20000y"], ["--by-duration", "300y"], ["--to-datetime", "1960-01-01T00:00:00Z"]] {
        let run = program.run(&["reset", target[0], target[1]]).await.ended(64);
        assert!(run.stderr.contains("use --to-earliest"), "{target:?}: {}", run.stderr);
    }
}

#[tokio::test]
async fn closed_pipes_are_no_failure() {
    let (_fleet, program) = group("0,19\n1,19\n").await;
    let mut completions = program.command(&["completions", "bash"]);
    let run = run_with(completions.stdout(broken_pipe()).stderr(Stdio::piped())).await.ended(0);
    assert_eq!(run.stderr, "");
    for (arguments, code) in [
        (&["reset", "--to-sequence", "7"][..], 2),
        (&["reset", "--to-sequence", "7", "--execute"], 0),
        (&["describe", "-c", "absent"], 1),
    ] {
        let mut command = program.command(arguments);
        run_with(command.stdout(Stdio::piped()).stderr(broken_pipe())).await.ended(code);
    }
}

#[tokio::test]
async fn each_row_is_one_line_for_a_program() {
    let (fleet, program) = group("0,19\n1,19\n").await;
    let long = "long-".repeat(50);
    write(&fleet, "$default/ownership/0", &[("ownerid", &long)]).await;
    let run = program.run(&["describe", "-o", "wide"]).await.ended(0);
    assert_eq!(run.stdout.lines().count(), 5, "{}", run.stdout);
    assert!(run.stdout.contains(&long), "{}", run.stdout);
}

#[tokio::test]
async fn text_of_events_does_not_steer_a_terminal() {
    let fleet = Fleet::with_batches(1, 0).await;
    let program = Program::for_fleet(&fleet).await;
    let builder = ProducerClient::builder().with_custom_endpoint(fleet.hub.endpoint());
    let producer = builder.open_with_connection_string(&fleet.hub.connection_string(), None).await.unwrap();
    let options = EventDataBatchOptions { partition_key: Some("key\u{1b}[31m".to_owned()), ..Default::default() };
    let batch = producer.create_batch(Some(options)).await.unwrap();
    let event = EventData::builder().with_body(b"two\nlines".to_vec());
    let event = event.add_property("attempt".to_owned(), 3i64).add_property("kind".to_owned(), "new");
    assert!(batch.try_add_event_data(event.build(), None).unwrap());
    producer.send_batch(batch, None).await.unwrap();
    let peek = ["peek", "-p", "0", "--count", "1"];
    for format in ["table", "wide"] {
        let run = program.run(&[&peek[..], &["-o", format]].concat()).await.ended(0);
        assert!(!run.stdout.contains('\u{1b}') && run.stdout.lines().count() == 2, "{:?}", run.stdout);
    }
    let csv = program.run(&[&peek[..], &["-o", "csv"]].concat()).await.ended(0).stdout;
    assert!(csv.contains("\"two\nlines\""), "{csv:?}");
    let event = &program.json(&peek).await["events"][0];
    assert_eq!(event["properties"], json!({ "attempt": 3, "kind": "new" }));
    assert_eq!(event["partition_key"], "key\u{1b}[31m");
}

#[tokio::test]
async fn what_is_shown_is_meant_for_its_reader() {
    let (_fleet, mut program) = group("0,19\n1,19\n").await;
    let run = program.run(&["describe", "-vvv"]).await.ended(0);
    assert!(!run.stderr.is_empty() && !run.stderr.contains('\u{1b}'), "a file has no colors: {}", run.stderr);
    let groups = program.json(&["list"]).await;
    assert_eq!(groups["groups"][0]["group"]["blob_name_case"], "lower");
    let run = program.run(&["export", "-o", "csv"]).await.ended(0);
    assert!(run.stdout.starts_with("partition,sequence_number,offset\n0,19,"), "{}", run.stdout);
    let run = program.run(&["check", "--unowned-for", "1h"]).await.ended(0);
    let expected = "EHCP OK - 2 partitions without a live owner, but not for too long | lag=0 lag_age=0s owners=0 unowned=2 paused=0 parked=0\n";
    assert_eq!(run.stdout, expected);
    program.run(&["profile", "add", "test", "-n", "ns", "--timeout", "5s"]).await.ended(64);
    program.unset("EHCP_READ_GROUP");
    program.run(&["profile", "add", "test", "-n", "ns", "-c", "c"]).await.ended(0);
    let profiles = program.json(&["profile", "list"]).await;
    assert_eq!((&profiles["schema"], &profiles["profiles"][0]["name"]), (&json!("ehcp.profiles/1"), &json!("test")));
}

/// The casing with the live owner is used.
#[tokio::test]
async fn a_release_names_the_other_letter_case() {
    let (fleet, program) = group("0,19\n1,19\n").await;
    write(&fleet, "$Default/ownership/0", &[("ownerid", "go-worker")]).await;
    let run = program.run(&["release", "-p", "0", "--execute"]).await.ended(3);
    assert!(
        run.stderr.contains("go-worker, an owner of another SDK") && run.stderr.contains("under lower names"),
        "{run:?}"
    );
    let run = program.run(&["release", "--owner", "mistyped", "--execute"]).await.ended(0);
    assert!(run.stderr.contains("nothing to do"), "{run:?}");
}

/// The remedies of the doctor can be carried out, and undone.
#[tokio::test]
async fn a_deleted_orphan_is_brought_back() {
    let (fleet, program) = group("0,19\n1,19\n").await;
    write(&fleet, "$default/checkpoint/9", &[("sequencenumber", "7"), ("offset", "7")]).await;
    let run = program.run(&["delete", "--checkpoints", "-p", "9", "--execute"]).await.ended(0);
    undo(&program, &run.stderr).await;
    assert_eq!(numbers(&program, &[]).await, at(&[("0", 19), ("1", 19), ("9", 7)]));
    // It does not prevent a copy of the others.
    let run = program.run(&["copy", "--to-group", "tools", "--execute"]).await.ended(0);
    assert!(run.stderr.contains("partition 9 is left out"), "{}", run.stderr);
    assert_eq!(numbers(&program, &["-g", "tools"]).await, at(&[("0", 19), ("1", 19)]));
}

#[tokio::test]
async fn leftovers_in_the_other_letter_case_go() {
    let (fleet, program) = group("0,19\n1,19\n").await;
    let a = fleet.own("a").await;
    fleet.owns_all("a").await;
    write(&fleet, "$Default/checkpoint/0", &[("sequencenumber", "7"), ("offset", "7")]).await;
    let there = ["--blob-name-case", "verbatim"];
    // A reset there would concern another application.
    let run = program.run(&[&["reset", "--to-earliest"], &there[..]].concat()).await.ended(64);
    assert!(run.stderr.contains("a (partition"), "{}", run.stderr);
    program.run(&[&["delete", "--checkpoints", "--execute"], &there[..]].concat()).await.ended(0);
    assert_eq!(numbers(&program, &[]).await, at(&[("0", 19), ("1", 19)]));
    a.shut_down().await;
}
