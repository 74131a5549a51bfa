//! Prints the table.

use crate::Result;
use crate::cost::Cost;
use crate::each::{Each, Order};
use crate::processes::{Address, Hub, measure};
use crate::spread::Spread;
use crate::work::{PARTITIONS, Work};

/// The number of events and of measurements. The table has the median.
pub(crate) struct Extent {
    rounds: usize,
    in_memory: u32,
    over_amqp: u32,
    idle: u32,
    /// For each event that is processed at once.
    slow_events: u32,
    /// Of which some may be bad.
    mixed: u32,
}

pub(crate) const FULL: Extent =
    Extent { rounds: 9, in_memory: 2_000_000, over_amqp: 100_000, idle: 2_000, slow_events: 200, mixed: 10_000 };
/// For a test that the benchmark runs.
pub(crate) const BRIEF: Extent =
    Extent { rounds: 1, in_memory: 4_000, over_amqp: 400, idle: 20, slow_events: 2, mixed: 400 };

/// The same events read by both sides, alternating.
struct Comparison {
    events: u32,
    ours: Vec<Cost>,
    bare: Vec<Cost>,
}

/// The aim for a rate, and for its ratio to the floor. Zero means no aim.
struct Aim {
    per_second: f64,
    ratio: f64,
}

const NONE: Aim = Aim { per_second: 0.0, ratio: 0.0 };

impl Comparison {
    fn measure(ours: Work, bare: Work, events: u32, rounds: usize, hubs: &[&Address]) -> Result<Self> {
        let mut comparison = Self { events, ours: Vec::new(), bare: Vec::new() };
        for _ in 0..rounds {
            comparison.ours.push(measure(ours, events, hubs)?);
            comparison.bare.push(measure(bare, events, hubs)?);
        }
        Ok(comparison)
    }

    /// Prints two rows of the table: the median, minimum and maximum of each side, and the ratio of the medians.
    fn print(&self, title: &str, aim: &Aim) {
        let rate = |cost: &Cost| f64::from(self.events) / cost.elapsed.as_secs_f64() / 1e3;
        let (ours, bare) = (Spread::of(&self.ours, rate), Spread::of(&self.bare, rate));
        let ratio = ours.median / bare.median;
        let met = if ours.median * 1e3 >= aim.per_second && ratio >= aim.ratio { "met" } else { "NOT met" };
        let aim = match aim {
            Aim { ratio: 0.0, .. } => String::new(),
            Aim { per_second: 0.0, ratio } => format!("at least {ratio:.2}: {met}"),
            Aim { per_second, ratio } => format!("at least {:.0} k/s and {ratio:.2}: {met}", per_second / 1e3),
        };
        line(title, &ours.show("k/s"), &bare.show("k/s"), ratio, &aim);
        let cpu = |cost: &Cost| cost.cpu.as_secs_f64() * 1e9 / f64::from(self.events);
        let (ours, bare) = (Spread::of(&self.ours, cpu), Spread::of(&self.bare, cpu));
        line("    CPU time per event", &ours.show("ns"), &bare.show("ns"), bare.median / ours.median, "");
    }
}

fn line(title: &str, ours: &str, bare: &str, ratio: f64, aim: &str) {
    println!("{}", format!("{title:<36} {ours:<34} {bare:<34} {ratio:>5.2}  {aim}").trim_end());
}

/// Runs all measurements and prints them.
pub(crate) fn run(extent: &Extent) -> Result<()> {
    let Extent { rounds, in_memory, over_amqp, idle, .. } = *extent;
    println!("ours: a Processor, records in memory; floor: a bare loop over the same source; each on one core");
    println!("{PARTITIONS} partitions, median of {rounds} runs (minimum to maximum)\n");
    println!("{:<36} {:<34} {:<34} ratio  aim", "", "ours", "floor");

    println!("an event hub in memory, {in_memory} events");
    let compare = |ours| Comparison::measure(ours, Work::MemoryBare, in_memory, rounds, &[]);
    compare(Work::MemoryCheckpoint)?.print("  checkpoint at every event", &Aim { per_second: 1e6, ratio: 0.5 });
    compare(Work::MemoryTrack)?.print("  a tracked event each, in reverse", &NONE);

    println!("AMQP, {over_amqp} events of 1 KiB");
    let hub = Hub::start(over_amqp)?;
    let compare = |bare| Comparison::measure(Work::AmqpCheckpoint, bare, over_amqp, rounds, &[&hub.address]);
    compare(Work::AmqpBare)?.print("  checkpoint at every event", &Aim { per_second: 0.0, ratio: 0.95 });
    compare(Work::AmqpBatches)?.print("  the same; floor keeps batches, too", &NONE);

    print_each(extent, &hub)?;

    println!("without a floor");
    alone("  a call of checkpoint", Work::MemoryCalls, in_memory, rounds, "ns", |cost| {
        cost.elapsed.as_secs_f64() * 1e9 / f64::from(in_memory)
    })?;
    alone("  memory of an idle partition", Work::Idle, idle, rounds, "KiB", |cost| {
        f64::from(u32::try_from(cost.bytes).unwrap_or(u32::MAX)) / f64::from(idle) / 1024.0
    })
}

/// Events one by one, compared with batches whose events are checkpointed one by one, and then by how many are
/// processed at once.
fn print_each(extent: &Extent, hub: &Hub) -> Result<()> {
    let Extent { rounds, in_memory, over_amqp, slow_events, .. } = *extent;
    println!("events one by one; floor: a handler of batches");
    let compare = |each| Comparison::measure(Work::Each(each), Work::MemoryCheckpoint, in_memory, rounds, &[]);
    let one = Each { order: Order::Partition, concurrency: 1, is_slow: false };
    compare(one)?.print("  in memory, one after another", &NONE);
    compare(Each { order: Order::Key, concurrency: 64, ..one })?.print("  in memory, 64 at once by key", &NONE);
    Comparison::measure(Work::AmqpEach, Work::AmqpCheckpoint, over_amqp, rounds, &[&hub.address])?
        .print("  AMQP, one after another", &Aim { per_second: 0.0, ratio: 0.9 });
    print_poison(extent)?;

    println!("calls that take 10 ms, one partition");
    for order in Order::ALL {
        for concurrency in Each::CONCURRENCIES {
            let each = Each { order, concurrency, is_slow: true };
            let effective = if order == Order::Partition { 1 } else { concurrency };
            let events = slow_events * effective;
            alone(
                &format!("  {order:?}, {concurrency} at once"),
                Work::Each(each),
                events,
                rounds,
                "events/s",
                |cost| f64::from(events) / cost.elapsed.as_secs_f64(),
            )?;
        }
    }
    Ok(())
}

/// The same events with and without bad ones among them.
fn print_poison(extent: &Extent) -> Result<()> {
    let Extent { rounds, mixed, .. } = *extent;
    println!("AMQP, {mixed} events of 1 KiB one by one, 64 at once by key, 1 ms each; floor: none is bad");
    let (hub, dead_letters) = (Hub::start(mixed)?, Hub::start(PARTITIONS.into())?);
    let hubs = [&hub.address, &dead_letters.address];
    Comparison::measure(Work::AmqpPoison, Work::AmqpGood, mixed, rounds, &hubs)?
        .print("  1 % are bad, and move to a hub", &Aim { per_second: 0.0, ratio: 0.8 });
    Ok(())
}

fn alone(title: &str, work: Work, events: u32, rounds: usize, unit: &str, value: impl Fn(&Cost) -> f64) -> Result<()> {
    let costs = (0..rounds).map(|_| measure(work, events, &[])).collect::<Result<Vec<_>>>()?;
    println!("{title:<36} {}", Spread::of(&costs, value).show(unit));
    Ok(())
}
