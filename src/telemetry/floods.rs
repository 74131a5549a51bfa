//! Failures that come in floods: while the storage or the hub is away, every partition fails at every attempt.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::ErrorKind;

/// What was told, and what kind of error it was about.
type Topic = (&'static str, Discriminant<ErrorKind>);

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

    /// How many failures alike were kept back since the last one that was told, if this one is to be told.
    pub(super) fn admit(&self, what: &'static str, kind: ErrorKind) -> Option<u64> {
        let now = Instant::now();
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let topic = (what, discriminant(&kind));
        match topics.get_mut(&topic) {
            Some(told) if now.duration_since(told.at) < self.every => {
                told.untold += 1;
                None
            }
            told => {
                let untold = told.map_or(0, |told| told.untold);
                topics.insert(topic, Told { at: now, untold: 0 });
                Some(untold)
            }
        }
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
        let fail = || floods.admit("renewal", ErrorKind::Unknown);
        assert_eq!(fail(), Some(0));
        for _ in 0..7 {
            assert_eq!(fail(), None);
        }
        advance(EVERY).await;
        assert_eq!(fail(), Some(7));
        assert_eq!(fail(), None);
        advance(10 * EVERY).await;
        assert_eq!(fail(), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_alike_is_told_at_once() {
        let floods = Floods::new(EVERY);
        let throttled = |seconds| ErrorKind::Throttled { retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(floods.admit("renewal", ErrorKind::Unknown), Some(0));
        assert_eq!(floods.admit("checkpoint", ErrorKind::Unknown), Some(0));
        assert_eq!(floods.admit("renewal", throttled(1)), Some(0));
        assert_eq!(floods.admit("renewal", throttled(2)), None, "another time to wait is no other failure");
    }
}
