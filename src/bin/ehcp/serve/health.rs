//! Whether the groups are looked at: pure.

use std::time::Duration;

use tokio::time::Instant;

use super::group::{State, Watching};
use super::groups::Discovery;

/// The time after which a missing look is reported, at least.
const LATE: Duration = Duration::from_secs(30);
/// A listing of all groups is due each minute.
const LATE_DISCOVERY: Duration = Duration::from_secs(180);

/// Returns why a group is not looked at, or nothing.
pub fn problem(name: &str, state: &State, now: Instant, interval: Duration) -> Option<String> {
    let Watching { looked, started, storage_failure, .. } = &state.watching;
    let since = now.duration_since(looked.unwrap_or(*started));
    if looked.is_some() && since <= LATE.max(interval * 3) {
        return None;
    }
    let cause = storage_failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
    Some(format!("{name}: no look for {} s{cause}", since.as_secs()))
}

/// Returns why groups are not found, or nothing.
pub fn discovery_problem(discovery: &Discovery, now: Instant) -> Option<String> {
    let is_late = |succeeded| now.duration_since(succeeded) > LATE_DISCOVERY;
    let failure = discovery.failure.as_deref()?;
    discovery.succeeded.is_none_or(is_late).then(|| format!("the groups cannot be listed: {failure}"))
}
