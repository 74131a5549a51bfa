//! The work of an operator on one partition: performs the [steps](super::reset_steps), and repeats those that fail.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, Shared, pending, select};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::plan::Expected;
use super::records::OwnerRecords;
use super::reset::{ResetError, ResetOptions};
use super::reset_steps::{Purpose, ResetProgress, ResetReport, ResetStep, StepEnd};
use super::takeover::{Allowed, Takeover, takeover};
use crate::backoff::CountingBackoff;
use crate::error::{Error, ErrorKind};
use crate::model::{CheckpointRecord, OwnershipRecord, PartitionId, Pause, Position};
use crate::store::membership::DeclareDeadOutcome;
use crate::store::{AdoptOutcome, Adoption, Claim, ClaimOutcome, GroupStore, Lease, ReleaseOutcome};

/// How many times a partition is claimed. A renewal between the listing and the claim costs one attempt.
const MAX_CLAIMS: u32 = 3;

/// How many times the position, or the release, is tried.
const MAX_ATTEMPTS: u32 = 5;

/// What to write into a checkpoint.
pub(super) struct ResetOrder {
    pub(super) change: CheckpointChange,
    /// When the event hub of the position was created, if that is known.
    pub(super) hub_created_at: Option<OffsetDateTime>,
    /// What the checkpoint must be.
    pub(super) expected: Expected,
    /// How many times the partition is reset if another owner claims it in the meantime, as processors of other SDKs
    /// do.
    pub(super) attempts: u32,
    /// Ends when the operator should write nothing more.
    pub(super) stop: Shared<BoxFuture<'static, ()>>,
}

/// A change of a checkpoint.
pub(super) enum CheckpointChange {
    Position(Position),
    /// `None` removes the pause.
    Pause(Option<Pause>),
}

impl CheckpointChange {
    /// Returns whether the record shows that the change was written.
    fn is_in(&self, record: &CheckpointRecord) -> bool {
        match self {
            // A record without an offset is at a position with an empty one.
            Self::Position(position) => {
                record.sequence_number == Some(position.sequence_number)
                    && record.offset.as_deref().unwrap_or_default() == position.offset
            }
            Self::Pause(pause) => record.paused == *pause,
        }
    }

    /// Returns why this record must not be changed in this way, if it must not.
    pub(super) fn refusal_over(&self, record: &CheckpointRecord, options: &ResetOptions) -> Option<ResetError> {
        match self {
            Self::Position(_) if record.own_position && !options.allow_own_positions => Some(ResetError::OwnPosition),
            Self::Pause(Some(_)) if record.paused.as_ref().is_some_and(|pause| pause.parked) => {
                Some(ResetError::Parked)
            }
            _ => None,
        }
    }
}

/// One partition, from the takeover to the report.
pub(super) struct OperatorSession<'a> {
    store: &'a GroupStore,
    partition: &'a PartitionId,
    options: &'a ResetOptions,
    /// `None` if the partition is only released.
    order: Option<&'a ResetOrder>,
    /// The listing for all partitions of one call. It is used once.
    first_listing: Option<&'a OwnerRecords>,
    progress: ResetProgress,
    /// The ownership that the claims replace, if there was one. A claim without a response may have replaced a record
    /// that the next listing does not show anymore.
    displaced: Option<OwnershipRecord>,
    lease: Option<Lease>,
    adoption: Option<Adoption>,
}

/// Why a step was not done.
enum StepFailure {
    /// Another owner has the partition.
    Lost(ResetError),
    /// It must not be done.
    Refused(ResetError),
    Failed(Error),
}

impl<'a> OperatorSession<'a> {
    pub(super) fn new(
        store: &'a GroupStore,
        partition: &'a PartitionId,
        options: &'a ResetOptions,
        order: Option<&'a ResetOrder>,
        listing: &'a OwnerRecords,
    ) -> Self {
        Self {
            store,
            partition,
            options,
            order,
            first_listing: Some(listing),
            progress: ResetProgress::new(if order.is_some() { Purpose::Reset } else { Purpose::Release }),
            displaced: None,
            lease: None,
            adoption: None,
        }
    }

    /// Performs one step after another, to the report. Begins again with a takeover if another owner claimed the
    /// partition before the position was written, as often as the order permits. Also returns the reason why the work
    /// is not done, if it is not.
    pub(super) async fn run_to_report(mut self) -> (ResetReport, ResetError) {
        let mut resets_left = self.order.map_or(1, |order| order.attempts);
        loop {
            if self.order.is_some_and(ResetOrder::is_stopped) {
                return (ResetReport::NotDone, ResetError::Stopped);
            }
            let (report, reason) = self.run_once().await;
            resets_left -= 1;
            if resets_left == 0 || report != ResetReport::NotDone || !matches!(reason, ResetError::Lost { .. }) {
                return (report, reason);
            }
            self.progress = ResetProgress::new(self.progress.purpose);
            self.displaced = None;
        }
    }

    async fn run_once(&mut self) -> (ResetReport, ResetError) {
        let mut reason = ResetError::Stopped;
        let mut retries = Retries::new(self.store, MAX_CLAIMS);
        loop {
            let step = self.progress.step;
            let end = match self.perform_step(step).await {
                Ok(()) => StepEnd::Done,
                Err(failure) => {
                    let end = failure.end_of_step(step, &mut retries).await;
                    // What was given up is released for a reason that the outcome of the release does not change.
                    if step != (ResetStep::Release { completed: false }) {
                        reason = match failure {
                            StepFailure::Lost(reason) | StepFailure::Refused(reason) => reason,
                            StepFailure::Failed(error) => ResetError::Failed(error),
                        };
                    }
                    end
                }
            };
            self.progress = match self.progress.after_step(end) {
                ControlFlow::Continue(progress) => progress,
                ControlFlow::Break(report) => return (report, reason),
            };
            if self.progress.step.begins_phase_after(step) {
                retries = Retries::new(self.store, MAX_ATTEMPTS);
            }
        }
    }

    async fn perform_step(&mut self, step: ResetStep) -> Result<(), StepFailure> {
        match (step, self.order) {
            (ResetStep::TakeOver, _) => self.take_over().await,
            (ResetStep::Adopt, Some(order)) => self.adopt_checkpoint(order).await,
            (ResetStep::Hold, Some(order)) => {
                match select(Box::pin(self.hold_partition(self.options.settle)), order.stop.clone()).await {
                    Either::Left((held, _)) => held,
                    Either::Right(_) => Err(StepFailure::Refused(ResetError::Stopped)),
                }
            }
            (ResetStep::Write, Some(order)) => self.write_change(order).await,
            // Without an order there is nothing to do but to release the partition.
            (ResetStep::Release { .. }, _) | (_, None) => self.release_partition().await,
        }
    }

    /// Lists the group unless it was just listed, and claims the partition.
    async fn take_over(&mut self) -> Result<(), StepFailure> {
        let listed;
        let listing = if let Some(listing) = self.first_listing.take() {
            listing
        } else {
            listed = OwnerRecords::read(self.store).await.map_err(StepFailure::Failed)?;
            &listed
        };
        let mut takeover =
            decide_takeover(self.store, listing, self.partition, self.options).map_err(StepFailure::Refused)?;
        if self.progress.purpose == Purpose::Release {
            takeover.return_to = None;
        }
        self.progress.must_hold |= takeover.settle;
        let found = takeover.over.as_ref().map(|seen| &seen.record);
        let this = &self.store.identity().owner;
        if found.is_none_or(|found| found.owner.as_ref() != Some(this)) {
            self.displaced = found.cloned();
        }
        match self.claim_partition(listing, takeover).await {
            ClaimOutcome::Won(lease) => {
                self.lease = Some(lease);
                self.store.call_instances().await;
                Ok(())
            }
            ClaimOutcome::Lost { by } => Err(StepFailure::Lost(ResetError::Lost { by })),
            ClaimOutcome::Replaced { .. } => Err(StepFailure::Lost(ResetError::Lost { by: Some(this.clone()) })),
            ClaimOutcome::Indeterminate(error) => Err(StepFailure::Failed(error)),
        }
    }

    async fn claim_partition(&self, listing: &OwnerRecords, takeover: Takeover) -> ClaimOutcome {
        let Some(seen) = takeover.over else {
            return self.store.claim(&Claim::unowned(self.partition.clone())).await;
        };
        if takeover.declare_dead && seen.is_kept_alive_by_heartbeat(self.store.identity()) {
            let owner = seen.record.owner.as_ref();
            let heartbeat = listing.heartbeats.records.iter().find(|heartbeat| Some(&heartbeat.record.owner) == owner);
            match self.store.declare_dead(&seen, heartbeat).await {
                Ok(DeclareDeadOutcome::Declared) => {}
                Ok(DeclareDeadOutcome::StillAlive) => return ClaimOutcome::Lost { by: seen.record.owner },
                Err(error) => return ClaimOutcome::Indeterminate(error),
            }
        }
        self.store.claim(&Claim::over(&seen).with_handoff_to(takeover.return_to)).await
    }

    /// Adopts the checkpoint. It must be the expected one, unless an earlier attempt may have written the position.
    async fn adopt_checkpoint(&mut self, order: &ResetOrder) -> Result<(), StepFailure> {
        let lease = self.current_lease()?;
        let adoption = match self.store.adopt(lease.partition(), lease.epoch(), None).await {
            Ok(AdoptOutcome::Adopted(adoption)) => adoption,
            Ok(AdoptOutcome::Lost { by }) => return Err(StepFailure::Lost(ResetError::Lost { by })),
            Err(error) => return Err(StepFailure::Failed(error)),
        };
        let found = adoption.record();
        let is_written = self.progress.in_doubt && order.change.is_in(found);
        if !is_written && !order.expected.may_replace(found, self.displaced.as_ref()) {
            return Err(StepFailure::Refused(ResetError::Changed { sequence_number: found.sequence_number }));
        }
        if let Some(reason) = order.change.refusal_over(found, self.options) {
            return Err(StepFailure::Refused(reason));
        }
        self.adoption = Some(adoption);
        Ok(())
    }

    /// Holds the partition until owners of other SDKs have detected the loss. If one of them writes a checkpoint in the
    /// meantime, the write of the position fails.
    async fn hold_partition(&mut self, time: Duration) -> Result<(), StepFailure> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            let lease_duration = self.store.lease_durations().own;
            sleep(left.min(lease_duration / 6)).await;
            let lease = self.current_lease()?;
            match self.store.renew(lease).await {
                ClaimOutcome::Won(lease) => self.lease = Some(lease),
                ClaimOutcome::Lost { by } => return Err(StepFailure::Lost(ResetError::Lost { by })),
                ClaimOutcome::Replaced { .. } => return Err(StepFailure::Lost(ResetError::Lost { by: None })),
                ClaimOutcome::Indeterminate(error) if self.store.lease_age(lease) > lease_duration => {
                    return Err(StepFailure::Failed(error));
                }
                ClaimOutcome::Indeterminate(_) => {}
            }
        }
        Ok(())
    }

    async fn write_change(&mut self, order: &ResetOrder) -> Result<(), StepFailure> {
        if order.is_stopped() {
            return Err(StepFailure::Refused(ResetError::Stopped));
        }
        let Some(adoption) = &mut self.adoption else {
            return Err(StepFailure::Lost(ResetError::Lost { by: None }));
        };
        adoption.set_hub_created_at(order.hub_created_at);
        let written = match &order.change {
            CheckpointChange::Position(position) => self.store.replace_checkpoint(adoption, position).await,
            CheckpointChange::Pause(pause) => self.store.set_pause(adoption, pause.clone()).await,
        };
        written.map_err(StepFailure::Failed)
    }

    async fn release_partition(&self) -> Result<(), StepFailure> {
        match self.store.release(self.current_lease()?).await {
            ReleaseOutcome::Released => {
                self.store.call_instances().await;
                Ok(())
            }
            ReleaseOutcome::Lost { by } => Err(StepFailure::Lost(ResetError::Lost { by })),
            ReleaseOutcome::Indeterminate(error) => Err(StepFailure::Failed(error)),
        }
    }

    /// Returns the lease that the takeover won.
    fn current_lease(&self) -> Result<&Lease, StepFailure> {
        self.lease.as_ref().ok_or(StepFailure::Lost(ResetError::Lost { by: None }))
    }
}

impl ResetOrder {
    /// Returns the order to make a change whatever the checkpoint is.
    pub(super) fn unconditional(change: CheckpointChange) -> Self {
        Self { change, hub_created_at: None, expected: Expected::Any, attempts: 1, stop: pending().boxed().shared() }
    }

    fn is_stopped(&self) -> bool {
        self.stop.clone().now_or_never().is_some()
    }
}

impl StepFailure {
    /// Returns how the step ended: whether it is tried again, after a wait.
    async fn end_of_step(&self, step: ResetStep, retries: &mut Retries) -> StepEnd {
        match self {
            Self::Lost(_) if step != ResetStep::TakeOver || retries.try_again() => StepEnd::Lost,
            Self::Lost(_) | Self::Refused(_) => StepEnd::GivenUp { in_doubt: false },
            Self::Failed(error) => {
                let in_doubt = step == ResetStep::Write && may_be_applied(error);
                if retries.try_again_after(error).await {
                    StepEnd::Failed { in_doubt }
                } else {
                    StepEnd::GivenUp { in_doubt }
                }
            }
        }
    }
}

/// Decides by a listing of the group whether and how the partition is taken over.
pub(super) fn decide_takeover(
    store: &GroupStore,
    listing: &OwnerRecords,
    partition: &PartitionId,
    options: &ResetOptions,
) -> Result<Takeover, ResetError> {
    let partitions: BTreeSet<_> =
        listing.ownerships.records.iter().map(|seen| &seen.partition).chain([partition]).cloned().collect();
    let view = listing.operator_view(store, &Vec::from_iter(partitions), store.lease_clock_now());
    takeover(&view, partition, Allowed { live: options.allow_live, foreign: options.allow_foreign })
}

/// Returns whether a write that failed with this error, or with a conflict caused by it, had no response.
fn may_be_applied(error: &Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<Error>());
    [Some(error), cause].into_iter().flatten().any(|error| error.kind() == ErrorKind::Indeterminate)
}

/// A bounded number of attempts.
struct Retries {
    store: GroupStore,
    backoff: CountingBackoff,
    /// How many attempts are left after the current one.
    left: u32,
}

impl Retries {
    fn new(store: &GroupStore, attempts: u32) -> Self {
        Self {
            store: store.clone(),
            backoff: CountingBackoff::new(store.request_timeout() / 16, store.lease_durations().own / 6),
            left: attempts - 1,
        }
    }

    /// Returns whether there is another attempt.
    fn try_again(&mut self) -> bool {
        let goes_on = self.left > 0;
        self.left = self.left.saturating_sub(1);
        goes_on
    }

    /// Waits until the next attempt, at least as long as the storage asks for. Returns false if there is none, or if
    /// the same request would fail again.
    async fn try_again_after(&mut self, error: &Error) -> bool {
        let goes_on = (error.may_pass() || error.kind() == ErrorKind::Conflict) && self.try_again();
        if goes_on {
            sleep(self.store.wait_after_error(error, &mut self.backoff)).await;
        }
        goes_on
    }
}
