//! What the command line says.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

const MOST_SEEDS: u64 = 1_000_000_000;

/// So that there is no end of numbers behind it.
const LAST_SEED: u64 = u64::MAX - MOST_SEEDS;

const EXAMPLES: &str = "\
Examples:
  simulate --seeds 1000 --instances 8 --partitions 32 --hours 2   hours of trouble, a thousand times
  simulate --first-seed 42 --verbose                              what seed 42 does, and why it fails
  simulate --first-seed 42 --timeline seed-42.svg                 the same as a picture
  simulate --compare --seeds 20                                   how other ways to share partitions do
  simulate --request-costs                                        what groups at rest cost";

/// Lets whole groups of processors run for hours of virtual time while everything goes wrong, and checks that nothing
/// that is promised is broken.
///
/// A seed decides everything: who takes part, how they are set, crashes, freezes, clocks that are wrong, outages, lost
/// answers, deployments, owners of other SDKs. The same seed gives the same run on every machine. A run that breaks an
/// invariant is listed with the command that repeats it.
///
/// The exit status is 0 if every invariant held, 1 if one did not, 2 if it could not run.
#[derive(Debug, Parser)]
#[command(name = "simulate", after_help = EXAMPLES)]
pub struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_SEEDS))]
    pub seeds: u64,

    /// The first of them.
    #[arg(long, default_value_t = 1, value_name = "SEED", value_parser = clap::value_parser!(u64).range(..=LAST_SEED))]
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

    /// The storage behaves like the real service where emulators do not, and some names of owners end with dots.
    #[arg(long)]
    pub platform: bool,

    /// All settings are drawn from the whole range that `build` accepts, and not only some near their defaults.
    #[arg(long)]
    pub wild: bool,

    /// How many seeds run at once [default: one per core].
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,

    /// Looks at the first seed alone: prints its plan, the end of its history and, if it fails, the smallest plan that
    /// does.
    #[arg(long)]
    pub verbose: bool,

    /// Draws the first seed alone as a picture: who owned each partition when, and what went wrong.
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Plays this scenario in place of what the seed would draw; `--first-seed` alone has a say in it.
    #[arg(long, value_enum, value_name = "NAME")]
    #[arg(conflicts_with_all = ["seeds", "instances", "partitions", "hours", "no_foreign", "platform", "wild"])]
    pub scenario: Option<Scenario>,

    /// Compares with groups that follow the rules of the official SDKs, and with lease grabbing, on the same seeds.
    /// Prints a table in Markdown. With `--seeds`, `--first-seed`, `--instances`, `--partitions`, `--jobs`.
    #[arg(long, conflicts_with_all = ["timeline", "verbose", "scenario", "json", "hours", "no_foreign", "platform", "wild"])]
    pub compare: bool,

    /// Counts what groups at rest ask of the storage in an hour, beside what the defaults of the official SDKs come to.
    /// Prints a table in Markdown.
    #[arg(long, exclusive = true)]
    pub request_costs: bool,

    /// Prints the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A plan made by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A calm group: one instance joins, one dies and comes back, all are redeployed one after another.
    Rolling,
}

impl Args {
    pub fn jobs(&self) -> usize {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.jobs.unwrap_or_else(cores).get()
    }

    pub fn seeds(&self) -> Range<u64> {
        self.first_seed..self.first_seed + self.seeds
    }

    /// The command that looks at this seed.
    pub fn replay(&self, seed: u64) -> String {
        if let Some(name) = self.scenario.and_then(|scenario| scenario.to_possible_value()) {
            let scenario = name.get_name();
            return format!("cargo simulate --first-seed {seed} --scenario {scenario} --verbose");
        }
        let foreign = if self.no_foreign { " --no-foreign" } else { "" };
        let platform = if self.platform { " --platform" } else { "" };
        let wild = if self.wild { " --wild" } else { "" };
        format!(
            "cargo simulate --first-seed {seed} --instances {} --partitions {} \
             --hours {}{foreign}{platform}{wild} --verbose",
            self.instances,
            self.partitions,
            self.hours.as_secs_f64() / 3600.0
        )
    }
}

fn hours(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "it is not a number: give hours, 0.1 to 1000".to_owned())?;
    if !(0.1..=1000.0).contains(&number) {
        return Err("it is out of range: give 0.1 to 1000 hours".to_owned());
    }
    Ok(Duration::from_secs_f64(number * 3600.0))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(line: &str) -> Result<Args, String> {
        let words = std::iter::once("simulate").chain(line.split_whitespace());
        Args::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_value_and_what_can_be() {
        for (line, value, remedy) in [
            ("--seeds 0", "'0' for '--seeds <N>'", "1..="),
            ("--seeds many", "'many' for '--seeds <N>'", "invalid digit"),
            ("--first-seed 18446744073709551615", "'18446744073709551615'", "is not in 0..="),
            ("--instances 0", "'0' for '--instances <N>'", "1..=64"),
            ("--instances 65", "'65' for '--instances <N>'", "1..=64"),
            ("--partitions 4000", "'4000' for '--partitions <N>'", "1..=2048"),
            ("--hours soon", "'soon' for '--hours <HOURS>'", "give hours, 0.1 to 1000"),
            ("--hours 0", "'0' for '--hours <HOURS>'", "give 0.1 to 1000 hours"),
            ("--hours NaN", "'NaN' for '--hours <HOURS>'", "give 0.1 to 1000 hours"),
            ("--jobs 0", "'0' for '--jobs <N>'", "non-zero"),
            ("--scenario war", "'war' for '--scenario <NAME>'", "rolling"),
            ("--compare --hours 1", "'--compare' cannot be used with '--hours", ""),
            ("--compare --platform", "'--compare' cannot be used with '--platform'", ""),
            ("--scenario rolling --partitions 3", "'--scenario <NAME>' cannot be used with '--partitions", ""),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(value) && error.contains(remedy), "{line}: {error}");
        }
    }

    #[test]
    fn the_command_that_repeats_a_seed_draws_the_same_plan() {
        let args =
            parsed("--seeds 9 --instances 3 --partitions 5 --hours 0.25 --no-foreign --platform --wild").unwrap();
        let command = args.replay(7);
        let again = parsed(command.strip_prefix("cargo simulate ").unwrap()).unwrap();
        assert_eq!((again.first_seed, again.scale(), again.verbose), (7, args.scale(), true));
        let scenario = parsed("--scenario rolling --first-seed 4").unwrap().replay(4);
        let again = parsed(scenario.strip_prefix("cargo simulate ").unwrap()).unwrap();
        assert_eq!((again.first_seed, again.scenario), (4, Some(Scenario::Rolling)));
    }

    #[test]
    fn seeds_are_counted_from_the_first() {
        assert_eq!(parsed("--seeds 3 --first-seed 5").unwrap().seeds().collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(parsed("").unwrap().hours, Duration::from_secs(7200));
    }
}
