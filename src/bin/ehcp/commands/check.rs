//! `ehcp check`, for monitoring systems.

use std::time::Duration;

use eventhubs_checkpoint::admin::{GroupDescription, PartitionDescription};
use serde::Serialize;

use crate::args::{CheckArgs, Format, Global};
use crate::connection::GroupConnection;
use crate::exit::{Failure, Result};
use crate::output::print_text;
use crate::text::{format_count, format_duration, join_ranges, or_empty};

const SCHEMA: &str = "ehcp.check/1";

/// The states of a Nagios plugin, whose exit codes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckState {
    Ok,
    Warning,
    Critical,
    Unknown,
}

impl CheckState {
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
struct CheckReport {
    schema: &'static str,
    state: CheckState,
    problems: Vec<String>,
    lag: Option<u64>,
    owners: usize,
    unowned: usize,
}

/// Returns the exit code. A failure is unknown, not critical: it says nothing about the group.
pub async fn run(global: &Global, check: &CheckArgs) -> Result<u8> {
    let described = async { GroupConnection::resolve(global)?.describe_group().await };
    let report = match described.await {
        Ok(group) => examine_group(&group, check),
        Err(failure) => CheckReport {
            schema: SCHEMA,
            state: CheckState::Unknown,
            problems: vec![failure.to_string()],
            lag: None,
            owners: 0,
            unowned: 0,
        },
    };
    let text = match global.output {
        Format::Json => serde_json::to_string_pretty(&report).map_err(|error| Failure::failed(error.to_string()))?,
        Format::Ndjson => serde_json::to_string(&report).map_err(|error| Failure::failed(error.to_string()))?,
        Format::Table | Format::Wide | Format::Csv => format_nagios_line(&report, check),
    };
    print_text(&(text + "\n"))?;
    Ok(report.state.code())
}

fn examine_group(group: &GroupDescription, check: &CheckArgs) -> CheckReport {
    let lag = group.group.lag.events;
    let mut problems = Vec::new();
    if let Some((limit, lag)) = check.lag_crit.zip(lag).filter(|(limit, lag)| lag > limit) {
        problems.push((CheckState::Critical, format!("lag {lag} is more than {limit}")));
    } else if let Some((limit, lag)) = check.lag_warn.zip(lag).filter(|(limit, lag)| lag > limit) {
        problems.push((CheckState::Warning, format!("lag {lag} is more than {limit}")));
    }
    if lag.is_none() && (check.lag_warn.is_some() || check.lag_crit.is_some()) {
        problems.push((CheckState::Unknown, "the lag is unknown".to_owned()));
    }
    let unowned =
        list_partitions(group, |partition| is_unowned_for(group, partition, check.unowned_for.unwrap_or_default()));
    if !unowned.is_empty() {
        problems.push((CheckState::Critical, format!("without a live owner: {unowned}")));
    }
    if let Some(within) = check.updated_within {
        let old = list_partitions(group, |partition| {
            let updated = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.updated);
            partition.lag.events.is_none_or(|events| events > 0)
                && updated.is_none_or(|updated| group.taken_at - updated > within)
        });
        if !old.is_empty() {
            // Without the event hub, no event may wait.
            let state = if lag.is_none() { CheckState::Unknown } else { CheckState::Critical };
            problems.push((state, format!("no checkpoint within {}: {old}", format_duration(within))));
        }
    }
    let mut states = [CheckState::Critical, CheckState::Unknown, CheckState::Warning].into_iter();
    CheckReport {
        schema: SCHEMA,
        // An unknown lag hides no critical problem.
        state: states
            .find(|state| problems.iter().any(|(of_problem, _)| of_problem == state))
            .unwrap_or(CheckState::Ok),
        problems: problems.into_iter().map(|(_, problem)| problem).collect(),
        lag,
        owners: group.group.members,
        unowned: group.group.unowned,
    }
}

fn list_partitions(group: &GroupDescription, is_wanted: impl Fn(&PartitionDescription) -> bool) -> String {
    join_ranges(group.partitions.iter().filter(|partition| is_wanted(partition)).map(|partition| &partition.id))
}

/// A released partition has no time of its release; its checkpoint was written before that.
fn is_unowned_for(group: &GroupDescription, partition: &PartitionDescription, time: Duration) -> bool {
    if partition.state.is_live() {
        return false;
    }
    partition
        .owner
        .as_ref()
        .map(|owner| owner.renewed)
        .or_else(|| partition.checkpoint.as_ref().map(|checkpoint| checkpoint.updated))
        .is_none_or(|last_seen| group.taken_at - last_seen >= time)
}

/// Returns the line of a Nagios plugin, with performance data.
fn format_nagios_line(report: &CheckReport, check: &CheckArgs) -> String {
    let problems = match report.problems.as_slice() {
        [] if report.unowned == 0 => "every partition has a live owner".to_owned(),
        [] => format!("{} without a live owner, but not for too long", format_count(report.unowned, "partition")),
        problems => problems.join("; "),
    };
    let lag = report.lag.map(|lag| {
        let data = format!("lag={lag};{};{}", or_empty(check.lag_warn), or_empty(check.lag_crit));
        data.trim_end_matches(';').to_owned() + " "
    });
    format!(
        "EHCP {} - {problems} | {}owners={} unowned={}",
        report.state.name(),
        lag.unwrap_or_default(),
        report.owners,
        report.unowned
    )
}
