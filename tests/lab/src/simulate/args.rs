//! Command-line arguments.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

const MOST_SEEDS: u64 = 1_000_000_000;

/// The largest first seed, so that adding the number of seeds cannot overflow.
const LAST_SEED: u64 = u64::MAX - MOST_SEEDS;

const EXAMPLES: &str = "\
Examples:
  simulate --seeds 1000 --instances 8 --partitions 32 --hours 2   hours of faults, a thousand times
  simulate --first-seed 42 --verbose                              what happens with seed 42, and why it fails
  simulate --first-seed 42 --timeline seed-42.svg                 the same as a picture
  simulate --compare --seeds 20                                   a comparison with other ways to share partitions
  simulate --request-costs                                        the storage requests of groups in the steady state
  simulate --scale                                                2048 partitions and 300 instances, with stated bounds
  simulate --cold-start                                           the time until all partitions of new groups are owned
  simulate --proportion                                           by how much failing requests and events delay a group
  simulate --fail-writes 10 --bad-blob --hours 4                  a hundred plans, in which a tenth of all writes fails";

/// Runs whole groups of processors for hours of virtual time with all kinds of faults, and checks the guarantees.
///
/// The seed decides everything: members, settings, crashes, freezes, wrong clocks, outages, lost responses,
/// deployments, owners of other SDKs. The same seed gives the same run on every machine. A run that violates an
/// invariant is listed with the command that repeats it.
///
/// The exit status is 0 if every invariant held, 1 if an invariant was violated, and 2 if the simulation could not run.
#[derive(Debug, Parser)]
#[command(name = "simulate", after_help = EXAMPLES)]
pub struct Args {
    /// Number of seeds.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_SEEDS))]
    pub seeds: u64,

    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "SEED", value_parser = clap::value_parser!(u64).range(..=LAST_SEED))]
    pub first_seed: u64,

    /// Number of instances of a group.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub instances: u32,

    /// Number of partitions of the hub at the beginning.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub partitions: u32,

    /// Hours of virtual time with faults. The time to settle is added to it.
    #[arg(long, default_value = "2", value_name = "HOURS", value_parser = hours)]
    pub hours: Duration,

    /// Excludes owners of other SDKs.
    #[arg(long)]
    pub no_foreign: bool,

    /// Simulates behavior of the real service that emulators do not have, and lets some owner IDs end with dots.
    #[arg(long)]
    pub platform: bool,

    /// Draws all settings from the whole range that `build` accepts, and not only some near their defaults.
    #[arg(long)]
    pub wild: bool,

    /// Deletes and recreates the event hub several times. At once it has any number of events again, also more than
    /// before.
    #[arg(long)]
    pub recreations: bool,

    /// Lets some percent of the requests to the storage fail for a long time, by rules that are drawn, and handlers
    /// fail at some events. `--wild` includes it.
    #[arg(long)]
    pub failures: bool,

    /// Gives the instances different lease durations, intervals, strategies and lease scopes, and rolls some of them
    /// out while the group runs. `--wild` includes it.
    #[arg(long)]
    pub mixed_settings: bool,

    /// Blocks the runtimes of some applications, for a while or to the end. `--wild` includes it.
    #[arg(long)]
    pub blocked: bool,

    /// Throttles this many percent of all writes as long as the faults last, 0.1 to 30.
    #[arg(long, value_name = "PERCENT", value_parser = per_mille)]
    pub fail_writes: Option<u32>,

    /// Makes one ownership record one that can never be written as long as the faults last.
    #[arg(long)]
    pub bad_blob: bool,

    /// Number of seeds that run at once [default: one per core].
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,

    /// Runs only the first seed, and prints its plan, the end of its history and, if it fails, the smallest plan that
    /// fails.
    #[arg(long)]
    pub verbose: bool,

    /// Runs only the first seed, and draws the owner of each partition and the faults over time.
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Runs this scenario instead of the plan of the seed. Only `--first-seed` affects it.
    #[arg(long, value_enum, value_name = "NAME")]
    #[arg(conflicts_with_all = ["seeds", "instances", "partitions", "hours", "no_foreign", "platform", "wild",
        "recreations", "failures", "mixed_settings", "blocked", "fail_writes", "bad_blob"])]
    pub scenario: Option<Scenario>,

    /// Compares groups that follow the rules of the official SDKs, and lease grabbing, on the same seeds. Prints a
    /// table in Markdown. Can be combined with `--seeds`, `--first-seed`, `--instances`, `--partitions` and `--jobs`.
    #[arg(long, conflicts_with_all = ["timeline", "verbose", "scenario", "json", "hours", "no_foreign", "platform", "wild",
        "recreations", "failures", "mixed_settings", "blocked", "fail_writes", "bad_blob"])]
    pub compare: bool,

    /// Counts the storage requests of groups in the steady state in an hour, and prints them with the expected numbers
    /// of the official SDKs as a table in Markdown.
    #[arg(long, exclusive = true)]
    pub request_costs: bool,

    /// Measures how long groups need from their start until every partition has an owner, with both strategies, and
    /// prints that with the requests and the conflicts of claims as a table in Markdown.
    #[arg(long, conflicts_with_all = ["seeds", "first_seed", "instances", "partitions", "hours", "no_foreign", "platform",
        "wild", "recreations", "failures", "mixed_settings", "blocked", "fail_writes", "bad_blob", "timeline", "verbose", "scenario", "json",
        "compare"])]
    pub cold_start: bool,

    /// Runs a group of 300 instances on 2048 partitions from its start over a join and a crash of a tenth of them to a
    /// rolling deployment, and prints the times, the moves and the requests as a table in Markdown. The exit status is
    /// 1 if a bound is exceeded.
    #[arg(long, exclusive = true)]
    pub scale: bool,

    /// Measures the time until all partitions are read while some percent of all writes, or all writes of one record,
    /// fail, and the time until all events of a partition are processed whose handler fails at some of them. Prints two
    /// tables in Markdown. The exit status is 1 if something takes longer, compared with a run without faults, than the
    /// factors in docs/guarantees.md say.
    #[arg(long, conflicts_with_all = ["seeds", "instances", "partitions", "hours", "no_foreign", "platform", "wild",
        "recreations", "failures", "mixed_settings", "blocked", "fail_writes", "bad_blob", "timeline", "verbose", "scenario", "json", "compare",
        "cold_start"])]
    pub proportion: bool,

    /// Prints the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A handmade plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A group without other faults: one instance joins, one crashes and restarts, and all are redeployed one after
    /// another.
    Rolling,
    /// A group with the default settings, over which the profile for a fast failover is rolled out by a rolling
    /// deployment, and back.
    Rollout,
}

impl Args {
    pub fn jobs(&self) -> usize {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.jobs.unwrap_or_else(cores).get()
    }

    pub fn seeds(&self) -> Range<u64> {
        self.first_seed..self.first_seed + self.seeds
    }

    /// Returns the command that repeats this seed.
    pub fn replay(&self, seed: u64) -> String {
        if let Some(name) = self.scenario.and_then(|scenario| scenario.to_possible_value()) {
            let scenario = name.get_name();
            return format!("cargo simulate --first-seed {seed} --scenario {scenario} --verbose");
        }
        let foreign = if self.no_foreign { " --no-foreign" } else { "" };
        let platform = if self.platform { " --platform" } else { "" };
        let wild = if self.wild { " --wild" } else { "" };
        let recreations = if self.recreations { " --recreations" } else { "" };
        let failures = if self.failures { " --failures" } else { "" };
        let mixed = if self.mixed_settings { " --mixed-settings" } else { "" };
        let blocked = if self.blocked { " --blocked" } else { "" };
        let percent = |rate: u32| format!(" --fail-writes {}", f64::from(rate) / 10.0);
        let fail_writes = self.fail_writes.map(percent).unwrap_or_default();
        let bad_blob = if self.bad_blob { " --bad-blob" } else { "" };
        format!(
            "cargo simulate --first-seed {seed} --instances {} --partitions {} --hours {}\
             {foreign}{platform}{wild}{recreations}{failures}{mixed}{blocked}{fail_writes}{bad_blob} --verbose",
            self.instances,
            self.partitions,
            self.hours.as_secs_f64() / 3600.0
        )
    }
}

fn per_mille(text: &str) -> Result<u32, String> {
    let percent: f64 = text.parse().map_err(|_| "not a number: give percent, 0.1 to 30".to_owned())?;
    let found = (1..=300).find(|rate| (f64::from(*rate) - 10.0 * percent).abs() < 0.5);
    found.ok_or_else(|| "out of range: give 0.1 to 30 percent".to_owned())
}

fn hours(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number: give hours, 0.1 to 1000".to_owned())?;
    if !(0.1..=1000.0).contains(&number) {
        return Err("out of range: give 0.1 to 1000 hours".to_owned());
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
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn invalid_values_are_rejected_with_a_remedy() {
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
            ("--fail-writes 31", "'31' for '--fail-writes <PERCENT>'", "give 0.1 to 30 percent"),
            ("--proportion --wild", "'--proportion' cannot be used with '--wild'", ""),
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
    fn the_replay_command_draws_the_same_plan() {
        let args = parsed(
            "--seeds 9 --instances 3 --partitions 5 --hours 0.25 --no-foreign --platform --wild --recreations \
                --failures --mixed-settings --blocked --fail-writes 0.3 --bad-blob",
        )
        .unwrap();
        assert_eq!(args.size().failed_writes_per_mille, 3);
        let command = args.replay(7);
        let again = parsed(command.strip_prefix("cargo simulate ").unwrap()).unwrap();
        assert_eq!((again.first_seed, again.size(), again.verbose), (7, args.size(), true));
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
