//! `ehcp cost`: what it shows, and its exit codes.

use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::program::Program;
use crate::support::repository;

fn rounded(value: &Value) -> i64 {
    format!("{:.0}", value.as_f64().unwrap()).parse().unwrap()
}

#[tokio::test]
async fn a_planned_group_needs_no_connection() {
    let program = Program::bare();
    let run = program.run(&["cost", "--partitions", "32", "--instances", "4"]).await.ended(0);
    let page = std::fs::read_to_string(repository::root().join("docs/ehcp.md")).unwrap();
    let shown = format!("$ ehcp cost --partitions 32 --instances 4\n{}```", run.stdout);
    assert!(run.stdout.contains("10.64") && page.contains(&shown), "docs/ehcp.md must show:\n{shown}");
}

#[tokio::test]
async fn settings_and_prices_are_options() {
    let program = Program::bare();
    let size = ["cost", "--partitions", "32", "--instances", "4"];
    let settings = ["--fast-failover", "--busy", "8", "--checkpoint-interval", "30s"];
    let shown = program.json(&[&size[..], &settings, &["--price-list", "0.5", "--price-other", "0.1"]].concat()).await;
    assert_eq!((&shown["schema"], &shown["busy_partitions"]), (&json!("ehcp.cost/1"), &json!(8)));
    assert_eq!(shown["prices"], json!({ "list": 0.5, "other": 0.1, "sample_date": null }));
    let rows = shown["requests"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| rounded(&row["per_hour"])).collect::<Vec<_>>(), [217, 0, 7433, 4114, 960, 12724]);
    assert_eq!(rows.iter().map(|row| rounded(&row["usd_per_month"])).collect::<Vec<_>>(), [8, 0, 54, 30, 7, 99]);
    let by_instance = ["--lease-scope", "instance", "--lease-duration", "2m", "--interval", "20s", "--busy", "0"];
    let shown = program.json(&[&size[..], &by_instance].concat()).await;
    assert_eq!(rounded(&shown["requests"][5]["per_hour"]), 5612);
}

#[tokio::test]
async fn wrong_settings_are_refused() {
    let program = Program::bare();
    let run = program.run(&["cost", "--partitions", "4", "--instances", "1", "--lease-duration", "5s"]).await.ended(64);
    assert!(run.stderr.contains("`with_lease_duration` is 5s, but must be at least three times"), "{}", run.stderr);
    for wrong in [
        &["--partitions", "4"][..],
        &["--partitions", "0", "--instances", "1"],
        &["--partitions", "4", "--instances", "1", "--price-list", "-1"],
        &["--partitions", "4", "--instances", "1", "--fast-failover", "--interval", "5s"],
        // Without a size, it needs a group.
        &[],
    ] {
        program.run(&[&["cost"], wrong].concat()).await.ended(64);
    }
}

/// Its names have a capital, so its instances list the other blob-name casing, too.
#[tokio::test]
async fn the_size_of_a_group_is_in_its_records() {
    let fleet = Fleet::with_batches(4, 8).await;
    let _owner = fleet.own("worker-1").await;
    fleet.owns_all("worker-1").await;
    fleet.all_processed().await;
    let program = Program::for_fleet(&fleet).await;
    let run = program.run(&["cost"]).await.ended(0);
    let headline = "localhost/orders/$Default  4 partitions, 1 instance, 4 busy, ";
    assert!(run.stdout.starts_with(headline) && run.stderr.is_empty(), "{run:?}");
    let shown = program.json(&["cost", "--instances", "2"]).await;
    assert_eq!((&shown["partitions"], &shown["instances"]), (&json!(4), &json!(2)));
    assert_eq!(rounded(&shown["requests"][0]["per_hour"]), 37, "two looks at the other casing in 20 min");
    program.run(&["cost", "-g", "billing"]).await.ended(1);
}
