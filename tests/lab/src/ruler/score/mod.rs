//! How many of the mutants of `cargo-mutants` the unit tests of the library kill: `cargo ruler --score`.
//!
//! `cargo-mutants` builds the library again for each of its mutants, which takes hours. Here its mutants are planted in
//! one copy, each behind a switch, so that one build and one run of a few tests for each suffice. What does not compile
//! behind a switch is built alone.

mod areas;
mod compile;
mod listed;
mod planted;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use areas::{AREAS, Area};
use compile::Built;
use listed::Mutant;
use planted::Planted;

use super::args::Args;
use super::engines::run_until_failure;
use super::{Failure, lock, tree};

/// Errors that a mutant has with and without a switch: its types do not fit.
const OF_TYPES: &[&str] = &["E0277", "E0282", "E0283", "E0308", "E0369", "E0368", "E0599", "E0600", "E0614"];

/// A run of the tests that takes longer hangs, which kills the mutant.
const LONGEST: Duration = Duration::from_secs(60);

/// The cases of each property: fewer than usual, because most mutants die of the first ones.
const CASES: &str = "64";

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does not compile.
    Unviable,
    /// Killed by the tests of its part.
    Beside,
    /// Killed by other unit tests of the library.
    Elsewhere,
    Survived,
}

/// All mutants of the chosen areas, with what is known about them.
struct Scored {
    root: PathBuf,
    mutants: Vec<(&'static Area, Mutant)>,
    verdicts: BTreeMap<usize, Verdict>,
    /// The mutants that cannot be planted behind a switch, but perhaps be built.
    alone: Vec<usize>,
}

/// Scores the areas of the command line, and prints the table.
pub fn run(args: &Args, parts: &[String]) -> Result<(), Failure> {
    if let Some(unknown) = parts.iter().find(|name| AREAS.iter().all(|area| area.name != **name)) {
        let known: Vec<_> = AREAS.iter().map(|area| area.name).collect();
        return Err(format!("there is no part {unknown:?}; the parts are {}", known.join(", ")).into());
    }
    let areas = AREAS.iter().filter(|area| parts.is_empty() || parts.iter().any(|name| name == area.name));
    let root = tree::folder().join("score/tree");
    tree::copy(&root, |_, content| Ok(content))?;
    let mut mutants = Vec::new();
    for area in areas {
        let listed = listed::list(&root, area)?;
        mutants
            .extend(listed.into_iter().filter(|mutant| mutant.name.contains(&args.only)).map(|mutant| (area, mutant)));
    }
    let mut scored = Scored { root, mutants, verdicts: BTreeMap::new(), alone: Vec::new() };
    let tests = scored.build()?;
    scored.judge_planted(args, &tests)?;
    scored.judge_alone()?;
    print!("{}", table::Table::new(&scored.mutants, &scored.verdicts));
    Ok(())
}

impl Scored {
    /// Plants as many mutants as compile behind their switches.
    fn build(&mut self) -> Result<PathBuf, Failure> {
        tree::add_switches(&self.root)?;
        let mut planted: Vec<_> = (0..self.mutants.len()).collect();
        loop {
            let files = self.plant(&mut planted)?;
            match compile::build(&self.root, &files)? {
                Built::Tests(tests) => return Ok(tests),
                Built::Errors(errors) => {
                    eprintln!("{} mutants do not compile behind a switch", errors.len());
                    planted.retain(|number| !errors.contains_key(number));
                    for (number, code) in errors {
                        self.leave_out(number, &code);
                    }
                }
            }
        }
    }

    /// Writes the files with these mutants, and returns them.
    fn plant(&mut self, planted: &mut Vec<usize>) -> Result<BTreeMap<String, Planted>, Failure> {
        let mut by_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
        for (number, (_, mutant)) in self.mutants.iter().enumerate() {
            let of_file = by_file.entry(&mutant.file).or_default();
            of_file.extend(planted.contains(&number).then_some((number, mutant)));
        }
        let mut files = BTreeMap::new();
        let mut left_out = Vec::new();
        for (file, mutants) in by_file {
            let planted = planted::plant(&fs::read_to_string(tree::repository().join(file))?, &mutants)?;
            tree::write_if_changed(&self.root.join(file), planted.text.as_bytes())?;
            left_out.extend(planted.left_out.iter().copied());
            files.insert(file.to_owned(), planted);
        }
        planted.retain(|number| !left_out.contains(number));
        self.alone.extend(left_out);
        Ok(files)
    }

    fn leave_out(&mut self, number: usize, code: &str) {
        if OF_TYPES.contains(&code) {
            self.verdicts.insert(number, Verdict::Unviable);
        } else {
            self.alone.push(number);
        }
    }

    fn judge_planted(&mut self, args: &Args, tests: &Path) -> Result<(), Failure> {
        if run_tests(&self.root, tests, "", None)? {
            return Err("the tests of the library fail without a mutant".into());
        }
        let is_planted = |number: &usize| !self.verdicts.contains_key(number) && !self.alone.contains(number);
        let planted: Vec<_> = (0..self.mutants.len()).filter(is_planted).collect();
        let queue = Mutex::new(planted.into_iter());
        let verdicts = Mutex::new(BTreeMap::new());
        thread::scope(|scope| {
            let start_worker = |_| scope.spawn(|| self.judge_all(tests, &queue, &verdicts));
            let workers: Vec<_> = (0..args.jobs.get()).map(start_worker).collect();
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a worker panicked".into())))
        })?;
        self.verdicts.extend(std::mem::take(&mut *lock(&verdicts)));
        Ok(())
    }

    fn judge_all(
        &self,
        tests: &Path,
        queue: &Mutex<impl Iterator<Item = usize>>,
        verdicts: &Mutex<BTreeMap<usize, Verdict>>,
    ) -> Result<(), Failure> {
        loop {
            let Some(number) = lock(queue).next() else { return Ok(()) };
            let verdict = self.judge(tests, number, Some(number))?;
            lock(verdicts).insert(number, verdict);
        }
    }

    /// Runs the tests beside the code of a mutant, then all unit tests. `switch` turns it on.
    fn judge(&self, tests: &Path, number: usize, switch: Option<usize>) -> Result<Verdict, Failure> {
        let (area, mutant) = &self.mutants[number];
        let verdict = if run_tests(&self.root, tests, area.tests, switch)? {
            Verdict::Beside
        } else if run_tests(&self.root, tests, "", switch)? {
            Verdict::Elsewhere
        } else {
            Verdict::Survived
        };
        if verdict != Verdict::Beside {
            eprintln!("{}: {verdict:?}", mutant.name);
        }
        Ok(verdict)
    }

    /// Builds and judges one mutant after another.
    fn judge_alone(&mut self) -> Result<(), Failure> {
        for number in std::mem::take(&mut self.alone) {
            let mutant = &self.mutants[number].1;
            let text = fs::read_to_string(tree::repository().join(&mutant.file))?;
            let path = self.root.join(&mutant.file);
            let planted = fs::read(&path)?;
            fs::write(&path, planted::replace(&text, mutant))?;
            let verdict = match compile::build_alone(&self.root)? {
                Some(tests) => self.judge(&tests, number, None)?,
                None => Verdict::Unviable,
            };
            fs::write(&path, planted)?;
            self.verdicts.insert(number, verdict);
        }
        Ok(())
    }
}

/// Returns whether a test fails.
fn run_tests(root: &Path, tests: &Path, filter: &str, switch: Option<usize>) -> Result<bool, Failure> {
    let mut command = Command::new(tests);
    command.arg(filter).env("PROPTEST_CASES", CASES).env("RUST_BACKTRACE", "0").current_dir(root);
    run_until_failure(command, switch, LONGEST)
}
