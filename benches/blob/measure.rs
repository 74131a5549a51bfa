//! One measurement, in a separate process.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::Result;
use crate::azure::{Azure, claim_all};
use crate::bare::Bare;
use crate::work::{Client, PARTITIONS, Work};

/// The part of the repetitions that runs before the measurement, to open connections and fill caches.
const WARM_UP: u32 = 10;

/// The cost of one repetition, and the memory of the whole process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// CPU time in the program and in the kernel.
    pub(crate) cpu: Duration,
    pub(crate) elapsed: Duration,
    /// The peak memory, if the system reports it.
    pub(crate) peak_kib: Option<u64>,
}

/// Runs the measurement and prints the cost.
pub(crate) fn run(client: Client, work: Work, address: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{}", runtime.block_on(measure(client, work, address))?);
    Ok(())
}

async fn measure(client: Client, work: Work, address: &str) -> Result<Cost> {
    match client {
        Client::Ours => {
            let azure = Azure::connect(address)?;
            match work {
                Work::List => repeat(work, async |_| azure.list().await).await,
                Work::Claim => repeat(work, async |partition| azure.claim(partition).await).await,
                Work::Renew => repeat(work, async |partition| azure.renew(partition).await).await,
                Work::ClaimAll => {
                    let store = azure.store().await?;
                    repeat(work, async |_| claim_all(&store).await).await
                }
            }
        }
        Client::Bare => {
            let bare = Bare::connect(address);
            match work {
                Work::List => repeat(work, async |_| bare.list().await).await,
                Work::Claim => repeat(work, async |partition| bare.claim(partition).await).await,
                Work::Renew => repeat(work, async |partition| bare.renew(partition).await).await,
                Work::ClaimAll => repeat(work, async |_| bare.claim_all().await).await,
            }
        }
    }
}

/// Repeats the work, each time for the next partition.
async fn repeat(work: Work, once: impl AsyncFn(u32) -> Result<()>) -> Result<Cost> {
    let partitions = (0..PARTITIONS).cycle();
    for partition in partitions.clone().take(work.repetitions().div_ceil(WARM_UP) as usize) {
        once(partition).await?;
    }
    let (started, cpu) = (Instant::now(), cpu_time());
    for partition in partitions.take(work.repetitions() as usize) {
        once(partition).await?;
    }
    let (elapsed, cpu) = (started.elapsed(), cpu_time().saturating_sub(cpu));
    Ok(Cost { cpu: cpu / work.repetitions(), elapsed: elapsed / work.repetitions(), peak_kib: peak_kib() })
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.cpu.as_nanos(), self.elapsed.as_nanos(), self.peak_kib.unwrap_or_default())
    }
}

impl FromStr for Cost {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [cpu, elapsed, peak_kib] = *numbers.as_slice() else { return Err(format!("no cost: {text:?}").into()) };
        let (cpu, elapsed) = (Duration::from_nanos(cpu), Duration::from_nanos(elapsed));
        Ok(Self { cpu, elapsed, peak_kib: Some(peak_kib).filter(|peak| *peak > 0) })
    }
}
