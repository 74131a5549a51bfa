//! Moves tokio's clock, and lets the wall clock follow it, by `libfaketime`.
//!
//! The library replaces the C function that reads the wall clock. It adds an offset, which it reads from a file on
//! every call. This process writes into that file how far tokio's clock is ahead of the machine's. The wall clock must
//! not run faster than tokio's: a slow run would add minutes per hour, and a client that sleeps until a token is old
//! would find it older.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, io};

use eventhubs_checkpoint::testing::{SystemWallClock, WallClock};
use tokio::task::yield_now;
use tokio::time::{Instant, advance};

use super::Failure;
use super::relay::Traffic;

/// Names the file with the offset. Set only in a process whose clock is faked.
const OFFSET_FILE: &str = "FAKETIME_TIMESTAMP_FILE";

/// Where distributions install the library. `LIBFAKETIME` names another place.
const PLACES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

/// The time after which all tasks get the opportunity to run.
const STEP: Duration = Duration::from_millis(10);

/// How far the wall clock may be behind before it counts as not faked. The machine may correct its clock meanwhile.
const TOLERANCE: Duration = Duration::from_secs(1);

/// How many times all sockets are polled after the last bytes have passed before time passes.
const QUIET_POLLS: u32 = 6;

/// The wall clock of this process.
pub(super) struct Faked {
    offset: File,
}

impl Faked {
    /// Returns the clock if it is faked in this process.
    pub(super) fn of_this_process() -> Option<Self> {
        let offset = OpenOptions::new().write(true).open(env::var_os(OFFSET_FILE)?).ok()?;
        Some(Self { offset })
    }

    fn set(&self, ahead: Duration) -> io::Result<()> {
        let text = format!("+{:010}.{:03}\n", ahead.as_secs(), ahead.subsec_millis());
        self.offset.write_all_at(text.as_bytes(), 0)
    }

    /// Advances tokio's clock, and the wall clock with it, as fast as all tasks can follow. Ends with an error if the
    /// wall clock is not faked.
    #[expect(clippy::disallowed_methods, reason = "compares tokio's paused clock with the clock of the machine")]
    pub(super) async fn advance(self, traffic: &Traffic) -> Failure {
        // Tokio does not advance the clock by itself while a blocking task runs. It would not wait for bytes that are
        // on their way between two sockets.
        let (_running, ended) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || ended.recv());
        // In this order: this process may be suspended between two of these lines, and then time may seem to have
        // passed on the wall clock that has not, but not the other way around.
        let wall = SystemWallClock.now();
        let began = Instant::now();
        let really_began = std::time::Instant::now();
        loop {
            until_quiet(traffic).await;
            advance(STEP).await;
            if let Err(error) = self.set(began.elapsed().saturating_sub(really_began.elapsed())) {
                return error.into();
            }
            if SystemWallClock.now() - wall + TOLERANCE < began.elapsed() {
                return "libfaketime does not change the wall clock".into();
            }
        }
    }
}

/// Lets all tasks run until no bytes are on their way.
async fn until_quiet(traffic: &Traffic) {
    let (mut quiet, mut passes) = (0, traffic.passes());
    while quiet < QUIET_POLLS {
        yield_now().await;
        quiet = if traffic.passes() == passes { quiet + 1 } else { 0 };
        passes = traffic.passes();
    }
}

/// Runs this program again with the same arguments and with a faked clock.
pub(super) fn repeat_with_faked_clock() -> Result<ExitCode, Failure> {
    let library = library().ok_or(
        "libfaketime is not installed: install the package `faketime`, or set LIBFAKETIME to the path of the library",
    )?;
    let offset = tempfile::NamedTempFile::new()?;
    (Faked { offset: offset.reopen()? }).set(Duration::ZERO)?;
    let status = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env("LD_PRELOAD", library)
        .env(OFFSET_FILE, offset.path())
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .status()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX).into())
}

/// Returns whether `libfaketime` is installed.
#[must_use]
pub fn can_fake_clock() -> bool {
    library().is_some()
}

fn library() -> Option<PathBuf> {
    let named = env::var_os("LIBFAKETIME").map(PathBuf::from);
    named.into_iter().chain(PLACES.map(PathBuf::from)).find(|path| path.exists())
}
