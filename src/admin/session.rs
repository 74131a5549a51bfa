//! What an operator does with a partition that it owns: adopt it, wait for other SDKs, write the position, release it.

use std::error::Error as _;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, Shared, select};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::plan::Expected;
use super::reset::{NotDone, ResetOutcome};
use crate::backoff::CountingBackoff;
use crate::error::{Error, ErrorKind};
use crate::model::{CheckpointRecord, OwnerId, OwnershipRecord, Position};
use crate::store::{AdoptOutcome, ClaimOutcome, GroupStore, Lease, ReleaseOutcome};

/// How many times the position, or the release, is tried.
const MAX_ATTEMPTS: u32 = 5;

/// A position to write.
pub(super) struct ResetOrder {
    pub(super) position: Position,
    /// When the event hub of the position was created, if that is known.
    pub(super) hub_created_at: Option<OffsetDateTime>,
    /// What the checkpoint must be.
    pub(super) expected: Expected,
    /// How many times the partition is reset if another owner claims it in the meantime, as processors of other SDKs
    /// do.
    pub(super) attempts: u32,
    /// Ends when the operator should write no further positions.
    pub(super) stop: Shared<BoxFuture<'static, ()>>,
}

/// A partition that the operator owns.
pub(super) struct OperatorSession {
    store: GroupStore,
    lease: Lease,
    /// The ownership that it has replaced, if there was one.
    displaced: Option<OwnershipRecord>,
    /// How long to wait before the position is written.
    settle: Option<Duration>,
    /// Whether the outcome of a write of the position is unknown.
    indeterminate: bool,
}

/// Why the position was not written.
enum ResetFailure {
    Lost {
        by: Option<OwnerId>,
    },
    /// The operator must not write it.
    Refused(NotDone),
    Failed(Error),
}

impl OperatorSession {
    pub(super) fn new(
        store: GroupStore,
        lease: Lease,
        displaced: Option<OwnershipRecord>,
        settle: Option<Duration>,
    ) -> Self {
        Self { store, lease, displaced, settle, indeterminate: false }
    }

    /// Writes the position and releases the partition, each again after a conflict or without a response.
    pub(super) async fn reset(mut self, order: &ResetOrder) -> ResetOutcome {
        let mut retries = Retries::new(&self.store, MAX_ATTEMPTS);
        let written = loop {
            match self.write_position(order).await {
                Err(ResetFailure::Failed(error)) if retries.try_again_after(&error).await => {}
                written => break written,
            }
        };
        let failure = match written {
            // The reset is done only if the release was written, too.
            Ok(()) => {
                return match self.release_partition().await {
                    ReleaseOutcome::Released => ResetOutcome::Done,
                    ReleaseOutcome::Lost { .. } => ResetOutcome::Indeterminate { written: true, error: None },
                    ReleaseOutcome::Indeterminate(error) => {
                        ResetOutcome::Indeterminate { written: true, error: Some(error) }
                    }
                };
            }
            Err(failure) => failure,
        };
        if let ResetFailure::Failed(_) | ResetFailure::Refused(_) = failure {
            // The outcome is about the position. The outcome of the release does not change it.
            let _ = self.release_partition().await;
        }
        match failure {
            ResetFailure::Lost { .. } | ResetFailure::Refused(_) if self.indeterminate => {
                ResetOutcome::Indeterminate { written: false, error: None }
            }
            ResetFailure::Failed(error) if self.indeterminate => {
                ResetOutcome::Indeterminate { written: false, error: Some(error) }
            }
            ResetFailure::Lost { by } => ResetOutcome::NotDone(NotDone::Lost { by }),
            ResetFailure::Refused(reason) => ResetOutcome::NotDone(reason),
            ResetFailure::Failed(error) => ResetOutcome::NotDone(NotDone::Failed(error)),
        }
    }

    /// Adopts the partition, waits for other SDKs, and writes the position. Fails if the checkpoint is not the expected
    /// one.
    async fn write_position(&mut self, order: &ResetOrder) -> Result<(), ResetFailure> {
        let mut adoption = match self.store.adopt(self.lease.partition(), self.lease.epoch(), None).await {
            Ok(AdoptOutcome::Adopted(adoption)) => adoption,
            Ok(AdoptOutcome::Lost { by }) => return Err(ResetFailure::Lost { by }),
            Err(error) => return Err(ResetFailure::Failed(error)),
        };
        let found = adoption.record();
        // An earlier attempt may have written the new position.
        let is_written = self.indeterminate && is_at(found, &order.position);
        if !is_written && !order.expected.may_replace(found, self.displaced.as_ref()) {
            return Err(ResetFailure::Refused(NotDone::Changed { sequence_number: found.sequence_number }));
        }
        if let Some(settle) = self.settle
            && let Either::Left((held, _)) = select(Box::pin(self.hold_partition(settle)), order.stop.clone()).await
        {
            held?;
        }
        if order.stop.clone().now_or_never().is_some() {
            return Err(ResetFailure::Refused(NotDone::Stopped));
        }
        adoption.set_hub_created_at(order.hub_created_at);
        self.store.replace_checkpoint(&mut adoption, &order.position).await.map_err(|error| {
            self.indeterminate |= may_be_applied(&error);
            ResetFailure::Failed(error)
        })
    }

    /// Keeps the partition for this long. If another SDK writes a checkpoint in the meantime, the write that follows
    /// fails, and everything is repeated.
    async fn hold_partition(&mut self, time: Duration) -> Result<(), ResetFailure> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            sleep(left.min(self.store.lease_durations().own / 6)).await;
            match self.store.renew(&self.lease).await {
                ClaimOutcome::Won(lease) => self.lease = lease,
                ClaimOutcome::Lost { by } => return Err(ResetFailure::Lost { by }),
                ClaimOutcome::Replaced { .. } => return Err(ResetFailure::Lost { by: None }),
                ClaimOutcome::Indeterminate(error)
                    if self.store.lease_age(&self.lease) > self.store.lease_durations().own =>
                {
                    return Err(ResetFailure::Failed(error));
                }
                ClaimOutcome::Indeterminate(_) => {}
            }
        }
        Ok(())
    }

    pub(super) async fn release_partition(&self) -> ReleaseOutcome {
        let mut retries = Retries::new(&self.store, MAX_ATTEMPTS);
        loop {
            match self.store.release(&self.lease).await {
                ReleaseOutcome::Indeterminate(error) if retries.try_again_after(&error).await => {}
                outcome => return outcome,
            }
        }
    }
}

/// Returns whether the record is at this position. One without an offset is at a position with an empty one.
fn is_at(record: &CheckpointRecord, position: &Position) -> bool {
    let offset = record.offset.as_deref().unwrap_or_default();
    record.sequence_number == Some(position.sequence_number) && offset == position.offset
}

/// Returns whether a write that failed with this error, or with a conflict caused by it, had no response.
fn may_be_applied(error: &Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<Error>());
    [Some(error), cause].into_iter().flatten().any(|error| error.kind() == ErrorKind::Indeterminate)
}

/// A bounded number of attempts.
pub(super) struct Retries {
    store: GroupStore,
    backoff: CountingBackoff,
    /// How many attempts are left after the current one.
    left: u32,
}

impl Retries {
    pub(super) fn new(store: &GroupStore, attempts: u32) -> Self {
        Self {
            store: store.clone(),
            backoff: CountingBackoff::new(store.request_timeout() / 16, store.lease_durations().own / 6),
            left: attempts - 1,
        }
    }

    /// Returns whether there is another attempt.
    pub(super) fn try_again(&mut self) -> bool {
        let goes_on = self.left > 0;
        self.left = self.left.saturating_sub(1);
        goes_on
    }

    /// Waits until the next attempt, at least as long as the storage asks for. Returns false if there is none, or if
    /// the same request would fail again.
    pub(super) async fn try_again_after(&mut self, error: &Error) -> bool {
        let goes_on = (error.may_pass() || error.kind() == ErrorKind::Conflict) && self.try_again();
        if goes_on {
            sleep(self.store.wait_after_error(error, &mut self.backoff)).await;
        }
        goes_on
    }
}
