//! What `ehcp` says of partitions whose events wait.

use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::store::{GroupStore, NameCase};
use eventhubs_checkpoint::{OwnerId, PartitionId};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::{Program, Run};

/// Three partitions of 20 events, of which the last one waits in partition 0, ten in partition 1, and none in partition
/// 2. Their owner processes nothing.
async fn group() -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(3, 12).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    for (partition, number) in [("0", "18"), ("1", "9"), ("2", "19")] {
        program.run(&["init", "--to-sequence", number, "-p", partition, "--execute"]).await.ended(0);
    }
    claim_all(&fleet).await;
    (fleet, program)
}

/// The owner claims each partition, and processes nothing.
async fn claim_all(fleet: &Fleet) {
    let group = fleet.observer(NameCase::Lower).group().clone();
    let store = GroupStore::connect(fleet.container.clone(), group, OwnerId::new("idle").unwrap()).await.unwrap();
    let listed = store.list_ownerships().await.unwrap().records;
    for partition in (0..3_u32).map(PartitionId::from) {
        let released = listed.iter().find(|seen| seen.partition == partition);
        let claimed = store.claim(&released.map_or_else(|| Claim::unowned(partition), Claim::over)).await;
        assert!(matches!(claimed, ClaimOutcome::Won(_)), "{claimed:?}");
    }
}

/// Runs a command until it ends with this code: the server's clock has whole seconds.
async fn run_until(program: &Program, arguments: &[&str], code: i32) -> Run {
    let started = Instant::now();
    loop {
        let run = program.run(arguments).await;
        if run.code == code {
            return run;
        }
        assert!(started.elapsed() < TIMEOUT, "{run:?}");
        sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn describe_shows_how_long_events_wait() {
    let (_fleet, program) = group().await;
    let group = program.json(&["describe"]).await;
    let exact = ["0", "1", "2"].map(|id| group["behind"][id]["is_exact"].clone());
    assert_eq!(exact, [json!(true), json!(false), json!(true)], "{}", group["behind"]);
    assert_eq!(group["behind"]["2"]["seconds"], 0.0);
    let run = program.run(&["describe", "-p", "1-2"]).await.ended(0);
    assert!(run.stdout.contains("3 partitions") && run.stdout.contains(" BEHIND "), "the group: {}", run.stdout);
    assert_eq!(run.stdout.lines().filter(|line| line.contains("  owned  ")).count(), 2, "{}", run.stdout);
    assert!(run.stdout.contains("  10  >"), "{}", run.stdout);
    assert_eq!(program.json(&["describe", "--no-hub"]).await["behind"], json!({}));
    // A program gets the same.
    for view in ["--members", "--state"] {
        assert!(program.json(&["describe", view]).await["behind"]["1"]["seconds"].is_number(), "{view}");
    }
    let rows = program.run(&["describe", "-o", "ndjson"]).await.ended(0).stdout;
    let row: Value = serde_json::from_str(rows.lines().nth(1).unwrap()).unwrap();
    assert_eq!((&row["id"], &row["behind"]["is_exact"]), (&json!("1"), &json!(false)));
    let csv = program.run(&["describe", "-o", "csv"]).await.ended(0).stdout;
    let column = csv.lines().next().unwrap().split(',').position(|name| name == "behind").unwrap();
    let seconds = csv.lines().nth(2).unwrap().split(',').nth(column).unwrap();
    assert!(seconds.parse::<u64>().is_ok(), "{csv}");
    program.run(&["describe", "-p", "7"]).await.ended(64);
}

#[tokio::test]
async fn the_lag_of_one_partition_is_its_own() {
    let (_fleet, program) = group().await;
    assert_eq!(program.run(&["lag", "-p", "1", "--sum"]).await.ended(0).stdout, "10\n");
    program.run(&["lag", "-p", "7"]).await.ended(64);
}

#[tokio::test]
async fn check_warns_of_events_that_wait() {
    let (_fleet, program) = group().await;
    program.run(&["check", "--lag-age-warn", "1h"]).await.ended(0);
    let run = run_until(&program, &["check", "--lag-age-warn", "0s"], 1).await;
    assert!(run.stdout.starts_with("EHCP WARNING - events wait for longer than 0s: 0-1 | lag=11 lag_age="), "{run:?}");
    let run = program.run(&["check", "--lag-age-warn", "0s", "--lag-age-crit", "0s"]).await.ended(2);
    assert!(run.stdout.contains("s;0;0 owners=1 unowned=0 paused=0 parked=0\n"), "{run:?}");
    let run = program.run(&["check", "--lag-age-warn", "1h", "--no-hub"]).await.ended(3);
    assert!(run.stdout.contains("the lag is unknown"), "{run:?}");
}

/// An operator knows that a paused partition stands still.
#[tokio::test]
async fn a_paused_partition_is_not_stuck() {
    let (fleet, program) = group().await;
    let stuck = async |code| {
        let options = ["doctor", "--stuck-after", "0s", "--second-look", "100ms", "--only", "stuck-partition"];
        let run = run_until(&program, &options, code).await;
        run.stdout.lines().next().unwrap_or_default().to_owned()
    };
    assert!(stuck(2).await.starts_with("warning stuck-partition in 0-1: 2 partitions"));
    program.run(&["doctor", "--only", "stuck-partition"]).await.ended(0);
    program.run(&["pause", "-p", "0-1", "--live", "--execute"]).await.ended(0);
    claim_all(&fleet).await;
    assert_eq!(stuck(0).await, "ok      stuck-partition");
    let report: Value = program.json(&["check", "--lag-age-warn", "0s", "--updated-within", "0s"]).await;
    assert_eq!((&report["state"], &report["paused"]), (&json!("ok"), &json!(2)), "{report}");
    assert_eq!(report["lag_age"]["seconds"], 0.0);
}
