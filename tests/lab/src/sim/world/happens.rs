//! The incidents.

use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::processor::{OnFailure, PartitionState};

use super::lives::GRACE_PERIOD;
use super::{Action, World};
use crate::sim::plan::{HEAVY, Trouble, What};

impl World<'_> {
    pub(super) async fn begin(&mut self, index: usize) {
        let plan = self.plan;
        let Some(incident) = plan.incidents.get(index) else { return };
        let what = &incident.what;
        self.tell(what);
        match what {
            What::Crash { member, down } => {
                self.crash(*member).await;
                self.after(*down, Action::Start { member: *member, replaces: false });
            }
            What::Restart { member, down } => self.restart(*member, Duration::ZERO, *down),
            What::Deployment { gap, down } => {
                for (turn, _) in (0u32..).zip(&plan.members) {
                    self.restart(turn, *gap * turn, *down);
                }
            }
            What::Freeze { member, lasts } => self.freeze(index, *member, *lasts),
            What::Replace { member, lasts } => {
                self.freeze(index, *member, *lasts);
                self.after(Duration::ZERO, Action::Start { member: *member, replaces: true });
            }
            What::Storage { member, trouble, lasts } => self.trouble(index, *member, *trouble, *lasts),
            What::Reset(reset) => self.reset(reset),
            What::Release { member, index, cooldown } => self.release(*member, *index, *cooldown),
            What::Pause { member, index: which, lasts } => self.pause(index, *member, *which, *lasts),
            What::HeavyLoad { member, lasts } => {
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

    fn hub_incident(&mut self, index: usize, what: &What) {
        match what {
            What::LinkBreaks(partition) => self.hub.break_link(*partition),
            What::LinkIsSilent { partition, lasts } => {
                self.hub.stall_link(*partition, true);
                self.after(*lasts, Action::End(index));
            }
            What::LinkReattaches(partition) => self.hub.reattach(*partition),
            What::Expiry { partition, keep } => self.expire(*partition, *keep),
            What::HubMadeAnew => {
                self.generation += 1;
                self.hub.recreate();
                self.observer.lock().made_anew(self.generation);
            }
            What::Growth(by) => self.grow(*by),
            _ => {}
        }
    }

    pub(super) fn end(&mut self, index: usize) {
        let Some(incident) = self.plan.incidents.get(index) else { return };
        match &incident.what {
            What::Freeze { member, .. } | What::Replace { member, .. } => self.thaw(index, *member),
            What::Storage { .. } => {
                self.troubles.retain(|(by, _, _)| *by != index);
                self.disturbed();
                self.apply_troubles();
            }
            What::LinkIsSilent { partition, .. } => self.hub.stall_link(*partition, false),
            What::HeavyLoad { member, .. } => self.extra_work(*member, Duration::ZERO),
            What::Pause { member, .. } => self.resume(*member),
            _ => {}
        }
    }

    fn restart(&mut self, member: u32, delay: Duration, down: Duration) {
        self.after(delay, Action::Stop(member));
        self.after(delay + GRACE_PERIOD + down, Action::Start { member, replaces: false });
    }

    fn freeze(&mut self, index: usize, member: u32, lasts: Duration) {
        let Some(seat) = self.seats.get(member as usize) else { return };
        for running in &seat.lives {
            running.gate.freeze(true);
            self.observer.lock().freezes(running.life, true);
        }
        self.frozen.insert(index, seat.lives.iter().map(|running| running.life).collect());
        self.disturbed();
        self.after(lasts, Action::End(index));
    }

    fn thaw(&mut self, index: usize, member: u32) {
        let lives = self.frozen.remove(&index).unwrap_or_default();
        self.disturbed();
        let Some(seat) = self.seats.get(member as usize) else { return };
        for running in seat.lives.iter().filter(|running| lives.contains(&running.life)) {
            running.gate.freeze(false);
            self.observer.lock().freezes(running.life, false);
        }
    }

    fn trouble(&mut self, index: usize, member: Option<u32>, trouble: Trouble, lasts: Duration) {
        self.troubles.push((index, member, trouble));
        self.disturbed();
        self.apply_troubles();
        self.after(lasts, Action::End(index));
    }

    fn extra_work(&self, member: u32, extra: Duration) {
        for running in self.seats.get(member as usize).iter().flat_map(|seat| &seat.lives) {
            running.extra_work.send_replace(extra);
        }
    }

    /// One of the partitions that this member processes.
    fn partition_of(
        &self,
        member: u32,
        index: u32,
    ) -> Option<(eventhubs_checkpoint::processor::ProcessorHandle, PartitionId)> {
        let handle = self.seats.get(member as usize)?.lives.last()?.desk.handle()?;
        let partitions = handle.partitions();
        let status = partitions.get(index as usize % partitions.len().max(1))?;
        Some((handle, status.partition.clone()))
    }

    fn release(&self, member: u32, index: u32, cooldown: Duration) {
        if let Some((handle, partition)) = self.partition_of(member, index) {
            self.disturbed();
            // It may have been lost just now.
            let _ = handle.release(&partition, cooldown);
        }
    }

    fn pause(&mut self, incident: usize, member: u32, index: u32, lasts: Duration) {
        if let Some((handle, partition)) = self.partition_of(member, index) {
            let _ = handle.pause(&partition);
            self.after(lasts, Action::End(incident));
        }
    }

    /// An operator resumes what is parked after a failure.
    pub(super) fn resume_parked(&self) {
        if self.plan.settings.tuning.on_failure != OnFailure::Park {
            return;
        }
        for running in self.seats.iter().flat_map(|seat| &seat.lives) {
            let Some(handle) = running.desk.handle() else { continue };
            for parked in handle.partitions().iter().filter(|status| status.state == PartitionState::Parked) {
                let _ = handle.resume(&parked.partition);
            }
        }
    }

    fn resume(&self, member: u32) {
        for running in self.seats.get(member as usize).iter().flat_map(|seat| &seat.lives) {
            let Some(handle) = running.desk.handle() else { continue };
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

impl What {
    /// The member that it is about, if it is about one.
    #[must_use]
    pub fn member(&self) -> Option<u32> {
        match self {
            Self::Crash { member, .. }
            | Self::Restart { member, .. }
            | Self::Freeze { member, .. }
            | Self::Replace { member, .. }
            | Self::Release { member, .. }
            | Self::Pause { member, .. }
            | Self::HeavyLoad { member, .. } => Some(*member),
            Self::Storage { member, .. } => *member,
            _ => None,
        }
    }

    /// The partition that it is about, if it is about one.
    #[must_use]
    pub fn partition(&self) -> Option<u32> {
        match self {
            Self::LinkBreaks(partition)
            | Self::LinkReattaches(partition)
            | Self::LinkIsSilent { partition, .. }
            | Self::Expiry { partition, .. } => Some(*partition),
            _ => None,
        }
    }
}
