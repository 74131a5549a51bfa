//! I5: when the faults stop, somebody owns the partition, adopts it, and stores what is published.

use std::time::Duration;

use eventhubs_checkpoint::store::Lease;
use tokio::time::{Instant, sleep};

use super::{OWNERS, Run};
use crate::random::life::Life;

/// How long it may take after the last fault until all is well: a foreign owner that died is waited for.
const RECOVERY: Duration = Duration::from_secs(150);

impl Run {
    /// The faults stop: somebody owns the partition, adopts it, and stores what is published, also what comes later.
    pub(super) async fn peace(&mut self) -> Result<(), String> {
        self.set_peace(true);
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
        self.set_peace(false);
        Ok(())
    }

    fn set_peace(&mut self, peace: bool) {
        self.peace = peace;
        let plan = self.plan();
        for life in &mut self.lives {
            life.faulty.set_plan(plan.clone());
            life.thaws_at = None;
            life.ice.thaw();
        }
        if let Some(foreign) = &self.foreign {
            foreign.faulty.set_plan(plan);
        }
    }

    async fn recovers(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + RECOVERY;
        while !self.is_well() {
            if Instant::now() > deadline {
                return Err(format!("I5 is violated: event {} is not stored within {RECOVERY:?}", self.published));
            }
            for owner in OWNERS {
                if self.lives.iter().all(|life| life.owner.as_str() != owner) {
                    self.start(owner);
                }
            }
            for index in 0..self.lives.len() {
                if self.lives[index].store.is_some() {
                    self.works_on_ownership(index);
                    self.works_on_checkpoint(index);
                }
            }
            // What a late write of a foreign owner puts back is corrected with the next event.
            self.published += i64::from(self.chance(0.1));
            sleep(Duration::from_millis(700)).await;
            self.collect();
            self.check()?;
        }
        Ok(())
    }

    fn is_well(&self) -> bool {
        let judge = self.judge.lock();
        let runs = |life: &&Life| {
            let tenure = life.lease.as_ref().map(Lease::epoch);
            judge.holder() == Some(life.id)
                && tenure.is_some()
                && tenure == life.running.as_ref().map(|running| running.tenure.epoch)
        };
        judge.position() == Some(self.published) && self.lives.iter().any(|life| runs(&life))
    }
}
