//! The outcome as tables.

use std::collections::BTreeMap;

use crate::chaos::checks::Check;
use crate::chaos::plan::Fault;
use crate::chaos::run_data::RunData;
use crate::chaos::waits::longest_wait;
use crate::table::markdown;

/// Returns the whole report.
pub fn report(run_data: &RunData, checks: &[Check]) -> String {
    format!("\n{}\n{}\n{}", faults(run_data), checked(checks), figures(run_data))
}

fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

fn faults(run_data: &RunData) -> String {
    let mut by_fault: BTreeMap<Fault, (u32, f64)> = BTreeMap::new();
    for happened in &run_data.happened {
        let (times, seconds) = by_fault.entry(happened.fault).or_default();
        *times += 1;
        *seconds += happened.to.saturating_sub(happened.from).as_secs_f64();
    }
    let rows: Vec<_> = by_fault
        .into_iter()
        .map(|(fault, (times, seconds))| vec![fault.name(), times.to_string(), format!("{seconds:.0}")])
        .collect();
    markdown(&cells(["fault", "times", "seconds in all"]), &rows)
}

fn checked(checks: &[Check]) -> String {
    let width = |text: fn(&Check) -> &str| checks.iter().map(|check| text(check).chars().count()).max().unwrap_or(0);
    let name = width(|check| check.name);
    let line = |check: &Check| {
        let verdict = if check.holds { "ok    " } else { "FAILED" };
        // Each problem is on its own line.
        let detail = check.detail.replace("; ", &format!("\n{:1$}", "", name + 10));
        format!("{verdict}  {:<name$}  {detail}\n", check.name)
    };
    checks.iter().map(line).collect()
}

fn figures(run_data: &RunData) -> String {
    let longest = longest_wait(run_data);
    let sessions = run_data.sessions().len();
    let accepted = run_data.writes.iter().filter(|write| write.is_accepted()).count();
    let rejected = run_data.writes.iter().filter(|write| write.is_rejected()).count();
    let open = run_data.writes.iter().filter(|write| write.is_open()).count();
    format!(
        "{} starts of partitions; longest time in which a partition had unprocessed events and none was processed \
         {:.1} s (lease duration {:.0} s)\n{} writes to records: {accepted} accepted, {rejected} rejected, {open} without a response from the \
         storage\n",
        sessions,
        longest.as_secs_f64(),
        run_data.lease_duration.as_secs_f64(),
        run_data.writes.len()
    )
}
