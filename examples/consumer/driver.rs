//! Runs the instances of the example: starts them, kills one, displays the progress, and ends when all events are
//! processed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::store::RequestCounts;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Failure;
use crate::args::Plan;
use crate::hub::Hub;
use crate::instance::Instance;
use crate::journal::Journal;
use crate::lag;
use crate::ledger::Ledger;
use crate::producer;
use crate::report::Report;
use crate::screen::Screen;
use crate::storage::Storage;
use crate::table::Table;

const TICK: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(2);

/// The limits of the producer's pace.
const SHORTEST_RUN: Duration = Duration::from_secs(4);
const EVENTS_PER_SECOND: u32 = 5000;

pub struct Driver {
    plan: Plan,
    ledger: Arc<Ledger>,
    instances: Vec<Instance>,
    sent: watch::Receiver<u32>,
    lag: watch::Receiver<Option<i64>>,
    background: JoinSet<Result<(), Failure>>,
    screen: Screen,
    started: Instant,
    shown: Table,
    seen: Table,
    progress: (Instant, u64),
    published_at: Option<Instant>,
    handed_over: u64,
    /// Whether lost events cannot be counted, because other processes share the group or the run was interrupted.
    uncountable: bool,
}

impl Driver {
    pub async fn start(
        plan: Plan,
        hub: Arc<Hub>,
        storage: &Storage,
        journal: Option<Journal>,
        screen: Screen,
    ) -> Result<Self, Failure> {
        let ledger = Arc::new(Ledger::new(format!("{:08x}", std::process::id()), plan.event_size, journal));
        let mut instances = Vec::new();
        for number in 1..=plan.instances {
            instances.push(Instance::start(number, &plan, &hub, storage, ledger.clone()).await?);
        }
        let mut background = JoinSet::new();
        let (sent, watched) = watch::channel(0);
        let (lag, lags) = watch::channel(None);
        if let Some(events) = plan.events {
            let order = producer::Order {
                hub: hub.clone(),
                ledger: ledger.clone(),
                events,
                duration: publishing_time(events, plan.kill_after),
            };
            background.spawn(producer::publish(order, sent));
        }
        if !plan.embedded {
            background.spawn(lag::watch(hub.source().await?, ledger.clone(), lag));
        }
        screen.say(&format!(
            "event hub {:?}, {} instances in this process; their partitions:",
            hub.group().event_hub(),
            instances.len()
        ));
        let now = Instant::now();
        Ok(Self {
            plan,
            ledger,
            instances,
            sent: watched,
            lag: lags,
            background,
            screen,
            started: now,
            shown: Table::default(),
            seen: Table::default(),
            progress: (now, 0),
            published_at: None,
            handed_over: 0,
            uncountable: false,
        })
    }

    /// Runs until all events are processed and the group is balanced, or until the shutdown is requested. Then shuts
    /// down.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<Report, Failure> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => {
                    // Events in flight are not lost, because they will be redelivered.
                    self.uncountable = true;
                    break;
                }
                Some(ended) = self.background.join_next() => ended??,
                _ = ticks.tick() => {
                    self.kill_when_due().await;
                    if self.instances.iter().any(Instance::has_failed) {
                        break;
                    }
                    self.count_handoffs();
                    self.show_progress();
                    if self.is_done() {
                        break;
                    }
                }
            }
        }
        self.finish().await
    }

    async fn kill_when_due(&mut self) {
        let due = self.plan.kill_after.is_some_and(|after| self.started.elapsed() >= after);
        let Some(victim) = self.instances.last_mut().filter(|victim| due && !victim.has_crashed()) else { return };
        let owned = victim.owned_partitions();
        victim.kill().await;
        self.screen.say(&format!("{} crashes; it owned {owned} partitions", victim.owner));
    }

    fn count_handoffs(&mut self) {
        self.handed_over += self.instances.iter_mut().map(Instance::count_handoffs).sum::<u64>();
    }

    /// Displays the table if it has changed and then stayed the same for a tick, and the progress at intervals.
    fn show_progress(&mut self) {
        let table = Table::of(&self.instances);
        self.uncountable |= table.has_foreign_owners(&self.instances);
        if table != self.shown && table == self.seen {
            self.screen.say(&table.line());
            self.shown = table.clone();
        }
        self.seen = table;
        let (since, processed_before) = self.progress;
        if since.elapsed() < PROGRESS {
            return;
        }
        let processed = self.ledger.deliveries();
        let rate =
            (processed - processed_before) * 1000 / u64::try_from(since.elapsed().as_millis()).unwrap_or(1).max(1);
        self.progress = (Instant::now(), processed);
        let lag = self.measure_lag().map_or_else(|| "unknown".to_owned(), |lag| lag.to_string());
        self.screen.say(&format!("{rate} events/s, lag {lag}"));
    }

    /// Returns the number of published events that are not processed.
    fn measure_lag(&self) -> Option<i64> {
        if !self.plan.embedded {
            return *self.lag.borrow();
        }
        // The last batch may be processed before it is counted as sent.
        Some((i64::from(*self.sent.borrow()) - i64::from(*self.ledger.distinct().borrow())).max(0))
    }

    fn is_done(&mut self) -> bool {
        let Some(events) = self.plan.events else { return false };
        if *self.sent.borrow() < events || self.uncountable {
            return false;
        }
        let published_at = *self.published_at.get_or_insert_with(Instant::now);
        let processed = *self.ledger.distinct().borrow() == events;
        (processed && self.is_balanced()) || published_at.elapsed() > self.time_limit()
    }

    /// Returns a time in which the leases of crashed instances expire and every partition is claimed, one after
    /// another.
    fn time_limit(&self) -> Duration {
        let partitions = self.instances.iter().map(|i| i.snapshots.borrow().partitions.len()).max().unwrap_or(0);
        let claims = u32::try_from(partitions).unwrap_or(u32::MAX).saturating_add(5);
        3 * self.plan.lease_duration
            + self.plan.load_balancing_interval.saturating_mul(claims)
            + Duration::from_secs(15)
    }

    /// Returns whether every partition is owned by a running instance, and the numbers of partitions per instance
    /// differ by at most one.
    fn is_balanced(&self) -> bool {
        let running = || self.instances.iter().filter(|instance| !instance.has_crashed());
        let Some(freshest) = running().max_by_key(|instance| instance.snapshots.borrow().cycles) else { return false };
        let snapshot = freshest.snapshots.borrow();
        let mut counts: BTreeMap<String, usize> =
            snapshot.counts().into_iter().map(|(owner, owned)| (owner.to_string(), owned)).collect();
        if self.instances.iter().any(|instance| instance.has_crashed() && counts.contains_key(&instance.owner)) {
            return false;
        }
        counts.extend(running().map(|instance| (instance.owner.clone(), instance.owned_partitions())));
        let least = counts.values().min().copied().unwrap_or_default();
        let most = counts.values().max().copied().unwrap_or_default();
        counts.values().sum::<usize>() == snapshot.partitions.len() && most <= least + 1
    }

    async fn finish(mut self) -> Result<Report, Failure> {
        self.count_handoffs();
        let running = self.instances.iter().filter(|instance| !instance.has_crashed());
        let owned = running.map(|instance| (instance.owner.clone(), instance.owned_partitions())).collect();
        let mut requests = RequestCounts::default();
        self.instances.iter().for_each(|instance| requests += instance.requests());
        let mut failure = None;
        let mut ending = JoinSet::new();
        for instance in self.instances {
            ending.spawn(instance.shut_down());
        }
        while let Some(ended) = ending.join_next().await {
            failure = ended?.err().or(failure);
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        let sent = *self.sent.borrow();
        let countable = self.plan.events.is_some() && !self.uncountable;
        Ok(Report::new(sent, countable, &self.ledger, self.handed_over, owned, &requests))
    }
}

fn publishing_time(events: u32, kill_after: Option<Duration>) -> Duration {
    let fastest = Duration::from_secs(u64::from(events.div_ceil(EVENTS_PER_SECOND)));
    SHORTEST_RUN.max(fastest).max(2 * kill_after.unwrap_or_default())
}
