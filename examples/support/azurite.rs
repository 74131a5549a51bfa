//! Runs Azurite, the emulator of Azure Storage, for the duration of its use.
//!
//! [`Azurite::start`] installs the pinned version if necessary and starts a separate Azurite; [`shared`] returns one
//! for the whole process. Azurite ends when its standard input closes, so it ends with this process, even after a
//! crash.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::NamedTempFile;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use super::install::{check_node, npm_ci};
use super::repository;

/// If this is set to the blob endpoint of a running Azurite, for example `http://127.0.0.1:10000/devstoreaccount1`,
/// that Azurite is used.
const ENDPOINT_VARIABLE: &str = "AZURITE_BLOB_ENDPOINT";

/// The account and key of every Azurite.
pub(crate) const ACCOUNT: &str = "devstoreaccount1";
pub(crate) const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

const START_TIMEOUT: Duration = Duration::from_secs(90);
const START_POLL: Duration = Duration::from_millis(50);

/// The error is one complete sentence.
pub(crate) type Result<T, E = String> = std::result::Result<T, E>;

static SHARED: OnceCell<Azurite> = OnceCell::const_new();

/// Returns the Azurite of this process. The first call starts it.
pub(crate) async fn shared() -> Result<&'static Azurite> {
    SHARED.get_or_try_init(Azurite::start).await
}

/// A running Azurite. Dropping it stops it. With `--location`, Azurite first writes its data to disk.
pub(crate) struct Azurite {
    endpoint: String,
    process: Option<Child>,
    keeps_data: bool,
}

impl Azurite {
    /// Starts Azurite on a free port, or uses the one in the environment.
    pub(crate) async fn start() -> Result<Self> {
        if let Ok(endpoint) = env::var(ENDPOINT_VARIABLE) {
            return Ok(Self { endpoint: endpoint.trim_end_matches('/').to_owned(), process: None, keeps_data: false });
        }
        Self::start_with(&[]).await
    }

    /// Starts Azurite on a free port with additional options, for example `--oauth basic`, or `--location FOLDER` to
    /// keep the data on disk.
    pub(crate) async fn start_with(options: &[&str]) -> Result<Self> {
        check_node().map_err(|error| {
            format!("{error}, or set {ENDPOINT_VARIABLE} to a running Azurite, like http://127.0.0.1:10000/{ACCOUNT}")
        })?;
        tokio::task::spawn_blocking(|| npm_ci(&folder()))
            .await
            .map_err(|error| format!("failed to install Azurite: {error}"))??;
        Self::launch(options).await
    }

    /// Returns the URL of the blob service, including the account.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns a connection string with the account key.
    pub(crate) fn connection_string(&self) -> String {
        format!("AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={}", self.endpoint())
    }

    async fn launch(options: &[&str]) -> Result<Self> {
        let log = NamedTempFile::new()
            .map_err(|error| format!("cannot create a temporary file for Azurite's output: {error}"))?;
        let mut azurite = Self {
            endpoint: String::new(),
            process: Some(spawn_azurite(&log, options)?),
            keeps_data: options.contains(&"--location"),
        };
        let started = Instant::now();
        loop {
            let output = String::from_utf8_lossy(&read_file(log.path())?).into_owned();
            if let Some(address) = listening_address(&output) {
                azurite.endpoint = format!("{address}/{ACCOUNT}");
                return Ok(azurite);
            }
            if matches!(azurite.process.as_mut().map(Child::try_wait), Some(Ok(Some(_)) | Err(_))) {
                return Err(format!("Azurite ended at its start; its output: {output}"));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(format!("Azurite was not listening after {START_TIMEOUT:?}; its output: {output}"));
            }
            sleep(START_POLL).await;
        }
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            if !self.keeps_data {
                // The process may have ended already.
                let _ = process.kill();
            }
            // Closes the standard input, which ends the process.
            let _ = process.wait();
        }
    }
}

/// Starts Azurite on any free port. Only this process has the writing end of its standard input.
fn spawn_azurite(log: &NamedTempFile, options: &[&str]) -> Result<Child> {
    log.reopen()
        .and_then(|output| {
            Command::new("node")
                .args(["run.mjs", "127.0.0.1", "0"])
                .args(options)
                .current_dir(folder())
                .stdin(Stdio::piped())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()
        })
        .map_err(|error| format!("cannot start Azurite: {error}"))
}

/// Finds the address in the line with which Azurite reports that it listens.
fn listening_address(output: &str) -> Option<&str> {
    let (_, rest) = output.split_once("successfully listens on ")?;
    rest.split_once('\n').map(|(address, _)| address.trim())
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn folder() -> PathBuf {
    repository::root().join("azurite")
}
