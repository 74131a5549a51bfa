//! The example `exactly_once`: two processes on a database, one of them frozen past its lease, the other one killed.

use eventhubs_checkpoint_lab::history::Positions;
use tempfile::TempDir;
use tokio::process::Command;

use super::TIMEOUT;
use crate::journal::{self, Summary};
use crate::process::{Process, build_examples};

/// Runs the example, and returns its exit status and the values of its table.
async fn run(folder: &TempDir, arguments: &[&str]) -> (Option<i32>, impl Fn(&str) -> String) {
    let example = build_examples(&["exactly_once"]).remove("exactly_once").unwrap();
    let mut command = Command::new(example);
    command.args(arguments).arg("--folder").arg(folder.path());
    let mut process = Process::spawn("exactly_once", &mut command, folder.path());
    let status = process.end(2 * TIMEOUT).await;
    let table = process.output();
    let value = move |name: &str| {
        let row = table.lines().find(|line| line.split("  ").next() == Some(name));
        row.and_then(|row| row.split_whitespace().last()).unwrap_or_else(|| panic!("no {name}: {table}")).to_owned()
    };
    (status.code(), value)
}

/// What the handlers of both processes got, by their journal.
fn delivered(folder: &TempDir) -> Summary {
    let runs = journal::read(&folder.path().join("delivered"));
    let mut last = Positions::new();
    for run in &runs {
        let last = last.entry(run.partition.clone()).or_insert(run.last);
        *last = run.last.max(*last);
    }
    Summary::of(&runs, &last)
}

#[tokio::test]
async fn every_event_is_counted_once() {
    let folder = TempDir::new().unwrap();
    let (code, value) = run(&folder, &[]).await;
    let delivered = delivered(&folder);
    assert!(delivered.duplicates > 0 && delivered.lost.is_empty(), "events are delivered again: {delivered:?}");
    assert_eq!(value("delivered"), delivered.processed.to_string());
    assert_eq!(value("delivered again"), delivered.duplicates.to_string());
    assert_ne!(value("rejected, because too late"), "0", "the woken process tries to commit");
    assert_eq!(value("published"), (delivered.processed - delivered.duplicates).to_string());
    assert_eq!(value("counted"), value("published"));
    for (name, expected) in [("counted twice", "0"), ("lost", "0"), ("amounts", "correct")] {
        assert_eq!(value(name), expected, "{name}");
    }
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn without_the_fence_events_are_counted_twice() {
    let folder = TempDir::new().unwrap();
    let (code, value) = run(&folder, &["--without-fence"]).await;
    assert_eq!((value("rejected, because too late").as_str(), value("amounts").as_str()), ("0", "wrong"));
    assert!(value("counted twice").parse::<u64>().unwrap() > 0);
    assert_eq!(code, Some(1));
}
