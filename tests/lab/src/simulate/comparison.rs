//! The same faults for groups that share partitions in different ways.

use std::fmt;
use std::time::Duration;

use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::cost::{BilledRequests, RequestPrices};
use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::StoreConfig;

use crate::sim::{IncidentKind, Plan, Report, Role, Scale, Settings, StorageFault};
use crate::simulate::Failure;
use crate::simulate::args::Args;
use crate::simulate::groups::{Group, Members};
use crate::simulate::measure::{self, Window};
use crate::simulate::progress::Progress;
use crate::simulate::workers;
use crate::table;

/// The time of the first fault. The group has settled by then.
const FIRST: Duration = minutes(15);
/// When the crashed instance restarts.
const BACK: Duration = minutes(30);
const DEPLOYMENT: Duration = minutes(50);
const GAP: Duration = Duration::from_secs(90);
/// From the last restart of a deployment to the end.
const AFTERWARDS: Duration = minutes(28);
/// How long a host is under heavy load.
const BUSY: Duration = minutes(20);
/// By how much a clock is wrong: more than the longest lease duration.
const AHEAD: i64 = 200;

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// The result of one group and one seed.
struct Result {
    group: usize,
    read_after_crash: Option<Duration>,
    after_crash: Option<Duration>,
    after_join: Option<Duration>,
    after_deployment: Option<Duration>,
    changes: usize,
    repeated: u64,
    unread_time: Duration,
    requests_per_hour: BilledRequests,
    lost_by_busy: usize,
    behind_by_busy: i64,
    changes_by_clock: usize,
}

/// A column. Less is better; `None` is the worst.
struct Measure {
    name: &'static str,
    of: fn(&Result) -> Option<f64>,
}

const MEASURES: [Measure; 12] = [
    Measure { name: "all read after a crash, s", of: |result| result.read_after_crash.map(|time| time.as_secs_f64()) },
    Measure { name: "balanced after a crash, s", of: |result| result.after_crash.map(|time| time.as_secs_f64()) },
    Measure { name: "after a join, s", of: |result| result.after_join.map(|time| time.as_secs_f64()) },
    Measure { name: "after a deployment, s", of: |result| result.after_deployment.map(|time| time.as_secs_f64()) },
    Measure { name: "moves", of: |result| Some(result.changes as f64) },
    Measure { name: "events redelivered", of: |result| Some(result.repeated as f64) },
    Measure { name: "unread partition-seconds", of: |result| Some(result.unread_time.as_secs_f64()) },
    Measure { name: "requests per hour", of: |result| Some(result.requests_per_hour.total()) },
    Measure {
        name: "US cents per day",
        of: |result| Some(100.0 * 24.0 * RequestPrices::sample().usd_for(result.requests_per_hour)),
    },
    Measure { name: "partitions lost under load", of: |result| Some(result.lost_by_busy as f64) },
    Measure { name: "checkpoint lag under load", of: |result| Some(result.behind_by_busy as f64) },
    Measure { name: "moves caused by clock skew", of: |result| Some(result.changes_by_clock as f64) },
];

const ABOUT: &str = "Median (worst) of all seeds; less is better. The first nine columns are from about 90 min with \
    a crash, the return of that host and a rolling deployment. Checkpoint writes do not count as requests: the \
    others checkpoint after every batch, this crate after 5 s. The price is per day, by the type of each request \
    and sample prices of 2024. A busy host has handlers up to a minute slower and \
    half its requests up to 8 s late, for 20 min. For 30 min, the clock of one host is 200 s ahead. All \
    hosts keep their names after a restart.";

/// Returns the table and its explanation.
pub fn compare(args: &Args) -> std::result::Result<String, Failure> {
    if args.instances < 2 {
        return Err("--instances is 1, which leaves nothing to share: compare 2 or more".into());
    }
    let items: Vec<(usize, u64)> =
        args.seeds().flat_map(|seed| (0..Group::ALL.len()).map(move |group| (group, seed))).collect();
    let mut progress = Progress::new(items.len(), "runs");
    let mut results = Vec::new();
    workers::each(
        &items,
        args.jobs(),
        |(group, seed)| measured(args, group, seed),
        |result| {
            results.push(result);
            progress.step(0);
        },
    )?;
    progress.finish();
    Ok(format!("{}\n{ABOUT}\n\n{}", table_of(&results), where_others_are_better(&results)))
}

fn table_of(results: &[Result]) -> String {
    let header: Vec<_> =
        std::iter::once("").chain(MEASURES.iter().map(|measure| measure.name)).map(str::to_owned).collect();
    let rows = Group::ALL.iter().enumerate().map(|(index, group)| {
        let cells = MEASURES.iter().map(|measure| Spread::of(measure, index, results).to_string());
        std::iter::once(group.name().to_owned()).chain(cells).collect()
    });
    table::markdown(&header, &rows.collect::<Vec<_>>())
}

/// Lists the columns in which another group is better than the first one, so that the table is not an advertisement.
fn where_others_are_better(results: &[Result]) -> String {
    let lines = MEASURES.iter().filter_map(|measure| {
        let crate_processor = Spread::of(measure, 0, results);
        let better =
            (1..Group::ALL.len()).filter(|group| Spread::of(measure, *group, results).median < crate_processor.median);
        let names: Vec<_> = better.map(|group| Group::ALL[group].name()).collect();
        (!names.is_empty()).then(|| format!("- {}: {}\n", measure.name, names.join(", ")))
    });
    match lines.collect::<String>() {
        none if none.is_empty() => {
            format!("No group has a better median than {} in any column.\n", Group::ALL[0].name())
        }
        some => format!("Groups with a better median than {}:\n\n{some}", Group::ALL[0].name()),
    }
}

/// Over all seeds; infinite if the value is missing.
#[derive(Debug, PartialEq)]
struct Spread {
    median: f64,
    worst: f64,
}

impl Spread {
    fn of(measure: &Measure, group: usize, results: &[Result]) -> Self {
        Self::over(results.iter().filter(|result| result.group == group).map(measure.of).collect())
    }

    fn over(values: Vec<Option<f64>>) -> Self {
        let mut values: Vec<f64> = values.into_iter().map(|value| value.unwrap_or(f64::INFINITY)).collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::INFINITY);
        Self { median: at(values.len() / 2), worst: at(values.len().saturating_sub(1)) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: f64| if value.is_finite() { format!("{value:.0}") } else { "never".to_owned() };
        write!(f, "{} ({})", text(self.median), text(self.worst))
    }
}

fn measured(args: &Args, index: usize, seed: u64) -> std::result::Result<Result, Failure> {
    let group = Group::ALL[index];
    let partitions = args.partitions as usize;
    let day = day(args, group, seed);
    let (report, requests) = played(&day, group)?;
    let last_back = DEPLOYMENT + GAP * (args.instances - 1) + Duration::from_secs(50);
    let end = end_of_day(args);
    let converges = |window: Window| measure::convergence(&report.timeline, partitions, &window);
    let (with_busy, _) = played(&busy(args, group, seed), group)?;
    let (with_wrong_clock, _) = played(&wrong_clock(args, group, seed), group)?;
    let (while_busy, half_an_hour) = (FIRST..FIRST + BUSY, FIRST..FIRST + minutes(30));
    Ok(Result {
        group: index,
        read_after_crash: measure::read_again(&report.timeline, partitions, &(FIRST..BACK)),
        after_crash: converges(FIRST..BACK),
        after_join: converges(BACK..DEPLOYMENT),
        after_deployment: converges(last_back..end),
        changes: measure::owner_changes(&report.timeline, partitions, &(FIRST..end)),
        repeated: report.totals.repeated,
        unread_time: measure::unread_time(&report.timeline, partitions, &(FIRST..end)),
        requests_per_hour: requests.per_hour(report.elapsed),
        lost_by_busy: measure::losses(&with_busy.timeline, partitions, victim(args, seed), &while_busy),
        behind_by_busy: measure::most_behind(&with_busy.timeline, &while_busy),
        changes_by_clock: measure::owner_changes(&with_wrong_clock.timeline, partitions, &half_an_hour),
    })
}

fn played(plan: &Plan, group: Group) -> std::result::Result<(Report, BilledRequests), Failure> {
    let members = Members::of(group);
    let report = workers::play(plan, &members, false)?;
    Ok((report, members.requests()))
}

/// Returns the member that the fault affects.
fn victim(args: &Args, seed: u64) -> u32 {
    u32::try_from(seed % u64::from(args.instances)).unwrap_or(0)
}

fn calm(args: &Args, group: Group, seed: u64, storm: Duration) -> Plan {
    let scale = Scale { instances: args.instances, partitions: args.partitions, storm, ..Scale::default() };
    let mut plan = Plan::calm(seed, &scale);
    plan.settings = settings(group);
    for member in &mut plan.members {
        member.role = Role::Guest(0);
        (member.skew_seconds, member.failures_per_mille, member.tracks) = (0, 0, false);
        member.one_by_one = None;
        member.work = Duration::from_millis(100);
    }
    plan
}

fn settings(group: Group) -> Settings {
    let (processor, store) = match group {
        Group::FastFailover => (ProcessorConfig::fast_failover(), StoreConfig::fast_failover()),
        _ => (ProcessorConfig::default(), StoreConfig::default()),
    };
    let greedy = group == Group::Greedy || processor.balancer.load_balancing_strategy == LoadBalancingStrategy::Greedy;
    let mut settings = Settings {
        expiry: store.lease_duration,
        interval: processor.balancer.load_balancing_interval,
        lease_scope: processor.balancer.lease_scope,
        greedy,
        ..Settings::default()
    };
    settings.tuning.request_timeout = store.request_timeout;
    settings
}

fn end_of_day(args: &Args) -> Duration {
    DEPLOYMENT + GAP * args.instances + AFTERWARDS
}

/// Returns a plan with one crash and restart, and a rolling deployment.
fn day(args: &Args, group: Group, seed: u64) -> Plan {
    calm(args, group, seed, end_of_day(args))
        .with(FIRST, IncidentKind::Crash { member: victim(args, seed), down: BACK - FIRST })
        .with(DEPLOYMENT, IncidentKind::Deployment { gap: GAP, down: Duration::from_secs(5) })
}

/// Returns a plan with handlers that take up to a minute longer, and half the requests up to 8 s longer.
fn busy(args: &Args, group: Group, seed: u64) -> Plan {
    let member = victim(args, seed);
    calm(args, group, seed, FIRST + BUSY + minutes(5))
        .with(FIRST, IncidentKind::HeavyLoad { member, lasts: BUSY })
        .with(FIRST, IncidentKind::Storage { member: Some(member), storage_fault: StorageFault::Slow, lasts: BUSY })
}

fn wrong_clock(args: &Args, group: Group, seed: u64) -> Plan {
    let mut plan = calm(args, group, seed, FIRST + minutes(30));
    plan.members[victim(args, seed) as usize].skew_seconds = AHEAD;
    plan
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn result(group: usize, after_crash: Option<u64>, changes: usize) -> Result {
        Result {
            group,
            read_after_crash: None,
            after_crash: after_crash.map(Duration::from_secs),
            after_join: None,
            after_deployment: None,
            changes,
            repeated: 0,
            unread_time: Duration::ZERO,
            requests_per_hour: BilledRequests::default(),
            lost_by_busy: 0,
            behind_by_busy: 0,
            changes_by_clock: 0,
        }
    }

    /// For 32 partitions and 4 instances.
    #[test]
    fn fast_failover_reads_all_again_within_20_s() {
        let args = Args::parse_from(["simulate", "--compare", "--instances", "4"]);
        for seed in 1..=5 {
            let crash = minutes(4) + Duration::from_millis(1700) * u32::try_from(seed).unwrap();
            let kind = IncidentKind::Crash { member: victim(&args, seed), down: minutes(3) };
            let plan = calm(&args, Group::FastFailover, seed, minutes(6)).with(crash, kind);
            let (report, _) = played(&plan, Group::FastFailover).unwrap();
            assert_eq!(report.violations, [], "seed {seed}");
            let took = measure::read_again(&report.timeline, 32, &(crash..crash + minutes(2)));
            assert!(took.is_some_and(|took| took <= Duration::from_secs(20)), "seed {seed}: {took:?}");
        }
    }

    #[test]
    fn a_missing_value_is_the_worst() {
        let spread = Spread::over(vec![Some(5.0), None, Some(3.0)]);
        assert_eq!(spread.to_string(), "5 (never)");
        assert_eq!(Spread::over(vec![Some(1.4)]).to_string(), "1 (1)");
        assert_eq!(Spread::over(Vec::new()).to_string(), "never (never)");
    }

    #[test]
    fn a_better_group_is_listed_with_the_column() {
        let mut results: Vec<_> = (0..Group::ALL.len()).map(|group| result(group, Some(70), 5)).collect();
        assert!(where_others_are_better(&results).starts_with("No group"));
        results[5] = result(5, Some(69), 6);
        results[0].changes = 6;
        let text = where_others_are_better(&results);
        assert!(text.contains(&format!("- balanced after a crash, s: {}\n", Group::ALL[5].name())), "{text}");
        assert_eq!(text.matches("like Python").count(), 1, "only in the column of moves: {text}");
    }

    #[test]
    fn the_table_has_all_groups_and_measures() {
        let results: Vec<_> = (0..Group::ALL.len()).map(|group| result(group, None, group)).collect();
        let table = table_of(&results);
        assert_eq!(table.lines().count(), 2 + Group::ALL.len());
        assert!(table.lines().all(|line| line.matches('|').count() == MEASURES.len() + 2));
        assert!(table.contains("never (never)"));
    }
}
