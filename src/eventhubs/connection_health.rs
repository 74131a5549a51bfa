//! Determines when the connection of a client counts as broken, and when to create the next one. Without I/O.

use std::time::Duration;

use tokio::time::Instant;

/// This many consecutive failures, over all partitions, break a connection. One failure may concern one link, and a
/// second one its retry. An unnecessary connection costs little, because [`Pace`] limits how often one is created.
const FAILURES: u32 = 3;

/// The shortest time between two attempts to reconnect. It doubles up to [`LONGEST_WAIT`] while no response arrives
/// through the new connections.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What the outcome of a request or the end of a link shows about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// The broker responded, possibly with a rejection.
    Responding,
    /// The connection or something else failed.
    Failing,
    /// The connection is broken, and the client does not restore it.
    Broken,
}

/// The state of a client's connection. A broken connection stays broken, although some of its links may continue for a
/// while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionHealth {
    failures: u32,
    broken: bool,
    /// A response arrived through it.
    proven: bool,
}

impl ConnectionHealth {
    pub(super) fn after(self, signal: Signal) -> Self {
        match signal {
            Signal::Responding => Self { failures: 0, proven: true, ..self },
            Signal::Failing => {
                let failures = self.failures.saturating_add(1);
                Self { failures, broken: self.broken || failures >= FAILURES, ..self }
            }
            Signal::Broken => Self { broken: true, ..self },
        }
    }

    pub(super) fn is_broken(self) -> bool {
        self.broken
    }

    pub(super) fn is_proven(self) -> bool {
        self.proven
    }
}

/// When the next attempt to reconnect may start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    last: Option<Instant>,
    wait: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { last: None, wait: FIRST_WAIT }
    }

    /// Returns whether to try now, and records an attempt in that case. `proven`: the current connection has worked.
    pub(super) fn try_now(&mut self, now: Instant, proven: bool) -> bool {
        if proven {
            self.wait = FIRST_WAIT;
        }
        if let Some(last) = self.last {
            if now.saturating_duration_since(last) < self.wait {
                return false;
            }
            self.wait = (self.wait * 2).min(LONGEST_WAIT);
        }
        self.last = Some(now);
        true
    }

    /// Returns the shortest time from the last attempt to the next one.
    pub(super) fn wait(&self) -> Duration {
        self.wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Signal::{Broken, Failing, Responding};

    #[test]
    fn a_broken_connection_stays_broken() {
        for (signals, broken) in [
            (&[][..], false),
            (&[Responding], false),
            (&[Failing, Failing], false),
            (&[Failing, Failing, Failing], true),
            (&[Failing, Failing, Responding, Failing, Failing], false),
            (&[Failing, Failing, Responding, Failing, Failing, Failing], true),
            (&[Responding, Broken], true),
            (&[Broken, Responding], true),
            (&[Failing, Failing, Failing, Responding], true),
        ] {
            let health = signals.iter().fold(ConnectionHealth::default(), |health, signal| health.after(*signal));
            assert_eq!(health.is_broken(), broken, "{signals:?}");
            assert_eq!(health.is_proven(), signals.contains(&Responding), "{signals:?}");
        }
    }

    #[test]
    fn attempts_slow_down_until_a_connection_works() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::new();
        for (seconds, proven, tried) in [
            (0, true, true),
            (1, false, false),
            (2, false, true),
            (5, false, false),
            (6, false, true),
            (13, false, false),
            (14, false, true),
            (30, false, true),
            (59, false, false),
            (60, false, true),
            (90, false, true),
            (91, true, false),
            (92, true, true),
        ] {
            assert_eq!(pace.try_now(at(seconds), proven), tried, "at {seconds} s");
        }
    }
}
