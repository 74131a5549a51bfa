//! Determines when the connection of a client counts as broken, and when to create the next one. Without I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::CountingBackoff;
use crate::model::PartitionId;

/// This many failures, each without a later success of its route, break a connection. One failure may concern one link,
/// and a second one its retry. An unnecessary connection costs little, because [`Pace`] limits how often one is
/// created.
const FAILURES: u32 = 3;

/// The shortest time between two attempts to reconnect. It doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A connection that was in use for this long has worked: the next one may follow after [`FIRST_WAIT`] again.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// What is authorized, and fails or succeeds, separately from the rest of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Route {
    /// The event hub as a whole: requests for properties, or sends.
    Hub,
    Partition(PartitionId),
}

/// What the end of a request or of a link shows about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOutcome {
    /// The broker responded, possibly with a rejection that another connection would get, too.
    Responded,
    /// The connection or something else failed.
    Failed,
    /// The broker refused access: a token has expired, or a permission is missing.
    Unauthorized,
    /// The connection is broken, and the client does not restore it.
    Broken,
}

/// The state of a client's connection. A broken connection stays broken, although some of its links may continue for a
/// while.
#[derive(Debug, Default)]
pub(crate) struct ConnectionHealth {
    /// The failures of each route since its last success. A busy partition shows nothing about another route.
    failures: BTreeMap<Route, u32>,
    broken: bool,
    /// The broker has responded through it.
    proven: bool,
}

impl ConnectionHealth {
    pub(crate) fn record_outcome(&mut self, route: &Route, outcome: ConnectionOutcome) {
        match outcome {
            ConnectionOutcome::Responded => {
                self.failures.remove(route);
                self.proven = true;
            }
            // The access was granted before. The client presents a token that it has as long as it exists.
            ConnectionOutcome::Unauthorized if self.proven => self.broken = true,
            ConnectionOutcome::Unauthorized | ConnectionOutcome::Failed => {
                *self.failures.entry(route.clone()).or_default() += 1;
                self.broken |= self.failures.values().sum::<u32>() >= FAILURES;
            }
            ConnectionOutcome::Broken => self.broken = true,
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns whether another response would change nothing.
    pub(crate) fn is_settled(&self) -> bool {
        self.proven && self.failures.is_empty()
    }
}

/// When the next attempt to reconnect may start.
#[derive(Debug)]
pub(crate) struct Pace {
    last: Option<Instant>,
    wait: Duration,
    backoff: CountingBackoff,
}

impl Pace {
    pub(crate) fn new() -> Self {
        let mut backoff = CountingBackoff::new(FIRST_WAIT, LONGEST_WAIT);
        Self { last: None, wait: backoff.next_wait(), backoff }
    }

    /// Returns whether to try now, and records an attempt in that case.
    pub(crate) fn try_now(&mut self, now: Instant) -> bool {
        if let Some(last) = self.last {
            let since = now.saturating_duration_since(last);
            if since < self.wait {
                return false;
            }
            if since >= STABLE_AFTER {
                self.backoff.reset();
            }
            self.wait = self.backoff.next_wait();
        }
        self.last = Some(now);
        true
    }

    /// Returns the shortest time from the last attempt to the next one.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectionOutcome::{Broken, Failed, Responded, Unauthorized};

    /// The health after outcomes of the event hub (`None`) and of partitions.
    fn health(outcomes: &[(Option<u32>, ConnectionOutcome)]) -> ConnectionHealth {
        let mut health = ConnectionHealth::default();
        for (partition, outcome) in outcomes {
            let route = partition.map_or(Route::Hub, |partition| Route::Partition(PartitionId::from(partition)));
            health.record_outcome(&route, *outcome);
        }
        health
    }

    #[test]
    fn a_route_recovers_by_its_own_success_only() {
        for (outcomes, broken) in [
            (&[][..], false),
            (&[(Some(0), Failed), (Some(0), Failed)], false),
            (&[(Some(0), Failed), (Some(0), Failed), (Some(0), Failed)], true),
            (&[(Some(0), Failed), (Some(0), Failed), (Some(0), Responded), (Some(0), Failed)], false),
            (&[(Some(0), Failed), (Some(1), Responded), (Some(0), Failed), (None, Responded), (Some(0), Failed)], true),
            (&[(None, Failed), (Some(0), Responded), (None, Failed), (Some(0), Responded), (None, Failed)], true),
            (&[(Some(0), Failed), (Some(1), Failed), (None, Failed)], true),
            (&[(Some(0), Failed), (Some(1), Failed), (Some(0), Responded), (None, Failed)], false),
        ] {
            assert_eq!(health(outcomes).is_broken(), broken, "{outcomes:?}");
        }
    }

    #[test]
    fn a_broken_connection_stays_broken() {
        let failed = (Some(0), Failed);
        for outcomes in [
            &[(None, Broken)][..],
            &[(None, Responded), (None, Broken), (None, Responded)],
            &[failed, failed, failed, (Some(0), Responded)],
        ] {
            assert!(health(outcomes).is_broken(), "{outcomes:?}");
        }
    }

    #[test]
    fn a_refusal_breaks_a_connection_that_has_worked() {
        for (outcomes, broken) in [
            (&[(Some(1), Responded), (Some(0), Unauthorized)][..], true),
            (&[(None, Responded), (None, Unauthorized)], true),
            (&[(Some(0), Unauthorized), (Some(0), Unauthorized)], false),
            (&[(Some(0), Unauthorized), (Some(0), Unauthorized), (Some(0), Unauthorized)], true),
        ] {
            assert_eq!(health(outcomes).is_broken(), broken, "{outcomes:?}");
        }
    }

    #[test]
    fn a_settled_health_needs_no_more_responses() {
        for (outcomes, settled) in [
            (&[][..], false),
            (&[(None, Responded)], true),
            (&[(None, Responded), (Some(0), Failed), (None, Responded)], false),
            (&[(Some(0), Failed), (Some(0), Responded)], true),
        ] {
            assert_eq!(health(outcomes).is_settled(), settled, "{outcomes:?}");
        }
    }

    #[test]
    fn attempts_slow_down_until_a_connection_lasts() {
        let start = Instant::now();
        let mut pace = Pace::new();
        for (seconds, tried) in [
            (0, true),
            (1, false),
            (2, true),
            (5, false),
            (6, true),
            (13, false),
            (14, true),
            (29, false),
            (30, true),
            (59, false),
            (60, true),
            (90, true),
            (149, true),
            (178, false),
            (179, true),
            (239, true),
            (240, false),
            (241, true),
            (244, false),
        ] {
            assert_eq!(pace.try_now(start + Duration::from_secs(seconds)), tried, "at {seconds} s");
        }
    }
}
