//! The faults of the storage, and whether any fault is in progress.

use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};

use super::{Action, World};
use crate::sim::observer::Slowdown;
use crate::sim::plan::{FailureRule, StorageFault};

impl<'a> World<'a> {
    pub(super) fn storage_fault(
        &mut self,
        index: usize,
        member: Option<u32>,
        storage_fault: StorageFault,
        lasts: Duration,
    ) {
        self.storage_faults.push((index, member, storage_fault));
        self.storage_changes(index, lasts);
    }

    /// From now on some requests fail.
    pub(super) fn fail(&mut self, index: usize, rule: &'a FailureRule, lasts: Duration) {
        self.failing.push((index, rule));
        self.storage_changes(index, lasts);
    }

    fn storage_changes(&mut self, index: usize, lasts: Duration) {
        self.disturbed();
        self.apply_storage_faults();
        self.after(lasts, Action::End(index));
    }

    /// The faults of this incident end.
    pub(super) fn storage_recovers(&mut self, index: usize) {
        self.storage_faults.retain(|(by, _, _)| *by != index);
        self.failing.retain(|(by, _)| *by != index);
        self.disturbed();
        self.apply_storage_faults();
    }

    /// Returns the faults of the requests of a new operator.
    pub(super) fn usual_faults(&self) -> FaultPlan {
        let storage_fault = self.storage_faults.iter().rfind(|(_, target, _)| target.is_none());
        self.faults_with(storage_fault.map(|(_, _, storage_fault)| *storage_fault), None)
    }

    /// Sets the current faults of the requests of all instances.
    pub(super) fn apply_storage_faults(&self) {
        for (member, slot) in (0u32..).zip(&self.slots) {
            let concerns = |target: &Option<u32>| target.is_none_or(|target| target == member);
            let storage_fault = self
                .storage_faults
                .iter()
                .rfind(|(_, target, _)| concerns(target))
                .map(|(_, _, storage_fault)| *storage_fault);
            let plan = self.faults_with(storage_fault, Some(member));
            for running in &slot.incarnations {
                running.faulty.set_plan(plan.clone());
                // Requests that fail one by one meanwhile are repeated, which is not counted in the bound.
                let refuses = self.failing.is_empty() && storage_fault.is_some_and(StorageFault::refuses);
                self.observer.lock().refuses(running.incarnation, refuses);
                if storage_fault.is_some_and(StorageFault::shows_the_past) {
                    self.observer.lock().set_stale_view(running.incarnation);
                }
            }
        }
    }

    /// Returns the faults of the requests of a member, or of an operator.
    fn faults_with(&self, storage_fault: Option<StorageFault>, member: Option<u32>) -> FaultPlan {
        let latency = self.plan.settings.latency;
        let faults = storage_fault
            .map_or_else(|| FaultPlan::always(Fault::Latency(latency)), |storage_fault| storage_fault.faults(latency));
        let rules = self.failing.iter().filter(|(_, rule)| rule.concerns(member));
        rules.fold(faults, |faults, (_, rule)| rule.added_to(faults))
    }

    pub(super) fn is_disrupted(&self) -> bool {
        !self.storage_faults.is_empty()
            || !self.failing.is_empty()
            || !self.frozen.is_empty()
            || !self.blocked.is_empty()
    }

    pub(super) fn disturbed(&self) {
        self.observer.lock().disrupted(self.is_disrupted() || self.heavy > 0 || self.pausing > 0, self.slowdown());
    }

    /// Returns by how much the faults slow the group down; `None` if nothing is promised while they last.
    fn slowdown(&self) -> Option<Slowdown> {
        let severe = !self.storage_faults.is_empty() || !self.frozen.is_empty() || self.heavy > 0;
        let rules = self.failing.iter().map(|(_, rule)| rule);
        let slowdown = rules.fold(Slowdown::none(), |slowdown, rule| rule.slows_down(slowdown));
        (!severe && slowdown.factor.is_finite()).then_some(slowdown)
    }
}
