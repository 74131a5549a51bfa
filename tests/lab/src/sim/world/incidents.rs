//! The incidents.

use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::processor::{OnFailure, PartitionState};

use super::incarnations::GRACE_PERIOD;
use super::{Action, World};
use crate::sim::plan::{HEAVY, IncidentKind, MOST_PER_MILLE};

impl World<'_> {
    pub(super) async fn begin(&mut self, index: usize) {
        let plan = self.plan;
        let Some(incident) = plan.incidents.get(index) else { return };
        let kind = &incident.kind;
        self.record_incident(kind);
        match kind {
            IncidentKind::Crash { member, down } => {
                self.crash(*member).await;
                self.after(*down, Action::Start { member: *member, replaces: false });
            }
            IncidentKind::Restart { member, down } => self.restart(*member, Duration::ZERO, *down),
            IncidentKind::Deployment { gap, down } => {
                for (turn, _) in (0u32..).zip(&plan.members) {
                    self.restart(turn, *gap * turn, *down);
                }
            }
            IncidentKind::Rollout { terms, gap, down } => {
                for (turn, _) in (0u32..).zip(&plan.members) {
                    self.after(*gap * turn, Action::RollOut(turn, *terms));
                    self.restart(turn, *gap * turn, *down);
                }
            }
            IncidentKind::Freeze { member, lasts } => self.freeze(index, *member, *lasts),
            IncidentKind::Replace { member, lasts } => {
                self.freeze(index, *member, *lasts);
                self.after(Duration::ZERO, Action::Start { member: *member, replaces: true });
            }
            IncidentKind::Storage { member, storage_fault, lasts } => {
                self.storage_fault(index, *member, *storage_fault, *lasts);
            }
            IncidentKind::Failures { rule, lasts } => self.fail(index, rule, *lasts),
            IncidentKind::Reset(reset) => self.reset(reset),
            IncidentKind::Release { member, index, cooldown } => self.release(*member, *index, *cooldown),
            IncidentKind::Pause { member, index: which, lasts } => self.pause(index, *member, *which, *lasts),
            IncidentKind::Block { member, lasts } => {
                self.block(*member, true);
                self.after(*lasts, Action::End(index));
            }
            IncidentKind::HeavyLoad { member, lasts } => {
                self.extra_work(*member, HEAVY);
                self.after(*lasts, Action::End(index));
                if plan.settings.tuning.stalls_under_heavy_load() {
                    self.heavy += 1;
                    self.disturbed();
                    self.after(*lasts + 2 * HEAVY, Action::Recovered);
                }
            }
            of_the_hub => self.hub_incident(index, of_the_hub),
        }
    }

    fn hub_incident(&mut self, index: usize, kind: &IncidentKind) {
        match kind {
            IncidentKind::LinkBreaks(partition) => self.hub.break_link(*partition),
            IncidentKind::LinkStalls { partition, lasts } => {
                self.hub.stall_link(*partition, true);
                self.after(*lasts, Action::End(index));
            }
            IncidentKind::LinkReattaches(partition) => self.hub.reattach(*partition),
            IncidentKind::Expiry { partition, keep } => self.expire(*partition, *keep),
            IncidentKind::HubRecreated { per_mille } => self.recreate(*per_mille),
            IncidentKind::Growth(by) => self.grow(*by),
            _ => {}
        }
    }

    pub(super) fn end(&mut self, index: usize) {
        let Some(incident) = self.plan.incidents.get(index) else { return };
        match &incident.kind {
            IncidentKind::Freeze { member, .. } | IncidentKind::Replace { member, .. } => self.thaw(index, *member),
            IncidentKind::Storage { .. } | IncidentKind::Failures { .. } => self.storage_recovers(index),
            IncidentKind::LinkStalls { partition, .. } => self.hub.stall_link(*partition, false),
            IncidentKind::HeavyLoad { member, .. } => self.extra_work(*member, Duration::ZERO),
            IncidentKind::Block { member, .. } => self.block(*member, false),
            IncidentKind::Pause { member, .. } => self.resume(*member),
            _ => {}
        }
    }

    fn restart(&mut self, member: u32, delay: Duration, down: Duration) {
        self.after(delay, Action::Stop(member));
        self.after(delay + GRACE_PERIOD + down, Action::Start { member, replaces: false });
    }

    fn freeze(&mut self, index: usize, member: u32, lasts: Duration) {
        let Some(slot) = self.slots.get(member as usize) else { return };
        for running in &slot.incarnations {
            running.gates.process.freeze(true);
            self.observer.lock().freezes(running.incarnation, true);
        }
        self.frozen.insert(index, slot.incarnations.iter().map(|running| running.incarnation).collect());
        self.disturbed();
        self.after(lasts, Action::End(index));
    }

    fn thaw(&mut self, index: usize, member: u32) {
        let incarnations = self.frozen.remove(&index).unwrap_or_default();
        self.disturbed();
        let Some(slot) = self.slots.get(member as usize) else { return };
        for running in slot.incarnations.iter().filter(|running| incarnations.contains(&running.incarnation)) {
            running.gates.process.freeze(false);
            self.observer.lock().freezes(running.incarnation, false);
        }
    }

    /// Blocks or unblocks the runtime of the application. Of two overlapping incidents the first end counts.
    fn block(&mut self, member: u32, blocked: bool) {
        if blocked {
            self.blocked.insert(member);
        } else {
            self.blocked.remove(&member);
        }
        self.disturbed();
        for running in self.slots.get(member as usize).iter().flat_map(|slot| &slot.incarnations) {
            running.gates.runtime.freeze(blocked);
            self.observer.lock().blocks(running.incarnation, blocked);
        }
    }

    fn extra_work(&self, member: u32, extra: Duration) {
        for running in self.slots.get(member as usize).iter().flat_map(|slot| &slot.incarnations) {
            running.extra_work.send_replace(extra);
        }
    }

    /// Returns one of the partitions that this member processes.
    fn partition_of(
        &self,
        member: u32,
        index: u32,
    ) -> Option<(eventhubs_checkpoint::processor::ProcessorHandle, PartitionId)> {
        let handle = self.slots.get(member as usize)?.incarnations.last()?.handle_slot.handle()?;
        let partitions = handle.partitions();
        let status = partitions.get(index as usize % partitions.len().max(1))?;
        Some((handle, status.partition.clone()))
    }

    fn release(&self, member: u32, index: u32, cooldown: Duration) {
        if let Some((handle, partition)) = self.partition_of(member, index) {
            self.disturbed();
            // The partition may have been lost just now.
            let _ = handle.release(&partition, cooldown);
        }
    }

    fn pause(&mut self, incident: usize, member: u32, index: u32, lasts: Duration) {
        if let Some((handle, partition)) = self.partition_of(member, index) {
            let _ = handle.pause(&partition);
            self.after(lasts, Action::End(incident));
        }
    }

    /// Resumes the partitions that are parked after a failure, as an operator would.
    pub(super) fn resume_parked(&self) {
        if self.plan.settings.tuning.on_failure != OnFailure::Park {
            return;
        }
        for running in self.slots.iter().flat_map(|slot| &slot.incarnations) {
            let Some(handle) = running.handle_slot.handle() else { continue };
            for parked in handle.partitions().iter().filter(|status| status.state == PartitionState::Parked) {
                let _ = handle.resume(&parked.partition);
            }
        }
    }

    fn resume(&self, member: u32) {
        for running in self.slots.get(member as usize).iter().flat_map(|slot| &slot.incarnations) {
            let Some(handle) = running.handle_slot.handle() else { continue };
            for status in handle.partitions() {
                let _ = handle.resume(&status.partition);
            }
        }
    }

    fn expire(&self, partition: u32, keep: u32) {
        let mut observer = self.observer.lock();
        let first = observer.end_of(partition as usize).saturating_sub_unsigned(keep.into()).max(0);
        self.hub.expire_before(partition, first);
        observer.expired(partition as usize, first);
    }

    /// The first events are there before any instance can look at the new hub.
    fn recreate(&mut self, per_mille: u32) {
        self.generation += 1;
        let ends: Vec<_> = {
            let mut observer = self.observer.lock();
            let ends = (0..observer.partition_count()).map(|partition| observer.end_of(partition)).collect();
            observer.hub_recreated(self.generation, self.hub.now());
            ends
        };
        self.hub.recreate();
        for (partition, end) in (0u32..).zip(ends) {
            let share = i64::from((per_mille + 389 * partition) % (MOST_PER_MILLE + 1));
            self.publish_events(partition, usize::try_from(end * share / 1000).unwrap_or_default());
        }
    }

    fn grow(&mut self, by: u32) {
        let before = self.observer.lock().partition_count();
        let after = before + by as usize;
        let Ok(count) = u32::try_from(after) else { return };
        self.hub.grow_to(count);
        self.observer.lock().grown_to(after);
        for partition in count - by..count {
            self.after(Duration::ZERO, Action::Publish(partition));
        }
    }
}

impl IncidentKind {
    /// Returns the member that it concerns, if any.
    #[must_use]
    pub fn member(&self) -> Option<u32> {
        match self {
            Self::Crash { member, .. }
            | Self::Restart { member, .. }
            | Self::Freeze { member, .. }
            | Self::Replace { member, .. }
            | Self::Release { member, .. }
            | Self::Pause { member, .. }
            | Self::Block { member, .. }
            | Self::HeavyLoad { member, .. } => Some(*member),
            Self::Storage { member, .. } => *member,
            Self::Failures { rule, .. } => rule.member,
            _ => None,
        }
    }

    /// Returns the partition that it concerns, if any.
    #[must_use]
    pub fn partition(&self) -> Option<u32> {
        match self {
            Self::LinkBreaks(partition)
            | Self::LinkReattaches(partition)
            | Self::LinkStalls { partition, .. }
            | Self::Expiry { partition, .. } => Some(*partition),
            _ => None,
        }
    }
}
