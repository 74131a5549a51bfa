//! The example `live_check`, on emulators.

use std::fs;

use tempfile::TempDir;
use tokio::process::Command;

use super::TIMEOUT;
use crate::process::{Process, build_examples};

#[tokio::test]
async fn everything_holds_on_emulators() {
    let example = build_examples(&["live_check"]).remove("live_check").unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("report.md");
    let mut command = Command::new(example);
    for variable in ["AZURE_STORAGE_CONNECTION_STRING", "EVENTHUBS_CONNECTION_STRING", "EVENTHUBS_ENDPOINT"] {
        command.env_remove(variable);
    }
    command.args(["--events=50", "--report"]).arg(&file);
    let mut process = Process::spawn("live_check", &mut command, folder.path());
    let status = process.end(5 * TIMEOUT).await;
    assert_eq!(status.code(), Some(0), "{}", process.output());
    let report = fs::read_to_string(file).unwrap();
    assert_eq!(report.trim_end(), process.output().trim_end());
    for expected in ["**Everything holds.**", "Storage: emulator", "\n| lost | 0 |\n", "is killed (SIGKILL)"] {
        assert!(report.contains(expected), "no {expected:?}: {report}");
    }
}
