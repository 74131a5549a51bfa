//! A processor of another SDK, in its own process.

use std::fmt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::fleet::TIMEOUT;
use super::processed::Processed;
use super::sdk::Sdk;

/// How many of its last error lines are shown if the test fails.
const SHOWN: usize = 40;

/// Ends with this value, at the latest.
pub struct ForeignProcessor {
    sdk: Sdk,
    owner: String,
    child: Child,
    listening: JoinHandle<()>,
    error_lines: ErrorLines,
}

/// The errors that it printed. They need not be defects: a partition that is taken over is one.
#[derive(Clone, Default)]
struct ErrorLines(Arc<Mutex<Vec<String>>>);

/// A line of its output.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", untagged)]
enum Output {
    Versions { versions: String },
    Owner { owner: String },
    Started { started: String, start: Option<u64>, checkpoint: Option<i64> },
    Processed { processed: Vec<i64>, partition: String, start: Option<u64> },
    Failed { failed: String },
}

impl ForeignProcessor {
    /// Starts it, and waits until it has reported the name under which it owns partitions.
    pub async fn start(sdk: Sdk, settings: &Value, processed: &Processed) -> Self {
        let installed = tokio::task::spawn_blocking(move || sdk.installed("processor").unwrap()).await.unwrap();
        let mut child = Command::from(installed)
            .arg(settings.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let error_lines = ErrorLines::default();
        tokio::spawn(record_errors(child.stderr.take().unwrap(), error_lines.clone()));
        let (owner_sender, mut owner) = watch::channel(String::new());
        let listener = Listener { owner_sender, processed: processed.clone(), error_lines: error_lines.clone() };
        let listening = tokio::spawn(listener.listen(child.stdout.take().unwrap()));
        let mut foreign = Self { sdk, owner: String::new(), child, listening, error_lines };
        let named = timeout(TIMEOUT, owner.wait_for(|owner| !owner.is_empty())).await;
        let named = named.unwrap_or_else(|_| panic!("{foreign} does not claim anything"));
        let name = named.map(|name| name.to_string());
        let Ok(name) = name else { panic!("{foreign} has ended with {}", foreign.child.wait().await.unwrap()) };
        foreign.owner = name;
        foreign
    }

    /// Returns the name under which it owns partitions.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Shuts it down gracefully.
    pub async fn shut_down(mut self) {
        drop(self.child.stdin.take());
        let ended = timeout(TIMEOUT, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("{self} does not end")).unwrap();
        assert!(status.success(), "{self} ended with {status}");
        self.drain_output().await;
    }

    /// Kills it.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
        self.drain_output().await;
    }

    /// Waits until it has ended by itself, with an error. Returns its last error lines.
    pub async fn ends_with_error(mut self) -> String {
        // Waiting closes the standard input, which shuts it down.
        let input = self.child.stdin.take();
        let ended = timeout(TIMEOUT, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("{self} does not end")).unwrap();
        drop(input);
        assert!(!status.success(), "{self} ended with {status}");
        self.drain_output().await;
        self.error_lines.last()
    }

    /// Stops it at once, so that it can be continued.
    #[cfg(unix)]
    pub fn pause(&self) {
        self.send(rustix::process::Signal::STOP);
    }

    /// Continues it after a pause.
    #[cfg(unix)]
    pub fn resume(&self) {
        self.send(rustix::process::Signal::CONT);
    }

    #[cfg(unix)]
    fn send(&self, signal: rustix::process::Signal) {
        let id = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        rustix::process::kill_process(id.unwrap(), signal).unwrap();
    }

    /// Its last output may still be in transit.
    async fn drain_output(&mut self) {
        let drained = timeout(TIMEOUT, &mut self.listening).await;
        drained.unwrap_or_else(|_| panic!("{self} does not stop its output")).unwrap();
    }
}

impl fmt::Display for ForeignProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {:?} processor {:?}", self.sdk, self.owner)
    }
}

impl Drop for ForeignProcessor {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("-- the last error lines of {self}:\n{}", self.error_lines.last());
        }
    }
}

impl ErrorLines {
    fn add(&self, line: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn last(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all[all.len().saturating_sub(SHOWN)..].join("\n")
    }
}

struct Listener {
    owner_sender: watch::Sender<String>,
    processed: Processed,
    error_lines: ErrorLines,
}

impl Listener {
    /// Records its output until it has ended. An incomplete last line is skipped, because its events were not
    /// processed.
    async fn listen(self, output: impl AsyncRead + Unpin) {
        let mut lines = BufReader::new(output).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            match serde_json::from_str(&line) {
                Ok(output) => self.record(output),
                Err(_) => self.error_lines.add(line),
            }
        }
    }

    fn record(&self, output: Output) {
        match output {
            Output::Versions { versions } => println!("met {versions}"),
            Output::Owner { owner } => drop(self.owner_sender.send_replace(owner)),
            Output::Started { started, start, checkpoint } => {
                self.processed.start(&self.owner_sender.borrow(), &started, start, checkpoint);
            }
            Output::Processed { processed, partition, start } => {
                self.processed.add(&self.owner_sender.borrow(), &partition, start, &processed);
            }
            Output::Failed { failed } => self.error_lines.add(failed),
        }
    }
}

async fn record_errors(errors: impl AsyncRead + Unpin, error_lines: ErrorLines) {
    let mut lines = BufReader::new(errors).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        error_lines.add(line);
    }
}
