//! Live groups of this crate and of the published SDKs.

use serde_json::json;
use tokio::time::Instant;

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::Program;
use crate::sdk::Sdk;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_this_crate() {
    let mut fleet = Fleet::with_batches(4, 16).await;
    fleet.all_published().await;
    let (a, b) = (fleet.own("a").await, fleet.own("b").await);
    fleet.all_processed().await;
    fleet.shared_among(&["a", "b"]).await;
    let program = Program::for_fleet(&fleet).await;
    let group = program.json(&["describe"]).await;
    let summary = &group["group"];
    assert_eq!((&summary["state"], &summary["members"], &summary["unowned"]), (&json!("stable"), &json!(2), &json!(0)));
    assert_eq!(summary["lag"], json!({ "events": 0, "state": "known" }));
    for member in group["members"].as_array().unwrap() {
        assert_eq!(member["sdk"], "eventhubs-checkpoint");
        assert_eq!(member["partitions"].as_array().unwrap().len(), 2, "{member}");
    }
    let run = program.run(&["list"]).await.ended(0);
    assert!(run.stdout.contains("localhost  orders     $default  lower  stable"), "{}", run.stdout);
    for format in ["table", "wide", "csv", "ndjson"] {
        let run = program.run(&["describe", "-o", format]).await.ended(0);
        let rows = run.stdout.lines().filter(|line| line.contains("owned") && !line.contains("owners")).count();
        assert_eq!(rows, 4, "{format}: {}", run.stdout);
    }
    a.shut_down().await;
    b.shut_down().await;
    let summary = program.json(&["describe", "--no-hub"]).await;
    assert_eq!((&summary["group"]["state"], &summary["group"]["unowned"]), (&json!("empty"), &json!(4)));
}

/// Records of the Go and Rust SDKs, whose names are written as they are given.
#[tokio::test]
async fn the_letter_case_in_use_is_found() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-latest", "--blob-name-case", "verbatim", "--execute"]).await.ended(0);
    let group = program.json(&["describe"]).await;
    assert_eq!((&group["group"]["blob_name_case"], &group["group"]["lag"]["events"]), (&json!("verbatim"), &json!(0)));
    program.run(&["reset", "--to-earliest", "--blob-name-case", "lower", "--execute"]).await.ended(0);
    let run = program.run(&["describe"]).await.ended(0);
    assert!(run.stderr.contains("see --blob-name-case verbatim"), "{}", run.stderr);
    let listed = program.run(&["list", "-o", "csv"]).await.ended(0).stdout;
    let cases: Vec<_> = listed.lines().skip(1).map(|line| line.split(',').nth(3).unwrap()).collect();
    assert_eq!(cases, ["verbatim", "lower"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_javascript() {
    foreign(Sdk::JavaScript).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_python() {
    foreign(Sdk::Python).await;
}

/// It is shown, protected, reset when it is stopped, and reset while it runs with `--force`.
async fn foreign(sdk: Sdk) {
    if !sdk.is_here() {
        return;
    }
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let processor = fleet.foreign(sdk).await;
    fleet.all_processed().await;
    let program = Program::for_fleet(&fleet).await;
    let group = program.json(&["describe"]).await;
    assert_eq!(group["group"]["state"], "stable", "{group}");
    assert_eq!(group["members"][0]["id"], processor.owner());
    assert_eq!(group["members"][0]["sdk"], "other");
    assert_eq!(group["group"]["lag"]["events"], 0);

    let reset = ["reset", "--to-sequence", "4", "--execute"];
    let run = program.run(&[&reset[..], &["--live"]].concat()).await.ended(3);
    assert!(run.stderr.contains("an owner of another SDK"), "{}", run.stderr);
    fleet.processed.clear();
    // The processor may claim a partition while the operator has it. It always does if the operator has more of them.
    for partition in ["0", "1"] {
        let forced = [&reset[..], &["-p", partition, "--live", "--force", "--settle", "3s"]].concat();
        let started = Instant::now();
        while program.run(&forced).await.code != 0 {
            assert!(started.elapsed() < TIMEOUT, "partition {partition} is never reset");
        }
    }
    // A JavaScript processor does not detect that it lost a partition, and reads on until it ends.
    if sdk == Sdk::Python {
        for partition in ["0", "1"] {
            fleet.processes_range(partition, 5, 19).await;
        }
        fleet.all_processed().await;
    }

    processor.shut_down().await;
    fleet.processed.clear();
    // A Python processor that stops while it renews releases under the version before, which fails. The next reset is
    // refused until that lease has expired.
    let started = Instant::now();
    loop {
        let run = program.run(&["reset", "--to-sequence", "9", "--execute"]).await;
        if run.code == 0 {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "it stopped, but its partitions are never reset: {}", run.stderr);
        run.ended(3);
    }
    let processor = fleet.foreign(sdk).await;
    for partition in ["0", "1"] {
        fleet.processes_range(partition, 10, 19).await;
    }
    processor.kill().await;
}
