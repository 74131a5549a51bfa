//! What searches for the mutants.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Failure;
use super::tree::{VARIABLE, folder};

/// An engine that takes longer hangs, which finds the mutant.
const LONGEST: Duration = Duration::from_secs(300);

/// Seeds of the simulation.
const SEEDS: u64 = 10;

/// From the fastest to the slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub enum Engine {
    /// The unit tests of the library.
    Unit,
    /// Groups of planners, and of load-balancing loops.
    Balance,
    /// The tests of whole processors, in paused time.
    Processor,
    /// Pairs of features.
    Pairs,
    /// Every order of events at one partition.
    Exploration,
    /// Whole groups with faults, seed by seed.
    Simulation,
    /// The same with settings from their whole range, more faults, and the platform.
    Wild,
    /// Processes, for a minute.
    Chaos,
}

impl Engine {
    /// All but chaos, which takes a minute for each mutant.
    pub const DEFAULT: &[Self] =
        &[Self::Unit, Self::Balance, Self::Processor, Self::Pairs, Self::Exploration, Self::Simulation, Self::Wild];

    /// Returns whether the engine runs this file of the library at all.
    pub fn runs_file(self, file: &str) -> bool {
        let folders: &[&str] = match self {
            Self::Exploration => &[
                "src/admin/reset_steps",
                "src/admin/takeover",
                "src/balancer",
                "src/model",
                "src/planner",
                "src/store/rules",
            ],
            Self::Balance => &["src/balancer", "src/codec", "src/model", "src/planner", "src/store"],
            _ => &["src"],
        };
        folders.iter().any(|folder| file.starts_with(folder))
    }

    /// Runs the engine until it finds the mutant, or to its end.
    pub fn judge(self, programs: &Programs, mutant: Option<usize>) -> Result<Verdict, Failure> {
        match self {
            Self::Unit => programs.run_tests("eventhubs_checkpoint", &[], mutant),
            Self::Processor => programs.run_tests("processor", &[], mutant),
            Self::Balance => programs.run_tests(LAB, &["balance::", "balance_loop::"], mutant),
            Self::Exploration => programs.run_tests(LAB, &["exploration::"], mutant),
            Self::Pairs => programs.run_tests("pairs", &[], mutant),
            Self::Simulation => programs.simulate(&[], mutant),
            Self::Wild => programs.simulate(&["--wild", "--platform"], mutant),
            Self::Chaos => {
                let mut command = programs.command("chaos");
                command.args(["--duration", "60", "--instances", "4", "--partitions", "16", "--events", "60000"]);
                let began = Instant::now();
                let failed = run_until_failure(command, mutant, LONGEST)?;
                Ok(Verdict::of(failed, None, began.elapsed()))
            }
        }
    }
}

/// The test program of the lab's library.
const LAB: &str = "eventhubs_checkpoint_lab";

/// Whether and when an engine found a mutant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Found {
        /// The number of seeds that it needed, for engines that draw.
        seeds: Option<u64>,
        seconds: f64,
    },
    Survived {
        seconds: f64,
    },
}

impl Verdict {
    fn of(failed: bool, seeds: Option<u64>, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        if failed { Self::Found { seeds, seconds } } else { Self::Survived { seconds } }
    }

    pub fn is_found(&self) -> bool {
        matches!(self, Self::Found { .. })
    }
}

/// As a cell of the table.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found { seeds: Some(1), .. } => f.write_str("1 seed"),
            Self::Found { seeds: Some(seeds), .. } => write!(f, "{seeds} seeds"),
            Self::Found { seeds: None, seconds } => write!(f, "{seconds:.0} s"),
            Self::Survived { .. } => f.write_str("-"),
        }
    }
}

/// The programs of the copy, by name.
pub struct Programs {
    root: PathBuf,
    paths: HashMap<String, PathBuf>,
}

/// What cargo says about a program that it built.
#[derive(Deserialize)]
struct Artifact {
    target: Target,
    /// `None` for a library.
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Programs {
    /// Builds the tests and programs of the copy, with some optimization, because the engines run for long.
    pub fn build(root: &Path) -> Result<Self, Failure> {
        let mut paths = HashMap::new();
        for arguments in [
            ["test", "--no-run", "--package", "eventhubs-checkpoint", "--lib", "--test=processor", "--test=pairs"]
                .as_slice(),
            &["test", "--no-run", "--package", "eventhubs-checkpoint-lab", "--lib"],
            &["build", "--package", "eventhubs-checkpoint-lab", "--bin=simulate", "--bin=chaos"],
        ] {
            let output = Command::new(env!("CARGO"))
                .args(arguments)
                .args(["--locked", "--all-features", "--message-format", "json-render-diagnostics"])
                .env("CARGO_TARGET_DIR", folder().join("build"))
                .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
                .current_dir(root)
                .stderr(Stdio::inherit())
                .output()?;
            if !output.status.success() {
                return Err("the copy with the mutants cannot be built".into());
            }
            let built = output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
            paths.extend(built.filter_map(|artifact: Artifact| Some((artifact.target.name, artifact.executable?))));
        }
        Ok(Self { root: root.to_owned(), paths })
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.paths[name]);
        command.current_dir(&self.root);
        command
    }

    /// Runs a test program until the first test that fails.
    fn run_tests(&self, name: &str, filters: &[&str], mutant: Option<usize>) -> Result<Verdict, Failure> {
        let mut command = self.command(name);
        command.args(filters).args(["--test-threads", "8"]);
        let began = Instant::now();
        let failed = run_until_failure(command, mutant, LONGEST)?;
        Ok(Verdict::of(failed, None, began.elapsed()))
    }

    /// Simulates one group after another, until an invariant is violated.
    fn simulate(&self, options: &[&str], mutant: Option<usize>) -> Result<Verdict, Failure> {
        run_seeds(mutant, |seed| {
            let mut command = self.command("simulate");
            command.args(["--instances", "5", "--partitions", "12", "--hours", "1", "--seeds", "1", "--jobs", "1"]);
            command.args(options).args(["--first-seed", &seed.to_string()]);
            command
        })
    }
}

/// Runs one seed after another, until one fails.
fn run_seeds(mutant: Option<usize>, command: impl Fn(u64) -> Command) -> Result<Verdict, Failure> {
    let began = Instant::now();
    for seed in 1..=SEEDS {
        if run_until_failure(command(seed), mutant, LONGEST)? {
            return Ok(Verdict::of(true, Some(seed), began.elapsed()));
        }
    }
    Ok(Verdict::of(false, None, began.elapsed()))
}

/// Runs a program with a mutant. Returns at the first test that fails; at the end, whether the program failed.
pub fn run_until_failure(mut command: Command, mutant: Option<usize>, longest: Duration) -> Result<bool, Failure> {
    if let Some(number) = mutant {
        command.env(VARIABLE, number.to_string());
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let stdout = child.stdout.take().ok_or("the program has no output")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let began = Instant::now();
    loop {
        match lines.recv_timeout(longest.saturating_sub(began.elapsed())) {
            Ok(line) if !line.ends_with("... FAILED") => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(!child.wait()?.success()),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {
                end(&mut child)?;
                return Ok(true);
            }
        }
    }
}

fn end(child: &mut Child) -> Result<(), Failure> {
    child.kill()?;
    child.wait()?;
    Ok(())
}
