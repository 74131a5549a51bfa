//! What must hold, judged from what was seen from outside and from what the handlers wrote on disk.

mod duplicates;
mod group;
mod resets;
mod resources;
mod rules;
mod spans;

use crate::chaos::run_data::RunData;
use duplicates::duplicates;

pub use group::unbalanced;

/// How much of what is wrong is told.
const SHOWN: usize = 5;

/// One thing that must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub holds: bool,
    /// What it was judged by, or what is wrong.
    pub detail: String,
}

impl Check {
    /// It holds if nothing is wrong.
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
        resets::are_reported(run_data, &sessions, &duplicates),
        duplicates::are_explained(&duplicates),
        group::is_balanced(run_data),
        group::ends_cleanly(run_data),
        group::no_unexpected_exit(run_data),
        resources::are_flat(&run_data.incarnations),
    ]);
    checks
}
