//! When the connection of a client counts as dead, and how often a fresh one is made. Decided without I/O.

use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row, over all partitions, make a connection dead. One is a link's own trouble, two may be its
/// second try; and a fresh connection too many costs little, for [`Pace`] bounds how often one is made.
const FAILURES: u32 = 3;

/// The least time between two attempts at a fresh connection. It doubles up to [`LONGEST_PAUSE`] as long as nothing
/// comes through them.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the outcome of a request, or the end of a link, says about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// The broker answered, if only with a refusal.
    Alive,
    /// It may be the connection, or something else.
    Failing,
    /// It is the connection, and the client does not mend it.
    Dead,
}

/// What is known of a client's connection. Dead is for good: some of its links may go on for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Health {
    failures: u32,
    dead: bool,
    /// Something came through it.
    proven: bool,
}

impl Health {
    pub(super) fn after(self, sign: Signal) -> Self {
        match sign {
            Signal::Alive => Self { failures: 0, proven: true, ..self },
            Signal::Failing => {
                let failures = self.failures.saturating_add(1);
                Self { failures, dead: self.dead || failures >= FAILURES, ..self }
            }
            Signal::Dead => Self { dead: true, ..self },
        }
    }

    pub(super) fn is_dead(self) -> bool {
        self.dead
    }

    pub(super) fn is_proven(self) -> bool {
        self.proven
    }
}

/// When the next attempt at a fresh connection may be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    last: Option<Instant>,
    pause: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { last: None, pause: FIRST_PAUSE }
    }

    /// Whether to try now; yes is noted as an attempt. `proven`: the connection in use has worked.
    pub(super) fn try_now(&mut self, now: Instant, proven: bool) -> bool {
        if proven {
            self.pause = FIRST_PAUSE;
        }
        if let Some(last) = self.last {
            if now.saturating_duration_since(last) < self.pause {
                return false;
            }
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        self.last = Some(now);
        true
    }

    /// The least time from the last attempt to the next one.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Signal::{Alive, Dead, Failing};

    #[test]
    fn a_connection_is_dead_for_good_at_a_sure_sign_or_after_failures_in_a_row() {
        for (signs, dead) in [
            (&[][..], false),
            (&[Alive], false),
            (&[Failing, Failing], false),
            (&[Failing, Failing, Failing], true),
            (&[Failing, Failing, Alive, Failing, Failing], false),
            (&[Failing, Failing, Alive, Failing, Failing, Failing], true),
            (&[Alive, Dead], true),
            (&[Dead, Alive], true),
            (&[Failing, Failing, Failing, Alive], true),
        ] {
            let health = signs.iter().fold(Health::default(), |health, sign| health.after(*sign));
            assert_eq!(health.is_dead(), dead, "{signs:?}");
            assert_eq!(health.is_proven(), signs.contains(&Alive), "{signs:?}");
        }
    }

    #[test]
    fn attempts_come_more_seldom_until_a_connection_works() {
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
