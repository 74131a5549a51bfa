//! I5: after the last fault, an owner owns the partition, adopts it, and stores what is published.

use std::time::Duration;

use eventhubs_checkpoint::store::Lease;
use tokio::time::{Instant, sleep};

use super::{OWNERS, Run};
use crate::random::incarnation::OwnerIncarnation;

/// The maximum time from the last fault until the group has recovered, including the expiry of a crashed foreign
/// owner's lease.
const RECOVERY: Duration = Duration::from_secs(150);

impl Run {
    /// Stops the faults and waits until an owner owns the partition, adopts it, and stores what is published, including
    /// later events.
    pub(super) async fn recovery(&mut self) -> Result<(), String> {
        self.set_recovery(true);
        if let Some(foreign) = &mut self.foreign {
            foreign.belief = None;
            if let Some(under_way) = foreign.under_way.take() {
                under_way.abort.abort();
            }
        }
        for _ in 0..2 {
            self.published += 3;
            self.recovers().await?;
        }
        self.set_recovery(false);
        Ok(())
    }

    fn set_recovery(&mut self, recovery: bool) {
        self.recovery = recovery;
        let plan = self.plan();
        for incarnation in &mut self.incarnations {
            incarnation.faulty.set_plan(plan.clone());
            incarnation.thaws_at = None;
            incarnation.freeze_gate.thaw();
        }
        if let Some(foreign) = &self.foreign {
            foreign.faulty.set_plan(plan);
        }
    }

    async fn recovers(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + RECOVERY;
        while !self.is_recovered() {
            if Instant::now() > deadline {
                return Err(format!("I5 is violated: event {} is not stored within {RECOVERY:?}", self.published));
            }
            for owner in OWNERS {
                if self.incarnations.iter().all(|incarnation| incarnation.owner.as_str() != owner) {
                    self.start(owner);
                }
            }
            for index in 0..self.incarnations.len() {
                if self.incarnations[index].store.is_some() {
                    self.works_on_ownership(index);
                    self.works_on_checkpoint(index);
                }
            }
            // A late write of a foreign owner that moves the checkpoint back is corrected with the next event.
            self.published += i64::from(self.chance(0.1));
            sleep(Duration::from_millis(700)).await;
            self.collect();
            self.check()?;
        }
        Ok(())
    }

    fn is_recovered(&self) -> bool {
        let judge = self.judge.lock();
        let runs = |incarnation: &&OwnerIncarnation| {
            let ownership = incarnation.lease.as_ref().map(Lease::epoch);
            judge.holder() == Some(incarnation.id)
                && ownership.is_some()
                && ownership == incarnation.running.as_ref().map(|running| running.ownership.epoch)
        };
        judge.position() == Some(self.published) && self.incarnations.iter().any(|incarnation| runs(&incarnation))
    }
}
