//! The cost of a request of this crate, compared with a bare HTTP client.
//!
//! `cargo bench --bench blob` prints a table. A stub in a separate process returns canned responses of Azure. Each
//! measurement also runs in a separate process, on one thread, so that CPU time and peak memory are those of one
//! client alone. The measurements of this crate and of the bare client alternate, so that a busy machine affects both.
//!
//! To profile one measurement, start the stub and then the measurement under a profiler, both with the binary that
//! `cargo bench --bench blob --no-run` names: `blob-... stub CORE 0` prints its address, and `valgrind --tool=callgrind
//! blob-... measure CORE ours claim ADDRESS` uses it.

mod azure;
mod bare;
#[path = "../common/cores.rs"]
mod cores;
mod measure;
mod placement;
mod processes;
mod report;
mod responses;
#[path = "../common/spread.rs"]
mod spread;
mod stub;
mod work;

use std::error::Error;
use std::time::Duration;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["stub", core, delay] => {
            cores::stay_on(core.parse()?)?;
            stub::run(Duration::from_millis(delay.parse()?))
        }
        ["measure", core, client, work, address] => {
            cores::stay_on(core.parse()?)?;
            measure::run(client.parse()?, work.parse()?, address)
        }
        // Cargo passes this to a benchmark. Without it, as in `cargo test --benches`, one round shows that it runs.
        ["--bench"] => report::run(report::ROUNDS),
        _ => report::run(1),
    }
}
