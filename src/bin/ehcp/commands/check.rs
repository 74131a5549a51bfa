//! `ehcp check`, for monitoring systems.

use std::fmt::Display;
use std::time::Duration;

use eventhubs_checkpoint::admin::describe::{GroupDescription, PartitionDescription};
use serde::Serialize;
use time::OffsetDateTime;
use tokio::time::sleep;

use crate::args::{CheckArgs, Format, Global};
use crate::connection::GroupConnection;
use crate::exit::{Failure, Result};
use crate::output::print_text;
use crate::text::{format_count, join_ranges, or_empty};
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
    /// The longest time that an event has waited, except in partitions that an operator paused.
    lag_age: Option<WaitingTime>,
    owners: usize,
    unowned: usize,
    /// How many partitions an operator paused.
    paused: usize,
    /// How many partitions are parked after a failure.
    parked: usize,
}

/// The group, and an earlier look at it if one look was not enough.
struct Looks<'a> {
    group: &'a GroupDescription,
    earlier: Option<&'a GroupDescription>,
    /// Why there is no second look, although one look was not enough.
    failure: Option<&'a Failure>,
}

type Problem = (CheckState, String);

/// Returns the exit code. A failure is unknown, not critical: it says nothing about the group.
pub async fn run(global: &Global, check: &CheckArgs) -> Result<u8> {
    let report = match examine(global, check).await {
        Ok(report) => report,
        Err(failure) => CheckReport {
            schema: SCHEMA,
            state: CheckState::Unknown,
            problems: vec![failure.to_string()],
            lag: None,
            lag_age: None,
            owners: 0,
            unowned: 0,
            paused: 0,
            parked: 0,
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

async fn examine(global: &Global, check: &CheckArgs) -> Result<CheckReport> {
    check_limits(check)?;
    let connection = GroupConnection::resolve(global)?;
    let group = connection.describe_group().await?;
    let first = Looks { group: &group, earlier: None, failure: None };
    if !first.needs_another(check) {
        return Ok(examine_group(&first, check));
    }
    sleep(check.second_look.after).await;
    Ok(match connection.describe_group().await {
        Ok(later) => examine_group(&Looks { group: &later, earlier: Some(&group), failure: None }, check),
        Err(failure) => examine_group(&Looks { failure: Some(&failure), ..first }, check),
    })
}

/// Fails if a limit for a warning is above the one for a critical state.
fn check_limits(check: &CheckArgs) -> Result<()> {
    let lags = check.lag_warn.zip(check.lag_crit).filter(|(warn, crit)| warn > crit).map(|_| "lag");
    let ages = check.lag_age_warn.zip(check.lag_age_crit).filter(|(warn, crit)| warn > crit).map(|_| "lag-age");
    match lags.or(ages) {
        Some(limit) => Err(Failure::usage(format!("--{limit}-warn is above --{limit}-crit"))),
        None => Ok(()),
    }
}

fn examine_group(looks: &Looks<'_>, check: &CheckArgs) -> CheckReport {
    let group = looks.group;
    let history = GroupHistory::of_look(group.clone());
    let problems: Vec<_> = [
        lag_problem(group, check),
        lag_age_problem(looks, &history, check),
        owner_problem(group, check),
        checkpoint_problem(looks, check),
        parked_problem(group),
        looks.failure.map(|failure| (CheckState::Unknown, format!("the second look failed: {failure}"))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut states = [CheckState::Critical, CheckState::Unknown, CheckState::Warning].into_iter();
    let counted = group.partitions.iter().filter(|partition| !is_paused_by_operator(partition));
    let waiting = counted.filter_map(|partition| history.waiting_time(partition));
    CheckReport {
        schema: SCHEMA,
        // What is unknown hides no critical problem.
        state: states
            .find(|state| problems.iter().any(|(of_problem, _)| of_problem == state))
            .unwrap_or(CheckState::Ok),
        problems: problems.into_iter().map(|(_, problem)| problem).collect(),
        lag: group.group.lag.events,
        lag_age: waiting.max_by(|one, other| one.seconds.total_cmp(&other.seconds)),
        owners: group.group.members,
        unowned: group.group.unowned,
        paused: group.group.paused,
        parked: group.group.parked,
    }
}

impl Looks<'_> {
    /// Returns whether a partition seems to stand still. Its events may have arrived just now, after a long time
    /// without any, so that one look cannot tell.
    fn needs_another(&self, check: &CheckArgs) -> bool {
        if check.second_look.after.is_zero() {
            return false;
        }
        let limit = check.lag_age_warn.or(check.lag_age_crit);
        limit.is_some_and(|limit| !self.list_halted(|partition, at| stands_still(partition, at, limit)).is_empty())
            || check.updated_within.is_some_and(|within| {
                !self
                    .list_halted(|partition, at| has_known_lag(partition) && is_outdated(partition, at, within))
                    .is_empty()
            })
    }

    /// Returns the partitions that meet the condition at every look. Returns none if the second look failed, because
    /// they may not meet it anymore.
    fn list_halted(&self, holds: impl Fn(&PartitionDescription, OffsetDateTime) -> bool) -> String {
        list_partitions(self.group, |partition| {
            let before = self.earlier.map(|earlier| (earlier.partition(&partition.id), earlier.taken_at));
            self.failure.is_none()
                && holds(partition, self.group.taken_at)
                && before.is_none_or(|(before, at)| before.is_some_and(|before| holds(before, at)))
        })
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

/// Reports events that have waited for too long. If one look does not show when they were enqueued, it reports how long
/// the owner has made no progress.
fn lag_age_problem(looks: &Looks<'_>, history: &GroupHistory, check: &CheckArgs) -> Option<Problem> {
    let limits = [(CheckState::Critical, check.lag_age_crit), (CheckState::Warning, check.lag_age_warn)];
    limits.into_iter().find_map(|(state, limit)| {
        let limit = limit?;
        let waits = |partition: &PartitionDescription| {
            let waiting = history.waiting_time(partition).filter(|_| !is_paused_by_operator(partition));
            waiting.is_some_and(|waiting| waiting.seconds > limit.as_secs_f64())
        };
        let late = list_partitions(looks.group, waits);
        let still = looks.list_halted(|partition, at| stands_still(partition, at, limit) && !waits(partition));
        let shown = humantime::format_duration(limit);
        let texts = [
            (!late.is_empty()).then(|| format!("events wait for longer than {shown}: {late}")),
            (!still.is_empty()).then(|| format!("events wait, and no progress for longer than {shown}: {still}")),
        ];
        let texts: Vec<_> = texts.into_iter().flatten().collect();
        (!texts.is_empty()).then(|| (state, texts.join("; ")))
    })
}

fn stands_still(partition: &PartitionDescription, now: OffsetDateTime, limit: Duration) -> bool {
    partition.time_without_progress(now).is_some_and(|time| time > limit)
}

/// An operator knows of the events that wait there. After a failure perhaps no one does.
fn is_paused_by_operator(partition: &PartitionDescription) -> bool {
    partition.active_pause().is_some_and(|pause| !pause.parked)
}

fn is_parked(partition: &PartitionDescription) -> bool {
    partition.active_pause().is_some_and(|pause| pause.parked)
}

fn owner_problem(group: &GroupDescription, check: &CheckArgs) -> Option<Problem> {
    let time = check.unowned_for.unwrap_or_default();
    let unowned = list_partitions(group, |partition| is_unowned_for(group, partition, time));
    (!unowned.is_empty()).then(|| (CheckState::Critical, format!("without a live owner: {unowned}")))
}

fn checkpoint_problem(looks: &Looks<'_>, check: &CheckArgs) -> Option<Problem> {
    let within = check.updated_within?;
    let old = looks.list_halted(|partition, at| is_outdated(partition, at, within));
    let known = looks.list_halted(|partition, at| has_known_lag(partition) && is_outdated(partition, at, within));
    // Where the lag is unknown, perhaps no event waits.
    let state = if known.is_empty() { CheckState::Unknown } else { CheckState::Critical };
    (!old.is_empty()).then(|| (state, format!("no checkpoint within {}: {old}", humantime::format_duration(within))))
}

fn has_known_lag(partition: &PartitionDescription) -> bool {
    partition.lag.events.is_some()
}

/// Returns whether events may wait, and the checkpoint is older than this.
fn is_outdated(partition: &PartitionDescription, now: OffsetDateTime, within: Duration) -> bool {
    let updated = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.updated);
    !is_paused_by_operator(partition)
        && partition.lag.events.is_none_or(|events| events > 0)
        && updated.is_none_or(|updated| now - updated > within)
}

fn parked_problem(group: &GroupDescription) -> Option<Problem> {
    let parked = list_partitions(group, is_parked);
    (!parked.is_empty()).then(|| (CheckState::Warning, format!("parked after a failure: {parked}")))
}

fn list_partitions(group: &GroupDescription, is_wanted: impl Fn(&PartitionDescription) -> bool) -> String {
    join_ranges(group.partitions.iter().filter(|partition| is_wanted(partition)).map(|partition| &partition.id))
}

/// A partition that never had an owner has been without one at least since its checkpoint was written.
fn is_unowned_for(group: &GroupDescription, partition: &PartitionDescription, time: Duration) -> bool {
    if partition.state.is_live() {
        return false;
    }
    partition
        .owner
        .as_ref()
        .map(|owner| owner.renewed)
        .or(partition.released_at)
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
    let seconds = |limit: Option<Duration>| limit.map(|limit| limit.as_secs_f64());
    let ages = (seconds(check.lag_age_warn), seconds(check.lag_age_crit));
    let data = [
        report.lag.map(|lag| format_data("lag", lag, (check.lag_warn, check.lag_crit))),
        report.lag_age.map(|age| format_data("lag_age", format!("{:.0}s", age.seconds), ages)),
        Some(format!(
            "owners={} unowned={} paused={} parked={}",
            report.owners, report.unowned, report.paused, report.parked
        )),
    ];
    let data: Vec<_> = data.into_iter().flatten().collect();
    format!("EHCP {} - {problems} | {}", report.state.name(), data.join(" "))
}

/// Returns a value with its limits for a warning and for a critical state.
fn format_data<T: Display>(name: &str, value: impl Display, (warn, crit): (Option<T>, Option<T>)) -> String {
    let data = format!("{name}={value};{};{}", or_empty(warn), or_empty(crit));
    data.trim_end_matches(';').to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use eventhubs_checkpoint::Pause;
    use eventhubs_checkpoint::admin::describe::OwnershipState;

    use super::*;
    use crate::watching::tests::{later, look};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        check: CheckArgs,
    }

    fn args(options: &str) -> CheckArgs {
        Command::parse_from(["check"].into_iter().chain(options.split_whitespace())).check
    }

    /// Ten events wait, the last one for a second, and the checkpoint is 40 min old.
    async fn burst() -> GroupDescription {
        let mut group = later(&look().await, 40 * 60, |_| {});
        let enqueued = group.taken_at - time::Duration::SECOND;
        group.partitions[0].hub.as_mut().unwrap().last_enqueued_at = Some(enqueued);
        group
    }

    fn pause(group: &GroupDescription, pause: Pause) -> GroupDescription {
        let parked = usize::from(pause.parked);
        let mut group = later(group, 0, |partition| partition.checkpoint.as_mut().unwrap().paused = Some(pause));
        group.group.parked = parked;
        group.group.paused = 1 - parked;
        group
    }

    fn once(group: &GroupDescription, options: &str) -> (CheckState, String) {
        let report = examine_group(&Looks { group, earlier: None, failure: None }, &args(options));
        (report.state, report.problems.join("; "))
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_needs_another_look() {
        let group = burst().await;
        let first = Looks { group: &group, earlier: None, failure: None };
        for (options, expected) in [
            ("--lag-age-crit 30m", true),
            ("--lag-age-warn 30m --lag-age-crit 2h", true),
            ("--updated-within 30m", true),
            ("--lag-age-crit 50m --updated-within 50m", false),
            ("--lag-warn 1", false),
            ("--lag-age-crit 30m --updated-within 30m --second-look 0s", false),
        ] {
            assert_eq!(first.needs_another(&args(options)), expected, "{options}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_look_tells_a_burst_from_a_halt() {
        let group = burst().await;
        for (options, problem) in [
            ("--lag-age-crit 30m", "events wait, and no progress for longer than 30m: 0"),
            ("--updated-within 30m", "no checkpoint within 30m: 0"),
        ] {
            let state_after = |group: &GroupDescription, earlier: &GroupDescription| {
                let report = examine_group(&Looks { group, earlier: Some(earlier), failure: None }, &args(options));
                (report.state, report.problems.join("; "))
            };
            let same = later(&group, 7, |_| {});
            assert_eq!(state_after(&same, &group), (CheckState::Critical, problem.to_owned()));
            let now = same.taken_at;
            let progressed = later(&group, 7, |partition| partition.checkpoint.as_mut().unwrap().updated = now);
            assert_eq!(state_after(&progressed, &group), (CheckState::Ok, String::new()));
            let without_events = later(&group, 0, |partition| partition.lag.events = Some(0));
            assert_eq!(state_after(&same, &without_events), (CheckState::Ok, String::new()), "they arrived in between");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_second_look_hides_no_other_problem() {
        let failure = Failure::failed("no storage");
        let group = burst().await;
        for (options, expected, problems) in [
            ("--lag-age-crit 30m", CheckState::Unknown, "the second look failed: no storage"),
            (
                "--updated-within 30m --lag-crit 9",
                CheckState::Critical,
                "lag 10 is more than 9; the second look failed: no storage",
            ),
        ] {
            let looks = Looks { group: &group, earlier: None, failure: Some(&failure) };
            let report = examine_group(&looks, &args(options));
            assert_eq!((report.state, report.problems.join("; ").as_str()), (expected, problems), "{options}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_lag_hides_no_old_checkpoint() {
        let mut group = burst().await;
        let mut unknown = group.partitions[0].clone();
        (unknown.id, unknown.lag.events) = (1.into(), None);
        group.partitions.push(unknown);
        group.group.lag.events = None;
        let old = |partitions| format!("no checkpoint within 30m: {partitions}");
        assert_eq!(once(&group, "--updated-within 30m"), (CheckState::Critical, old("0-1")));
        group.partitions.remove(0);
        assert_eq!(once(&group, "--updated-within 30m"), (CheckState::Unknown, old("1")));
    }

    #[tokio::test(start_paused = true)]
    async fn only_pauses_of_operators_excuse_a_halt() {
        let group = burst().await;
        let (now, limits) = (group.taken_at, "--lag-age-crit 30m --updated-within 30m");
        assert_eq!(once(&pause(&group, Pause::new(now, None, None)), limits), (CheckState::Ok, String::new()));
        let parked = pause(&group, Pause::after_failure(now, "no database"));
        let (state, problems) = once(&parked, limits);
        assert_eq!(state, CheckState::Critical);
        for problem in
            ["no progress for longer than 30m: 0", "no checkpoint within 30m: 0", "parked after a failure: 0"]
        {
            assert!(problems.contains(problem), "{problems}");
        }
        assert_eq!(once(&parked, ""), (CheckState::Warning, "parked after a failure: 0".to_owned()));
        let report = examine_group(&Looks { group: &parked, earlier: None, failure: None }, &args(""));
        assert!(format_nagios_line(&report, &args("")).ends_with(" paused=0 parked=1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_starts_the_time_without_an_owner() {
        let group = later(&burst().await, 0, |partition| {
            (partition.owner, partition.state) = (None, OwnershipState::Released);
        });
        let released = later(&group, 5, |partition| partition.released_at = Some(group.taken_at));
        assert_eq!(once(&released, "--unowned-for 10s"), (CheckState::Ok, String::new()), "the checkpoint is older");
        assert_eq!(once(&released, "--unowned-for 5s"), (CheckState::Critical, "without a live owner: 0".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn limits_are_shown_exactly() {
        let group = burst().await;
        let options = args("--lag-age-warn 500ms --lag-age-crit 150s");
        let report = examine_group(&Looks { group: &group, earlier: None, failure: None }, &options);
        let line = format_nagios_line(&report, &options);
        assert!(line.contains("longer than 2m 30s: 0") && line.contains(" lag_age=1s;0.5;150 "), "{line}");
    }

    #[test]
    fn a_warning_comes_before_a_critical_state() {
        for (options, expected) in [
            ("--lag-warn 5 --lag-crit 5 --lag-age-crit 1m", ""),
            ("--lag-warn 6 --lag-crit 5", "--lag-warn is above --lag-crit"),
            ("--lag-age-warn 2m --lag-age-crit 1m", "--lag-age-warn is above --lag-age-crit"),
        ] {
            let refused = check_limits(&args(options)).err().map_or_else(String::new, |failure| failure.to_string());
            assert_eq!(refused, expected);
        }
    }
}
