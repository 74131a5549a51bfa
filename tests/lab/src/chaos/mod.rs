//! Real processes and real faults: instances of a group are killed, frozen and disconnected, and checked from outside.
//! See `--help`.
//!
//! The simulation covers many more cases; this adds the operating system, sockets, an AMQP hub and an HTTP storage.
//! `plan.rs` decides what happens, `faults.rs` does it, `checks` judge the result. `worker.rs` is an instance,
//! `operators.rs` resets checkpoints from outside of the group.

mod args;
mod checks;
mod child;
mod clock;
mod cpu_load;
mod event_log;
mod extents;
mod faults;
mod fleet;
mod hub;
mod incarnation;
mod link;
mod network_faults;
mod operators;
mod plan;
mod proxy;
mod raw_storage;
mod reading;
mod report;
mod request;
mod resets;
mod run;
mod run_data;
mod samples;
mod screen;
mod timeline;
mod waits;
mod watcher;
mod worker;
mod writes;

use std::process::ExitCode;

/// Any error that ends a process of this program.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const BROKEN: u8 = 1;
const FAILED: u8 = 2;

/// Runs the role that the first argument names: the command line, or one of the processes that it starts.
#[must_use]
pub fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    // Processes of this program run in the role that the first argument names.
    let role = std::env::args().nth(1).unwrap_or_default();
    let ended = match role.as_str() {
        "cpu-load" => cpu_load::run(),
        "hub" => runtime.block_on(hub::run(in_role())),
        "worker" => runtime.block_on(worker::run(in_role())),
        _ => return runtime.block_on(chaos(&clap::Parser::parse())),
    };
    ended.map_or_else(|failure| failed(&failure), |()| ExitCode::SUCCESS)
}

/// Returns the arguments after the role.
fn in_role<T: clap::Parser>() -> T {
    T::parse_from(std::env::args().skip(1))
}

async fn chaos(args: &args::Args) -> ExitCode {
    match run::run(args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => BROKEN.into(),
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    eprintln!("error: {failure}");
    FAILED.into()
}

/// Parses an argument in seconds.
fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    std::time::Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
