//! The cost of the processor, compared with a bare loop over the same source.
//!
//! `cargo bench --bench processor` prints a table. Each measurement runs in a separate process, on one thread and one
//! core, so that the cost is complete. The measurements of this crate and of the bare loop alternate, so that a busy
//! machine affects both.
//!
//! Events come from an event hub in memory, or over AMQP from the emulator, which runs in a separate process and on
//! another core. Records are kept in memory.
//!
//! To profile one measurement, run it under a profiler with the binary that `cargo bench --bench processor --no-run`
//! names: `perf record processor-... measure CORE memory-checkpoint EVENTS`. For AMQP first start the hub with
//! `processor-... hub CORE EVENTS`, and append the two lines that it prints. Dead letters need a second hub, whose
//! lines follow.

mod amqp;
#[path = "../common/cores.rs"]
mod cores;
mod cost;
mod each;
mod handler;
mod hub;
mod memory;
mod ours;
mod poison;
mod processes;
#[path = "../common/publishing.rs"]
mod publishing;
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
        ["measure", core, work, events, ref hubs @ ..] => {
            cores::stay_on(core.parse()?)?;
            let (work, events): (Work, _) = (work.parse()?, events.parse()?);
            println!("{}", on_one_thread(work::measure(work, events, &Address::read_all(hubs)))?);
            Ok(())
        }
        // Cargo passes this to a benchmark. Without it, as in `cargo test --benches`, one round shows that it runs.
        ["--bench"] => report::run(&report::FULL),
        _ => report::run(&report::BRIEF),
    }
}

fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
