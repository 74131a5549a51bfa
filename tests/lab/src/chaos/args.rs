//! Command-line arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::chaos::Failure;
use crate::chaos::plan::{Fault, Scale};
use crate::chaos::reading::Reading;
use crate::chaos::seconds;

const EXAMPLES: &str = "\
Examples:
  chaos --duration 120 --instances 4 --partitions 16 --events 200000        all faults for two minutes
  chaos --seed 42 --dry-run                                                 prints the plan of seed 42
  chaos --only outage --duration 300                                        repeats one fault
  chaos --prefetch 3000 --max-batch-size 5000 --max-batch-wait 90 --duration 300
                                                                            large batches that wait
  chaos --only freeze --duration 60 --keep-dir target/chaos                 keeps the logs of all instances
  chaos --soak 3 --timeline soak.svg                                        three hours, as a picture";

/// Default rate of published events, in events per second.
const RATE: u32 = 1000;
const SOAK_RATE: u32 = 500;

const SECONDS_PER_HOUR: f64 = 3600.0;

/// Runs a group of real processes that share an event hub and blob storage, injects faults, and checks the guarantees
/// from outside.
///
/// Instances are killed, frozen and disconnected, and their requests fail. Operators reset checkpoints while the group
/// runs. The event hub is the AMQP emulator and the storage is Azurite, which needs Node.js; proxies of this program
/// are in front of both. The seed decides which faults occur, when, and on which instance; the timing on the machine
/// differs from run to run. After the last fault the group gets time to settle and is then shut down. All processes end
/// when this one ends.
///
/// The exit status is 0 if all checks pass, 1 if a check fails, and 2 if the run could not be carried out. The first
/// Ctrl-C ends the faults and continues with the checks; the second one exits at once, with status 130.
#[derive(Debug, Parser)]
#[command(name = "chaos", after_help = EXAMPLES)]
pub struct Args {
    /// Duration of the faults. The time to settle is added to it.
    #[arg(long, default_value = "120", value_name = "SECONDS", value_parser = seconds)]
    pub duration: Duration,

    /// Runs for this many hours, with less frequent faults.
    #[arg(long, value_name = "HOURS", value_parser = hours, conflicts_with = "duration")]
    pub soak: Option<Duration>,

    /// Number of instances. Each is a process.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub instances: u32,

    /// Number of partitions of the event hub.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub partitions: u16,

    /// Minimum number of events to publish [default: 1000 per second, 500 with --soak].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub events: Option<u32>,

    /// Seed of the fault plan.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub seed: u64,

    /// Repeats this fault and injects no other.
    #[arg(long, value_enum, value_name = "FAULT")]
    pub only: Option<Fault>,

    /// Age at which a lease expires.
    #[arg(long, default_value = "8", value_name = "SECONDS", value_parser = seconds)]
    pub lease_duration: Duration,

    /// Time between two load-balancing cycles, and between two checkpoints of a partition [default: an eighth of the
    /// lease duration].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub load_balancing_interval: Option<Duration>,

    #[command(flatten)]
    pub reading: Reading,

    /// Average time between two faults [default: 0.6 times the lease duration, 4 times with --soak].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub fault_interval: Option<Duration>,

    /// Draws which instance processed each partition, and the faults, over time.
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Keeps logs, event logs and the storage's data in this folder, which must be empty or new [default: a temporary
    /// folder, kept if a check fails].
    #[arg(long, value_name = "FOLDER")]
    pub keep_dir: Option<PathBuf>,

    /// Prints the fault plan of the seed and exits.
    #[arg(long)]
    pub dry_run: bool,
}

impl Args {
    pub fn length(&self) -> Duration {
        self.soak.unwrap_or(self.duration)
    }

    pub fn interval(&self) -> Duration {
        self.load_balancing_interval.unwrap_or(self.lease_duration / 8)
    }

    pub fn events(&self) -> u32 {
        let rate = if self.soak.is_some() { SOAK_RATE } else { RATE };
        let seconds = u32::try_from(self.length().as_secs()).unwrap_or(u32::MAX);
        self.events.unwrap_or(rate.saturating_mul(seconds.max(1)))
    }

    /// Returns the scale of the fault plan.
    pub fn scale(&self) -> Scale {
        let usual = if self.soak.is_some() { self.lease_duration * 4 } else { self.lease_duration.mul_f64(0.6) };
        Scale {
            instances: self.instances,
            partitions: self.partitions,
            lease_duration: self.lease_duration,
            // The time in which all instances start and share the partitions.
            warm_up: self.lease_duration,
            length: self.length(),
            fault_interval: self.fault_interval.unwrap_or(usual),
            only: self.only,
        }
    }

    /// Rejects values that this crate would otherwise reject only in the middle of a run.
    pub fn check(&self) -> Result<(), Failure> {
        let (lease_duration, interval, length) = (self.lease_duration, self.interval(), self.length());
        if lease_duration < Duration::from_secs(4) || lease_duration < interval * 3 {
            return Err(format!(
                "the lease duration {lease_duration:?} must be at least 4s and three intervals of {interval:?}"
            )
            .into());
        }
        if self.scale().fault_interval.is_zero() || interval.is_zero() {
            return Err("the fault interval and the load-balancing interval must be more than zero".into());
        }
        if length < lease_duration * 3 {
            return Err(format!(
                "{length:?} is too short for faults that last up to twice the lease duration of {lease_duration:?}: \
                 set --duration to {} or more",
                (lease_duration * 3).as_secs()
            )
            .into());
        }
        Ok(())
    }
}

fn hours(text: &str) -> Result<Duration, String> {
    let hours: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of hours"))?;
    Duration::try_from_secs_f64(hours * SECONDS_PER_HOUR).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn invalid_values_are_rejected_with_the_value() {
        let rejection = |args: &[&str]| {
            let args = Args::parse_from([&["chaos"], args].concat());
            args.check().map_err(|error| error.to_string())
        };
        assert_eq!(rejection(&[]), Ok(()));
        assert!(rejection(&["--lease-duration", "3"]).unwrap_err().contains("3s"));
        assert!(rejection(&["--load-balancing-interval", "3"]).unwrap_err().contains("intervals of 3s"));
        assert!(rejection(&["--duration", "20"]).unwrap_err().contains("--duration to 24 or more"));
        assert!(rejection(&["--fault-interval", "0"]).unwrap_err().contains("more than zero"));
    }

    #[test]
    fn a_soak_has_a_lower_rate() {
        let args = Args::parse_from(["chaos", "--soak", "0.5"]);
        assert_eq!((args.length(), args.events()), (Duration::from_secs(1800), 900_000));
        assert_eq!(args.scale().fault_interval, Duration::from_secs(32));
    }
}
