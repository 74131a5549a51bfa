//! The loop of every conditional write: write under a version; if the outcome is ambiguous, read, apply the rule, and
//! write again. What limits it are requests without a response, not slow responses: an operation of several requests
//! that are all answered in time succeeds.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::GroupStore;
use super::rules::WriteCondition;
use crate::backoff::Backoff;
use crate::blob::{Condition, ETag};
use crate::error::{Error, ErrorKind, Result};
use crate::telemetry::{BillingType, StorageOperation};

/// How many writes an operation sends before it gives up.
const MAX_WRITES: u32 = 5;

/// The waits after ambiguous writes.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(320));

/// How many writes may remain without a response before the operation gives up. A read without one ends it at once.
const MAX_UNANSWERED: u32 = 2;

/// An operation that is one conditional write in the end: its requests in their order, and the meaning of the
/// responses.
pub(super) trait ConditionalWrite {
    type Outcome;

    fn storage_operation(&self) -> StorageOperation;

    /// Returns when the operation ends in any case; `None` if nothing depends on that, the default.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns the name of the record that is written, for errors.
    fn record_label(&self) -> String;

    /// Sends all reads that are due before the next write. Returns the condition of that write, or how the operation
    /// ends without one.
    async fn next_write(&mut self) -> Result<ControlFlow<Self::Outcome, WriteCondition<ETag>>>;

    /// Sends the write. The operation continues after an error with an ambiguous outcome: the next step is a read.
    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<Self::Outcome>>;

    /// Returns the error after too many writes.
    fn contention_error(&self) -> Error {
        Error::new(
            ErrorKind::Contended,
            format!("gave up after {MAX_WRITES} conflicting writes to {}", self.record_label()),
        )
    }
}

impl GroupStore {
    /// Writes until the outcome is known. `first` is the condition of the first write, if nothing needs to be read for
    /// it. Call this when the operation has its [`OperationGuard`](super::OperationGuard), unless it acquires one by
    /// itself: a write with a [deadline](ConditionalWrite::deadline) takes its time from now on.
    pub(super) async fn settle_write<W: ConditionalWrite>(
        &self,
        first: Option<WriteCondition<ETag>>,
        write: &mut W,
    ) -> Result<W::Outcome> {
        let Some(deadline) = write.deadline() else {
            return write_until_settled(first, write, self.request_timeout()).await;
        };
        match timeout_at(deadline, write_until_settled(first, write, self.request_timeout())).await {
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

async fn write_until_settled<W: ConditionalWrite>(
    mut first: Option<WriteCondition<ETag>>,
    write: &mut W,
    request_timeout: Duration,
) -> Result<W::Outcome> {
    let mut ambiguous = 0;
    let mut unanswered = 0;
    let mut last_error = None;
    for writes in 0..=MAX_WRITES {
        let next = match first.take() {
            Some(first) => ControlFlow::Continue(first),
            None => write.next_write().await?,
        };
        let under = match next {
            ControlFlow::Continue(under) => under,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        if writes == MAX_WRITES {
            break;
        }
        let began = Instant::now();
        match write.send_write(under).await {
            Ok(ControlFlow::Continue(())) => {
                ambiguous = 0;
                unanswered = 0;
            }
            Ok(ControlFlow::Break(outcome)) => return Ok(outcome),
            Err(error) if is_ambiguous(&error) => {
                unanswered += u32::from(began.elapsed() >= request_timeout);
                if unanswered == MAX_UNANSWERED {
                    return Err(error);
                }
                last_error = Some(error);
                // A late write of this operation may still be under way, or another writer may be active.
                sleep(BACKOFF.wait_after(ambiguous)).await;
                ambiguous += 1;
            }
            Err(error) => return Err(error),
        }
    }
    Err(match last_error {
        Some(error) => write.contention_error().with_source(error),
        None => write.contention_error(),
    })
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

/// Creating a blob is *Put Blob*, changing one is *Set Blob Metadata*.
impl From<&Condition> for BillingType {
    fn from(condition: &Condition) -> Self {
        match condition {
            Condition::Create => Self::Write,
            Condition::IfMatch(_) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::time::advance;

    use super::*;

    const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
    /// The ways in which an attempt ends, each after a time.
    const CONFLICT: (Duration, Option<ErrorKind>) = (Duration::ZERO, Some(ErrorKind::Conflict));
    const UNANSWERED: (Duration, Option<ErrorKind>) = (REQUEST_TIMEOUT, Some(ErrorKind::Indeterminate));
    const WRITTEN: (Duration, Option<ErrorKind>) = (Duration::ZERO, None);

    /// A write whose attempts end as a script says.
    struct Scripted {
        attempts: VecDeque<(Duration, Option<ErrorKind>)>,
        /// The waits before the second and each later attempt, in milliseconds.
        waits: Vec<u128>,
        ended: Option<Instant>,
    }

    impl Scripted {
        fn new(attempts: impl IntoIterator<Item = (Duration, Option<ErrorKind>)>) -> Self {
            Self { attempts: attempts.into_iter().collect(), waits: Vec::new(), ended: None }
        }

        async fn run(&mut self) -> Result<()> {
            write_until_settled(Some(WriteCondition::Create), self, REQUEST_TIMEOUT).await
        }
    }

    impl ConditionalWrite for Scripted {
        type Outcome = ();

        fn storage_operation(&self) -> StorageOperation {
            StorageOperation::Checkpoint
        }

        fn record_label(&self) -> String {
            "the record".to_owned()
        }

        async fn next_write(&mut self) -> Result<ControlFlow<(), WriteCondition<ETag>>> {
            Ok(ControlFlow::Continue(WriteCondition::Create))
        }

        async fn send_write(&mut self, _: WriteCondition<ETag>) -> Result<ControlFlow<()>> {
            self.waits.extend(self.ended.map(|ended| ended.elapsed().as_millis()));
            let (time, failure) = self.attempts.pop_front().expect("there are as many attempts as the script has");
            advance(time).await;
            self.ended = Some(Instant::now());
            match failure {
                Some(kind) => Err(Error::new(kind, "scripted")),
                None => Ok(ControlFlow::Break(())),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn conflicts_are_retried_with_growing_waits() {
        let mut write = Scripted::new([CONFLICT, CONFLICT, CONFLICT, CONFLICT, WRITTEN]);
        write.run().await.unwrap();
        assert_eq!(write.waits, [20, 40, 80, 160]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_gives_up_after_five_conflicts() {
        let mut write = Scripted::new([CONFLICT; 5]);
        assert_eq!(write.run().await.unwrap_err().kind(), ErrorKind::Contended);
        assert_eq!((write.attempts.len(), write.waits.len()), (0, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn two_writes_without_a_response_are_enough() {
        let mut write = Scripted::new([UNANSWERED, CONFLICT, UNANSWERED, WRITTEN]);
        assert_eq!(write.run().await.unwrap_err().kind(), ErrorKind::Indeterminate);
        assert_eq!(write.attempts.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rejected_write_is_not_repeated() {
        for kind in [ErrorKind::Unauthorized, ErrorKind::Unavailable] {
            let mut write = Scripted::new([(REQUEST_TIMEOUT, Some(kind)), WRITTEN]);
            assert_eq!(write.run().await.unwrap_err().kind(), kind);
            assert_eq!(write.attempts.len(), 1, "{kind:?}");
        }
    }
}
