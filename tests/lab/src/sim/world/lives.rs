//! How the lives of members begin and end.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;

use super::seat::Running;
use super::{Action, World};
use crate::sim::gate::{Gate, GatedContainer, HostSource};
use crate::sim::host::{Desk, Ended, Host, Skewed};
use crate::sim::invariant::Invariant;
use crate::sim::observer::{Entering, Reporter};
use crate::sim::plan::{Role, Trouble};
use crate::sim::witness::Witness;

/// How long a process may take to end before it is killed.
pub(super) const GRACE_PERIOD: Duration = Duration::from_secs(45);

impl World<'_> {
    pub(super) async fn start(&mut self, member: u32, replaces: bool) {
        self.reap().await;
        if self.has_left(member) {
            return;
        }
        let Some(seat) = self.seats.get_mut(member as usize) else { return };
        if !replaces && !seat.lives.is_empty() {
            return;
        }
        let before = seat.lives.last().map(|running| running.owner.clone());
        seat.born += 1;
        let born = seat.born;
        let Some(owner) = before.or_else(|| self.named(member, born)) else { return };
        self.disturbed();
        let running = self.life(member, born, owner).await;
        if let Some(seat) = self.seats.get_mut(member as usize) {
            seat.lives.push(running);
        }
        self.apply_troubles();
    }

    fn named(&self, member: u32, born: u32) -> Option<OwnerId> {
        let spec = self.plan.members.get(member as usize)?;
        let (number, dots) = (spec.number, ".".repeat(spec.dots));
        let stable = self.plan.settings.stable_names;
        let name = if stable { format!("m{number}{dots}") } else { format!("m{number}-{born}{dots}") };
        OwnerId::new(name).ok()
    }

    async fn life(&mut self, member: u32, born: u32, owner: OwnerId) -> Running {
        let spec = self.plan.members[member as usize].clone();
        let kind = self.cast.kind_of(spec.role);
        let entering = Entering { member: Some(member), owner: owner.clone(), ours: kind.is_ours() };
        let life = self.observer.lock().enters(entering);
        let seed = seed_of(self.plan.seed, member, born);
        let (gate, desk) = (Gate::default(), Desk::default());
        let faulty = FaultyContainer::new(self.witnessed(life), seed);
        let (shutdown, asked) = watch::channel(false);
        let (extra_work, extra) = watch::channel(Duration::ZERO);
        let clock = Skewed {
            shown: self.server_time().await + time::Duration::seconds(spec.skew_seconds),
            since: Instant::now(),
        };
        let reporter = Reporter { observer: self.observer.clone(), life };
        let container =
            GatedContainer { inner: Arc::new(faulty.clone()), gate: gate.clone(), reporter: reporter.clone() };
        let host = Host {
            owner: owner.clone(),
            group: self.group.clone(),
            seed,
            member: spec,
            settings: self.plan.settings.clone(),
            container: Arc::new(container),
            source: HostSource { inner: self.hub.source(), gate: gate.clone() },
            clock: Arc::new(clock),
            reporter,
            shutdown: asked,
            extra_work: extra,
            gate: gate.clone(),
            desk: desk.clone(),
        };
        let (living, observer) = (kind.live(host), self.observer.clone());
        let task = tokio::spawn(async move {
            let ended = living.await;
            observer.lock().ends(life, &ended);
            ended
        });
        Running { life, owner, gate, faulty, shutdown, extra_work, desk, task }
    }

    /// The container as this life reaches it when nothing goes wrong on the way. The observer sees names as they were
    /// sent.
    pub(super) fn witnessed(&self, life: usize) -> Arc<dyn BlobContainer> {
        let observer = self.observer.clone();
        Witness::new(self.container.clone(), move |name, metadata, condition| {
            observer.lock().written(life, name, metadata, condition);
        })
    }

    /// What the storage's clock shows.
    async fn server_time(&self) -> OffsetDateTime {
        match self.memory.list("none").await {
            Ok(list) => list.response.server_time,
            Err(_) => OffsetDateTime::UNIX_EPOCH,
        }
    }

    /// Takes away those that have ended.
    pub(super) async fn reap(&mut self) {
        for member in 0..self.seats.len() {
            while let Some(index) = self.seats[member].lives.iter().position(|running| running.task.is_finished()) {
                let running = self.seats[member].lives.remove(index);
                self.bury(member, running).await;
            }
        }
    }

    async fn bury(&mut self, member: usize, running: Running) -> Option<Ended> {
        let Running { life, gate, faulty, task, .. } = running;
        for (kind, count) in faulty.counts() {
            *self.faults.entry(kind).or_default() += count as u64;
        }
        drop(faulty);
        self.seats[member].gone.push((life, gate));
        match task.await {
            Ok(ended) => Some(ended),
            Err(error) if error.is_panic() => {
                let name = format!("life {life} panicked: {error}");
                self.observer.lock().check(Invariant::CleanEnd, false, || name);
                None
            }
            Err(_) => None,
        }
    }

    /// Lets all lives of a member die.
    pub(super) async fn crash(&mut self, member: u32) {
        let Some(seat) = self.seats.get_mut(member as usize) else { return };
        self.observer.lock().disturbed();
        for running in std::mem::take(&mut seat.lives) {
            if !running.task.is_finished() {
                self.observer.lock().crashes(running.life);
            }
            running.task.abort();
            self.bury(member as usize, running).await;
        }
        if !self.troubles.is_empty() || !self.frozen.is_empty() {
            self.disturbed();
        }
    }

    pub(super) fn stop(&mut self, member: u32) {
        let lives = self.seats.get(member as usize).map_or(&[][..], |seat| &seat.lives);
        for running in lives {
            self.observer.lock().leaves(running.life);
            running.shutdown.send_replace(true);
        }
        self.after(GRACE_PERIOD, Action::Kill(member));
    }

    pub(super) async fn kill(&mut self, member: u32) {
        self.reap().await;
        let stopping = |running: &Running| *running.shutdown.borrow();
        if self.seats.get(member as usize).is_some_and(|seat| seat.lives.iter().any(stopping)) {
            self.crash(member).await;
        }
    }

    pub(super) fn foreigners_leave(&mut self) {
        for member in (0u32..).take(self.plan.members.len()) {
            if self.has_left(member) {
                self.stop(member);
            }
        }
    }

    /// Foreign owners have no part in the calm.
    fn has_left(&self, member: u32) -> bool {
        let is_foreign = |role: &Role| matches!(role, Role::Foreign(_));
        let spec = self.plan.members.get(member as usize);
        self.started.elapsed() >= self.plan.storm && spec.is_some_and(|spec| is_foreign(&spec.role))
    }

    /// What befalls the requests of an operator that comes now.
    pub(super) fn usual_faults(&self) -> FaultPlan {
        let latency = self.plan.settings.latency;
        let trouble = self.troubles.iter().rfind(|(_, whose, _)| whose.is_none());
        trouble.map_or_else(|| FaultPlan::always(Fault::Latency(latency)), |(_, _, trouble)| trouble.faults(latency))
    }

    /// What befalls the requests of everybody now.
    pub(super) fn apply_troubles(&self) {
        let latency = self.plan.settings.latency;
        for (member, seat) in (0u32..).zip(&self.seats) {
            let concerns = |whose: &Option<u32>| whose.is_none_or(|whose| whose == member);
            let trouble = self.troubles.iter().rfind(|(_, whose, _)| concerns(whose)).map(|(_, _, trouble)| *trouble);
            let plan =
                trouble.map_or_else(|| FaultPlan::always(Fault::Latency(latency)), |trouble| trouble.faults(latency));
            for running in &seat.lives {
                running.faulty.set_plan(plan.clone());
                self.observer.lock().refuses(running.life, trouble.is_some_and(Trouble::refuses));
                if trouble.is_some_and(Trouble::shows_the_past) {
                    self.observer.lock().misleads(running.life);
                }
            }
        }
    }

    /// All lives are told to end. Answers how they did.
    pub(super) async fn stop_all(&mut self) -> Vec<(usize, Option<Ended>)> {
        for running in self.seats.iter().flat_map(|seat| &seat.lives) {
            running.shutdown.send_replace(true);
        }
        self.run_for(2 * GRACE_PERIOD).await;
        let mut ends = Vec::new();
        for member in 0..self.seats.len() {
            for running in std::mem::take(&mut self.seats[member].lives) {
                let life = running.life;
                let ended = if running.task.is_finished() { self.bury(member, running).await } else { None };
                ends.push((life, ended));
            }
        }
        ends
    }
}

/// A seed of its own for every life, whatever else happens in the plan.
pub(super) fn seed_of(seed: u64, member: u32, born: u32) -> u64 {
    // The finalizer of SplitMix64.
    let mixed = seed ^ (u64::from(member) << 32 | u64::from(born)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
