//! The same troubles for groups that share partitions in different ways.

use std::time::Duration;

use eventhubs_checkpoint::testing::sim::{Plan, Report, Role, Scale, Trouble, What};

use crate::Failure;
use crate::args::Args;
use crate::groups::{Group, Members};
use crate::measure::{self, Window};
use crate::progress::Progress;
use crate::stories::defaults;
use crate::{table, workers};

/// When a group has had the time to settle, and the first trouble comes.
const FIRST: Duration = minutes(15);
/// When the one that crashed is there again.
const BACK: Duration = minutes(30);
const DEPLOYMENT: Duration = minutes(50);
const GAP: Duration = Duration::from_secs(90);
const END: Duration = minutes(90);
/// How long a host is under heavy load.
const BUSY: Duration = minutes(20);
/// By how much a clock is wrong: more than the longest expiry.
const AHEAD: i64 = 200;

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// What came of one seed.
struct Result {
    group: usize,
    after_crash: Option<Duration>,
    after_join: Option<Duration>,
    after_deployment: Option<Duration>,
    changes: usize,
    repeated: u64,
    dark: Duration,
    requests_per_hour: f64,
    lost_by_busy: usize,
    changes_by_clock: usize,
}

/// The table, with what must be known to read it.
pub fn compare(args: &Args) -> std::result::Result<String, Failure> {
    let seeds = args.first_seed..args.first_seed + args.seeds;
    let items: Vec<(usize, u64)> =
        seeds.flat_map(|seed| (0..Group::ALL.len()).map(move |group| (group, seed))).collect();
    let mut progress = Progress::new(items.len());
    let mut results = Vec::new();
    workers::each(
        &items,
        args.workers(),
        |(group, seed)| measured(args, group, seed),
        |result| {
            results.push(result);
            progress.step(0);
        },
    )?;
    progress.finish();
    let rows: Vec<_> = Group::ALL.iter().enumerate().map(|(index, group)| row(*group, index, &results)).collect();
    Ok(table::markdown(&HEADER.map(str::to_owned), &rows))
}

const HEADER: [&str; 10] = [
    "median (worst) of the seeds",
    "balanced after a crash, s",
    "after a join, s",
    "after a rolling deployment, s",
    "changes of owner",
    "events processed again",
    "dark, partition-seconds",
    "requests per hour",
    "lost by a busy host",
    "changes in 30 min with one wrong clock",
];

fn row(group: Group, index: usize, results: &[Result]) -> Vec<String> {
    let of_all = |of: fn(&Result) -> Option<f64>| {
        spread(results.iter().filter(|result| result.group == index).map(of).collect())
    };
    vec![
        group.name().to_owned(),
        of_all(|result| result.after_crash.map(|time| time.as_secs_f64())),
        of_all(|result| result.after_join.map(|time| time.as_secs_f64())),
        of_all(|result| result.after_deployment.map(|time| time.as_secs_f64())),
        of_all(|result| Some(result.changes as f64)),
        of_all(|result| Some(result.repeated as f64)),
        of_all(|result| Some(result.dark.as_secs_f64())),
        of_all(|result| Some(result.requests_per_hour)),
        of_all(|result| Some(result.lost_by_busy as f64)),
        of_all(|result| Some(result.changes_by_clock as f64)),
    ]
}

/// The median, and the worst; "never" is the worst of all.
fn spread(values: Vec<Option<f64>>) -> String {
    let mut values: Vec<f64> = values.into_iter().map(|value| value.unwrap_or(f64::INFINITY)).collect();
    values.sort_by(f64::total_cmp);
    let text = |value: f64| if value.is_finite() { format!("{value:.0}") } else { "never".to_owned() };
    match (values.get(values.len() / 2), values.last()) {
        (Some(median), Some(worst)) => format!("{} ({})", text(*median), text(*worst)),
        _ => String::new(),
    }
}

fn measured(args: &Args, index: usize, seed: u64) -> std::result::Result<Result, Failure> {
    let group = Group::ALL[index];
    let partitions = args.partitions as usize;
    let day = day(args, group, seed);
    let (report, requests) = played(&day, group)?;
    let last_back = DEPLOYMENT + GAP * (args.instances - 1) + Duration::from_secs(50);
    let converges = |window: Window| measure::convergence(&report.timeline, partitions, &window);
    let busy = busy(args, group, seed);
    let (with_busy, _) = played(&busy, group)?;
    let (with_wrong_clock, _) = played(&wrong_clock(args, group, seed), group)?;
    let half_an_hour = FIRST..FIRST + minutes(30);
    Ok(Result {
        group: index,
        after_crash: converges(FIRST..BACK),
        after_join: converges(BACK..DEPLOYMENT),
        after_deployment: converges(last_back..END),
        changes: measure::changes_of_hands(&report.timeline, partitions, &(FIRST..END)),
        repeated: report.totals.repeated,
        dark: measure::dark(&report.timeline, partitions, &(FIRST..END)),
        requests_per_hour: requests as f64 * 3600.0 / report.elapsed.as_secs_f64(),
        lost_by_busy: measure::losses(&with_busy.timeline, partitions, victim(args, seed), &(FIRST..FIRST + BUSY)),
        changes_by_clock: measure::changes_of_hands(&with_wrong_clock.timeline, partitions, &half_an_hour),
    })
}

fn played(plan: &Plan, group: Group) -> std::result::Result<(Report, u64), Failure> {
    let members = Members::of(group);
    let report = workers::play(plan, &members, false)?;
    Ok((report, members.requests()))
}

/// The one that something happens to.
fn victim(args: &Args, seed: u64) -> u32 {
    u32::try_from(seed % u64::from(args.instances)).unwrap_or(0)
}

fn calm(args: &Args, group: Group, seed: u64, storm: Duration) -> Plan {
    let scale = Scale { instances: args.instances, partitions: args.partitions, storm, ..Scale::default() };
    let mut plan = Plan::calm(seed, &scale);
    plan.settings = defaults();
    plan.settings.greedy = group == Group::Greedy;
    for member in &mut plan.members {
        member.role = Role::Guest(0);
        (member.skew_seconds, member.failures_per_mille, member.tracks) = (0, 0, false);
        member.work = Duration::from_millis(100);
    }
    plan
}

/// One crash, from which it comes back, and a rolling deployment.
fn day(args: &Args, group: Group, seed: u64) -> Plan {
    calm(args, group, seed, END)
        .with(FIRST, What::Crash { member: victim(args, seed), down: BACK - FIRST })
        .with(DEPLOYMENT, What::Deployment { gap: GAP, down: Duration::from_secs(5) })
}

/// Handlers take up to a minute longer, and half the requests up to 8 s.
fn busy(args: &Args, group: Group, seed: u64) -> Plan {
    let member = victim(args, seed);
    calm(args, group, seed, FIRST + BUSY + minutes(5))
        .with(FIRST, What::HeavyLoad { member, lasts: BUSY })
        .with(FIRST, What::Storage { member: Some(member), trouble: Trouble::Slow, lasts: BUSY })
}

fn wrong_clock(args: &Args, group: Group, seed: u64) -> Plan {
    let mut plan = calm(args, group, seed, FIRST + minutes(30));
    plan.members[victim(args, seed) as usize].skew_seconds = AHEAD;
    plan
}
