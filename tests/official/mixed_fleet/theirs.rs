//! A processor of another SDK, in a process of its own.

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

/// How much of what it complained about is shown when the test fails.
const SHOWN: usize = 40;

/// Ends with this value, at the latest.
pub struct Theirs {
    sdk: Sdk,
    owner: String,
    child: Child,
    listening: JoinHandle<()>,
    complaints: Complaints,
}

/// What went wrong by its own account. None of it need be the fault of anybody: a partition that is taken over is one.
#[derive(Clone, Default)]
struct Complaints(Arc<Mutex<Vec<String>>>);

/// What it says in a line.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", untagged)]
enum Describe {
    Versions { versions: String },
    Owner { owner: String },
    Processed { processed: Vec<i64>, partition: String },
    Failed { failed: String },
}

impl Theirs {
    /// Starts it, and waits until it has told under which name it owns partitions.
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
        let complaints = Complaints::default();
        tokio::spawn(complain(child.stderr.take().unwrap(), complaints.clone()));
        let (told, mut owner) = watch::channel(String::new());
        let listener = Listener { told, processed: processed.clone(), complaints: complaints.clone() };
        let listening = tokio::spawn(listener.listen(child.stdout.take().unwrap()));
        let mut theirs = Self { sdk, owner: String::new(), child, listening, complaints };
        let owner = timeout(TIMEOUT, owner.wait_for(|owner| !owner.is_empty())).await;
        let told = owner.unwrap_or_else(|_| panic!("{theirs} does not claim anything")).unwrap().to_string();
        theirs.owner = told;
        theirs
    }

    /// Under which it owns partitions.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Ends it in good order.
    pub async fn leave(mut self) {
        drop(self.child.stdin.take());
        let ended = timeout(TIMEOUT, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("{self} does not end")).unwrap();
        assert!(status.success(), "{self} ended with {status}");
        self.hear_out().await;
    }

    /// Kills it: it says and does nothing any more.
    pub async fn die(mut self) {
        self.child.kill().await.unwrap();
        self.hear_out().await;
    }

    /// What it said last is still on its way.
    async fn hear_out(&mut self) {
        let heard = timeout(TIMEOUT, &mut self.listening).await;
        heard.unwrap_or_else(|_| panic!("{self} goes on talking")).unwrap();
    }
}

impl fmt::Display for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {:?} processor {:?}", self.sdk, self.owner)
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("-- the last complaints of {self}:\n{}", self.complaints.last());
        }
    }
}

impl Complaints {
    fn add(&self, complaint: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(complaint);
    }

    fn last(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all[all.len().saturating_sub(SHOWN)..].join("\n")
    }
}

struct Listener {
    told: watch::Sender<String>,
    processed: Processed,
    complaints: Complaints,
}

impl Listener {
    /// Takes down what it says until it has ended. Of a line that death cut short nothing was done either.
    async fn listen(self, output: impl AsyncRead + Unpin) {
        let mut lines = BufReader::new(output).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            match serde_json::from_str(&line) {
                Ok(said) => self.take_down(said),
                Err(_) => self.complaints.add(line),
            }
        }
    }

    fn take_down(&self, said: Describe) {
        match said {
            Describe::Versions { versions } => println!("met {versions}"),
            Describe::Owner { owner } => drop(self.told.send_replace(owner)),
            Describe::Processed { processed, partition } => {
                self.processed.add(&self.told.borrow(), &partition, &processed)
            }
            Describe::Failed { failed } => self.complaints.add(failed),
        }
    }
}

async fn complain(errors: impl AsyncRead + Unpin, complaints: Complaints) {
    let mut lines = BufReader::new(errors).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        complaints.add(line);
    }
}
