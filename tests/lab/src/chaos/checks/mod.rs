//! The checks, based on outside observations and on what the handlers wrote to disk.

mod duplicates;
mod explored;
mod group;
mod resets;
mod resources;
mod rules;
mod spans;

use crate::chaos::run_data::RunData;
use duplicates::duplicates;

pub use group::unbalanced;

/// How many problems of a check are shown.
const SHOWN: usize = 5;

/// A guarantee to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub holds: bool,
    /// The basis of the check, or the problems.
    pub detail: String,
}

impl Check {
    /// Creates a check that holds if there are no problems.
    fn new(name: &'static str, wrong: &[String], detail: String) -> Self {
        let mut shown: Vec<_> = wrong.iter().take(SHOWN).cloned().collect();
        shown.extend((wrong.len() > SHOWN).then(|| format!("and {} more", wrong.len() - SHOWN)));
        Self { name, holds: wrong.is_empty(), detail: if wrong.is_empty() { detail } else { shown.join("; ") } }
    }
}

pub fn all(run_data: &RunData) -> Vec<Check> {
    let sessions = run_data.sessions();
    let mut checks = rules::checks(run_data, &sessions);
    let duplicates = duplicates(run_data, &sessions);
    checks.extend([
        explored::is_explored(run_data, &sessions),
        resets::are_reported(run_data, &sessions, &duplicates),
        duplicates::are_explained(&duplicates),
        group::is_balanced(run_data),
        group::ends_cleanly(run_data),
        group::no_unexpected_exit(run_data),
        resources::are_flat(run_data),
    ]);
    checks
}
