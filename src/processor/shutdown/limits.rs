//! Time limits for stopping.

use std::time::Duration;

use crate::source::CLOSE_LIMIT;
use crate::store::GroupStore;

/// Returns how long a partition may take to stop: the batch or the call of `started`, and the events in flight; the
/// receiver; the call of `stopped`.
pub(crate) fn stopping_time(drain: Duration) -> Duration {
    2 * drain + CLOSE_LIMIT
}

/// Returns how long all partitions together may take to stop at shutdown, last checkpoints included.
pub(crate) fn stop_limit(drain: Duration, store: &GroupStore) -> Duration {
    3 * drain + 4 * store.request_timeout()
}
