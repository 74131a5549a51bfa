//! Adapters for programs that have their own structure, each in a file of its own: `--help` describes the run.

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

mod host;
#[path = "../../consumer/journal.rs"]
mod journal;
#[path = "../../support/publisher.rs"]
mod publisher;
#[path = "../../support/runs.rs"]
mod runs;
mod scenario;
mod service;
#[path = "../../support/signals.rs"]
mod signals;
mod stream;
#[path = "../../support/mod.rs"]
#[allow(dead_code, reason = "shared with other examples")]
mod support;
#[cfg(feature = "delta")]
mod table;
mod worker;
#[path = "../../support/workers.rs"]
mod workers;

use worker::{Failure, Worker};

/// Runs one adapter in two processes, and counts what it has processed.
///
/// When both own partitions, the first one is frozen (SIGSTOP) until the second one has taken over its partitions, and
/// then woken. Later the second one is killed (SIGKILL), and the first one finishes. Needs Node.js 20 or newer, for the
/// storage emulator.
///
/// The exit status is 0 if no event was lost, and none was processed twice if the adapter promises that; 1 if not, 2
/// after an error.
#[derive(Debug, Parser)]
struct Args {
    adapter: Adapter,

    /// The number of events to publish. If the steps take longer, there are more.
    #[arg(long, default_value_t = 2000, value_name = "N")]
    events: u32,

    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Adapter {
    /// A stream of events with acknowledgments in any order: at least once.
    Stream,
    /// Positions and publish locks of the host: exactly once.
    Host,
    /// Batches as requests of a `tower` service: at least once.
    Service,
    /// Rows of a Delta table, with the position in the commit: exactly once.
    #[cfg(feature = "delta")]
    Table,
}

impl Adapter {
    fn is_exact(self) -> bool {
        !matches!(self, Self::Stream | Self::Service)
    }

    async fn run(self, worker: &Worker) -> Result<(), Failure> {
        match self {
            Self::Stream => stream::run(worker).await,
            Self::Host => host::run(worker).await,
            Self::Service => service::run(worker).await,
            #[cfg(feature = "delta")]
            Self::Table => table::run(worker).await,
        }
    }

    /// Returns what all processes have processed so far.
    async fn results(self, worker: &Worker) -> Result<worker::Results, Failure> {
        match self {
            Self::Stream | Self::Service => worker.written_results(),
            Self::Host => host::Metastore::open(worker)?.results(),
            #[cfg(feature = "delta")]
            Self::Table => table::results(worker).await,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One worker process, which the example starts itself.
    #[command(hide = true)]
    Worker(Worker),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "delta")]
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        eprintln!("another provider of rustls is installed");
    }
    let is_kept = match &args.role {
        Some(Role::Worker(worker)) => worker.run(args.adapter).await.map(|()| true),
        None => scenario::run(args.adapter, args.events).await,
    };
    match is_kept {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => 1.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            2.into()
        }
    }
}
