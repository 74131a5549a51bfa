//! Processes of this program that end with the runner, however it ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child as Process, ChildStdin, Command};
use tokio::time::timeout;

use crate::chaos::Failure;

/// The exit status of a process whose runner is gone.
const ABANDONED: i32 = 3;

/// A process that is killed when this value is dropped. It holds the other end of the process's standard input.
pub struct Child {
    name: String,
    process: Process,
    orders: ChildStdin,
}

impl Child {
    /// Starts this program in the role that the arguments begin with. Its output goes to `{name}.out` and `{name}.log`.
    pub fn spawn(name: &str, args: impl IntoIterator<Item = OsString>, folder: &Path) -> Result<Self, Failure> {
        let log = File::options().append(true).create(true).open(folder.join(format!("{name}.log")))?;
        let mut process = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(File::create(folder.join(format!("{name}.out")))?)
            .stderr(log)
            // A Ctrl-C must reach only the runner.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let orders = process.stdin.take().ok_or("a child without standard input")?;
        Ok(Self { name: name.to_owned(), process, orders })
    }

    /// Returns `None` once it has ended and its end was detected.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    pub fn send(&self, signal: Signal) -> Result<(), Failure> {
        let id = self.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let id = id.ok_or_else(|| format!("{} has ended", self.name))?;
        Ok(kill_process(id, signal)?)
    }

    pub async fn order(&mut self, order: &str) -> io::Result<()> {
        self.orders.write_all(format!("{order}\n").as_bytes()).await
    }

    /// Returns how it ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Waits for its end; returns `None` if that takes longer.
    pub async fn end_within(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        timeout(limit, self.process.wait()).await.ok().transpose()
    }

    pub async fn kill(&mut self) -> io::Result<()> {
        self.process.kill().await
    }
}

/// For a child: exits when the runner is gone, which is when the standard input ends.
pub fn exit_with_parent() {
    kill_with_parent();
    thread::spawn(|| {
        // An error is equivalent to an end.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        abandoned();
    });
}

/// For a child: the system kills it when the runner ends, even while it is stopped. On systems other than Linux only
/// the end of the standard input applies.
pub fn kill_with_parent() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("it may outlive the runner: {error}");
    }
}

pub fn abandoned() -> ! {
    eprintln!("the runner is gone");
    std::process::exit(ABANDONED)
}
