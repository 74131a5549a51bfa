//! How long the parts of an end may take.

use std::time::Duration;

use crate::store::GroupStore;

/// How long a link may take to close. Closing late harms nobody: the broker gives the partition to the next reader.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// How long a partition may take to stop: its batch, or the call of `started`, and what is in flight; its link; the
/// call of `stopped`.
pub(super) fn stopping_time(drain: Duration) -> Duration {
    2 * drain + CLOSE_LIMIT
}

/// How long all partitions together may take to stop at the end, the last checkpoints included.
pub(super) fn stop_limit(drain: Duration, store: &GroupStore) -> Duration {
    3 * drain + 4 * store.request_timeout()
}
