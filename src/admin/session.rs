//! What an operator does with a partition that it owns: adopt it, wait for other SDKs, write the position, release it.

use std::error::Error as _;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, Shared, select};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::outcome::{NotDone, ResetOutcome};
use super::plan::Expected;
use super::retries::Retries;
use crate::error::{Error, ErrorKind};
use crate::model::{CheckpointRecord, OwnerId, OwnershipRecord, Position};
use crate::store::{AdoptOutcome, Adoption, ClaimOutcome, GroupStore, Lease, ReleaseOutcome};

/// How many times the position, or the release, is tried.
const MAX_ATTEMPTS: u32 = 5;

/// Ends when the operator should write no further positions.
pub(super) type Stop = Shared<BoxFuture<'static, ()>>;

/// A position to write.
pub(super) struct Order {
    pub(super) position: Position,
    /// When the event hub of the position was created, if that is known.
    pub(super) hub_created_at: Option<OffsetDateTime>,
    /// What the checkpoint must be.
    pub(super) expected: Expected,
    pub(super) stop: Stop,
}

/// A partition that the operator owns.
pub(super) struct Session {
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
enum Failure {
    Lost {
        by: Option<OwnerId>,
    },
    /// The operator must not write it.
    Refused(NotDone),
    Failed(Error),
}

impl Session {
    pub(super) fn new(
        store: GroupStore,
        lease: Lease,
        displaced: Option<OwnershipRecord>,
        settle: Option<Duration>,
    ) -> Self {
        Self { store, lease, displaced, settle, indeterminate: false }
    }

    pub(super) async fn reset(mut self, order: &Order) -> ResetOutcome {
        let failure = match self.put(order).await {
            Ok(()) => return self.release_written().await,
            Err(failure) => failure,
        };
        if let Failure::Failed(_) | Failure::Refused(_) = failure {
            // The outcome is about the position. The outcome of the release does not change it.
            let _ = self.release().await;
        }
        match failure {
            Failure::Lost { .. } | Failure::Refused(_) if self.indeterminate => {
                ResetOutcome::Indeterminate { written: false, error: None }
            }
            Failure::Failed(error) if self.indeterminate => {
                ResetOutcome::Indeterminate { written: false, error: Some(error) }
            }
            Failure::Lost { by } => ResetOutcome::NotDone(NotDone::Lost { by }),
            Failure::Refused(reason) => ResetOutcome::NotDone(reason),
            Failure::Failed(error) => ResetOutcome::NotDone(NotDone::Failed(error)),
        }
    }

    /// Adopts and writes, again after a conflict or without a response.
    async fn put(&mut self, order: &Order) -> Result<(), Failure> {
        let mut retries = Retries::new(&self.store, MAX_ATTEMPTS);
        loop {
            match self.put_once(order).await {
                Err(Failure::Failed(error)) if retries.again_after(&error).await => {}
                settled => return settled,
            }
        }
    }

    async fn put_once(&mut self, order: &Order) -> Result<(), Failure> {
        let mut adoption = self.adopt().await?;
        self.check(order, adoption.record())?;
        if let Some(settle) = self.settle
            && let Either::Left((held, _)) = select(Box::pin(self.hold(settle)), order.stop.clone()).await
        {
            held?;
        }
        if order.stop.clone().now_or_never().is_some() {
            return Err(Failure::Refused(NotDone::Stopped));
        }
        adoption.set_hub_created_at(order.hub_created_at);
        self.store.replace_checkpoint(&mut adoption, &order.position).await.map_err(|error| {
            self.indeterminate |= may_be_applied(&error);
            Failure::Failed(error)
        })
    }

    /// Fails if the checkpoint is not the expected one. An earlier attempt may have written the new position.
    fn check(&self, order: &Order, found: &CheckpointRecord) -> Result<(), Failure> {
        let is_written = self.indeterminate && is_at(found, &order.position);
        if is_written || order.expected.permits(found, self.displaced.as_ref()) {
            return Ok(());
        }
        Err(Failure::Refused(NotDone::Changed { sequence_number: found.sequence_number }))
    }

    async fn adopt(&self) -> Result<Adoption, Failure> {
        match self.store.adopt(self.lease.partition(), self.lease.epoch(), None).await {
            Ok(AdoptOutcome::Adopted(adoption)) => Ok(adoption),
            Ok(AdoptOutcome::Lost { by }) => Err(Failure::Lost { by }),
            Err(error) => Err(Failure::Failed(error)),
        }
    }

    /// Keeps the partition for this long. If another SDK writes a checkpoint in the meantime, the write that follows
    /// fails, and everything is repeated.
    async fn hold(&mut self, time: Duration) -> Result<(), Failure> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            sleep(left.min(self.store.lease_durations().own / 6)).await;
            match self.store.renew(&self.lease).await {
                ClaimOutcome::Won(lease) => self.lease = lease,
                ClaimOutcome::Lost { by } => return Err(Failure::Lost { by }),
                ClaimOutcome::Replaced { .. } => return Err(Failure::Lost { by: None }),
                ClaimOutcome::Indeterminate(error)
                    if self.store.lease_age(&self.lease) > self.store.lease_durations().own =>
                {
                    return Err(Failure::Failed(error));
                }
                ClaimOutcome::Indeterminate(_) => {}
            }
        }
        Ok(())
    }

    /// Releases the partition after the position was written. The reset is done only if the release was written, too.
    async fn release_written(&self) -> ResetOutcome {
        match self.release().await {
            ReleaseOutcome::Released => ResetOutcome::Done,
            ReleaseOutcome::Lost { .. } => ResetOutcome::Indeterminate { written: true, error: None },
            ReleaseOutcome::Indeterminate(error) => ResetOutcome::Indeterminate { written: true, error: Some(error) },
        }
    }

    pub(super) async fn release(&self) -> ReleaseOutcome {
        let mut retries = Retries::new(&self.store, MAX_ATTEMPTS);
        loop {
            match self.store.release(&self.lease).await {
                ReleaseOutcome::Indeterminate(error) if retries.again_after(&error).await => {}
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
