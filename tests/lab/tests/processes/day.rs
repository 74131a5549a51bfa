//! Groups that connect with Microsoft Entra ID for longer than the life of their tokens: see `cargo day --help`.

use std::process::{Command, Output};

use eventhubs_checkpoint_lab::day::can_fake_clock;

/// Runs `day`. Returns `None` if it cannot run here.
fn day(arguments: &[&str]) -> Option<Output> {
    if !can_fake_clock() {
        println!("skipped: libfaketime is not installed");
        return None;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_day")).args(arguments).output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Some(output)
}

/// Handoffs and detached links authorize paths with tokens of different ages.
#[test]
fn a_group_outlives_its_tokens() {
    let arguments = ["--hours", "3", "--partitions", "4", "--instances", "2", "--visits-per-hour", "2"];
    if let Some(output) = day(&arguments) {
        assert!(output.status.success());
    }
}

#[test]
fn the_official_processor_outlives_its_tokens() {
    if let Some(output) = day(&["--official", "--hours", "3", "--partitions", "2", "--instances", "1"]) {
        assert!(output.status.success());
    }
}

/// Shows that the run notices expired tokens.
#[test]
fn the_official_processor_needs_renewable_tokens() {
    let arguments = ["--official", "--unwrapped", "--hours", "1.5", "--partitions", "2", "--instances", "1"];
    if let Some(output) = day(&arguments) {
        assert_eq!(output.status.code(), Some(1));
    }
}
