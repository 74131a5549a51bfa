//! Command-line arguments.

use std::num::NonZeroUsize;

use clap::Parser;

use super::engines::Engine;

/// Plants faults in a copy of the library, and measures which engine of the tests finds each of them, and how soon.
///
/// Prints a table in Markdown. The copy, its build and the verdicts so far are in target/ruler, so that an interrupted
/// run goes on where it ended.
#[derive(Debug, Parser)]
#[command(name = "ruler")]
pub struct Args {
    /// Runs only these engines [default: all but chaos].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ENGINE")]
    engines: Vec<Engine>,

    /// Runs only the mutants whose names contain this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,

    /// Leaves a mutant as soon as an engine has found it. The engines run from the fastest to the slowest.
    #[arg(long)]
    pub first: bool,

    /// Forgets the verdicts of former runs.
    #[arg(long)]
    pub again: bool,

    /// Scores the unit tests of these parts of the library by the mutants of `cargo-mutants`, instead [default: all].
    #[arg(long, value_delimiter = ',', num_args = 0.., value_name = "PART")]
    pub score: Option<Vec<String>>,

    /// Only plants the mutants, and prints the folder of the copy.
    #[arg(long)]
    pub plant_only: bool,

    /// Number of mutants that are measured at once.
    #[arg(long, default_value = "1", value_name = "N")]
    pub jobs: NonZeroUsize,
}

impl Args {
    pub fn engines(&self) -> &[Engine] {
        if self.engines.is_empty() { Engine::DEFAULT } else { &self.engines }
    }
}
