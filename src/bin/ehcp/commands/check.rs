//! `ehcp check`, for monitoring systems.

use std::time::Duration;

use eventhubs_checkpoint::admin::{GroupDescription, PartitionDescription};
use serde::Serialize;

use crate::args::{Check, Format, Global};
use crate::connection::Connection;
use crate::exit::{Failure, Result};
use crate::output::print;
use crate::text::{count, ranges, short};

/// The states of a Nagios plugin, whose exit codes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    Warning,
    Critical,
    Unknown,
}

impl State {
    fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Critical => 2,
            Self::Unknown => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    state: State,
    problems: Vec<String>,
    lag: Option<u64>,
    owners: usize,
    unowned: usize,
}

/// Returns the exit code. A failure is unknown, not critical: it says nothing about the group.
pub async fn run(global: &Global, check: &Check) -> Result<u8> {
    let report = match look(global).await {
        Ok(group) => examine(&group, check),
        Err(failure) => Report {
            schema: SCHEMA,
            state: State::Unknown,
            problems: vec![failure.to_string()],
            lag: None,
            owners: 0,
            unowned: 0,
        },
    };
    let text = match global.output {
        Format::Json => serde_json::to_string_pretty(&report).map_err(|error| Failure::failed(error.to_string()))?,
        Format::Ndjson => serde_json::to_string(&report).map_err(|error| Failure::failed(error.to_string()))?,
        Format::Table | Format::Wide | Format::Csv => nagios_line(&report, check),
    };
    print(&(text + "\n"))?;
    Ok(report.state.code())
}

const SCHEMA: &str = "ehcp.check/1";

async fn look(global: &Global) -> Result<GroupDescription> {
    let connection = Connection::resolve(global)?;
    connection.describe().await
}

fn examine(group: &GroupDescription, check: &Check) -> Report {
    let lag = group.group.lag.events;
    let mut problems = Vec::new();
    if let Some((limit, lag)) = check.lag_crit.zip(lag).filter(|(limit, lag)| lag > limit) {
        problems.push((State::Critical, format!("lag {lag} is more than {limit}")));
    } else if let Some((limit, lag)) = check.lag_warn.zip(lag).filter(|(limit, lag)| lag > limit) {
        problems.push((State::Warning, format!("lag {lag} is more than {limit}")));
    }
    if lag.is_none() && (check.lag_warn.is_some() || check.lag_crit.is_some()) {
        problems.push((State::Unknown, "the lag is unknown".to_owned()));
    }
    let unowned =
        list_partitions(group, |partition| is_unowned_for(group, partition, check.unowned_for.unwrap_or_default()));
    if !unowned.is_empty() {
        problems.push((State::Critical, format!("without a live owner: {unowned}")));
    }
    if let Some(within) = check.updated_within {
        let old = list_partitions(group, |partition| is_old(group, partition, within));
        // Without the event hub, no event may wait.
        let state = if lag.is_none() { State::Unknown } else { State::Critical };
        if !old.is_empty() {
            problems.push((state, format!("no checkpoint within {}: {old}", short(within))));
        }
    }
    let mut states = [State::Critical, State::Unknown, State::Warning].into_iter();
    Report {
        schema: SCHEMA,
        // An unknown lag hides no critical problem.
        state: states.find(|state| problems.iter().any(|(of_problem, _)| of_problem == state)).unwrap_or(State::Ok),
        problems: problems.into_iter().map(|(_, problem)| problem).collect(),
        lag,
        owners: group.group.members,
        unowned: group.group.unowned,
    }
}

fn list_partitions(group: &GroupDescription, is_wanted: impl Fn(&PartitionDescription) -> bool) -> String {
    ranges(group.partitions.iter().filter(|partition| is_wanted(partition)).map(|partition| &partition.id))
}

/// A released partition has no time of its release; its checkpoint was written before that.
fn is_unowned_for(group: &GroupDescription, partition: &PartitionDescription, time: Duration) -> bool {
    if partition.state.is_live() {
        return false;
    }
    let renewed = partition.owner.as_ref().map(|owner| owner.renewed);
    let seen = renewed.or_else(|| partition.checkpoint.as_ref().map(|checkpoint| checkpoint.updated));
    seen.is_none_or(|seen| group.taken_at - seen >= time)
}

fn is_old(group: &GroupDescription, partition: &PartitionDescription, within: Duration) -> bool {
    let waits = partition.lag.events.is_none_or(|events| events > 0);
    let updated = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.updated);
    waits && updated.is_none_or(|updated| group.taken_at - updated > within)
}

/// Returns the line of a Nagios plugin, with performance data.
fn nagios_line(report: &Report, check: &Check) -> String {
    let problems = match report.problems.as_slice() {
        [] if report.unowned == 0 => "every partition has a live owner".to_owned(),
        [] => format!("{} without a live owner, but not for too long", count(report.unowned, "partition")),
        problems => problems.join("; "),
    };
    let warn = check.lag_warn.map(|limit| limit.to_string()).unwrap_or_default();
    let critical = check.lag_crit.map(|limit| limit.to_string()).unwrap_or_default();
    let lag = report.lag.map(|lag| format!("lag={lag};{warn};{critical}").trim_end_matches(';').to_owned() + " ");
    let lag = lag.unwrap_or_default();
    let state = report.state.name();
    format!("EHCP {state} - {problems} | {lag}owners={} unowned={}", report.owners, report.unowned)
}
