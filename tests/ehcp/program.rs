//! Runs the program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::fleet::{Fleet, TIMEOUT};
use crate::support::azurite;

/// The program with an environment and a folder of its own.
pub struct Program {
    folder: TempDir,
    environment: BTreeMap<String, String>,
}

/// What a run of the program showed.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Program {
    /// Returns the program without any settings.
    pub fn bare() -> Self {
        Self { folder: TempDir::new().unwrap(), environment: BTreeMap::new() }
    }

    /// Returns the program with the connections of a fleet: secrets in files, names in the environment.
    pub async fn for_fleet(fleet: &Fleet) -> Self {
        let mut program = Self::bare();
        let lease_duration = format!("{}s", fleet.expiry.as_secs());
        let storage = azurite::shared().await.unwrap().connection_string();
        program.write("hub.txt", &fleet.hub.connection_string_with_port());
        program.write("storage.txt", &storage);
        for (name, value) in [
            ("EVENTHUBS_CONNECTION_STRING", "@hub.txt"),
            ("AZURE_STORAGE_CONNECTION_STRING", "@storage.txt"),
            ("EHCP_CONTAINER", fleet.container_name.as_str()),
            ("EHCP_READ_GROUP", "tools"),
            // The members have the same lease duration.
            ("EHCP_FOREIGN_LEASE_DURATION", lease_duration.as_str()),
        ] {
            program.set(name, value);
        }
        program
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.insert(name.to_owned(), value.to_owned());
    }

    pub fn unset(&mut self, name: &str) {
        self.environment.remove(name);
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, file: &str, text: &str) {
        fs::write(self.folder().join(file), text).unwrap();
    }

    /// Returns the backups that it wrote, in order.
    pub fn backups(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path());
        let is_backup = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("ehcp-");
        let mut backups: Vec<_> = files.filter(is_backup).collect();
        backups.sort();
        backups
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ehcp"));
        command.env_clear().envs(&self.environment);
        // The program finds its profiles there.
        command.env("HOME", self.folder()).env("XDG_CONFIG_HOME", self.folder().join("config"));
        command.args(arguments).current_dir(self.folder()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    pub fn spawn(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub async fn run(&self, arguments: &[&str]) -> Run {
        let run = self.command(arguments).output();
        Run::of(timeout(TIMEOUT, run).await.unwrap_or_else(|_| panic!("{arguments:?} does not end")).unwrap())
    }

    /// Runs the program, and returns the JSON that it writes.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let run = self.run(&[arguments, &["-o", "json"]].concat()).await;
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {run:?}"))
    }
}

impl Run {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Fails if the exit code is another one.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        self
    }
}
