//! The results of many seeds.

use std::fmt;

use serde_json::{Value, json};

use crate::sim::{Invariant, Report, Totals};
use crate::simulate::args::Args;

/// How many failures are listed.
const LISTED: usize = 20;

pub struct Summary<'a> {
    args: &'a Args,
    totals: Totals,
    failures: Vec<Failed>,
}

struct Failed {
    seed: u64,
    violations: Vec<String>,
}

impl<'a> Summary<'a> {
    pub fn new(args: &'a Args) -> Self {
        Self { args, totals: Totals::default(), failures: Vec::new() }
    }

    pub fn add(&mut self, report: &Report) {
        self.totals.add(&report.totals);
        if !report.violations.is_empty() {
            let violations = report.violations.iter().map(ToString::to_string).collect();
            self.failures.push(Failed { seed: report.seed, violations });
            self.failures.sort_by_key(|failed| failed.seed);
        }
    }

    pub fn failures(&self) -> usize {
        self.failures.len()
    }

    fn hours(&self) -> f64 {
        self.totals.elapsed.as_secs_f64() / 3600.0
    }

    pub fn json(&self) -> Value {
        let totals = &self.totals;
        let checked: serde_json::Map<_, _> =
            totals.checked.iter().map(|(invariant, count)| (format!("{invariant:?}"), json!(count))).collect();
        let faults: serde_json::Map<_, _> =
            totals.faults.iter().map(|(fault, count)| (format!("{fault:?}"), json!(count))).collect();
        let failures = self.failures.iter().map(|failed| {
            json!({
                "seed": failed.seed,
                "violations": failed.violations,
                "replay": self.args.replay(failed.seed),
            })
        });
        json!({
            "seeds": totals.plans,
            "virtual_hours": self.hours(),
            "published": totals.published,
            "handled": totals.handled,
            "handled_again": totals.repeated,
            "requests": totals.requests,
            "moves": totals.moves,
            "unowned_seconds": totals.unowned_time.as_secs_f64(),
            "incidents": totals.incidents,
            "faults": faults,
            "counts": totals.counts,
            "checked": checked,
            "failures": failures.collect::<Vec<_>>(),
        })
    }

    fn write_failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.failures.is_empty() {
            return writeln!(f, "\nno invariant was violated");
        }
        writeln!(f, "\n{} of {} seeds failed", self.failures.len(), self.totals.plans)?;
        for failed in self.failures.iter().take(LISTED) {
            writeln!(f, "  seed {}: {}", failed.seed, failed.violations.first().map_or("", String::as_str))?;
            writeln!(f, "    {}", self.args.replay(failed.seed))?;
        }
        if self.failures.len() > LISTED {
            writeln!(f, "  and {} more", self.failures.len() - LISTED)?;
        }
        Ok(())
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = &self.totals;
        row(f, "seeds", totals.plans)?;
        row(f, "virtual hours", format!("{:.1}", self.hours()))?;
        row(f, "events published", totals.published)?;
        row(f, "events processed", format!("{}, {} of them again", totals.handled, totals.repeated))?;
        row(f, "storage requests", totals.requests)?;
        row(f, "partitions taken from a running owner", totals.moves)?;
        heading(f, "incidents", totals.incidents.values().sum())?;
        for (incident, count) in &totals.incidents {
            row(f, &format!("  {incident}"), count)?;
        }
        heading(f, "faults of single requests", totals.faults.values().sum())?;
        for (fault, count) in &totals.faults {
            row(f, &format!("  {fault:?}"), count)?;
        }
        heading(f, "invariants checked", totals.checked.values().sum())?;
        for invariant in Invariant::ALL {
            row(f, &format!("  {invariant:?}"), totals.checked.get(&invariant).copied().unwrap_or(0))?;
        }
        self.write_failures(f)
    }
}

fn heading(f: &mut fmt::Formatter<'_>, name: &str, sum: u64) -> fmt::Result {
    writeln!(f)?;
    row(f, name, sum)
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    // Aligned, for any kind of value.
    let value = value.to_string();
    writeln!(f, "{name:<46}{value:>14}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::sim::{BuiltIn, IncidentKind, Plan, Scale};
    use clap::Parser;

    use super::*;
    use crate::simulate::workers;

    fn report() -> Report {
        let scale = Scale { instances: 1, partitions: 1, storm: Duration::from_secs(60), ..Scale::default() };
        let plan = Plan::calm(3, &scale).with(Duration::from_secs(9), IncidentKind::LinkBreaks(0));
        workers::play(&plan, &BuiltIn, false).unwrap()
    }

    #[test]
    fn every_number_is_in_the_table() {
        let args = Args::parse_from(["simulate"]);
        let mut summary = Summary::new(&args);
        summary.add(&report());
        summary.add(&report());
        let text = summary.to_string();
        let line = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default();
        assert!(line("seeds").ends_with(" 2") && line("link breaks").ends_with(" 2"), "{text}");
        assert!(!line("CaughtUp").ends_with(" 0") && text.contains("no invariant was violated"), "{text}");
        assert_eq!(summary.json()["incidents"]["link breaks"], 2);
    }

    #[test]
    fn failed_seeds_are_listed_with_their_commands() {
        let args = Args::parse_from(["simulate", "--instances", "2"]);
        let mut summary = Summary::new(&args);
        for seed in [9, 4] {
            summary.failures.push(Failed { seed, violations: vec!["Sticky".to_owned()] });
        }
        summary.add(&report());
        let text = summary.to_string();
        assert!(text.contains("2 of 1 seeds failed") && text.contains("seed 4: Sticky"), "{text}");
        assert!(text.contains("--first-seed 9 --instances 2 --partitions 32 --hours 2 --verbose"), "{text}");
    }
}
