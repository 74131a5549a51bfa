//! `ehcp check`, for monitoring systems.

use std::fmt::Display;
use std::time::Duration;

use eventhubs_checkpoint::admin::{GroupDescription, PartitionDescription};
use serde::Serialize;

use crate::args::{CheckArgs, Format, Global};
use crate::connection::GroupConnection;
use crate::exit::{Failure, Result};
use crate::output::print_text;
use crate::text::{format_count, format_duration, join_ranges, or_empty};
use crate::watching::{GroupHistory, WaitingTime};

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
    /// How long the event has waited that has waited longest, without those of paused partitions.
    lag_age: Option<WaitingTime>,
    owners: usize,
    unowned: usize,
    paused: usize,
}

type Problem = (CheckState, String);

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
            lag_age: None,
            owners: 0,
            unowned: 0,
            paused: 0,
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
    let history = GroupHistory::of_look(group.clone());
    let problems: Vec<_> = [
        lag_problem(group, check),
        lag_age_problem(group, &history, check),
        owner_problem(group, check),
        checkpoint_problem(group, check),
        parked_problem(group),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut states = [CheckState::Critical, CheckState::Unknown, CheckState::Warning].into_iter();
    let active = group.partitions.iter().filter(|partition| partition.active_pause().is_none());
    let waiting = active.filter_map(|partition| history.waiting_time(partition));
    CheckReport {
        schema: SCHEMA,
        // An unknown lag hides no critical problem.
        state: states
            .find(|state| problems.iter().any(|(of_problem, _)| of_problem == state))
            .unwrap_or(CheckState::Ok),
        problems: problems.into_iter().map(|(_, problem)| problem).collect(),
        lag: group.group.lag.events,
        lag_age: waiting.max_by(|one, other| one.seconds.total_cmp(&other.seconds)),
        owners: group.group.members,
        unowned: group.group.unowned,
        paused: group.group.paused,
    }
}

fn lag_problem(group: &GroupDescription, check: &CheckArgs) -> Option<Problem> {
    let limits = [(CheckState::Critical, check.lag_crit), (CheckState::Warning, check.lag_warn)];
    let Some(lag) = group.group.lag.events else {
        let is_needed = check.lag_age_warn.is_some()
            || check.lag_age_crit.is_some()
            || limits.iter().any(|(_, limit)| limit.is_some());
        return is_needed.then(|| (CheckState::Unknown, "the lag is unknown".to_owned()));
    };
    let mut exceeded = limits.into_iter().filter_map(|(state, limit)| Some((state, limit.filter(|most| lag > *most)?)));
    exceeded.next().map(|(state, limit)| (state, format!("lag {lag} is more than {limit}")))
}

/// One look may not know when the next event was enqueued, but it knows since when the owner has made no progress.
fn lag_age_problem(group: &GroupDescription, history: &GroupHistory, check: &CheckArgs) -> Option<Problem> {
    let limits = [(CheckState::Critical, check.lag_age_crit), (CheckState::Warning, check.lag_age_warn)];
    limits.into_iter().find_map(|(state, limit)| {
        let limit = limit?;
        let late = list_partitions(group, |partition| {
            let waiting = history.waiting_time(partition).filter(|_| partition.active_pause().is_none());
            waiting.is_some_and(|waiting| waiting.seconds > limit.as_secs_f64())
                || partition.time_without_progress(group.taken_at).is_some_and(|time| time > limit)
        });
        let text = format!("events wait for longer than {}: {late}", format_duration(limit));
        (!late.is_empty()).then_some((state, text))
    })
}

fn owner_problem(group: &GroupDescription, check: &CheckArgs) -> Option<Problem> {
    let time = check.unowned_for.unwrap_or_default();
    let unowned = list_partitions(group, |partition| is_unowned_for(group, partition, time));
    (!unowned.is_empty()).then(|| (CheckState::Critical, format!("without a live owner: {unowned}")))
}

fn checkpoint_problem(group: &GroupDescription, check: &CheckArgs) -> Option<Problem> {
    let within = check.updated_within?;
    let old = list_partitions(group, |partition| {
        let updated = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.updated);
        partition.active_pause().is_none()
            && partition.lag.events.is_none_or(|events| events > 0)
            && updated.is_none_or(|updated| group.taken_at - updated > within)
    });
    // Without the event hub, no event may wait.
    let state = if group.group.lag.events.is_none() { CheckState::Unknown } else { CheckState::Critical };
    (!old.is_empty()).then(|| (state, format!("no checkpoint within {}: {old}", format_duration(within))))
}

/// An operator knows of a pause, but perhaps not yet of a handler that failed.
fn parked_problem(group: &GroupDescription) -> Option<Problem> {
    let parked = list_partitions(group, |partition| partition.active_pause().is_some_and(|pause| pause.parked));
    (!parked.is_empty()).then(|| (CheckState::Warning, format!("parked after a failure: {parked}")))
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
        [] if report.unowned == 0 && report.paused == 0 => "every partition has a live owner".to_owned(),
        [] if report.unowned == 0 => format!("every partition has a live owner, {} paused", report.paused),
        [] => format!("{} without a live owner, but not for too long", format_count(report.unowned, "partition")),
        problems => problems.join("; "),
    };
    let seconds = |limit: Option<Duration>| limit.map(|limit| limit.as_secs());
    let ages = (seconds(check.lag_age_warn), seconds(check.lag_age_crit));
    let data = [
        report.lag.map(|lag| format_data("lag", lag, (check.lag_warn, check.lag_crit))),
        report.lag_age.map(|age| format_data("lag_age", format!("{:.0}s", age.seconds), ages)),
        Some(format!("owners={} unowned={} paused={}", report.owners, report.unowned, report.paused)),
    ];
    let data: Vec<_> = data.into_iter().flatten().collect();
    format!("EHCP {} - {problems} | {}", report.state.name(), data.join(" "))
}

/// Returns a value with its limits for a warning and for a critical state.
fn format_data(name: &str, value: impl Display, (warn, crit): (Option<u64>, Option<u64>)) -> String {
    let data = format!("{name}={value};{};{}", or_empty(warn), or_empty(crit));
    data.trim_end_matches(';').to_owned()
}
