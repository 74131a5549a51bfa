//! Prints the table.

use std::time::Duration;

use crate::Result;
use crate::measure::Cost;
use crate::placement::Placement;
use crate::processes::{Stub, measure};
use crate::spread::Spread;
use crate::work::{CONCURRENCY, Client, PARTITIONS, Work};

/// The number of measurements. The table has their median.
pub(crate) const ROUNDS: usize = 9;
const DELAY: Duration = Duration::from_millis(10);

/// The same work by both clients, alternating.
struct Comparison {
    ours: Vec<Cost>,
    bare: Vec<Cost>,
}

impl Comparison {
    fn measure(work: Work, placement: Placement, stub: &Stub, rounds: usize) -> Result<Self> {
        let mut comparison = Self { ours: Vec::new(), bare: Vec::new() };
        for _ in 0..rounds {
            comparison.ours.push(measure(Client::Ours, work, placement, stub)?);
            comparison.bare.push(measure(Client::Bare, work, placement, stub)?);
        }
        Ok(comparison)
    }

    /// Prints a row of the table: the median, minimum and maximum of each client, and the ratio of the medians.
    fn print(&self, title: &str, unit: &str, aim: &str, value: impl Fn(&Cost) -> f64) {
        let (ours, bare) = (Spread::of(&self.ours, &value), Spread::of(&self.bare, &value));
        let (ours_text, bare_text) = (ours.show(unit), bare.show(unit));
        println!("{title:<32} {ours_text:<28} {bare_text:<28} {:>5.2}  {aim}", ours.median / bare.median);
    }
}

/// Runs all measurements and prints them.
pub(crate) fn run(rounds: usize) -> Result<()> {
    println!("ours: AzureContainer with an account key; floor: bare hyper, unsigned, responses read but not parsed");
    println!("median of {rounds} runs (minimum to maximum)\n");
    println!("{:<32} {:<28} {:<28} ratio  aim", "", "ours", "floor");

    let prompt = Stub::start(Duration::ZERO)?;
    println!("CPU time, the stub on another core");
    let list = print_cpu(Placement::Apart, &prompt, rounds)?;
    println!("CPU time, the stub on the same core");
    print_cpu(Placement::Together, &prompt, rounds)?;
    println!("peak memory of the process");
    list.print(&format!("  lists of {PARTITIONS} blobs"), "MiB", "", peak_mib);

    let slow = Stub::start(DELAY)?;
    println!("time, each response after {DELAY:?}");
    let claims = Comparison::measure(Work::ClaimAll, Placement::Apart, &slow, rounds)?;
    claims.print(&format!("  {PARTITIONS} claims, {CONCURRENCY} at once"), "ms", "at most 110 ms", elapsed_ms);
    Ok(())
}

/// Prints the CPU times. Returns the comparison of listings.
fn print_cpu(placement: Placement, stub: &Stub, rounds: usize) -> Result<Comparison> {
    let list = Comparison::measure(Work::List, placement, stub, rounds)?;
    list.print(&format!("  list of {PARTITIONS} blobs"), "us", "ratio at most 4", cpu_us);
    for (work, title) in [(Work::Claim, "  first claim: Put Blob"), (Work::Renew, "  renewal: Set Blob Metadata")] {
        Comparison::measure(work, placement, stub, rounds)?.print(title, "us", "ratio at most 1.5", cpu_us);
    }
    Ok(list)
}

fn cpu_us(cost: &Cost) -> f64 {
    cost.cpu.as_secs_f64() * 1e6
}

fn elapsed_ms(cost: &Cost) -> f64 {
    cost.elapsed.as_secs_f64() * 1e3
}

/// Returns NaN if the system does not report the memory.
fn peak_mib(cost: &Cost) -> f64 {
    cost.peak_kib.map_or(f64::NAN, |kib| f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0)
}
