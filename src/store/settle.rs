//! The loop of every conditional write: write under a version; if the outcome is ambiguous, read, apply the rule, and
//! write again. What limits it are requests without a response, not slow responses: an operation of several requests
//! that are all answered in time succeeds.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::GroupStore;
use super::rules::{SettleStep, WriteCondition};
use crate::backoff::Backoff;
use crate::blob::{Condition, ETag};
use crate::error::{Error, ErrorKind, Result};
use crate::telemetry::StorageOperation;

/// How many times a write is sent before the operation gives up.
const MAX_WRITES: u32 = 5;

/// The waits after ambiguous writes.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(320));

/// How many writes may remain without a response before the operation gives up. A read without one ends it at once.
const MAX_UNANSWERED: u32 = 2;

/// One conditional write, and the meaning of its responses.
pub(super) trait ConditionalWrite {
    type Outcome;

    fn storage_operation(&self) -> StorageOperation;

    /// Returns when the operation ends in any case; `None` if nothing depends on that, the default.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns the name of the record that is written, for errors.
    fn record_label(&self) -> String;

    /// Returns what to do first.
    async fn first_step(&mut self) -> Result<SettleStep<ETag, Self::Outcome>> {
        self.read_next_step().await
    }

    /// Sends the write.
    async fn send_write(&mut self, under: &WriteCondition<ETag>) -> Result<Self::Outcome>;

    /// Reads the current state, and applies the rule.
    async fn read_next_step(&mut self) -> Result<SettleStep<ETag, Self::Outcome>>;

    /// Returns the error after too many ambiguous writes.
    fn contention_error(&self) -> Error {
        Error::new(
            ErrorKind::Contended,
            format!("gave up after {MAX_WRITES} conflicting writes to {}", self.record_label()),
        )
    }
}

impl GroupStore {
    /// Writes until the outcome is known. Call it when the operation has its [`OperationGuard`](super::OperationGuard):
    /// a write with a [deadline](ConditionalWrite::deadline) takes its time from now on.
    pub(super) async fn settle_write<W: ConditionalWrite>(&self, write: &mut W) -> Result<W::Outcome> {
        let Some(deadline) = write.deadline() else { return write_until_settled(write, self.request_timeout()).await };
        match timeout_at(deadline, write_until_settled(write, self.request_timeout())).await {
            Ok(settled) => settled,
            Err(_) => Err(Error::new(
                ErrorKind::Indeterminate,
                format!(
                    "{}: the outcome of writing {} is still unknown when its time is over",
                    write.storage_operation().as_str(),
                    write.record_label()
                ),
            )),
        }
    }
}

async fn write_until_settled<W: ConditionalWrite>(write: &mut W, request_timeout: Duration) -> Result<W::Outcome> {
    let mut next = write.first_step().await?;
    let mut unanswered = 0;
    let mut last = None;
    for writes in 0..MAX_WRITES {
        let under = match next {
            SettleStep::Write(under) => under,
            SettleStep::Done(outcome) => return Ok(outcome),
        };
        let began = Instant::now();
        let error = match write.send_write(&under).await {
            Err(error) if is_ambiguous(&error) => error,
            settled => return settled,
        };
        unanswered += u32::from(began.elapsed() >= request_timeout);
        if unanswered == MAX_UNANSWERED {
            return Err(error);
        }
        last = Some(error);
        // A late write of this operation may still be under way, or another writer may be active.
        sleep(BACKOFF.wait_after(writes)).await;
        next = write.read_next_step().await?;
    }
    match next {
        SettleStep::Done(outcome) => Ok(outcome),
        SettleStep::Write(_) => Err(match last {
            Some(error) => write.contention_error().with_source(error),
            None => write.contention_error(),
        }),
    }
}

/// Returns whether only a read can show if a conditional write was applied.
pub(super) fn is_ambiguous(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Indeterminate | ErrorKind::NotFound)
}

impl From<&WriteCondition<ETag>> for Condition {
    fn from(under: &WriteCondition<ETag>) -> Self {
        match under {
            WriteCondition::Create => Self::Create,
            WriteCondition::IfMatch(version) => Self::IfMatch(version.clone()),
        }
    }
}
