//! Whether the groups are looked at: pure.

use std::time::Duration;

use tokio::time::Instant;

use super::group::{WatchState, Watching};
use super::groups::Discovery;
use crate::args::LookIntervals;

/// How much later than due a look may be before that is reported, at least.
const LATE: Duration = Duration::from_secs(30);
/// A listing of all groups is due every three minutes.
const LATE_DISCOVERY: Duration = Duration::from_secs(540);

/// Returns why a group is not looked at, or nothing.
pub fn look_problem(name: &str, state: &WatchState, now: Instant, intervals: LookIntervals) -> Option<String> {
    let Watching { looked, started, storage_failure, .. } = &state.watching;
    let since = now.duration_since(looked.unwrap_or(*started));
    if looked.is_some() && since <= intervals.refresh.saturating_add(LATE.max(intervals.interval.saturating_mul(3))) {
        return None;
    }
    let cause = storage_failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
    Some(format!("{name}: no look for {} s{cause}", since.as_secs()))
}

/// Returns why groups are not found, or nothing.
pub fn discovery_problem(discovery: &Discovery, now: Instant) -> Option<String> {
    let failure = discovery.failure.as_deref()?;
    let is_late = discovery.succeeded.is_none_or(|succeeded| now.duration_since(succeeded) > LATE_DISCOVERY);
    is_late.then(|| format!("the groups cannot be listed: {failure}"))
}

#[cfg(test)]
mod tests {
    use eventhubs_checkpoint::ConsumerGroup;
    use tokio::time::advance;

    use super::*;
    use crate::serve::group::WatchedGroup;

    const SECOND: Duration = Duration::from_secs(1);
    const INTERVALS: LookIntervals = LookIntervals { interval: SECOND, refresh: SECOND, hub_interval: SECOND };

    fn group() -> WatchedGroup {
        WatchedGroup::new(ConsumerGroup::new("ns", "hub", "g").unwrap())
    }

    fn problem_of(group: &WatchedGroup) -> Option<String> {
        group.read_state(|state| look_problem(&group.name, state, Instant::now(), INTERVALS))
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_without_a_look_is_a_problem() {
        let group = group();
        assert_eq!(problem_of(&group).as_deref(), Some("ns/hub/g: no look for 0 s"));
        group.add_failure("no container".to_owned());
        advance(Duration::from_secs(5)).await;
        assert_eq!(problem_of(&group).as_deref(), Some("ns/hub/g: no look for 5 s: no container"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_counts_until_the_next_one_is_late() {
        let group = group();
        let looked = |age: u64, interval: u32, refresh: u32| {
            group.read_state(|state| {
                let watching = Watching { looked: Some(Instant::now()), ..state.watching.clone() };
                let state = WatchState { history: crate::watching::GroupHistory::default(), watching };
                let now = Instant::now() + Duration::from_secs(age);
                let intervals = LookIntervals { interval: interval * SECOND, refresh: refresh * SECOND, ..INTERVALS };
                look_problem("g", &state, now, intervals).is_none()
            })
        };
        assert!(looked(90, 3, 60) && !looked(91, 3, 60), "half a minute after the refresh at least");
        assert!(looked(240, 60, 60) && !looked(241, 60, 60), "three intervals");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_search_counts_after_minutes() {
        let failed = |succeeded| Discovery { succeeded, failure: Some("timeout".to_owned()) };
        let now = Instant::now();
        let later = now + LATE_DISCOVERY + SECOND;
        assert_eq!(discovery_problem(&failed(Some(now)), now), None);
        for (discovery, at) in [(failed(None), now), (failed(Some(now)), later)] {
            let problem = discovery_problem(&discovery, at);
            assert_eq!(problem.as_deref(), Some("the groups cannot be listed: timeout"));
        }
        assert_eq!(discovery_problem(&Discovery { succeeded: Some(now), failure: None }, later), None);
    }
}
