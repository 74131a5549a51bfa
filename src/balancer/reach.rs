//! Whether a running loop reaches the storage, and sees in it who owns what.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lock::lock;
use crate::model::Moment;
use crate::store::GroupStore;

/// What the handles of a loop read of it. All clones are one.
#[derive(Clone, Debug)]
pub(super) struct StorageHealth {
    /// When the last cycle succeeded, or else when the loop began.
    last_cycle: Arc<Mutex<Option<Moment>>>,
    store: GroupStore,
}

impl StorageHealth {
    /// Of a loop that works with this store.
    pub(super) fn new(store: GroupStore) -> Self {
        Self { last_cycle: Arc::default(), store }
    }

    /// The loop begins, or a cycle has succeeded.
    pub(super) fn cycle_succeeded(&self) {
        *lock(&self.last_cycle) = Some(self.store.lease_clock_now());
    }

    /// How long no cycle has succeeded, if that is longer than the expiry. Slow as cycles may be, one comes within
    /// that.
    pub(super) fn cycles_failing_for(&self) -> Option<Duration> {
        let last = *lock(&self.last_cycle);
        let blind = self.store.lease_clock_now().saturating_sub(last?);
        (blind > self.store.lease_durations().own).then_some(blind)
    }

    /// How long the storage has not answered, if there is an outage now.
    pub(super) fn storage_unavailable_for(&self) -> Option<Duration> {
        self.store.outages().silence(self.store.lease_clock_now())
    }
}
