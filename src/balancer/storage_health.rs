//! Whether a running loop reaches the storage, whether its cycles succeed, and what it cannot write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::Error;
use crate::lock::lock;
use crate::model::{Moment, PartitionId};
use crate::store::GroupStore;

/// What the storage keeps failing for an instance, with the last error of each.
#[derive(Clone, Debug, Default)]
pub struct StorageFailures {
    /// Writing the heartbeat, and since when.
    pub heartbeat: Option<(Moment, Arc<Error>)>,
    /// Looking for live owners in the other name case, and since when.
    pub case_check: Option<(Moment, Arc<Error>)>,
    /// Claims, by partition.
    pub claims: BTreeMap<PartitionId, Arc<Error>>,
}

/// The health of the storage, as the handles of a loop read it. All clones share one state.
#[derive(Clone, Debug)]
pub(super) struct StorageHealth {
    /// When the last cycle succeeded; before the first one, when the loop began.
    last_cycle: Arc<Mutex<Option<Moment>>>,
    failures: Arc<Mutex<StorageFailures>>,
    store: GroupStore,
}

impl StorageHealth {
    /// Creates the health of a loop over this store.
    pub(super) fn new(store: GroupStore) -> Self {
        Self { last_cycle: Arc::default(), failures: Arc::default(), store }
    }

    /// Records that the loop begins, or that a cycle has succeeded.
    pub(super) fn cycle_succeeded(&self) {
        *lock(&self.last_cycle) = Some(self.store.lease_clock_now());
    }

    /// Returns how long no cycle has succeeded, if that is longer than the lease duration. Even the slowest cycles
    /// begin more often than that.
    pub(super) fn cycles_failing_for(&self) -> Option<Duration> {
        let last = *lock(&self.last_cycle);
        let elapsed = self.store.lease_clock_now().saturating_sub(last?);
        (elapsed > self.store.lease_durations().own).then_some(elapsed)
    }

    /// Records what fails for the loop.
    pub(super) fn set_failures(&self, failures: StorageFailures) {
        *lock(&self.failures) = failures;
    }

    /// Returns how long the heartbeat could not be written, and the last error, if that is longer than the lease
    /// duration.
    pub(super) fn heartbeat_failing_for(&self) -> Option<(Duration, Arc<Error>)> {
        self.longer_than_a_lease(lock(&self.failures).heartbeat.clone())
    }

    /// Returns how long the loop could not look for live owners in the other name case, and the last error, if that is
    /// longer than the lease duration.
    pub(super) fn case_check_failing_for(&self) -> Option<(Duration, Arc<Error>)> {
        self.longer_than_a_lease(lock(&self.failures).case_check.clone())
    }

    fn longer_than_a_lease(&self, failure: Option<(Moment, Arc<Error>)>) -> Option<(Duration, Arc<Error>)> {
        let (since, error) = failure?;
        let elapsed = self.store.lease_clock_now().saturating_sub(since);
        (elapsed > self.store.lease_durations().own).then_some((elapsed, error))
    }

    /// Returns the partitions that the storage has not let the loop claim, with the last error of each.
    pub(super) fn unclaimable(&self) -> BTreeMap<PartitionId, Arc<Error>> {
        lock(&self.failures).claims.clone()
    }

    /// Returns how long the storage has been unavailable, if there is an outage now.
    pub(super) fn storage_unavailable_for(&self) -> Option<Duration> {
        self.store.outages().unavailable_for(self.store.lease_clock_now())
    }
}
