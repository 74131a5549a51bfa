//! How incarnations of members begin and end.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::testing::faulty::FaultyContainer;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;

use super::slot::Running;
use super::{Action, World};
use crate::sim::bounds::Bounds;
use crate::sim::freeze::{GatedContainer, Gates, HostSource};
use crate::sim::host::{ExitStatus, HandleSlot, Host, Skewed};
use crate::sim::invariant::Invariant;
use crate::sim::observer::{NewIncarnation, Reporter};
use crate::sim::plan::{OwnPositions, Role};
use crate::sim::recorder::Recorder;

/// How long a process may take to end before it is killed.
pub(super) const GRACE_PERIOD: Duration = Duration::from_secs(45);

impl World<'_> {
    pub(super) async fn start(&mut self, member: u32, replaces: bool) {
        self.reap().await;
        if self.has_stopped(member) {
            return;
        }
        let Some(slot) = self.slots.get_mut(member as usize) else { return };
        if !replaces && !slot.incarnations.is_empty() {
            return;
        }
        let before = slot.incarnations.last().map(|running| running.owner.clone());
        slot.ordinal += 1;
        let ordinal = slot.ordinal;
        let Some(owner) = before.or_else(|| self.named(member, ordinal)) else { return };
        self.disturbed();
        let running = self.incarnation(member, ordinal, owner).await;
        if let Some(slot) = self.slots.get_mut(member as usize) {
            slot.incarnations.push(running);
        }
        self.apply_storage_faults();
    }

    fn named(&self, member: u32, ordinal: u32) -> Option<OwnerId> {
        let spec = self.plan.members.get(member as usize)?;
        let (number, dots) = (spec.number, ".".repeat(spec.dots));
        let stable = self.plan.settings.stable_names;
        let name = if stable { format!("m{number}{dots}") } else { format!("m{number}-{ordinal}{dots}") };
        OwnerId::new(name).ok()
    }

    async fn incarnation(&mut self, member: u32, ordinal: u32, owner: OwnerId) -> Running {
        let spec = self.plan.members[member as usize].clone();
        let kind = self.factory.kind_of(spec.role);
        let rolled_out = self.slots.get(member as usize).and_then(|slot| slot.rolled_out.as_ref());
        let settings = self.plan.settings_of(member, rolled_out);
        let new = NewIncarnation {
            member: Some(member),
            owner: owner.clone(),
            crate_processor: kind.is_crate_processor(),
            bounds: Bounds::of(&settings),
        };
        let incarnation = self.observer.lock().register(new);
        let seed = seed_of(self.plan.seed, member, ordinal);
        let (gates, handle_slot) = (Gates::default(), HandleSlot::default());
        let faulty = FaultyContainer::new(self.recording_container(incarnation), seed);
        let (shutdown, requested) = watch::channel(false);
        let (extra_work, extra) = watch::channel(Duration::ZERO);
        let clock = Skewed {
            shown: self.server_time().await + time::Duration::seconds(spec.skew_seconds),
            since: Instant::now(),
        };
        let reporter = Reporter { observer: self.observer.clone(), incarnation };
        let container =
            GatedContainer { inner: Arc::new(faulty.clone()), gate: gates.process.clone(), reporter: reporter.clone() };
        let host = Host {
            owner: owner.clone(),
            group: self.group.clone(),
            seed,
            member: spec,
            settings,
            container: Arc::new(container),
            source: HostSource { inner: self.hub.source(), gates: gates.clone(), quota: self.quota.clone() },
            clock: Arc::new(clock),
            ledger: (self.plan.settings.own_positions != OwnPositions::None).then(|| self.ledger.clone()),
            reporter,
            shutdown: requested,
            extra_work: extra,
            gates: gates.clone(),
            handle_slot: handle_slot.clone(),
        };
        let (future, observer) = (kind.live(host), self.observer.clone());
        let task = tokio::spawn(async move {
            let ended = future.await;
            observer.lock().ends(incarnation, &ended);
            ended
        });
        Running { incarnation, owner, gates, faulty, shutdown, extra_work, handle_slot, task }
    }

    /// Returns the container as this incarnation reaches it without faults. The observer sees names as they were sent.
    pub(super) fn recording_container(&self, incarnation: usize) -> Arc<dyn BlobContainer> {
        let observer = self.observer.clone();
        let recorder = Recorder::new(self.container.clone(), move |name, metadata| {
            observer.lock().written(incarnation, name, metadata);
        });
        match &self.plan.account {
            Some(account) => Arc::new(account.slow(recorder, self.started.elapsed(), self.plan.storm)),
            None => recorder,
        }
    }

    /// Returns the time of the storage's clock.
    async fn server_time(&self) -> OffsetDateTime {
        match self.memory.list("none").await {
            Ok(list) => list.response.server_time,
            Err(_) => OffsetDateTime::UNIX_EPOCH,
        }
    }

    /// Collects the incarnations that have ended.
    pub(super) async fn reap(&mut self) {
        for member in 0..self.slots.len() {
            while let Some(index) =
                self.slots[member].incarnations.iter().position(|running| running.task.is_finished())
            {
                let running = self.slots[member].incarnations.remove(index);
                self.collect(member, running).await;
            }
        }
    }

    async fn collect(&mut self, member: usize, running: Running) -> Option<ExitStatus> {
        let Running { incarnation, gates, faulty, task, .. } = running;
        for (kind, count) in faulty.counts() {
            *self.faults.entry(kind).or_default() += count as u64;
        }
        drop(faulty);
        self.slots[member].gone.push((incarnation, gates.process));
        match task.await {
            Ok(ended) => Some(ended),
            Err(error) if error.is_panic() => {
                let name = format!("incarnation {incarnation} panicked: {error}");
                self.observer.lock().check(Invariant::CleanShutdown, false, || name);
                None
            }
            Err(_) => None,
        }
    }

    /// Crashes all incarnations of a member.
    pub(super) async fn crash(&mut self, member: u32) {
        let Some(slot) = self.slots.get_mut(member as usize) else { return };
        self.observer.lock().disturbed();
        for running in std::mem::take(&mut slot.incarnations) {
            if !running.task.is_finished() {
                self.observer.lock().crashes(running.incarnation);
            }
            running.task.abort();
            self.collect(member as usize, running).await;
        }
        if self.is_disrupted() {
            self.disturbed();
        }
    }

    pub(super) fn stop(&mut self, member: u32) {
        let incarnations = self.slots.get(member as usize).map_or(&[][..], |slot| &slot.incarnations);
        for running in incarnations {
            self.observer.lock().shuts_down(running.incarnation);
            running.shutdown.send_replace(true);
        }
        self.after(GRACE_PERIOD, Action::Kill(member));
    }

    pub(super) async fn kill(&mut self, member: u32) {
        self.reap().await;
        let stopping = |running: &Running| *running.shutdown.borrow();
        if self.slots.get(member as usize).is_some_and(|slot| slot.incarnations.iter().any(stopping)) {
            self.crash(member).await;
        }
    }

    pub(super) fn stop_foreign_owners(&mut self) {
        for member in (0u32..).take(self.plan.members.len()) {
            if self.has_stopped(member) {
                self.stop(member);
            }
        }
    }

    /// Foreign owners leave before the time without faults.
    fn has_stopped(&self, member: u32) -> bool {
        let is_foreign = |role: &Role| matches!(role, Role::Foreign(_));
        let spec = self.plan.members.get(member as usize);
        self.started.elapsed() >= self.plan.storm && spec.is_some_and(|spec| is_foreign(&spec.role))
    }

    /// Shuts all incarnations down and returns how they ended.
    pub(super) async fn stop_all(&mut self) -> Vec<(usize, Option<ExitStatus>)> {
        for running in self.slots.iter().flat_map(|slot| &slot.incarnations) {
            running.shutdown.send_replace(true);
        }
        self.run_for(2 * GRACE_PERIOD).await;
        let mut ends = Vec::new();
        for member in 0..self.slots.len() {
            for running in std::mem::take(&mut self.slots[member].incarnations) {
                let incarnation = running.incarnation;
                let ended = if running.task.is_finished() { self.collect(member, running).await } else { None };
                ends.push((incarnation, ended));
            }
        }
        ends
    }
}

/// Returns a separate seed for every incarnation, independent of the other events of the plan.
pub(super) fn seed_of(seed: u64, member: u32, ordinal: u32) -> u64 {
    // The finalizer of SplitMix64.
    let mixed = seed ^ (u64::from(member) << 32 | u64::from(ordinal)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
