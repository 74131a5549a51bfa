//! Counts every event exactly once, although some are delivered twice: `--help` describes the run.
//!
//! The code that an application needs is in `exactly_once/totals.rs`. The rest starts two processes, freezes one, kills
//! the other, and counts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(unix)]
#[path = "exactly_once/database.rs"]
mod database;
#[cfg(unix)]
#[path = "consumer/journal.rs"]
mod journal;
#[cfg(unix)]
#[path = "support/publisher.rs"]
#[allow(dead_code, reason = "shared with other examples")]
mod publisher;
#[cfg(unix)]
#[path = "exactly_once/report.rs"]
mod report;
#[cfg(unix)]
#[path = "support/runs.rs"]
mod runs;
#[cfg(unix)]
#[path = "exactly_once/scenario.rs"]
mod scenario;
#[cfg(unix)]
#[allow(dead_code, reason = "shared with other examples")]
mod support;
#[cfg(unix)]
#[path = "exactly_once/totals.rs"]
mod totals;
#[cfg(unix)]
#[path = "exactly_once/worker.rs"]
mod worker;
#[cfg(unix)]
#[path = "support/workers.rs"]
mod workers;
#[cfg(unix)]
#[path = "exactly_once/workspace.rs"]
mod workspace;

/// Any error of the example.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Counts events in a SQLite database, with the position in the same transaction as the results.
///
/// Two worker processes share an event hub. The first one is frozen (SIGSTOP) between the computation of a batch and
/// its transaction, until its lease has expired and the second one has counted the same events. Then it is woken, and
/// tries to commit. Later the second one is killed (SIGKILL), and the first one takes over. Needs Node.js 20 or newer,
/// for the storage emulator.
///
/// The exit status is 0 if every event was counted once, 1 if not, 2 after an error.
#[derive(Debug, Parser)]
struct Args {
    /// Leaves out the comparison of epoch and position: the woken process commits, and events are counted twice.
    #[arg(long)]
    without_fence: bool,

    /// The number of events to publish. If the steps take longer, there are more.
    #[arg(long, default_value_t = 4000, value_name = "N", value_parser = clap::value_parser!(u32).range(1000..))]
    events: u32,

    /// Keeps the database, the journal and the logs in this folder [default: a temporary folder].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,

    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One worker process, which the example starts itself.
    #[command(hide = true)]
    Worker { owner: String },
}

#[cfg(unix)]
#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let is_exact = match &args.role {
        Some(Role::Worker { owner }) => worker::run(owner, !args.without_fence).await.map(|()| true),
        None => scenario::run(&args).await,
    };
    match is_exact {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => 1.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            2.into()
        }
    }
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    Args::parse();
    eprintln!("error: this example freezes a process with SIGSTOP, which needs a Unix system");
    2.into()
}
