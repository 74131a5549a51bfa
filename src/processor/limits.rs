//! Time limits for stopping.

use std::time::Duration;

use crate::store::GroupStore;

/// How long a receiver may take to close. A late close does no harm: the broker admits the next reader anyway.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Returns how long a partition may take to stop: the batch or the call of `started`, and the events in flight; the
/// receiver; the call of `stopped`.
pub(super) fn stopping_time(drain: Duration) -> Duration {
    2 * drain + CLOSE_LIMIT
}

/// Returns how long all partitions together may take to stop at shutdown, last checkpoints included.
pub(super) fn stop_limit(drain: Duration, store: &GroupStore) -> Duration {
    3 * drain + 4 * store.request_timeout()
}
