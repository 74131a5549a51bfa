//! Giving back: one partition, or everything at the end.

use tokio::time::{Instant, timeout};

use super::events::{Event, Releasing};
use super::{Balancer, Ended, Leases};
use crate::balance::Holder;
use crate::model::PartitionId;
use crate::store::{Lease, ReleaseOutcome};
use crate::telemetry;

impl Balancer {
    /// Gives back what may be at work: tells first, so that the handler stops and its last checkpoint is written, and
    /// renews meanwhile. Released is it when the one who processes it says so, or when the time for that is over.
    pub(super) fn give_back(&mut self, partition: &PartitionId, tenure: u64, reason: Releasing) {
        if self.surrendered.contains_key(partition) {
            return;
        }
        if self.drain.is_zero() {
            return self.release(partition, tenure, reason);
        }
        self.events.tell(Event::Releasing { partition: partition.clone(), reason });
        self.surrendered.insert(partition.clone(), (tenure, Instant::now() + self.drain));
        self.publish(|_| {});
    }

    /// Releases what was told to be given back, if it was. Its handler has stopped.
    pub(super) fn release_surrendered(&mut self, partition: &PartitionId) -> bool {
        let Some((tenure, _)) = self.surrendered.remove(partition) else { return false };
        if let Some(lease) = self.leases.take_for_release(partition, tenure) {
            self.start_release(lease);
        }
        true
    }

    /// Those whose handlers have had their time.
    pub(super) fn release_overdue(&mut self) {
        let now = Instant::now();
        let overdue = self.surrendered.iter().filter(|(_, (_, until))| *until <= now);
        let overdue: Vec<_> = overdue.map(|(partition, _)| partition.clone()).collect();
        for partition in overdue {
            self.release_surrendered(&partition);
        }
    }

    /// Now, or when its renewal has ended.
    pub(super) fn release(&mut self, partition: &PartitionId, tenure: u64, reason: Releasing) {
        if self.leases.is_to_be_released(partition, tenure) {
            return;
        }
        self.events.tell(Event::Releasing { partition: partition.clone(), reason });
        if let Some(lease) = self.leases.take_for_release(partition, tenure) {
            self.start_release(lease);
        }
    }

    pub(super) fn start_release(&mut self, lease: Lease) {
        let store = self.store.clone();
        self.releasing.insert(lease.partition().clone());
        self.operations.spawn(async move {
            let partition = lease.partition().clone();
            Ended::Released { partition, outcome: store.release_one(&lease).await }
        });
    }

    pub(super) fn released(&mut self, partition: &PartitionId, outcome: ReleaseOutcome) {
        self.releasing.remove(partition);
        match outcome {
            ReleaseOutcome::Released => {
                self.outage_over();
                self.events.tell(Event::Released { partition: partition.clone() });
                self.publish_holder(partition, Holder::Released);
            }
            ReleaseOutcome::Undecided(error) => {
                self.outage.failed();
                telemetry::release_undecided(partition, &error);
                self.look_soon();
                self.publish(|_| {});
            }
        }
    }

    /// Releases everything: what is idle at once, what is being renewed or claimed as soon as that has ended, so that no
    /// late write undoes a release. A listing is not waited for.
    pub(super) async fn shut_down(&mut self) {
        (self.draining, self.ending) = (true, true);
        self.surrendered.clear();
        for (partition, tenure) in self.leases.tenures() {
            self.release(&partition, tenure, Releasing::Shutdown);
        }
        let limit = 4 * self.store.request_deadline();
        // What is not released then expires.
        let _ = timeout(limit, self.releases()).await;
        let unreleased = self.releasing.len() + self.claiming.len() + self.leases.partitions().len();
        if unreleased > 0 {
            telemetry::not_released(unreleased);
        }
        self.leases = Leases::default();
        self.publish(|_| {});
    }

    async fn releases(&mut self) {
        while !(self.releasing.is_empty() && self.claiming.is_empty() && self.leases.is_empty()) {
            let Some(ended) = self.operations.join_next().await else { return };
            // Being replaced or a panic changes nothing now: the loop ends anyway.
            let _ = self.ended(ended);
        }
    }
}
