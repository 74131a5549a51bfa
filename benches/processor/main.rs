//! What the processor costs beside a bare loop over the same source.
//!
//! `cargo bench --bench processor` prints a table. Each measurement runs in a process of its own, on one thread and one
//! core, so that nothing of the cost hides on another one. Ours and the bare loop take turns, so that a busy moment of
//! the machine hits both.
//!
//! Events come from a hub in memory, or over AMQP from the stand-in, which runs in a process and on a core of its own.
//! Records are kept in memory.
//!
//! To look into one measurement, run it under a profiler with the binary that `cargo bench --bench processor --no-run`
//! names: `perf record processor-... measure CORE memory-mark EVENTS`. For AMQP start the hub first, by
//! `processor-... hub CORE EVENTS`, and append the two lines that it prints.

mod amqp;
#[path = "../common/cores.rs"]
mod cores;
mod cost;
mod handler;
mod hub;
mod memory;
mod ours;
mod processes;
mod report;
#[path = "../common/spread.rs"]
mod spread;
mod work;

use std::error::Error;

use processes::Address;
use work::Work;

type Failure = Box<dyn Error + Send + Sync>;
type Result<T, E = Failure> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["hub", core, events] => {
            cores::stay_on(core.parse()?)?;
            on_one_thread(hub::run(events.parse()?))
        }
        ["measure", core, work, events, ref hub @ ..] => {
            cores::stay_on(core.parse()?)?;
            let (work, events): (Work, _) = (work.parse()?, events.parse()?);
            println!("{}", on_one_thread(work::measure(work, events, Address::from_arguments(hub)))?);
            Ok(())
        }
        // What cargo passes to a benchmark; without it, as in `cargo test --benches`, one round shows that it runs.
        ["--bench"] => report::run(&report::FULL),
        _ => report::run(&report::BRIEF),
    }
}

fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
