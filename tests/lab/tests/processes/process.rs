//! Examples of this crate as separate processes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command as BlockingCommand, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// The program of the Event Hubs emulator.
pub const EMULATOR: &str = "eventhubs-emulator";

/// How many lines of a process's standard error are shown if the test fails.
const SHOWN: usize = 60;

/// Builds examples and the emulator with the profile of this test, and returns their paths. `cargo test` has built them
/// already, unless it was run for this test only.
pub fn build_examples(names: &[&str]) -> BTreeMap<String, PathBuf> {
    let mut cargo = BlockingCommand::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--all-features", "--message-format=json"]);
    cargo.arg(format!("--bin={EMULATOR}")).args(names.iter().map(|name| format!("--example={name}")));
    cargo.args((!cfg!(debug_assertions)).then_some("--release"));
    let output = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).output().unwrap();
    assert!(output.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    let built = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).unwrap();
        let executable = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), executable.into()))
    });
    built.collect()
}

/// A process that ends with this value, at the latest. The end of its output is shown if the test fails.
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts a process. Its output goes to files with its name in this folder.
    pub fn spawn(name: &str, command: &mut Command, folder: &Path) -> Self {
        let (stdout, stderr) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.err")));
        command.stdin(Stdio::null()).stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let child = command.kill_on_drop(true).spawn().unwrap();
        Self { name: name.to_owned(), child, stdout, stderr }
    }

    pub fn output(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap()
    }

    /// Returns what it has written to its standard error.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    /// Waits for a first whole line on its standard output.
    pub async fn first_line(&mut self, deadline: Duration) -> String {
        let started = Instant::now();
        loop {
            if let Some((line, _)) = self.output().split_once('\n') {
                return line.to_owned();
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && started.elapsed() < deadline, "{} printed nothing: {ended:?}", self.name);
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn send(&self, signal: Signal) {
        let id = self.child.id().unwrap_or_else(|| panic!("{} has already ended", self.name));
        kill_process(Pid::from_raw(id.try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// Sends the signal repeatedly until the process ends: a signal too soon after the first one does not count.
    pub async fn end_by(&mut self, signal: Signal, deadline: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < deadline, "{} has not ended after {deadline:?}", self.name);
            self.send(signal);
            if let Ok(ended) = timeout(Duration::from_millis(100), self.child.wait()).await {
                return ended.unwrap();
            }
        }
    }

    pub async fn end(&mut self, deadline: Duration) -> ExitStatus {
        let ended = timeout(deadline, self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("{} has not ended after {deadline:?}", self.name)).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            let said = fs::read_to_string(&self.stderr).unwrap_or_default();
            let from = said.lines().count().saturating_sub(SHOWN);
            let last: Vec<_> = said.lines().skip(from).collect();
            eprintln!("-- the end of the output of {}:\n{}", self.name, last.join("\n"));
        }
    }
}
