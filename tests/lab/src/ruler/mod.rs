//! Faults planted in the library, and which engine of the tests finds each: `cargo ruler`.
//!
//! The faults, `mutants`, are written by hand. Each turns off a rule, or undoes the fix of a defect that was once
//! found. All of them are planted at once in a copy of the repository, each behind a switch, so that it is built only
//! once. An environment variable turns one of them on.

mod args;
mod engines;
mod mutants;
mod results;
mod score;
mod tree;

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use clap::Parser;

use args::Args;
use engines::{Programs, Verdict};
use mutants::Mutant;
use results::Results;

/// Any error that ends the run.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    if let Some(parts) = &args.score {
        return score::run(args, parts);
    }
    let mutants = mutants::all();
    let root = tree::plant(&mutants)?;
    if args.plant_only {
        println!("{}", root.display());
        return Ok(());
    }
    let programs = Programs::build(&root)?;
    let results = Mutex::new(Results::load(args.again)?);
    check_engines(args, &programs)?;
    let selected = mutants.into_iter().enumerate().filter(|(_, mutant)| mutant.name.contains(&args.only));
    let queue = Mutex::new(selected);
    thread::scope(|scope| {
        let start_worker = |_| scope.spawn(|| measure_all(args, &programs, &queue, &results));
        let workers: Vec<_> = (0..args.jobs.get()).map(start_worker).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a worker panicked".into())))
    })?;
    print!("{}", lock(&results));
    Ok(())
}

/// An engine that fails without a mutant finds nothing.
fn check_engines(args: &Args, programs: &Programs) -> Result<(), Failure> {
    for engine in args.engines() {
        let verdict = engine.judge(programs, None)?;
        let Verdict::Survived { seconds } = verdict else {
            return Err(format!("{engine:?} fails without a mutant").into());
        };
        eprintln!("no mutant, {engine:?}: {seconds:.0} s");
    }
    Ok(())
}

/// Takes one mutant after another from the queue, and lets the engines search for it.
fn measure_all(
    args: &Args,
    programs: &Programs,
    queue: &Mutex<impl Iterator<Item = (usize, &'static Mutant)>>,
    results: &Mutex<Results>,
) -> Result<(), Failure> {
    loop {
        let Some((number, mutant)) = lock(queue).next() else { return Ok(()) };
        for engine in args.engines() {
            if args.first && lock(results).is_found(mutant) {
                break;
            }
            if !engine.runs_file(mutant.file) || lock(results).has(mutant, *engine) {
                continue;
            }
            let verdict = engine.judge(programs, Some(number))?;
            eprintln!("{}, {engine:?}: {verdict}", mutant.name);
            lock(results).record(mutant, *engine, verdict)?;
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
