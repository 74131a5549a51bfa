//! The time without faults, and the end.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::World;
use crate::sim::bounds::Bounds;
use crate::sim::host::ExitStatus;
use crate::sim::invariant::Invariant;
use crate::sim::observer::TimelineEvent;
use crate::sim::plan::Role;

/// How often a group that settles is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time until late writes have arrived and all tasks have ended.
const AFTERWARDS: Duration = Duration::from_secs(60);

impl World<'_> {
    /// Waits until the group settles, and checks that nothing moves after that.
    pub(super) async fn calm(&mut self) {
        self.observer.lock().record_without_incarnation(None, TimelineEvent::Calm);
        let (since, bound) = (Instant::now(), self.bound());
        while self.observer.lock().problem().is_some() && since.elapsed() < bound {
            self.run_for(CHECK_INTERVAL).await;
        }
        let took = since.elapsed();
        self.convergence = self.observer.lock().problem().is_none().then_some(took);
        self.must_be_settled(|problem| format!("within {took:?}: {problem}"), Invariant::Converges);
        if self.convergence.is_none() {
            return;
        }
        self.observer.lock().record_without_incarnation(None, TimelineEvent::Balanced);
        let before = self.observer.lock().ownership_count();
        self.publishes = false;
        self.run_for(Bounds::of(&self.plan.slowest_settings()).quiet()).await;
        let after = self.observer.lock().ownership_count();
        let moved = after - before;
        if self.plan.moves_in_calm() {
            self.wait_until_quiescent().await;
        } else {
            self.observer.lock().check(Invariant::Sticky, moved == 0, || format!("{moved} partitions moved in calm"));
        }
        self.must_be_settled(|problem| format!("later: {problem}"), Invariant::Sticky);
        self.observer.lock().must_be_caught_up();
        if self.plan.settings.tuning.checkpoints_by_time && !self.plan.moves_in_calm() {
            self.observer.lock().must_be_checkpointed();
        }
    }

    /// A plan that moves partitions without faults may do so right now, and batches then wait again.
    async fn wait_until_quiescent(&mut self) {
        let (since, bound) = (Instant::now(), self.bound() + Bounds::of(&self.plan.slowest_settings()).quiet());
        while !self.observer.lock().is_quiescent() && since.elapsed() < bound {
            self.run_for(CHECK_INTERVAL).await;
        }
    }

    fn bound(&self) -> Duration {
        let observer = self.observer.lock();
        let survivors = observer.survivors().len();
        let foreign = self.plan.members.iter().any(|member| matches!(member.role, Role::Foreign(_)));
        Bounds::of(&self.plan.slowest_settings()).convergence(observer.partition_count(), survivors, foreign)
    }

    fn must_be_settled(&self, describe: impl FnOnce(&str) -> String, invariant: Invariant) {
        let mut observer = self.observer.lock();
        let problem = observer.problem();
        observer.check(invariant, problem.is_none(), || describe(&problem.unwrap_or_default()));
    }

    /// Shuts all instances down gracefully.
    pub(super) async fn finish(&mut self) {
        self.publishes = false;
        for (incarnation, ended) in self.stop_all().await {
            let clean = matches!(ended, Some(ExitStatus::Shutdown { clean: true, .. }));
            self.observer
                .lock()
                .check(Invariant::CleanShutdown, clean, || format!("incarnation {incarnation} ended with {ended:?}"));
        }
        self.observer.lock().must_be_released();
        let moves = self.convergence.is_none() || self.plan.moves_in_calm();
        if !moves {
            self.observer.lock().must_be_checkpointed();
        }
    }

    /// Checks that nothing remains of any incarnation.
    pub(super) async fn must_be_gone(&mut self, tasks_before: usize) {
        self.run_for(Duration::ZERO).await;
        sleep(AFTERWARDS).await;
        for (incarnation, gate) in self.slots.iter().flat_map(|slot| &slot.gone) {
            let holders = gate.holders();
            self.observer.lock().check(Invariant::NoLeaks, holders == 1, || {
                format!("something of incarnation {incarnation} remains: its gate has {holders} holders")
            });
        }
        let tasks = Handle::current().metrics().num_alive_tasks();
        self.observer.lock().check(Invariant::NoLeaks, tasks == tasks_before, || {
            format!("{tasks} tasks run, but {tasks_before} ran before")
        });
    }
}
