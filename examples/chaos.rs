//! Real processes, real faults: instances of a group are killed, frozen and cut off, and judged from outside. `--help`
//! tells more.
//!
//! What is promised is shown for many more cases by the simulation; here are the operating system, sockets, an AMQP hub
//! and an HTTP storage. `chaos/plan.rs` decides what happens, `chaos/faults.rs` does it, `chaos/checks` judge.
//! `chaos/worker.rs` is an instance.

#![allow(clippy::cast_precision_loss, reason = "numbers to be shown")]

#[cfg(unix)]
#[path = "chaos/args.rs"]
mod args;
#[cfg(unix)]
#[path = "chaos/checks/mod.rs"]
mod checks;
#[cfg(unix)]
#[path = "chaos/child.rs"]
mod child;
#[cfg(unix)]
#[path = "chaos/clock.rs"]
mod clock;
#[cfg(unix)]
#[path = "chaos/diary.rs"]
mod diary;
#[cfg(unix)]
#[path = "chaos/evidence.rs"]
mod evidence;
#[cfg(unix)]
#[path = "chaos/faults.rs"]
mod faults;
#[cfg(unix)]
#[path = "chaos/fleet.rs"]
mod fleet;
#[cfg(unix)]
#[path = "chaos/hog.rs"]
mod hog;
#[cfg(unix)]
#[path = "chaos/hub.rs"]
mod hub;
#[cfg(unix)]
#[path = "chaos/life.rs"]
mod life;
#[cfg(unix)]
#[path = "chaos/link.rs"]
mod link;
#[cfg(unix)]
#[path = "chaos/outside.rs"]
mod outside;
#[cfg(unix)]
#[path = "support/picture.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "all partitions are there from the beginning"))]
mod picture;
#[cfg(unix)]
#[path = "chaos/plan.rs"]
mod plan;
#[cfg(unix)]
#[path = "chaos/plot.rs"]
mod plot;
#[cfg(unix)]
#[path = "chaos/proxy.rs"]
mod proxy;
#[cfg(unix)]
#[path = "support/publisher.rs"]
mod publisher;
#[cfg(unix)]
#[path = "chaos/reading.rs"]
mod reading;
#[cfg(unix)]
#[path = "chaos/report.rs"]
mod report;
#[cfg(unix)]
#[path = "chaos/request.rs"]
mod request;
#[cfg(unix)]
#[path = "chaos/run.rs"]
mod run;
#[cfg(unix)]
#[path = "support/runs.rs"]
mod runs;
#[cfg(unix)]
#[path = "chaos/samples.rs"]
mod samples;
#[cfg(unix)]
#[path = "../tests/common/sas.rs"]
#[expect(dead_code, reason = "only signatures for a look at the container are used")]
mod sas;
#[cfg(unix)]
#[path = "chaos/screen.rs"]
mod screen;
#[cfg(unix)]
#[path = "support/signals.rs"]
mod signals;
#[cfg(all(unix, test))]
#[path = "../tests/common/stub.rs"]
#[expect(dead_code, reason = "it always answers here")]
mod stub;
#[cfg(unix)]
#[expect(dead_code, reason = "an Azurite of its own is all it needs")]
mod support;
#[cfg(unix)]
#[path = "support/svg.rs"]
mod svg;
#[cfg(unix)]
#[path = "support/table.rs"]
mod table;
#[cfg(unix)]
#[path = "chaos/timeline.rs"]
mod timeline;
#[cfg(unix)]
#[path = "chaos/watcher.rs"]
mod watcher;
#[cfg(unix)]
#[path = "chaos/weather.rs"]
mod weather;
#[cfg(unix)]
#[path = "chaos/worker.rs"]
mod worker;
#[cfg(unix)]
#[path = "chaos/writes.rs"]
mod writes;

use std::process::ExitCode;

/// Whatever ends a process of this program.
#[cfg(unix)]
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[cfg(unix)]
const BROKEN: u8 = 1;
const FAILED: u8 = 2;

#[cfg(unix)]
fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    // Processes of this program run as what the first argument says.
    let role = std::env::args().nth(1).unwrap_or_default();
    let ended = match role.as_str() {
        "hog" => hog::run(),
        "hub" => runtime.block_on(hub::run(in_role())),
        "worker" => runtime.block_on(worker::run(in_role())),
        _ => return runtime.block_on(chaos(&clap::Parser::parse())),
    };
    ended.map_or_else(|failure| failed(&failure), |()| ExitCode::SUCCESS)
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("error: faults are made with signals, which this system does not have");
    FAILED.into()
}

/// The arguments behind the role.
#[cfg(unix)]
fn in_role<T: clap::Parser>() -> T {
    T::parse_from(std::env::args().skip(1))
}

#[cfg(unix)]
async fn chaos(args: &args::Args) -> ExitCode {
    match run::run(args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => BROKEN.into(),
        Err(failure) => failed(&failure),
    }
}

#[cfg(unix)]
fn failed(failure: &Failure) -> ExitCode {
    eprintln!("error: {failure}");
    FAILED.into()
}

/// An argument in seconds.
#[cfg(unix)]
fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    std::time::Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
