//! What the command line says.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Lets whole groups of processors run for hours of virtual time while everything goes wrong, and checks that nothing that
/// is promised is broken.
///
/// A seed decides everything: who takes part, how they are set, crashes, freezes, clocks that are wrong, outages, lost
/// answers, deployments, owners of other SDKs. The same seed gives the same run on every machine. A run that breaks an
/// invariant is listed with the command that repeats it.
///
/// The exit status is 0 if every invariant held, 1 if one did not, 2 if it could not run.
#[derive(Debug, Parser)]
pub struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub seeds: u64,

    /// The first of them.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub first_seed: u64,

    /// How many instances a group has.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub instances: u32,

    /// How many partitions the hub begins with.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub partitions: u32,

    /// For how many hours of virtual time things go wrong; the calm after it comes on top.
    #[arg(long, default_value = "2", value_name = "HOURS", value_parser = hours)]
    pub hours: Duration,

    /// Nobody of another SDK takes part.
    #[arg(long)]
    pub no_foreign: bool,

    /// How many seeds run at once [default: one per core].
    #[arg(long, value_name = "N")]
    pub workers: Option<NonZeroUsize>,

    /// Looks at the first seed alone: prints its plan, the end of its history and, if it fails, the smallest plan that does.
    #[arg(long)]
    pub verbose: bool,

    /// Draws the first seed alone as a picture: who owned each partition when, and what went wrong.
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Plays this story in place of what the seed would draw; with `--timeline` or `--verbose`.
    #[arg(long, value_enum, value_name = "NAME")]
    pub story: Option<Story>,

    /// Compares with groups that follow the rules of the official SDKs, and with lease grabbing, on the same seeds. Prints
    /// a table in Markdown. Uses `--seeds`, `--first-seed`, `--instances`, `--partitions`, `--workers`.
    #[arg(long, conflicts_with_all = ["timeline", "verbose", "story", "json"])]
    pub compare: bool,

    /// Prints the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A plan made by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Story {
    /// A calm group: one instance joins, one dies and comes back, all are redeployed one after another.
    Rolling,
}

impl Args {
    pub fn workers(&self) -> usize {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.workers.unwrap_or_else(cores).get()
    }

    /// The command that looks at this seed.
    pub fn replay(&self, seed: u64) -> String {
        let foreign = if self.no_foreign { " --no-foreign" } else { "" };
        format!(
            "cargo run --release --example simulate -- --first-seed {seed} --instances {} --partitions {} --hours {}{foreign} \
             --verbose",
            self.instances,
            self.partitions,
            self.hours.as_secs_f64() / 3600.0
        )
    }
}

fn hours(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of hours"))?;
    if !(0.1..=1000.0).contains(&number) {
        return Err(format!("{text} hours are out of range: give 0.1 to 1000"));
    }
    Ok(Duration::from_secs_f64(number * 3600.0))
}
