//! When nothing goes wrong any more.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::World;
use crate::sim::bounds::Bounds;
use crate::sim::host::ExitStatus;
use crate::sim::invariant::Invariant;
use crate::sim::observer::TimelineEvent;
use crate::sim::plan::Role;

/// How often a group that settles is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Until late writes have arrived, and whatever ends has ended.
const AFTERWARDS: Duration = Duration::from_secs(60);

impl World<'_> {
    /// The group settles, and nothing moves any more.
    pub(super) async fn calm(&mut self) {
        self.observer.lock().record_without_incarnation(None, TimelineEvent::Calm);
        let (since, bound) = (Instant::now(), self.bound());
        while self.observer.lock().problem().is_some() && since.elapsed() < bound {
            self.run_for(LOOK_EVERY).await;
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
        self.run_for(Bounds::of(&self.plan.settings).quiet()).await;
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

    /// What moves although nothing goes wrong may do so just now, and a batch then waits again.
    async fn wait_until_quiescent(&mut self) {
        let (since, bound) = (Instant::now(), self.bound() + Bounds::of(&self.plan.settings).quiet());
        while !self.observer.lock().is_quiescent() && since.elapsed() < bound {
            self.run_for(LOOK_EVERY).await;
        }
    }

    fn bound(&self) -> Duration {
        let observer = self.observer.lock();
        let survivors = observer.survivors().len();
        let foreign = self.plan.members.iter().any(|member| matches!(member.role, Role::Foreign(_)));
        Bounds::of(&self.plan.settings).convergence(observer.partition_count(), survivors, foreign)
    }

    fn must_be_settled(&self, describe: impl FnOnce(&str) -> String, invariant: Invariant) {
        let mut observer = self.observer.lock();
        let problem = observer.problem();
        observer.check(invariant, problem.is_none(), || describe(&problem.unwrap_or_default()));
    }

    /// Everybody ends in good order.
    pub(super) async fn finish(&mut self) {
        self.publishes = false;
        for (incarnation, ended) in self.stop_all().await {
            let clean = matches!(ended, Some(ExitStatus::Shutdown { clean: true, .. }));
            self.observer
                .lock()
                .check(Invariant::CleanShutdown, clean, || format!("life {incarnation} ended so: {ended:?}"));
        }
        self.observer.lock().must_be_released();
        let moves = self.convergence.is_none() || self.plan.moves_in_calm();
        if self.plan.settings.tuning.checkpoints_on_close && !moves {
            self.observer.lock().must_be_checkpointed();
        }
    }

    /// Nothing is left of any life.
    pub(super) async fn must_be_gone(&mut self, tasks_before: usize) {
        self.run_for(Duration::ZERO).await;
        sleep(AFTERWARDS).await;
        for (incarnation, gate) in self.slots.iter().flat_map(|slot| &slot.gone) {
            let holders = gate.holders();
            self.observer.lock().check(Invariant::NoLeaks, holders == 1, || {
                format!("something of life {incarnation} is left: its gate has {holders} holders")
            });
        }
        let tasks = Handle::current().metrics().num_alive_tasks();
        self.observer.lock().check(Invariant::NoLeaks, tasks == tasks_before, || {
            format!("{tasks} tasks run, but before there were {tasks_before}")
        });
    }
}
