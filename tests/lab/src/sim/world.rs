//! Executes a plan.

mod faults;
mod final_checks;
mod incarnations;
mod incidents;
mod operators;
mod reading;
mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::testing::faulty::FaultKind;
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use eventhubs_checkpoint::{ConsumerGroup, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

pub use self::reading::{processed_after, read_after};
use self::slot::Slot;
use super::factory::InstanceFactory;
use super::ledger::Ledger;
use super::observer::{Observer, TimelineEvent};
use super::plan::{FailureRule, IncidentKind, Plan, StorageFault, Terms};
use super::quota::Quota;
use super::report::{Report, Totals};

/// The name of the hub.
const HUB: &str = "hub";

/// How often the state of the group is checked.
const TICK: Duration = Duration::from_secs(5);

/// How often the lag of every partition is recorded.
const LAG_EVERY: Duration = Duration::from_secs(60);

/// Executes a plan and returns its report; with the last lines of its history if `verbose`.
///
/// Call it on a current-thread runtime with paused time that runs nothing else.
///
/// # Errors
///
/// [`ErrorKind::Config`](eventhubs_checkpoint::ErrorKind::Config) if the plan cannot be set up. Violations during the
/// run are in the report.
pub async fn run(plan: &Plan, factory: &dyn InstanceFactory, verbose: bool) -> Result<Report> {
    let tasks_before = Handle::current().metrics().num_alive_tasks();
    let mut world = World::new(plan, factory, verbose)?;
    world.storm().await;
    world.calm().await;
    world.finish().await;
    world.must_be_gone(tasks_before).await;
    Ok(world.report())
}

/// What is to be done at a time.
#[derive(Debug)]
enum Action {
    Begin(usize),
    End(usize),
    /// A member starts unless it is running. With `replaces` it starts in any case, with the owner ID of the previous
    /// incarnation.
    Start {
        member: u32,
        replaces: bool,
    },
    /// A member is shut down.
    Stop(u32),
    /// A member has other settings from its next start on.
    RollOut(u32, Terms),
    /// Kills the incarnations that have not ended within the grace period.
    Kill(u32),
    /// The last batch of a heavy load is finished.
    Recovered,
    /// A pause is over.
    PauseEnded,
    Publish(u32),
    Tick,
    Lags,
}

struct World<'a> {
    plan: &'a Plan,
    factory: &'a dyn InstanceFactory,
    group: ConsumerGroup,
    observer: Observer,
    memory: MemoryContainer,
    /// The target of all requests: the memory, or an account over it.
    container: Arc<dyn BlobContainer>,
    hub: MemoryHub,
    quota: Quota,
    ledger: Ledger,
    /// How often the hub was recreated.
    generation: u32,
    /// How many instances are under heavy load and may count as stalled.
    heavy: u32,
    /// How many operators have paused partitions, which therefore are not processed.
    pausing: u32,
    rng: StdRng,
    started: Instant,
    slots: Vec<Slot>,
    actions: BTreeMap<(Instant, u64), Action>,
    numbered: u64,
    /// The current storage faults: the incident that caused each, and the member that it affects.
    storage_faults: Vec<(usize, Option<u32>, StorageFault)>,
    /// The rules by which requests fail now, with the incident that began each.
    failing: Vec<(usize, &'a FailureRule)>,
    /// The incarnations that each incident has frozen.
    frozen: BTreeMap<usize, Vec<usize>>,
    /// The members whose runtime is blocked.
    blocked: BTreeSet<u32>,
    /// Operators that may not have ended yet.
    operators: Vec<JoinHandle<()>>,
    publishes: bool,
    convergence: Option<Duration>,
    faults: BTreeMap<FaultKind, u64>,
    incidents: BTreeMap<&'static str, u64>,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, factory: &'a dyn InstanceFactory, verbose: bool) -> Result<Self> {
        let group = ConsumerGroup::new("ns", HUB, "group")?;
        let started = Instant::now();
        let memory = MemoryContainer::new();
        let mut container: Arc<dyn BlobContainer> = Arc::new(memory.clone());
        if let Some(account) = &plan.account {
            container = Arc::new(account.over(container, plan.seed));
        }
        if let Some(fault) = plan.beacon {
            container = fault.over(container);
        }
        let mut world = Self {
            plan,
            factory,
            group,
            observer: Observer::new(plan, verbose),
            memory,
            container,
            hub: MemoryHub::new(HUB, plan.partitions),
            quota: Quota::new(plan.management_quota),
            ledger: Ledger::default(),
            generation: 0,
            heavy: 0,
            pausing: 0,
            rng: StdRng::seed_from_u64(plan.seed ^ 0x5eed),
            started,
            slots: plan.members.iter().map(|_| Slot::default()).collect(),
            actions: BTreeMap::new(),
            numbered: 0,
            storage_faults: Vec::new(),
            failing: Vec::new(),
            frozen: BTreeMap::new(),
            blocked: BTreeSet::new(),
            operators: Vec::new(),
            publishes: true,
            convergence: None,
            faults: BTreeMap::new(),
            incidents: BTreeMap::new(),
        };
        world.hub.reject_positions(plan.settings.tuning.hub_refuses);
        world.set_up();
        Ok(world)
    }

    fn set_up(&mut self) {
        for (member, spec) in (0u32..).zip(&self.plan.members) {
            self.after(spec.starts_at, Action::Start { member, replaces: false });
        }
        for (index, incident) in self.plan.incidents.iter().enumerate() {
            self.after(incident.at, Action::Begin(index));
        }
        for partition in 0..self.plan.partitions {
            self.after(Duration::ZERO, Action::Publish(partition));
        }
        self.after(TICK, Action::Tick);
        self.after(LAG_EVERY, Action::Lags);
    }

    fn after(&mut self, delay: Duration, action: Action) {
        self.numbered += 1;
        self.actions.insert((Instant::now() + delay, self.numbered), action);
    }

    /// Runs until the end of the faults, and until everything that they have begun is over.
    async fn storm(&mut self) {
        self.run_for(self.plan.storm.saturating_sub(self.started.elapsed())).await;
        self.stop_foreign_owners();
        while self.is_something_to_come() {
            self.run_for(TICK).await;
        }
    }

    async fn run_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(next) = self.actions.first_entry() {
            let at = next.key().0;
            if at > until {
                break;
            }
            let action = next.remove();
            sleep_until(at).await;
            self.act(action).await;
        }
        sleep_until(until).await;
    }

    fn is_something_to_come(&self) -> bool {
        let passing = |action: &Action| matches!(action, Action::Publish(_) | Action::Tick | Action::Lags);
        !self.storage_faults.is_empty()
            || !self.operators.is_empty()
            || self.actions.values().any(|action| !passing(action))
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Begin(index) => self.begin(index).await,
            Action::End(index) => self.end(index),
            Action::Start { member, replaces } => self.start(member, replaces).await,
            Action::Stop(member) => self.stop(member),
            Action::RollOut(member, terms) => {
                if let Some(slot) = self.slots.get_mut(member as usize) {
                    slot.rolled_out = Some(terms);
                }
            }
            Action::Kill(member) => self.kill(member).await,
            Action::Recovered => {
                self.heavy -= 1;
                self.disturbed();
            }
            Action::PauseEnded => {
                self.pausing -= 1;
                self.disturbed();
            }
            Action::Publish(partition) => self.publish(partition),
            Action::Tick => {
                self.reap().await;
                self.operators.retain(|operator| !operator.is_finished());
                self.resume_parked();
                self.observer.lock().check_deadlines();
                self.observer.lock().check_unread_time();
                self.after(TICK, Action::Tick);
            }
            Action::Lags => {
                self.observer.lock().record_lags();
                self.after(LAG_EVERY, Action::Lags);
            }
        }
    }

    fn publish(&mut self, partition: u32) {
        let loads = &self.plan.loads;
        let Some(load) = loads.get(partition as usize % loads.len().max(1)) else { return };
        let (events, wait) = (self.rng.random_range(1..=load.burst.max(1)), self.rng.random_range(0.0..2.0));
        if !self.publishes {
            return;
        }
        self.publish_events(partition, events as usize);
        self.after(load.every.mul_f64(wait), Action::Publish(partition));
    }

    fn publish_events(&self, partition: u32, events: usize) {
        let body = self.generation.to_string();
        if let Some(numbers) = self.hub.publish_many(partition, events, body) {
            self.observer.lock().published(partition as usize, numbers.end);
        }
    }

    fn report(&self) -> Report {
        let observer = self.observer.lock();
        let seen = &observer.totals;
        let totals = Totals {
            plans: 1,
            failures: u64::from(!observer.violations.is_empty()),
            elapsed: self.started.elapsed(),
            checked: observer.checked.clone(),
            incidents: self.incidents.clone(),
            faults: self.faults.clone(),
            requests: seen.requests,
            published: seen.published,
            handled: seen.handled,
            repeated: seen.repeated,
            moves: seen.moves,
            unowned_time: seen.unowned_time,
            counts: seen.counts.clone(),
            management: self.quota.counted(),
        };
        Report {
            seed: self.plan.seed,
            elapsed: self.started.elapsed(),
            trace: observer.hash(),
            violations: observer.violations.clone(),
            history: observer.history(),
            totals,
            convergence: self.convergence,
            requests_by_member: observer.requests_by_member(),
            timeline: observer.timeline.clone(),
        }
    }

    /// Adds an incident to the timeline.
    fn record_incident(&mut self, kind: &IncidentKind) {
        *self.incidents.entry(kind.name()).or_default() += 1;
        let mut observer = self.observer.lock();
        observer.note(format!("-- {kind:?}"));
        let event = TimelineEvent::Incident { name: kind.name(), lasts: kind.lasts(), partition: kind.partition() };
        observer.record_without_incarnation(kind.member(), event);
    }
}
