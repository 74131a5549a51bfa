//! Giving back: one partition, or everything at the end.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::events::{DuplicateCause, Event, Releasing};
use super::{Balancer, Ended, Leases};
use crate::balance::Holder;
use crate::model::PartitionId;
use crate::store::{GroupStore, Lease, ReleaseOutcome};
use crate::telemetry::{self, Operation};

impl Balancer {
    /// Gives back what may be at work: tells first, so that the handler stops and its last checkpoint is written, and
    /// renews meanwhile. Released is it when the one who processes it says so, or when the time for that is over.
    pub(super) fn give_back(&mut self, partition: &PartitionId, epoch: i64, reason: Releasing) {
        if self.drain.is_zero() {
            return self.release(partition, epoch, reason);
        }
        if self.leases.surrender(partition, epoch, Instant::now() + self.time_to_stop(reason)) {
            self.events.tell(Event::Releasing { partition: partition.clone(), reason });
            self.publish(|_| {});
        }
    }

    /// Who asked for it waits only for so long; the release itself takes a request.
    fn time_to_stop(&self, reason: Releasing) -> Duration {
        let usual = self.drain + self.last_checkpoint();
        match reason {
            Releasing::HandedOver => {
                self.config.handoff_timeout(&self.store).saturating_sub(self.store.request_deadline())
            }
            _ => usual,
        }
    }

    /// Its processing has stopped: it was asked to, or does not want to go on.
    pub(super) fn given_back(&mut self, partition: &PartitionId, epoch: i64, cool_down: Duration, settled: bool) {
        if self.leases.epochs().get(partition) != Some(&epoch) {
            return;
        }
        if !settled {
            self.tell_duplicates(partition, DuplicateCause::NotSettled);
        }
        if self.leases.is_surrendered(partition, epoch) {
            if !cool_down.is_zero() {
                self.set_back(partition, cool_down);
            }
            return self.release_now(partition, epoch);
        }
        // Whoever gives it back now does not want it again at once.
        self.set_back(partition, cool_down);
        let reason = if self.draining { Releasing::Shutdown } else { Releasing::Asked };
        self.release(partition, epoch, reason);
    }

    /// Its processing has stopped for another reason, perhaps under an earlier tenure: its record had vanished.
    pub(super) fn unprocessed(&mut self, partition: &PartitionId) {
        let Some(epoch) = self.leases.epochs().get(partition).copied() else { return };
        if self.leases.is_surrendered(partition, epoch) {
            self.release_now(partition, epoch);
        }
    }

    /// How long a handler's last checkpoint may take: one under way, and one that meets a conflict.
    fn last_checkpoint(&self) -> Duration {
        4 * self.store.request_deadline()
    }

    /// Those whose handlers have had their time.
    pub(super) fn release_overdue(&mut self) {
        for (partition, epoch) in self.leases.overdue(Instant::now()) {
            self.tell_duplicates(&partition, DuplicateCause::StillRunning);
            self.release_now(&partition, epoch);
        }
    }

    /// Of what somebody asked for: that one counts on it that nothing is processed twice.
    pub(super) fn tell_duplicates(&self, partition: &PartitionId, cause: DuplicateCause) {
        if self.leases.is_draining(partition) {
            self.events.tell(Event::DuplicatesPossible { partition: partition.clone(), cause });
        }
    }

    /// Tells it, and releases.
    pub(super) fn release(&mut self, partition: &PartitionId, epoch: i64, reason: Releasing) {
        if self.leases.is_to_be_released(partition, epoch) {
            return;
        }
        self.events.tell(Event::Releasing { partition: partition.clone(), reason });
        self.release_now(partition, epoch);
    }

    /// Now, or when its renewal has ended.
    pub(super) fn release_now(&mut self, partition: &PartitionId, epoch: i64) {
        let until = self.release_until(partition);
        if let Some(lease) = self.leases.take_for_release(partition, epoch) {
            self.start_release(lease, until);
        }
    }

    /// Until when a release that fails is repeated. In a handoff that is its own limit. At the end it is the limit of
    /// [`shut_down`](Self::shut_down), which gives up what is under way.
    fn release_until(&self, partition: &PartitionId) -> Option<Instant> {
        let usual = Instant::now() + self.release_limit();
        let handoff = self.leases.handed_over_by(partition).map(|stops_by| stops_by + self.store.request_deadline());
        (!self.draining).then(|| handoff.unwrap_or(usual))
    }

    /// How long releases may take.
    fn release_limit(&self) -> Duration {
        4 * self.store.request_deadline()
    }

    fn start_release(&mut self, lease: Lease, until: Option<Instant>) {
        let store = self.store.clone();
        self.releasing.insert(lease.partition().clone());
        self.operations.spawn(async move {
            let partition = lease.partition().clone();
            let outcome = release_repeatedly(&store, &lease, until).await;
            Ended::Released { partition, outcome }
        });
    }

    pub(super) fn released(&mut self, partition: &PartitionId, outcome: ReleaseOutcome) {
        self.releasing.remove(partition);
        match outcome {
            ReleaseOutcome::Released => {
                self.events.tell(Event::Released { partition: partition.clone() });
                self.publish_holder(partition, Holder::Released);
            }
            ReleaseOutcome::Undecided(error) => {
                self.unreleased += usize::from(self.draining);
                telemetry::release_undecided(partition, &error);
                self.look_soon();
                self.publish(|_| {});
            }
        }
    }

    /// Releases everything that is left: what is idle at once, what is being renewed or claimed as soon as that has
    /// ended, so that no late write undoes a release. A listing is not waited for. Returns how many could not be
    /// released.
    pub(super) async fn shut_down(&mut self) -> usize {
        (self.draining, self.ending) = (true, true);
        for (partition, epoch) in self.leases.epochs() {
            self.release(&partition, epoch, Releasing::Shutdown);
        }
        self.asked.clear();
        self.withdraw();
        // What is not released then expires.
        let _ = timeout(self.release_limit(), self.releases()).await;
        let unreleased = self.unreleased + self.releasing.len() + self.claiming.len() + self.leases.partitions().len();
        if unreleased > 0 {
            telemetry::not_released(unreleased);
        }
        self.leases = Leases::new(self.leases.scope());
        self.publish(|_| {});
        unreleased
    }

    async fn releases(&mut self) {
        while self.presences.is_busy()
            || !(self.releasing.is_empty() && self.claiming.is_empty() && self.leases.is_empty())
        {
            let Some(ended) = self.operations.join_next().await else { return };
            // Being replaced or a panic changes nothing now: the loop ends anyway.
            let _ = self.ended(ended);
        }
    }
}

/// Until it is settled, the time is over, or no repetition can help.
async fn release_repeatedly(store: &GroupStore, lease: &Lease, until: Option<Instant>) -> ReleaseOutcome {
    let mut attempts = store.attempts(until);
    loop {
        match store.release_one(lease).await {
            ReleaseOutcome::Undecided(error) => {
                let Some(next) = attempts.next_after(&error) else { return ReleaseOutcome::Undecided(error) };
                store.telemetry().ownership_undecided(Operation::Release, lease.partition(), &error);
                sleep_until(next).await;
            }
            released @ ReleaseOutcome::Released => return released,
        }
    }
}
