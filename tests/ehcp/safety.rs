//! The rules of safety.

use std::collections::BTreeMap;

use eventhubs_checkpoint::store::NameCase;
use eventhubs_checkpoint::store::protocol::{AdoptOutcome, Claim, ClaimOutcome, ReleaseOutcome};
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::program::Program;

/// Returns the sequence number of each checkpoint.
async fn checkpoints(fleet: &Fleet) -> BTreeMap<String, i64> {
    fleet.checkpoints().await.into_iter().map(|(id, position)| (id, position.sequence_number)).collect()
}

fn all_at(number: i64) -> BTreeMap<String, i64> {
    [("0".to_owned(), number), ("1".to_owned(), number)].into()
}

/// A group whose 20 events per partition are processed, and that has no owner.
async fn processed() -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let a = fleet.own("a").await;
    fleet.all_processed().await;
    a.shut_down().await;
    let program = Program::for_fleet(&fleet).await;
    (fleet, program)
}

#[tokio::test]
async fn nothing_is_written_without_execute() {
    let (fleet, program) = processed().await;
    program.write("positions.csv", "partition,sequence_number,offset\n0,3,\n");
    for command in [
        &["reset", "--to-earliest"][..],
        &["import", "--from", "positions.csv", "--overwrite"],
        &["delete", "--checkpoints", "--ownerships"],
        &["copy", "--to-group", "tools"],
    ] {
        let run = program.run(command).await.ended(2);
        assert!(run.stderr.contains("add --execute"), "{command:?}: {}", run.stderr);
    }
    assert_eq!(checkpoints(&fleet).await, all_at(19));
    assert!(program.backups().is_empty());
    assert_eq!(fleet.records().await.len(), 2);
}

#[tokio::test]
async fn live_owners_are_displaced_only_on_request() {
    let (fleet, program) = processed().await;
    let a = fleet.own("a").await;
    fleet.owns_all("a").await;
    for command in [
        &["reset", "--to-earliest", "--execute"][..],
        &["delete", "--checkpoints", "--execute"],
        &["delete", "--ownerships", "--execute"],
        &["release", "--owner", "a", "--execute"],
    ] {
        program.run(command).await.ended(3);
    }
    let run = program.run(&["reset", "--to-earliest", "--execute"]).await.ended(3);
    assert!(run.stderr.contains("a is processing partition 0, and its lease is valid for"), "{}", run.stderr);
    assert_eq!(checkpoints(&fleet).await, all_at(19));
    assert!(program.backups().is_empty());

    fleet.processed.clear();
    program.run(&["reset", "--to-sequence", "4", "--execute", "--live"]).await.ended(0);
    for partition in ["0", "1"] {
        fleet.processes_range(partition, 5, 19).await;
    }
    program.run(&["release", "-p", "1", "--live", "--execute"]).await.ended(0);
    fleet.owns_all("a").await;
    a.shut_down().await;
}

#[tokio::test]
async fn positions_of_the_application_are_respected() {
    let (fleet, program) = processed().await;
    let store = fleet.observer(NameCase::Lower);
    let listed = store.list_ownerships().await.unwrap().records;
    let released = listed.iter().find(|seen| seen.partition == 0.into()).unwrap();
    let ClaimOutcome::Won(lease) = store.claim(&Claim::over(released)).await else { panic!("not claimed") };
    let AdoptOutcome::Adopted(mut adoption) = store.adopt(&0.into(), lease.epoch(), None).await.unwrap() else {
        panic!("not adopted")
    };
    store.set_own_position(&mut adoption, true).await.unwrap();
    assert!(matches!(store.release(&lease).await, ReleaseOutcome::Released));
    let described = program.run(&["describe", "--no-hub", "-o", "wide"]).await.ended(0).stdout;
    assert!(described.contains("the application keeps its own positions"), "{described}");
    let run = program.run(&["reset", "--to-earliest", "--execute"]).await.ended(3);
    assert!(run.stderr.contains("the application keeps its own position of partition 0"), "{}", run.stderr);
    assert_eq!(checkpoints(&fleet).await, all_at(19));
    program.run(&["reset", "-p", "1", "--to-sequence", "4", "--execute"]).await.ended(0);
    let run = program.run(&["reset", "-p", "0", "--to-sequence", "4", "--own-positions", "--execute"]).await.ended(0);
    assert_eq!(checkpoints(&fleet).await, all_at(4));
    undo(&program, &run.stderr).await;
    assert_eq!(checkpoints(&fleet).await["0"], 19, "the undo may write it, too");
}

#[tokio::test]
async fn a_paused_partition_waits_for_its_resumption() {
    let (fleet, program) = processed().await;
    let a = fleet.own("a").await;
    fleet.owns_all("a").await;
    program.run(&["pause", "-p", "0", "--execute"]).await.ended(3);
    program.run(&["pause", "-p", "7", "--live"]).await.ended(64);
    program.run(&["pause", "--until", "2020-01-01T00:00:00Z", "--live"]).await.ended(64);
    let run = program.run(&["pause", "-p", "0", "--reason", "a migration", "--live"]).await.ended(2);
    assert!(run.stderr.contains("would pause 1 partition; add --execute"), "{}", run.stderr);

    let run = program.run(&["pause", "-p", "0", "--reason", "a migration", "--live", "--execute"]).await.ended(0);
    assert!(run.stdout.contains("paused"), "{}", run.stdout);
    fleet.owns_all("a").await;
    let described = program.run(&["describe", "--no-hub"]).await.ended(0).stdout;
    assert!(described.contains("owned, paused"), "{described}");
    let group = program.json(&["describe", "--no-hub"]).await;
    assert_eq!(group["partitions"][0]["checkpoint"]["paused"]["reason"], json!("a migration"));
    assert_eq!(group["partitions"][1]["checkpoint"]["paused"], Value::Null);

    fleet.processed.clear();
    program.run(&["reset", "--to-sequence", "4", "--live", "--execute"]).await.ended(0);
    fleet.processes_range("1", 5, 19).await;
    assert_eq!(checkpoints(&fleet).await["0"], 4, "the pause stays");
    program.run(&["resume"]).await.ended(2);
    let resumed = program.json(&["resume", "--live", "--execute"]).await;
    assert_eq!(resumed["partitions"][0]["result"], json!("resumed"));
    fleet.processes_range("0", 5, 19).await;
    let run = program.run(&["resume", "--live", "--execute"]).await.ended(0);
    assert!(run.stderr.contains("nothing to do"), "{}", run.stderr);
    a.shut_down().await;
}

#[tokio::test]
async fn what_was_written_can_be_undone() {
    let (fleet, program) = processed().await;
    let run = program.run(&["reset", "--to-earliest", "--execute"]).await.ended(0);
    assert_eq!(checkpoints(&fleet).await, all_at(-1));
    undo(&program, &run.stderr).await;
    assert_eq!(checkpoints(&fleet).await, all_at(19));

    let run = program.run(&["delete", "--checkpoints", "--execute"]).await.ended(0);
    assert_eq!(checkpoints(&fleet).await, BTreeMap::new());
    undo(&program, &run.stderr).await;
    assert_eq!(checkpoints(&fleet).await, all_at(19));

    program.run(&["delete", "--checkpoints", "-p", "1", "--execute"]).await.ended(0);
    let run = program.run(&["reset", "--to-sequence", "7", "--execute"]).await.ended(0);
    assert_eq!(checkpoints(&fleet).await, all_at(7));
    undo(&program, &run.stderr).await;
    assert_eq!(checkpoints(&fleet).await, [("0".to_owned(), 19)].into(), "partition 1 had none");
}

#[tokio::test]
async fn a_copy_is_undone_in_its_destination() {
    let (fleet, program) = processed().await;
    let run = program.run(&["copy", "--to-group", "tools", "-g", "$Default", "--execute"]).await.ended(0);
    assert!(run.stderr.contains("--consumer-group tools"), "{}", run.stderr);
    undo(&program, &run.stderr).await;
    let copied = program.json(&["describe", "-g", "tools", "--no-hub"]).await;
    assert!(copied["partitions"].as_array().unwrap().iter().all(|partition| partition["checkpoint"].is_null()));
    assert_eq!(checkpoints(&fleet).await, all_at(19), "the source stays");
}

/// Runs the commands that a run shows for its undoing.
async fn undo(program: &Program, stderr: &str) {
    let commands: Vec<_> = stderr.lines().filter_map(|line| line.strip_prefix("undo: ehcp ")).collect();
    assert!(!commands.is_empty(), "{stderr}");
    for command in commands {
        program.run(&command.split(' ').collect::<Vec<_>>()).await.ended(0);
    }
}

#[tokio::test]
async fn positions_outside_of_the_partition_are_clamped() {
    let (fleet, program) = processed().await;
    fleet.hub.expire_before("0", 10).unwrap();
    let plan = program.json(&["reset", "--to-sequence", "3", "-p", "0"]).await;
    let change = &plan["changes"][0];
    assert_eq!((&change["effect"], &change["to"]["sequence_number"]), (&json!("expired"), &json!(9)));
    let plan = program.json(&["reset", "--shift-by", "1000", "-p", "1"]).await;
    assert_eq!(plan["changes"][0]["effect"], json!("no_change"), "it is at the end");
    let plan = program.json(&["reset", "--shift-by", "-1000", "-p", "1"]).await;
    assert_eq!(plan["changes"][0]["to"], json!({ "sequence_number": -1, "offset": "-1" }));
    program.write("far.csv", "partition,sequence_number,offset\n0,500,77\n1,3,\n");
    let import = ["import", "--from", "far.csv", "--overwrite"];
    let plan = program.json(&import).await;
    assert_eq!(plan["changes"][0]["to"]["sequence_number"], json!(19));
    let plan = program.json(&[&import[..], &["--unclamped"]].concat()).await;
    assert_eq!(plan["changes"][0]["to"], json!({ "sequence_number": 500, "offset": "77" }));
    assert!(plan["changes"][1]["to"]["offset"].is_string(), "it was looked up");
}

#[tokio::test]
async fn both_numbers_are_written() {
    let (fleet, program) = processed().await;
    for target in [["--to-sequence", "7"], ["--to-datetime", "2020-01-01T00:00:00Z"], ["--by-duration", "1h"]] {
        program.run(&["reset", target[0], target[1], "--execute"]).await.ended(0);
        for (partition, position) in fleet.checkpoints().await {
            assert!(!position.offset.is_empty(), "{target:?}: partition {partition}");
        }
    }
    program.run(&["reset", "--to-datetime", "2099-01-01T00:00:00Z", "--execute"]).await.ended(0);
    assert_eq!(checkpoints(&fleet).await, all_at(19), "there are no later events");
    let offset = fleet.checkpoints().await["0"].offset.clone();
    program.run(&["reset", "--to-earliest", "--execute"]).await.ended(0);
    program.run(&["reset", "--to-offset", &offset, "-p", "0", "--execute"]).await.ended(0);
    assert_eq!(checkpoints(&fleet).await["0"], 19);
}

#[tokio::test]
async fn targets_that_exist_are_kept() {
    let (fleet, program) = processed().await;
    program.run(&["copy", "--to-group", "tools", "-p", "0", "--execute"]).await.ended(0);
    program.run(&["reset", "--to-sequence", "7", "--execute"]).await.ended(0);
    let plan = program.json(&["copy", "--to-group", "tools", "--execute"]).await;
    let effects: Vec<_> = plan["changes"].as_array().unwrap().iter().map(|change| &change["effect"]).collect();
    assert_eq!(effects, [&json!("no_change"), &json!("create")]);
    let copied = |group: Value| -> Vec<i64> {
        let partitions = group["partitions"].as_array().unwrap();
        partitions.iter().map(|partition| partition["checkpoint"]["sequence_number"].as_i64().unwrap()).collect()
    };
    assert_eq!(copied(program.json(&["describe", "-g", "tools"]).await), [19, 7]);
    program.run(&["copy", "--to-group", "tools", "--overwrite", "--execute"]).await.ended(0);
    assert_eq!(copied(program.json(&["describe", "-g", "tools"]).await), [7, 7]);
    program.run(&["copy", "--to-case", "verbatim", "--execute"]).await.ended(0);
    let verbatim = program.json(&["describe", "--blob-name-case", "verbatim", "--no-hub"]).await;
    assert_eq!(copied(verbatim), [7, 7]);
    program.run(&["copy", "--blob-name-case", "lower", "--to-case", "lower"]).await.ended(64);
    assert_eq!(checkpoints(&fleet).await, all_at(7), "the source stays");
}

#[tokio::test]
async fn an_interrupt_leaves_each_done_or_untouched() {
    let (fleet, program) = processed().await;
    for milliseconds in [0, 30, 60, 90, 120, 150, 200, 300] {
        let arguments = ["reset", "--to-sequence", "7", "--execute", "-o", "json"];
        let running = program.spawn(&arguments);
        tokio::time::sleep(std::time::Duration::from_millis(milliseconds)).await;
        let id = rustix::process::Pid::from_raw(i32::try_from(running.id().unwrap()).unwrap()).unwrap();
        let signals = [rustix::process::Signal::INT, rustix::process::Signal::TERM];
        rustix::process::kill_process(id, signals[usize::from(milliseconds % 60 == 0)]).unwrap();
        let run = crate::program::Run::of(running.wait_with_output().await.unwrap());
        let found = checkpoints(&fleet).await;
        // Before the handler of the signal is installed, it ends the program, which has written nothing by then.
        let reported: Value = serde_json::from_str(&run.stdout).unwrap_or(json!({ "changes": [] }));
        for change in reported["changes"].as_array().unwrap() {
            let number = found[change["partition"].as_str().unwrap()];
            let result = change["result"].as_str().unwrap_or("untouched");
            let expected = if result == "done" { 7 } else { 19 };
            assert!(number == expected || result.starts_with("unknown"), "{result}, but at {number}");
        }
        let owners = fleet.records().await;
        assert!(owners.values().all(|(owner, _)| owner.is_empty()), "{owners:?}");
        program.run(&["reset", "--to-sequence", "19", "--execute"]).await.ended(0);
    }
}
