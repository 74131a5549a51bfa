//! The cost of planned moves of whole groups in virtual time, with and without handoffs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sim::{
    Bounds, BuiltIn, IncidentKind, Load, Plan, Report, Role, Scale, Settings, TimelineEntry, TimelineEvent, run,
};
use eventhubs_checkpoint::LeaseScope;

fn play(plan: &Plan) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let report = runtime.block_on(run(plan, &BuiltIn, false)).unwrap();
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    report
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a plan of this many instances on 64 partitions, each with a burst of events about every 20 s.
fn under_load(instances: u32, storm: Duration) -> Plan {
    let scale = Scale { instances, partitions: 64, storm, ..Scale::default() };
    let mut plan = Plan::calm(1, &scale);
    plan.settings = Settings::default();
    for member in &mut plan.members {
        member.role = Role::CrateProcessor;
        (member.skew_seconds, member.failures_per_mille, member.tracks) = (0, 0, false);
        member.one_by_one = None;
        member.work = Duration::from_millis(500);
    }
    plan.loads = vec![Load { every: seconds(20), burst: 20 }];
    plan
}

/// The time from the release of a partition until the next handler starts.
struct Gap {
    by: usize,
    since: Duration,
    lasted: Duration,
}

/// Statistics of a run's timeline from a moment on.
#[derive(Default)]
struct Books {
    owners: BTreeMap<usize, usize>,
    released: BTreeMap<usize, (usize, Duration)>,
    gaps: Vec<Gap>,
    /// When each incarnation ended, and how many started.
    ended: BTreeMap<usize, Duration>,
    started: usize,
    /// How often a partition went to a different incarnation.
    moves: usize,
    /// The last member of each partition, to count moves between members.
    members: BTreeMap<usize, Option<u32>>,
    moves_between_members: usize,
    /// Since when no handler processes a partition, and the longest such time.
    stopped: BTreeMap<usize, Duration>,
    longest_stop: Duration,
}

impl Books {
    fn of(report: &Report, from: Duration) -> Self {
        let calm = report.timeline.iter().find(|entry| entry.event == TimelineEvent::Balanced).map(|entry| entry.at);
        let mut books = Self::default();
        for entry in report.timeline.iter().take_while(|entry| Some(entry.at) <= calm) {
            books.note(entry, entry.at >= from);
        }
        books
    }

    fn note(&mut self, entry: &TimelineEntry, counts: bool) {
        match (&entry.event, entry.incarnation) {
            (TimelineEvent::Owner { partition }, Some(incarnation)) => {
                let before = self.owners.insert(*partition, incarnation);
                let member = self.members.insert(*partition, entry.member);
                self.moves_between_members += usize::from(counts && member != Some(entry.member));
                self.moves += usize::from(counts && before != Some(incarnation));
            }
            (TimelineEvent::Owner { partition }, None) if counts => {
                self.released.insert(*partition, (self.owners[partition], entry.at));
            }
            (TimelineEvent::HandlerStopped { partition }, _) => {
                self.stopped.insert(*partition, entry.at);
            }
            (TimelineEvent::HandlerStarted { partition }, _) => {
                if let Some(stopped) = self.stopped.remove(partition).filter(|_| counts) {
                    self.longest_stop = self.longest_stop.max(entry.at.saturating_sub(stopped));
                }
                if let Some((by, since)) = self.released.remove(partition) {
                    self.gaps.push(Gap { by, since, lasted: entry.at.saturating_sub(since) });
                }
            }
            (TimelineEvent::Started, _) if counts => self.started += 1,
            (TimelineEvent::Ended, Some(incarnation)) if counts => {
                self.ended.insert(incarnation, entry.at);
            }
            _ => {}
        }
    }

    /// Returns whether it was released because its owner was shutting down, which takes no longer than 10 s here.
    fn at_an_end(&self, gap: &Gap) -> bool {
        self.ended.get(&gap.by).is_some_and(|ended| *ended <= gap.since + seconds(10))
    }

    /// Returns how many partitions were released at a shutdown, or else handed over, and the longest time until the
    /// next handler started.
    fn gaps(&self, at_an_end: bool) -> (usize, Duration) {
        let gaps: Vec<_> = self.gaps.iter().filter(|gap| self.at_an_end(gap) == at_an_end).collect();
        (gaps.len(), gaps.iter().map(|gap| gap.lasted).max().unwrap_or_default())
    }

    /// The partitions of an instance must move when it ends, and it must get a share when it restarts.
    fn fewest_moves(&self, share: usize) -> usize {
        self.gaps(true).0 + self.started * share
    }
}

/// Restarts all six instances one after another, on 64 partitions.
fn deployment(greedy: bool, handoff: bool, scope: LeaseScope) -> (Plan, Report, Books) {
    let begins = seconds(420);
    let kind = IncidentKind::Deployment { gap: seconds(180), down: seconds(5) };
    let mut plan = under_load(6, seconds(1620)).with(begins, kind);
    (plan.settings.greedy, plan.settings.handoff, plan.settings.lease_scope) = (greedy, handoff, scope);
    let report = play(&plan);
    let books = Books::of(&report, begins);
    let (handed_over, released) = (books.gaps(false), books.gaps(true));
    println!(
        "{scope:?}, greedy {greedy}, handoff {handoff}: of {} events {} again, {} moves, the fewest are {}; released \
         at shutdown {}, unread for up to {:?}, handed over {}, unread for up to {:?}",
        report.totals.handled,
        report.totals.repeated,
        books.moves,
        books.fewest_moves(64 / 6),
        released.0,
        released.1,
        handed_over.0,
        handed_over.1
    );
    (plan, report, books)
}

fn repeats_nothing(greedy: bool, scope: LeaseScope) {
    let (_, report, books) = deployment(greedy, true, scope);
    assert_eq!(report.totals.repeated, 0, "events were processed twice");
    assert_eq!(books.moves, books.fewest_moves(64 / 6));
    let (handed_over, longest) = books.gaps(false);
    assert!(handed_over >= 60, "{handed_over}");
    assert!(longest <= seconds(2), "a partition that was handed over was unread for {longest:?}");
    let (_, longest) = books.gaps(true);
    assert!(longest <= seconds(5), "a partition that was released was unread for {longest:?}");
}

#[test]
fn a_rolling_deployment_repeats_no_event() {
    repeats_nothing(false, LeaseScope::Partition);
    repeats_nothing(true, LeaseScope::Partition);
}

#[test]
fn a_deployment_with_instance_leases_repeats_no_event() {
    repeats_nothing(false, LeaseScope::Instance);
    repeats_nothing(true, LeaseScope::Instance);
}

#[test]
fn a_deployment_without_handoffs_repeats_events() {
    let (_, report, _) = deployment(true, false, LeaseScope::Partition);
    assert!(report.totals.repeated > 0, "otherwise handoffs gain nothing");
}

/// Returns the longest time from the end of an instance to its next start.
fn longest_restart(report: &Report, from: Duration) -> Duration {
    let (mut ended, mut longest) = (BTreeMap::new(), Duration::ZERO);
    for entry in report.timeline.iter().filter(|entry| entry.at >= from) {
        match entry.event {
            TimelineEvent::Ended => drop(ended.insert(entry.member, entry.at)),
            TimelineEvent::Started => {
                let away = ended.remove(&entry.member).map(|at| entry.at.saturating_sub(at));
                longest = longest.max(away.unwrap_or_default());
            }
            _ => {}
        }
    }
    longest
}

/// All six are restarted one after another, and each reclaims the partitions that it kept.
#[test]
fn a_deployment_that_keeps_partitions_moves_none() {
    for scope in [LeaseScope::Partition, LeaseScope::Instance] {
        let begins = seconds(420);
        let kind = IncidentKind::Deployment { gap: seconds(180), down: seconds(5) };
        let mut plan = under_load(6, seconds(1620)).with(begins, kind);
        (plan.settings.keep, plan.settings.lease_scope) = (true, scope);
        let report = play(&plan);
        let books = Books::of(&report, begins);
        let restart = longest_restart(&report, begins);
        println!(
            "{scope:?}, kept: of {} events {} again, {} moves, not processed for up to {:?}, of which an instance \
             was down for {restart:?}",
            report.totals.handled, report.totals.repeated, books.moves_between_members, books.longest_stop
        );
        assert_eq!((report.totals.repeated, books.moves_between_members), (0, 0));
        assert!(books.longest_stop <= restart + seconds(1), "{:?}", books.longest_stop);
    }
}

#[test]
fn seven_simultaneous_joins_need_56_moves() {
    let joins = seconds(300);
    let scopes = [LeaseScope::Partition, LeaseScope::Instance];
    for (greedy, scope) in [false, true].into_iter().flat_map(|greedy| scopes.map(|scope| (greedy, scope))) {
        let mut plan = under_load(8, joins + seconds(10));
        (plan.settings.greedy, plan.settings.lease_scope) = (greedy, scope);
        for (member, index) in plan.members.iter_mut().zip(0u32..) {
            member.starts_at = if index == 0 { Duration::ZERO } else { joins + Duration::from_millis(140) * index };
        }
        let report = play(&plan);
        let books = Books::of(&report, joins);
        println!("{scope:?}, greedy {greedy}: {} moves, balanced after {:?}", books.moves, report.convergence);
        assert_eq!((books.moves, report.totals.repeated), (56, 0));
        // Partitions are taken from running owners, so no lease has to expire; the first handoff is requested in the
        // second cycle.
        let bounds = Bounds::of(&plan.settings);
        let bound = bounds.free(56, 7) + bounds.handoff() + plan.settings.interval;
        assert!(
            report.convergence.is_some_and(|took| took <= bound),
            "{:?}, but the bound is {bound:?}",
            report.convergence
        );
    }
}
