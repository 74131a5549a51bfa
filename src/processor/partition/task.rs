//! The task of one partition: what all its steps share.

use std::sync::Arc;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::continuity::{DeliveryProgress, Unvalidated};
use super::control::Control;
use super::machine::StepOutcome;
use super::stall_detector::StallDetector;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{OwnerId, Relation};
use crate::processor::checkpoints::requests::CheckpointRequester;
use crate::processor::checkpoints::writer::WritingEnd;
use crate::processor::context::PartitionContext;
use crate::processor::handler::Handler;
use crate::processor::shared::{HubCreation, SharedResources};
use crate::processor::shutdown::stop::StopReason;
use crate::processor::start::invalid::ResumeFailure;
use crate::source::receiver::EventReceiver;
use crate::source::{EventSource, StartPosition};

/// The task of one partition.
#[derive(Debug)]
pub(in crate::processor) struct PartitionTask<S, H> {
    pub(in crate::processor) shared: Arc<SharedResources<S, H>>,
    pub(in crate::processor) control: Arc<Control>,
}

/// The state from adoption to the end of `stopped`.
pub(super) struct PartitionSession<E> {
    pub(super) context: PartitionContext,
    pub(super) over: watch::Sender<bool>,
    /// The writer of the context.
    pub(super) writer: CheckpointRequester,
    pub(super) writing: JoinSet<WritingEnd>,
    pub(super) delivered: DeliveryProgress,
    pub(super) stall_detector: StallDetector,
    pub(super) link: Option<OpenLink<E>>,
    /// Another reader displaced the receiver, and the storage has not shown yet who owns the partition.
    pub(super) displaced: bool,
    /// When the event hub was created that this start reads.
    pub(super) hub_created_at: Option<OffsetDateTime>,
    /// Where reading stood, and at which event that cannot be decoded the last link has ended there.
    pub(super) undecodable: Option<(StartPosition, i64)>,
    /// The recorded position, if reading began before it was compared with the partition.
    pub(super) unvalidated: Unvalidated,
    /// The record still shows a former event hub, until the application has taken over the position in this one.
    pub(super) shows_former_hub: bool,
    /// The time until which the handler and the events in flight may take once the partition stops.
    pub(super) drained_by: Option<Instant>,
}

pub(super) struct OpenLink<E> {
    pub(super) receiver: EventReceiver<E>,
    pub(super) opened_at: Instant,
}

impl<E> PartitionSession<E> {
    /// Returns why reading cannot continue after the last delivered event. `None` if that event was one of a former
    /// event hub, or if the start itself was invalid, which the next one determines.
    pub(super) fn resume_failure(&self, hub: &HubCreation) -> Option<ResumeFailure> {
        if hub.was_recreated_since(self.hub_created_at) || self.unvalidated.is_refuted() {
            return None;
        }
        let place = self.delivered.next_position();
        let beyond_end = self.stall_detector.is_beyond_end();
        Some(if beyond_end { ResumeFailure::BeyondEnd(place) } else { ResumeFailure::Rejected(place) })
    }
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Waits until the partition is requested to stop, or until a checkpoint is rejected. In the latter case it also
    /// requests the stop.
    pub(super) async fn wait_for_stop_or_fence(&self, writing: &mut JoinSet<WritingEnd>) -> StopReason {
        tokio::select! {
            biased;
            reason = self.control.wait_for_stop() => reason,
            Some(ended) = writing.join_next() => self.stop_when_fenced(ended).await,
        }
    }

    pub(super) async fn stop_when_fenced(&self, ended: Result<WritingEnd, tokio::task::JoinError>) -> StopReason {
        let reason = match ended {
            Ok(WritingEnd::Fenced { by }) => {
                // Set it at once: this future may be dropped while it waits below, and the outcome of the task is
                // delivered only once. `by` names other owners only.
                let other = by.clone().filter(|by| *by != self.shared.store.identity().owner);
                self.control.set_stop_reason(StopReason::OwnershipLost { by: other });
                self.read_loss_reason(by).await
            }
            _ => StopReason::OwnershipLost { by: None },
        };
        self.control.set_stop_reason(reason.clone());
        reason
    }

    /// Returns why the partition is lost. If the record has this owner's id, a later incarnation has the partition, or
    /// this instance won it again and starts again.
    pub(super) async fn read_loss_reason(&self, by: Option<OwnerId>) -> StopReason {
        if by.as_ref() != Some(&self.shared.store.identity().owner) {
            return StopReason::OwnershipLost { by };
        }
        let store = &self.shared.store;
        match store.read_ownership(&self.control.partition).await {
            Ok(Some(seen)) if seen.record.relation_to(store.identity()) == Relation::LaterIncarnation => {
                StopReason::Replaced
            }
            _ => StopReason::OwnershipLost { by: None },
        }
    }

    /// Handles a failed link. If the broker displaced the reader, the ownership record decides whether the partition is
    /// lost.
    pub(super) async fn link_failed(&self, error: Error, session: &mut PartitionSession<S::Event>) -> StepOutcome {
        self.control.metrics.count_link_failure();
        self.shared.hub_creation.doubt.notify_one();
        if error.kind() == ErrorKind::Fenced
            && let Err(stop @ StepOutcome::Stop(_)) = self.confirm_owner(session).await
        {
            return stop;
        }
        StepOutcome::Failed(Arc::new(error))
    }

    /// Checks by the ownership record that this instance still owns the partition. A link that another reader took is
    /// not reopened before that. The other reader may be the new owner, and the two would displace each other until the
    /// storage responds.
    pub(super) async fn confirm_owner(&self, session: &mut PartitionSession<S::Event>) -> Result<(), StepOutcome> {
        let read = tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(&mut session.writing) => return Err(StepOutcome::Stop(reason)),
            read = self.shared.store.read_ownership(&self.control.partition) => read,
        };
        session.displaced = read.is_err();
        let this = self.shared.store.identity();
        match read {
            Ok(Some(seen)) if seen.record.is_mine_in(this, self.control.epoch) => Ok(()),
            Ok(seen) => Err(StepOutcome::Stop(self.read_loss_reason(seen.and_then(|seen| seen.record.owner)).await)),
            Err(error) => Err(StepOutcome::Failed(Arc::new(error))),
        }
    }
}
