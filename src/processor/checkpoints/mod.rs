//! The checkpoints of a partition: what the application requests, what they may pass, and how they are written.

pub(in crate::processor) mod requests;
pub(in crate::processor) mod tracker;
pub(in crate::processor) mod writer;

use std::time::Duration;

use tokio::time::Instant;

/// A checkpoint that cannot advance because a token was dropped while the partition was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldCheckpoint {
    /// The first event whose token was dropped.
    pub(crate) event: i64,
    pub(crate) held_for: Duration,
    /// The sequence number of the durable checkpoint.
    pub(crate) checkpoint: Option<i64>,
    /// How far, in sequence numbers, the last finished event is after `event`.
    pub(crate) finished_after: u64,
}

/// The tokens of one start of the partition that were dropped unfinished.
#[derive(Debug, Default)]
pub(crate) struct DroppedTokens {
    tokens: usize,
    /// The first event that holds the checkpoint back, and the time of the first such drop.
    first: Option<(i64, Instant)>,
}

impl DroppedTokens {
    /// Adds a token, with its event if that holds the checkpoint back. Returns whether it is the first event that does.
    pub(crate) fn add_token(&mut self, event: Option<i64>) -> bool {
        self.tokens += 1;
        let Some(event) = event else { return false };
        let before = self.first;
        let (first, since) = before.unwrap_or_else(|| (event, Instant::now()));
        self.first = Some((first.min(event), since));
        before.is_none()
    }

    pub(crate) fn count(&self) -> usize {
        self.tokens
    }

    pub(crate) fn first_holding_event(&self) -> Option<(i64, Instant)> {
        self.first
    }
}
