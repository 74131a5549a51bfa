//! The same event hub, consumed by this crate and by the published processors of Microsoft.
//!
//! `cargo bench --package eventhubs-checkpoint-lab --bench peers` prints two tables; `-- --quick` shows in a minute
//! that it runs. It needs Node.js, Python, Go, and Java with Maven, or leaves their SDKs out. It installs the pinned
//! SDKs as the tests of mixed groups do.
//!
//! - **Throughput**: a filled event hub, all partitions claimed at once, a checkpoint after every batch. The consumers
//!   take turns.
//! - **At rest**: an event hub with one event per partition, the default settings of each processor, all at the same
//!   time. A proxy before the storage counts the requests of each.
//!
//! `-- --large` instead runs one process of this crate with 2048 partitions on a blob service that responds after 100
//! ms, at rest and with 1000 events per second, and fails if it loses a lease.
//!
//! The event hub is the emulator of this crate, over AMQP; the storage is Azurite, over HTTP. Each consumer runs in its
//! own process, and the system reports its CPU time and memory.

#[cfg(unix)]
mod clients;
#[cfg(unix)]
#[path = "../../../common/compiled.rs"]
mod compiled;
#[cfg(unix)]
mod consumer;
#[cfg(unix)]
mod hub;
#[cfg(unix)]
mod large;
#[cfg(unix)]
mod official;
#[cfg(unix)]
mod ours;
#[cfg(unix)]
mod proxy;
#[cfg(unix)]
#[path = "../../../../benches/common/publishing.rs"]
mod publishing;
#[cfg(unix)]
#[path = "../../../common/python.rs"]
mod python;
#[cfg(unix)]
mod report;
#[cfg(unix)]
mod settings;
#[cfg(unix)]
#[path = "../../../../benches/common/spread.rs"]
mod spread;
#[cfg(unix)]
#[path = "../../../../examples/support/mod.rs"]
#[expect(dead_code, reason = "only its own Azurite is used")]
mod support;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Failure> = std::result::Result<T, E>;

#[cfg(unix)]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match *arguments.as_slice() {
        ["hub", partitions, each] => runtime.block_on(hub::run(partitions.parse()?, each.parse()?)),
        ["publisher", partitions, rate, address] => runtime.block_on(hub::publish_at_a_rate(
            partitions.parse()?,
            rate.parse()?,
            &serde_json::from_str(address)?,
        )),
        ["ours", settings] => runtime.block_on(ours::run(&serde_json::from_str(settings)?)),
        ["official", settings] => runtime.block_on(official::run(&serde_json::from_str(settings)?)),
        // Cargo passes `--bench` to a benchmark, and nothing with `cargo test --benches`.
        ["--bench"] => runtime.block_on(report::run(&report::FULL)),
        ["--large", ..] => runtime.block_on(large::run()),
        _ => runtime.block_on(report::run(&report::QUICK)),
    }
}

#[cfg(not(unix))]
fn main() -> Result<()> {
    Err("the CPU time of other processes is read from Linux".into())
}
