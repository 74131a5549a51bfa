//! Makes states equal that differ only in irrelevant details.

use eventhubs_checkpoint::internal::rules::{AdoptionStep, CheckpointStep, Goal, OwnershipStep, WriteCondition};

use super::state::{Content, Foreign, Handoff, HandoffStep, Instance, Keys, Owner, State, Task, Version, Write};

impl State {
    /// Returns an id later than that of any existing ownership.
    pub(super) fn next_ownership_id(&mut self) -> u8 {
        let mut newest = 0;
        self.for_each_claim_number(|claim_number| newest = newest.max(*claim_number));
        newest + 1
    }

    /// Returns the representative of all states that differ from this one only in irrelevant details.
    pub(super) fn canonical(mut self) -> Self {
        let mut known = 1_u64;
        self.for_each_claim_number(|claim_number| known |= 1 << *claim_number);
        self.for_each_claim_number(|claim_number| *claim_number = rank(known, *claim_number));
        if self.now.is_none() {
            self.rename_epochs();
        }
        let (owned, written) = (self.ownership.is_some(), self.checkpoint.is_some());
        self.forget_late(|write| match write.content {
            Content::Ownership { .. } => write.under.is_none() && owned,
            Content::Checkpoint { .. } => write.under.is_none() && written,
        });
        self.late.sort_unstable();
        self
    }

    /// Returns an unused epoch.
    pub(super) fn fresh_epoch(&self) -> u8 {
        let mut greatest = 0;
        let mut state = *self;
        state.for_each_epoch(|epoch| greatest = greatest.max(epoch.unwrap_or_default()));
        greatest + 1
    }

    /// Without time, only the equality of epochs matters, and only in records of this crate.
    fn rename_epochs(&mut self) {
        let forget = |owner: Owner, keys: &mut Keys| {
            keys.epoch = keys.epoch.filter(|_| matches!(owner, Owner::Member(_)) || keys.operator);
        };
        if let Some(record) = &mut self.ownership {
            forget(record.owner, &mut record.keys);
        }
        for write in self.late.iter_mut().flatten() {
            if let Content::Ownership { owner, keys } = &mut write.content {
                forget(*owner, keys);
            }
        }
        for operation in self.instances.iter_mut().filter_map(|instance| instance.operation.as_mut()) {
            operation.keys.epoch =
                operation.keys.epoch.filter(|_| operation.next.goal != Goal::Release || operation.keys.operator);
        }
        let (mut names, mut known) = ([0_u8; 64], 0);
        self.for_each_epoch(|epoch| {
            let Some(epoch) = epoch else { return };
            let name = &mut names[*epoch as usize];
            if *name == 0 {
                known += 1;
                *name = known;
            }
            *epoch = *name;
        });
    }

    fn for_each_epoch(&mut self, mut visit: impl FnMut(&mut Option<u8>)) {
        if let Some(record) = &mut self.ownership {
            visit(&mut record.keys.epoch);
        }
        for instance in &mut self.instances {
            if let Some(lease) = &mut instance.lease {
                visit(&mut lease.keys.epoch);
            }
            if let Some(operation) = &mut instance.operation {
                visit(&mut operation.keys.epoch);
            }
            visit(&mut instance.work.epoch);
        }
        for write in self.late.iter_mut().flatten() {
            if let Content::Ownership { keys, .. } = &mut write.content {
                visit(&mut keys.epoch);
            }
        }
    }

    fn for_each_claim_number(&mut self, mut visit: impl FnMut(&mut u8)) {
        visit(&mut self.fence);
        for (claim_number, _) in self.given.iter_mut().flatten() {
            visit(claim_number);
        }
        if let Some(record) = &mut self.ownership {
            visit(&mut record.claim_number);
        }
        for instance in &mut self.instances {
            visit(&mut instance.work.authority);
            if let Some(lease) = &mut instance.lease {
                visit(&mut lease.claim_number);
            }
        }
        for write in self.late.iter_mut().flatten() {
            if let Content::Checkpoint { authority, .. } = &mut write.content {
                visit(authority);
            }
        }
    }

    /// Call this when the ownership blob has changed: every version that an instance knows is a past one now.
    pub(super) fn ownership_changed(&mut self) {
        for instance in &mut self.instances {
            if let Some(lease) = &mut instance.lease {
                lease.version = Version::Past;
            }
            if let Some(operation) = &mut instance.operation {
                match &mut operation.next.step {
                    OwnershipStep::Write { under: condition } | OwnershipStep::Read { attempted: condition } => {
                        condition_passed(condition);
                    }
                    OwnershipStep::ReadOnceOld { written } => *written = Version::Past,
                }
            }
            if let Some(Handoff { step: HandoffStep::Requesting(under, _), .. }) = &mut instance.handoff {
                *under = Version::Past;
            }
        }
        match &mut self.foreign {
            Foreign::Claiming(under) => passed(under),
            Foreign::Starting(version) | Foreign::Running { version, .. } => *version = Version::Past,
            Foreign::Idle | Foreign::Ending { .. } => {}
        }
        self.forget_late(|write| write.under.is_some() && matches!(write.content, Content::Ownership { .. }));
    }

    /// The same for the checkpoint blob.
    pub(super) fn checkpoint_changed(&mut self) {
        for Instance { work, .. } in &mut self.instances {
            passed(&mut work.version);
            if let Some(seen) = &mut work.seen {
                seen.version = Version::Past;
            }
            match &mut work.task {
                Task::Adopting(AdoptionStep::Write { under, .. })
                | Task::Checkpointing(CheckpointStep::Write { under }) => condition_passed(under),
                _ => {}
            }
        }
        self.forget_late(|write| write.under.is_some() && matches!(write.content, Content::Checkpoint { .. }));
    }

    /// Drops late writes that can never be applied anymore. A write that creates a blob could still be applied if the
    /// existing blob is deleted; a deletion before these writes are given up is not explored.
    fn forget_late(&mut self, is_vain: impl Fn(&Write) -> bool) {
        for late in &mut self.late {
            if late.as_ref().is_some_and(&is_vain) {
                *late = None;
            }
        }
    }
}

/// Returns how many of the known ownerships are earlier.
#[expect(clippy::cast_possible_truncation, reason = "at most 64 of 64 bits are set")]
fn rank(known: u64, claim_number: u8) -> u8 {
    (known & ((1 << claim_number) - 1)).count_ones() as u8
}

fn passed(version: &mut Option<Version>) {
    if version.is_some() {
        *version = Some(Version::Past);
    }
}

pub(super) fn condition_passed(under: &mut WriteCondition<Version>) {
    if let WriteCondition::IfMatch(version) = under {
        *version = Version::Past;
    }
}
