//! Whole groups of processors in virtual time, with all kinds of faults: see `--help`.

#![allow(clippy::unchecked_time_subtraction, reason = "of constants, and of earlier moments from later ones")]
#![allow(clippy::struct_excessive_bools, reason = "switches of a command line")]

mod args;
mod cold_start;
mod comparison;
mod drawing;
mod groups;
mod measure;
mod progress;
mod proportion;
mod requests;
mod scale;
pub(crate) mod scenarios;
mod summary;
mod workers;

use std::process::ExitCode;

use clap::Parser;

use crate::sim::{BuiltIn, Plan, Scale, shrink};
use args::Args;
use progress::Progress;
use summary::Summary;

/// Any error that ends the simulation.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const VIOLATED: u8 = 1;
const FAILED: u8 = 2;

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => VIOLATED.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            FAILED.into()
        }
    }
}

/// Returns whether no invariant was violated.
fn run(args: &Args) -> Result<bool, Failure> {
    if args.compare {
        println!("{}", comparison::compare(args)?);
        return Ok(true);
    }
    if args.cold_start {
        println!("{}", cold_start::cold_starts(args)?);
        return Ok(true);
    }
    if args.scale {
        let scaled = scale::scaled(scale::LARGE)?;
        println!("{scaled}");
        scaled.exceeded().iter().for_each(|exceeded| eprintln!("{exceeded}"));
        return Ok(scaled.exceeded().is_empty());
    }
    if args.proportion {
        let tables = proportion::tables(args)?;
        println!("{tables}");
        tables.exceeded().iter().for_each(|exceeded| eprintln!("{exceeded}"));
        return Ok(tables.exceeded().is_empty());
    }
    if args.request_costs {
        println!("{}", requests::requests()?);
        return Ok(true);
    }
    if let Some(plan) = args.plan_of_picture() {
        return one(args, &plan);
    }
    many(args)
}

fn many(args: &Args) -> Result<bool, Failure> {
    let (scale, seeds): (_, Vec<u64>) = (args.size(), args.seeds().collect());
    let mut summary = Summary::new(args);
    let mut progress = Progress::new(seeds.len(), "seeds");
    workers::each(
        &seeds,
        args.jobs(),
        |seed| workers::play(&Plan::draw(seed, &scale), &BuiltIn, false),
        |report| {
            summary.add(&report);
            progress.step(summary.failures());
        },
    )?;
    progress.finish();
    print(args, &summary)
}

fn print(args: &Args, summary: &Summary<'_>) -> Result<bool, Failure> {
    if args.json {
        println!("{}", serde_json::to_string(&summary.json())?);
    } else {
        print!("{summary}");
    }
    Ok(summary.failures() == 0)
}

/// Runs one plan and prints the details.
fn one(args: &Args, plan: &Plan) -> Result<bool, Failure> {
    let report = workers::play(plan, &BuiltIn, args.verbose)?;
    if let Some(path) = &args.timeline {
        let headline = args
            .scenario
            .map_or_else(|| format!("Seed {}", plan.seed), |scenario| scenarios::headline(scenario).to_owned());
        std::fs::write(path, crate::draw::svg::render(&drawing::picture(plan, &report, &headline)))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        eprintln!("the picture is in {}", path.display());
    }
    if args.verbose {
        println!("{plan:#?}\n\n{}\n", report.history.join("\n"));
        if !report.violations.is_empty() {
            explain(plan, args)?;
        }
    }
    let mut summary = Summary::new(args);
    summary.add(&report);
    print(args, &summary)
}

fn explain(plan: &Plan, args: &Args) -> Result<(), Failure> {
    eprintln!("searching for the fewest incidents that still fail ...");
    let fails = |plan: &Plan| workers::play(plan, &BuiltIn, false).is_ok_and(|report| !report.violations.is_empty());
    let smallest = shrink(plan, fails);
    let report = workers::play(&smallest, &BuiltIn, args.verbose)?;
    println!("the smallest plan that fails:\n{smallest:#?}\n\n{}\n", report.history.join("\n"));
    Ok(())
}

impl Args {
    fn size(&self) -> Scale {
        Scale {
            instances: self.instances,
            partitions: self.partitions,
            storm: self.hours,
            foreign: !self.no_foreign,
            platform: self.platform,
            wild: self.wild,
            recreations: self.recreations,
            failures: self.failures || self.wild,
            mixed_settings: self.mixed_settings || self.wild,
            blocked: self.blocked || self.wild,
            failed_writes_per_mille: self.fail_writes.unwrap_or(0),
            bad_blob: self.bad_blob,
            ..Scale::default()
        }
    }

    fn plan_of_picture(&self) -> Option<Plan> {
        match self.scenario {
            Some(scenario) => Some(scenarios::plan(scenario, self.first_seed)),
            None if self.timeline.is_some() || self.verbose => Some(Plan::draw(self.first_seed, &self.size())),
            None => None,
        }
    }
}
