//! One partition's task: what all its steps share.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::machine::Happened;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{OwnerId, Relation};
use crate::processor::checkpointing::{CheckpointWriter, Ended as WritingEnded};
use crate::processor::context::PartitionContext;
use crate::processor::control::Control;
use crate::processor::delivery::Delivered;
use crate::processor::handler::Handler;
use crate::processor::liveness::StallDetector;
use crate::processor::receiver::EventReceiver;
use crate::processor::shared::Shared;
use crate::processor::source::EventSource;
use crate::processor::start::Doubt;
use crate::processor::stop::StopReason;

/// One partition's task.
#[derive(Debug)]
pub(in crate::processor) struct PartitionTask<S, H> {
    pub(in crate::processor) shared: Arc<Shared<S, H>>,
    pub(in crate::processor) control: Arc<Control>,
}

/// From adopting to stopped.
pub(super) struct Session<E> {
    pub(super) context: PartitionContext,
    pub(super) over: watch::Sender<bool>,
    /// Of the context. Here for short.
    pub(super) writer: CheckpointWriter,
    pub(super) writing: JoinSet<WritingEnded>,
    pub(super) delivered: Delivered,
    pub(super) silence: StallDetector,
    pub(super) link: Option<Link<E>>,
    /// Another reader took the link, and the storage did not tell whose the partition is.
    pub(super) displaced: bool,
    /// Until when the handler, and what is in flight, may take, once the partition is to stop.
    pub(super) drained_by: Option<Instant>,
}

pub(super) struct Link<E> {
    pub(super) receiver: EventReceiver<E>,
    pub(super) opened_at: Instant,
}

impl<E> Session<E> {
    /// Why reading cannot go on after what was delivered.
    pub(super) fn doubt(&self) -> Doubt {
        let place = self.delivered.next();
        if self.silence.is_beyond_end() { Doubt::BeyondEnd(place) } else { Doubt::Refused(place) }
    }
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Ready when the partition is to stop, and also when a checkpoint was refused. The handler is told, too.
    pub(super) async fn stopping_or_fenced(&self, writing: &mut JoinSet<WritingEnded>) -> StopReason {
        tokio::select! {
            biased;
            reason = self.control.stopping() => reason,
            Some(ended) = writing.join_next() => self.fenced(ended).await,
        }
    }

    pub(super) async fn fenced(&self, ended: Result<WritingEnded, tokio::task::JoinError>) -> StopReason {
        let reason = match ended {
            Ok(WritingEnded::Fenced { by }) => {
                // At once, for the wait may be cut short, and it is told only once.
                self.control.found(StopReason::OwnershipLost { by: by.clone() });
                self.lost(by).await
            }
            _ => StopReason::OwnershipLost { by: None },
        };
        self.control.found(reason.clone());
        reason
    }

    /// Under my own name it is a later incarnation; or I won the partition anew meanwhile, and start again.
    pub(super) async fn lost(&self, by: Option<OwnerId>) -> StopReason {
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

    /// A reader that was displaced at the broker asks the records who owns the partition: giving it up is right only if
    /// they say so.
    pub(super) async fn link_failed(&self, error: Error, session: &mut Session<S::Event>) -> Happened {
        self.control.metrics.link_failed();
        if error.kind() == ErrorKind::Fenced
            && let Err(stop @ Happened::Stop(_)) = self.confirm_owner(session).await
        {
            return stop;
        }
        Happened::Failed(Arc::new(error))
    }

    /// As long as the storage does not tell whose the partition is, a link that another reader took is not opened
    /// again: that one may be the new owner, and each would displace the other until the storage answers.
    pub(super) async fn confirm_owner(&self, session: &mut Session<S::Event>) -> Result<(), Happened> {
        let asked = tokio::select! {
            biased;
            reason = self.stopping_or_fenced(&mut session.writing) => return Err(Happened::Stop(reason)),
            asked = self.shared.store.read_ownership(&self.control.partition) => asked,
        };
        session.displaced = asked.is_err();
        let (me, epoch) = (self.shared.store.identity(), self.control.epoch);
        match asked {
            Ok(Some(seen)) if seen.record.is_mine_in(me, epoch) => Ok(()),
            Ok(seen) => Err(Happened::Stop(self.lost(seen.and_then(|seen| seen.record.owner)).await)),
            Err(error) => Err(Happened::Failed(Arc::new(error))),
        }
    }
}
