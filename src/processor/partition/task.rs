//! The task of one partition: what all its steps share.

use std::sync::Arc;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::continuity::{Continuity, Unvalidated};
use super::control::Control;
use super::handler_call::IdleClock;
use super::machine::StepOutcome;
use super::orders::SessionEnd;
use super::reading_end::ReadingEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{OwnerId, Relation};
use crate::processor::checkpoints::pending::Start;
use crate::processor::checkpoints::requests::CheckpointRequester;
use crate::processor::checkpoints::writer::{CheckpointWriter, WritingEnd};
use crate::processor::context::PartitionContext;
use crate::processor::handler::Handler;
use crate::processor::shared::{HubCreation, SharedResources};
use crate::processor::shutdown::StopReason;
use crate::processor::start::invalid::ResumeFailure;
use crate::source::receiver::EventReceiver;
use crate::source::{EventSource, StartPosition};
use crate::store::Adoption;

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
    /// The checkpoints of the context, and the task that writes them.
    pub(super) checkpoints: CheckpointRequester,
    pub(super) writing: JoinSet<WritingEnd>,
    pub(super) continuity: Continuity,
    pub(super) idle_clock: IdleClock,
    pub(super) link: Option<OpenLink<E>>,
    /// Another reader displaced the receiver, and the storage has not shown yet who owns the partition.
    pub(super) displaced: bool,
    /// Where reading stood, and at which event that cannot be decoded the last link has ended there.
    pub(super) undecodable: Option<(StartPosition, i64)>,
    /// When the event hub was created that this start reads.
    pub(super) hub_created_at: Option<OffsetDateTime>,
    /// The record still shows a former event hub, until the application has taken over the position in this one.
    pub(super) shows_former_hub: bool,
    /// The time until which the handler and the events in flight may take once the partition stops.
    pub(super) drained_by: Option<Instant>,
}

impl<E> PartitionSession<E> {
    /// Returns why reading cannot continue after the last delivered event. `None` if that event was one of a former
    /// event hub, or if the start itself was invalid, which the next one determines.
    pub(super) fn resume_failure(&self, hub: &HubCreation) -> Option<ResumeFailure> {
        let Continuity { delivered, stall_detector, unvalidated, .. } = &self.continuity;
        if hub.was_recreated_since(self.hub_created_at) || unvalidated.is_refuted() {
            return None;
        }
        let place = delivered.next_position();
        Some(if stall_detector.is_beyond_end() {
            ResumeFailure::BeyondEnd(place)
        } else {
            ResumeFailure::Rejected(place)
        })
    }
}

/// Where a session starts.
pub(super) struct SessionStart {
    pub(super) adoption: Adoption,
    pub(super) from: StartPosition,
    /// The position that replaces one after which the partition cannot be read.
    pub(super) elsewhere: Option<i64>,
    pub(super) unvalidated: Unvalidated,
}

pub(super) struct OpenLink<E> {
    pub(super) receiver: EventReceiver<E>,
    pub(super) opened_at: Instant,
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Begins a session, and starts the task that writes its checkpoints.
    pub(super) fn new_session(
        &self,
        SessionStart { adoption, from, elsewhere, unvalidated }: SessionStart,
        end: ReadingEnd,
        hub_created_at: Option<OffsetDateTime>,
    ) -> PartitionSession<S::Event> {
        let SharedResources { store, config, group, dead_letters, spans, .. } = &*self.shared;
        let Control { partition, failures, metrics, progress, span, .. } = &*self.control;
        failures.record_start(adoption.record().sequence_number, elsewhere.is_some());
        let over = watch::Sender::new(false);
        let start = Start {
            partition: partition.clone(),
            stopping: self.control.watch_stopping(),
            over: SessionEnd::new(over.subscribe()),
            span: span.clone(),
        };
        let shows_former_hub = adoption.hub_created_at() != hub_created_at;
        let (writer, checkpoints) = CheckpointWriter::new(
            store.clone(),
            adoption,
            config.checkpoint_policy.clone(),
            metrics.clone(),
            spans.clone(),
            start,
        );
        progress.record_start(checkpoints.clone(), elsewhere.is_some());
        let mut writing = JoinSet::new();
        writing.spawn(writer.run().in_current_span());
        PartitionSession {
            context: PartitionContext {
                group: Arc::clone(group),
                store: store.clone(),
                drain_timeout: self.shared.drain_timeout,
                dead_letters: dead_letters.clone(),
                checkpoints: checkpoints.clone(),
                control: Arc::clone(&self.control),
                over: SessionEnd::new(over.subscribe()),
                started_elsewhere: elsewhere,
            },
            over,
            checkpoints,
            writing,
            continuity: Continuity::new(from, unvalidated, end, config.lag_check_interval),
            idle_clock: IdleClock::new(config.idle_interval),
            link: None,
            displaced: false,
            undecodable: None,
            hub_created_at,
            shows_former_hub,
            drained_by: None,
        }
    }

    /// Waits until the partition is requested to stop, or until a checkpoint is rejected. In the latter case it also
    /// requests the stop.
    pub(super) async fn wait_for_stop_or_fence(&self, writing: &mut JoinSet<WritingEnd>) -> StopReason {
        tokio::select! {
            biased;
            reason = self.control.wait_for_stop() => reason,
            Some(ended) = writing.join_next() => self.stop_when_fenced(ended).await,
        }
    }

    async fn stop_when_fenced(&self, ended: Result<WritingEnd, JoinError>) -> StopReason {
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
        let store = &self.shared.store;
        if by.as_ref() != Some(&store.identity().owner) {
            return StopReason::OwnershipLost { by };
        }
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
        match read? {
            Some(seen) if seen.record.is_mine_in(self.shared.store.identity(), self.control.epoch) => Ok(()),
            seen => Err(StepOutcome::Stop(self.read_loss_reason(seen.and_then(|seen| seen.record.owner)).await)),
        }
    }
}
