//! Hours and days of a group that connects with Microsoft Entra ID, over AMQP, in minutes: see `cargo day --help`.
//!
//! Instances and emulator run in one process, on one thread. Time passes on tokio's paused clock as fast as all tasks
//! can follow. The official client compares the expiry of its tokens with the wall clock, so that clock moves as well.

mod args;
mod group;
mod incidents;
mod instances;
mod official;
mod processor;
mod reading;
mod relay;
mod run;
mod wall_clock;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::Args;
pub use wall_clock::can_fake_clock;

/// Any error that ends the run.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const VIOLATED: u8 = 1;
const FAILED: u8 = 2;

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    let Some(clock) = wall_clock::Faked::of_this_process() else {
        return wall_clock::repeat_with_faked_clock().unwrap_or_else(failed);
    };
    // Shows what `RUST_LOG` names.
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(error),
    };
    match runtime.block_on(run::run(&args, clock)) {
        Ok(report) => {
            println!("{report}");
            if report.holds(&args) { ExitCode::SUCCESS } else { VIOLATED.into() }
        }
        Err(error) => failed(error),
    }
}

fn failed(error: impl Into<Failure>) -> ExitCode {
    eprintln!("error: {}", error.into());
    FAILED.into()
}
