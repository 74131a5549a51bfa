//! Tokens that were dropped without being finished.

use std::time::Duration;

use tokio::time::Instant;

/// A checkpoint that stays where it is, because a token was dropped while the partition was at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldCheckpoint {
    /// The first event whose token was dropped.
    pub(super) event: i64,
    pub(super) held_for: Duration,
    /// The one that is durable.
    pub(super) checkpoint: Option<i64>,
    /// How far the last event that was finished is after it.
    pub(super) finished_after: u64,
}

/// Those of one start.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    tokens: usize,
    /// The first event that holds the checkpoint back, and since when one does.
    first: Option<(i64, Instant)>,
}

impl Dropped {
    /// Another one, and its event if that holds the checkpoint back. Returns whether it is the first that does.
    pub(super) fn add(&mut self, event: Option<i64>) -> bool {
        self.tokens += 1;
        let Some(event) = event else { return false };
        let before = self.first;
        let (first, since) = before.unwrap_or_else(|| (event, Instant::now()));
        self.first = Some((first.min(event), since));
        before.is_none()
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn first(&self) -> Option<(i64, Instant)> {
        self.first
    }
}
