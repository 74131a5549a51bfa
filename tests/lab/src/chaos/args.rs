//! What the command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::chaos::Failure;
use crate::chaos::plan::{Fault, Scale};
use crate::chaos::reading::Reading;
use crate::chaos::seconds;

const EXAMPLES: &str = "\
Examples:
  chaos --seconds 120 --instances 4 --partitions 16 --events 200000   two minutes of everything
  chaos --seed 42 --show-plan                                         what seed 42 would do
  chaos --only outage --seconds 300                                   one fault, again and again
  chaos --prefetch 3000 --batch 5000 --batch-wait 90 --seconds 300    large batches that wait
  chaos --only freeze --seconds 60 --keep target/chaos                with the logs of all instances
  chaos --soak 3 --plot soak.svg                                      three hours, and what memory did meanwhile";

/// Events per second, unless told otherwise.
const RATE: u32 = 1000;
const SOAK_RATE: u32 = 500;

const SECONDS_PER_HOUR: f64 = 3600.0;

/// Lets real processes share an event hub and a storage while they are killed, frozen, cut off and lied to, and while
/// operators reset their checkpoints, and checks from outside that nothing that is promised is broken.
///
/// The hub is the AMQP stand-in, the storage is Azurite (needs Node.js), and both are reached through proxies of this
/// program. A seed decides which faults come when and to whom; what the machine makes of them differs from run to run.
/// When they are over, the group is given the time to settle, and is asked to end. All processes end with this one.
///
/// The exit status is 0 if all checks hold, 1 if one does not, 2 if it could not run. A first Ctrl-C ends the faults
/// and goes on with the checks, a second one ends it at once, with status 130.
#[derive(Debug, Parser)]
#[command(name = "chaos", after_help = EXAMPLES)]
pub struct Args {
    /// For how long things go wrong; what it takes to settle comes on top.
    #[arg(long, default_value = "120", value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Duration,

    /// For how many hours things go wrong, now and then.
    #[arg(long, value_name = "HOURS", value_parser = hours, conflicts_with = "seconds")]
    pub soak: Option<Duration>,

    /// How many instances, each a process.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub instances: u32,

    /// How many partitions the event hub has.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub partitions: u16,

    /// How many events are published meanwhile, at least [default: 1000 per second, 500 with --soak].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub events: Option<u32>,

    /// Decides about the faults.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub seed: u64,

    /// This fault alone, again and again.
    #[arg(long, value_enum, value_name = "FAULT")]
    pub only: Option<Fault>,

    /// Age at which an ownership counts as abandoned.
    #[arg(long, default_value = "8", value_name = "SECONDS", value_parser = seconds)]
    pub expiry: Duration,

    /// Time between two balancing cycles, and between two checkpoints of a partition [default: an eighth of the
    /// expiry].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,

    #[command(flatten)]
    pub reading: Reading,

    /// Average time from one fault to the next [default: 0.6 times the expiry, with --soak 4 times].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub pause: Option<Duration>,

    /// Draws who processed each partition when, and what went wrong.
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Draws memory, open files, threads and tasks over time.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// Keeps logs, diaries and the storage's data in this folder, which must be empty or new [default: kept in a folder
    /// for temporary files if a check fails].
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,

    /// Shows what the seed would do, and does not do it.
    #[arg(long)]
    pub show_plan: bool,
}

impl Args {
    pub fn length(&self) -> Duration {
        self.soak.unwrap_or(self.seconds)
    }

    pub fn interval(&self) -> Duration {
        self.interval.unwrap_or(self.expiry / 8)
    }

    pub fn events(&self) -> u32 {
        let rate = if self.soak.is_some() { SOAK_RATE } else { RATE };
        let seconds = u32::try_from(self.length().as_secs()).unwrap_or(u32::MAX);
        self.events.unwrap_or(rate.saturating_mul(seconds.max(1)))
    }

    /// For the plan of incidents.
    pub fn scale(&self) -> Scale {
        let usual = if self.soak.is_some() { self.expiry * 4 } else { self.expiry.mul_f64(0.6) };
        Scale {
            instances: self.instances,
            partitions: self.partitions,
            expiry: self.expiry,
            // To come up and to share.
            warm_up: self.expiry,
            length: self.length(),
            pause: self.pause.unwrap_or(usual),
            only: self.only,
        }
    }

    /// What the parts of this crate would refuse only in the middle of things.
    pub fn check(&self) -> Result<(), Failure> {
        let (expiry, interval, length) = (self.expiry, self.interval(), self.length());
        if expiry < Duration::from_secs(4) || expiry < interval * 3 {
            return Err(format!("the expiry {expiry:?} must be at least 4s and three intervals of {interval:?}").into());
        }
        if self.scale().pause.is_zero() || interval.is_zero() {
            return Err("the pause and the interval must be more than zero".into());
        }
        if length < expiry * 3 {
            return Err(format!(
                "{length:?} is too short for faults that last up to twice the expiry of {expiry:?}: give --seconds {} or \
                 more",
                (expiry * 3).as_secs()
            )
            .into());
        }
        Ok(())
    }
}

fn hours(text: &str) -> Result<Duration, String> {
    let hours: f64 = text.parse().map_err(|_| format!("{text:?} is no number of hours"))?;
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
    fn what_cannot_work_is_refused_with_the_value() {
        let refusal = |args: &[&str]| {
            let args = Args::parse_from([&["chaos"], args].concat());
            args.check().map_err(|error| error.to_string())
        };
        assert_eq!(refusal(&[]), Ok(()));
        assert!(refusal(&["--expiry", "3"]).unwrap_err().contains("3s"));
        assert!(refusal(&["--interval", "3"]).unwrap_err().contains("intervals of 3s"));
        assert!(refusal(&["--seconds", "20"]).unwrap_err().contains("--seconds 24 or more"));
        assert!(refusal(&["--pause", "0"]).unwrap_err().contains("more than zero"));
    }

    #[test]
    fn a_soak_is_slower() {
        let args = Args::parse_from(["chaos", "--soak", "0.5"]);
        assert_eq!((args.length(), args.events()), (Duration::from_secs(1800), 900_000));
        assert_eq!(args.scale().pause, Duration::from_secs(32));
    }
}
