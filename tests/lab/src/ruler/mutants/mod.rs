//! The faults that are planted.

mod admin;
mod balancer;
mod planner;
mod processor;
mod store;

/// Stands in a replacement for the switch of the mutant: an expression that is true while it is on.
pub const SWITCH: &str = "MUTANT";

/// A fault that is planted in the library.
#[derive(Debug)]
pub struct Mutant {
    pub name: &'static str,
    /// What is wrong, for the table.
    pub fault: &'static str,
    pub file: &'static str,
    /// The text that it replaces, which occurs once in the file.
    pub find: &'static str,
    pub replace: &'static str,
}

/// Returns all mutants, in the order of the table.
pub fn all() -> Vec<&'static Mutant> {
    [store::MUTANTS, planner::MUTANTS, balancer::MUTANTS, processor::MUTANTS, admin::MUTANTS]
        .into_iter()
        .flatten()
        .collect()
}
