//! The files and settings that the processes share.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::Failure;
use crate::journal::Journal;

const FOLDER: &str = "EXACTLY_ONCE_FOLDER";
const CONTAINER: &str = "EXACTLY_ONCE_CONTAINER";
const STORAGE: &str = "AZURE_STORAGE_CONNECTION_STRING";
const HUB: &str = "EVENTHUBS_CONNECTION_STRING";
/// By then, SIGSTOP has stopped every thread of this process.
const STOPPED_WITHIN: Duration = Duration::from_millis(500);

/// The folder of one run, and where its processes connect to.
#[derive(Clone)]
pub struct Workspace {
    pub folder: PathBuf,
    pub container: String,
    pub storage: String,
    /// Contains the address of the emulator.
    pub hub: String,
}

impl Workspace {
    pub fn from_environment() -> Result<Self, Failure> {
        Ok(Self {
            folder: env::var(FOLDER)?.into(),
            container: env::var(CONTAINER)?,
            storage: env::var(STORAGE)?,
            hub: env::var(HUB)?,
        })
    }

    pub fn pass_to(&self, command: &mut Command) {
        command.env(FOLDER, &self.folder).env(CONTAINER, &self.container);
        command.env(STORAGE, &self.storage).env(HUB, &self.hub);
    }

    pub fn database(&self) -> PathBuf {
        self.folder.join("totals.sqlite")
    }

    /// Opens a journal of the run: `delivered` or `rejected`.
    pub fn journal(&self, name: &str) -> Result<Journal, Failure> {
        Journal::open(&self.folder.join(name))
    }

    fn request_file(&self, owner: &str) -> PathBuf {
        self.folder.join(format!("freeze-{owner}"))
    }

    fn frozen_file(&self, owner: &str) -> PathBuf {
        self.folder.join(format!("frozen-{owner}"))
    }

    pub fn request_freeze(&self, owner: &str) -> std::io::Result<()> {
        fs::write(self.request_file(owner), "")
    }

    pub fn is_freeze_requested(&self, owner: &str) -> bool {
        self.request_file(owner).exists()
    }

    pub fn is_frozen(&self, owner: &str) -> bool {
        self.frozen_file(owner).exists()
    }

    /// Freezes this process. Returns after another process has woken it.
    #[expect(clippy::disallowed_methods, reason = "called on a thread that may block")]
    pub fn freeze(&self, owner: &str) {
        // Only one of several concurrent calls renames the request.
        if fs::rename(self.request_file(owner), self.frozen_file(owner)).is_err() {
            return;
        }
        match kill_process(getpid(), Signal::STOP) {
            // The call can return before all threads have stopped.
            Ok(()) => thread::sleep(STOPPED_WITHIN),
            Err(error) => tracing::error!(%error, "cannot freeze this process"),
        }
    }
}
