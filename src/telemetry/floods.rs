//! Failures that come in floods: while the storage or the hub is away, every partition fails at every attempt.

use std::collections::HashMap;
use std::mem::{self, Discriminant, discriminant};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::Operation;
use crate::error::ErrorKind;
use crate::lock::lock;

/// What was told, of which operation, and what kind of error it was about.
type Topic = (&'static str, Option<Operation>, Discriminant<ErrorKind>);

/// Which of an instance's failures are told as a warning: of those alike, the first, and then one in a while.
#[derive(Debug)]
pub(crate) struct Floods {
    every: Duration,
    topics: Mutex<HashMap<Topic, Told>>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    at: Instant,
    /// How many like it there were since.
    untold: u64,
}

impl Floods {
    /// Of failures alike, one is told in this time.
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, topics: Mutex::default() }
    }

    /// How many failures alike were kept back since the last one that was told, if this one is to be told. After a
    /// pause it is the first of another flood.
    pub(super) fn admit(&self, what: &'static str, operation: Option<Operation>, kind: ErrorKind) -> Option<u64> {
        let now = Instant::now();
        let mut topics = lock(&self.topics);
        let topic = (what, operation, discriminant(&kind));
        let Some(told) = topics.get_mut(&topic) else {
            topics.insert(topic, Told { at: now, untold: 0 });
            return Some(0);
        };
        let since = now.duration_since(told.at);
        if since < self.every {
            told.untold += 1;
            return None;
        }
        let untold = mem::replace(told, Told { at: now, untold: 0 }).untold;
        Some(if since < 2 * self.every { untold } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const EVERY: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn of_those_alike_one_in_a_while_is_told_with_the_number_of_the_others() {
        let floods = Floods::new(EVERY);
        let fail = || floods.admit("cycle", None, ErrorKind::Indeterminate);
        assert_eq!(fail(), Some(0));
        for _ in 0..7 {
            assert_eq!(fail(), None);
        }
        advance(EVERY).await;
        assert_eq!(fail(), Some(7));
        assert_eq!(fail(), None);
        advance(2 * EVERY).await;
        assert_eq!(fail(), Some(0), "another flood");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_alike_is_told_at_once() {
        let floods = Floods::new(EVERY);
        let throttled = |seconds| ErrorKind::Throttled { retry_after: Some(Duration::from_secs(seconds)) };
        let unsettled = |operation, kind| floods.admit("unsettled", Some(operation), kind);
        assert_eq!(unsettled(Operation::Renew, ErrorKind::Indeterminate), Some(0));
        assert_eq!(unsettled(Operation::Claim, ErrorKind::Indeterminate), Some(0));
        assert_eq!(floods.admit("checkpoint", None, ErrorKind::Indeterminate), Some(0));
        assert_eq!(unsettled(Operation::Renew, throttled(1)), Some(0));
        assert_eq!(unsettled(Operation::Renew, throttled(2)), None, "another time to wait is no other failure");
    }
}
