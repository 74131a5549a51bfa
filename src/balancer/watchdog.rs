//! What the loop looks after beside balancing: leases that have outlived their time, applications that stall, outages.

use std::time::Duration;

use super::events::{Event, Releasing};
use super::{Balancer, LeasePolicy, OnStall};
use crate::balance::Holder;
use crate::model::LeaseTerms;
use crate::telemetry;

impl Balancer {
    /// Under [`LeasePolicy::Strict`], how long a lease counts: the handler must have stopped before the server can show
    /// an age of the expiry, which it tells in whole seconds.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        let strict = self.config.lease_policy == LeasePolicy::Strict;
        strict.then(|| self.store.terms().expiry.saturating_sub(LeaseTerms::GRACE + self.drain))
    }

    /// What cannot be renewed in time is processed no further. If nobody takes it, the next cycle does.
    pub(super) fn drop_outlived(&mut self) {
        let Some(lifetime) = self.lifetime() else { return };
        for partition in self.leases.outlived(lifetime, self.store.lease_time()) {
            self.leases.remove(&partition);
            self.publish_holder(&partition, Holder::Orphan);
            self.events.tell(Event::Outlived { partition });
        }
    }

    /// Tells when the application stalls and when it is well again; gives its partitions to others, if that is wanted.
    pub(super) fn check_vitals(&mut self) {
        let stalled = self.vitals.stalled();
        if self.snapshot.borrow().stalled == stalled {
            return;
        }
        self.events.tell(Event::Stalled(stalled.clone()));
        self.look_soon();
        self.publish(|snapshot| snapshot.stalled = stalled.clone());
        if self.config.on_stall == OnStall::Release {
            for (partition, epoch) in self.leases.epochs() {
                if stalled.affects(&partition) {
                    self.give_back(&partition, epoch, Releasing::Stalled);
                }
            }
        }
    }

    /// After an outage the next cycle does not come late.
    pub(super) fn notice_end_of_outage(&mut self) {
        if let Some(silence) = self.store.outages().take_ended() {
            telemetry::outage_over(silence);
            self.look_soon();
        }
    }
}
