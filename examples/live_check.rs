//! Verifies this crate against a storage account and an event hub in Azure, and writes a report. `--help` lists the
//! options.
//!
//! The worker processes are in `live_check/worker.rs`, what happens to them in `live_check/scenario.rs`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use connection::{HubArgs, StorageArgs};

#[cfg(unix)]
#[path = "live_check/check.rs"]
mod check;
#[path = "support/connection.rs"]
#[cfg_attr(not(unix), allow(dead_code, reason = "the example needs Unix"))]
mod connection;
#[cfg(unix)]
#[path = "live_check/counted.rs"]
mod counted;
#[cfg(unix)]
#[path = "support/hub.rs"]
mod hub;
#[cfg(unix)]
#[path = "live_check/journal.rs"]
mod journal;
#[cfg(unix)]
#[path = "live_check/publisher.rs"]
mod publisher;
#[cfg(unix)]
#[path = "live_check/report.rs"]
mod report;
#[cfg(unix)]
#[path = "live_check/rules.rs"]
mod rules;
#[cfg(unix)]
#[path = "support/runs.rs"]
mod runs;
#[cfg(unix)]
#[path = "live_check/scenario.rs"]
mod scenario;
#[cfg(unix)]
#[path = "support/signals.rs"]
mod signals;
#[cfg(unix)]
#[path = "live_check/steps.rs"]
mod steps;
#[cfg(unix)]
#[allow(dead_code, reason = "shared with other examples")]
mod support;
#[cfg(unix)]
#[path = "live_check/tally.rs"]
mod tally;
#[cfg(unix)]
#[path = "live_check/worker.rs"]
mod worker;
#[cfg(unix)]
#[path = "support/workers.rs"]
mod workers;

/// Any error of the example.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Verifies this crate against the service, with one command, and prints a report in Markdown.
///
/// Use a container and an event hub that nothing else uses: this program publishes events, disconnects other readers of
/// the consumer group, and removes the blobs that it makes. The container is created if it does not exist, and must be
/// empty.
///
/// First it checks the rules of the storage that this crate relies on. Then worker processes share the event hub while
/// it publishes: one joins, one ends by SIGTERM, one is frozen past its lease and woken, one is killed. Without
/// arguments it uses an event hub in this process and Azurite, which needs Node.js 20 or newer.
///
/// The exit status is 0 if everything holds, 1 if not, 2 after an error.
#[derive(Debug, Parser)]
#[command(mut_arg("container", |it| it.default_value("live-check").help("The container. It must be empty")))]
#[command(mut_arg("storage", |it| it.help("The storage: `azurite`, a connection string, or a SAS URL")))]
struct Args {
    #[command(flatten)]
    storage: StorageArgs,

    #[command(flatten)]
    hub: HubArgs,

    /// The number of events to publish to each partition. If the steps take longer, there are more.
    #[arg(long, default_value_t = 200, value_name = "N")]
    events: u32,

    /// Also writes the report to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

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
    let holds = match &args.role {
        Some(Role::Worker { owner }) => worker::run(owner).await.map(|()| true),
        None => check::run(args).await,
    };
    match holds {
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
