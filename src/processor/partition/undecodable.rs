//! An event that the source cannot decode: the partition fails, or continues behind it.

use std::sync::Arc;

use super::machine::Happened;
use super::task::{PartitionTask, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::processor::handler::Handler;
use crate::processor::monitoring::status::Phase;
use crate::processor::undecodable::{OnUndecodable, UndecodableEvent, named, skip_refused};
use crate::source::undecodable::reported_number;
use crate::source::{EventSource, StartPosition};
use crate::telemetry;

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Does what the policy says about the event at which reading has ended. All events before it were delivered, but
    /// some of them may be in flight.
    ///
    /// A link may have started too late, and the event may have expired since, so which one it is counts only if the next
    /// link ends at the same one.
    pub(super) async fn undecodable(&self, error: Error, session: &mut Session<S::Event>) -> Happened {
        let from = session.delivered.next();
        let located = tokio::select! {
            biased;
            reason = self.stopping_or_fenced(&mut session.writing) => return Happened::Stop(reason),
            located = self.locate(&error, &from) => located,
        };
        let number = match located {
            Ok(Some(number)) => number,
            Ok(None) => return self.not_skipped(None, error),
            Err(error) => return error.into(),
        };
        let place = Some((from, number));
        if session.undecodable != place {
            session.undecodable = place;
            return Happened::Reopen;
        }
        match self.shared.config.on_undecodable {
            OnUndecodable::Skip => self.skip(number, error, session).await,
            OnUndecodable::Fail => self.not_skipped(Some(number), error),
        }
    }

    fn not_skipped(&self, number: Option<i64>, error: Error) -> Happened {
        self.control.metrics.undecodable("failed");
        named(&self.control.partition, number, error).into()
    }

    /// Returns the sequence number of the event: the reported one, or the first one that exists from this position on.
    /// `None` if the position has no sequence number.
    async fn locate(&self, error: &Error, from: &StartPosition) -> Result<Option<i64>> {
        let reported = reported_number(error);
        let due = match from {
            StartPosition::AfterSequenceNumber(last) => last.saturating_add(1),
            StartPosition::Earliest => 0,
            StartPosition::Latest | StartPosition::AfterOffset(_) | StartPosition::EnqueuedAfter(_) => {
                return Ok(reported);
            }
        };
        match reported {
            Some(number) if number < due => Err(Error::new(
                ErrorKind::EventSource,
                format!("the source cannot decode event {number}, but event {due} is the next one"),
            )),
            Some(number) => Ok(Some(number)),
            None => Ok(Some(due.max(self.properties().await?.beginning_sequence_number()))),
        }
    }

    /// Skips the event once the handler allows it.
    async fn skip(&self, sequence_number: i64, error: Error, session: &mut Session<S::Event>) -> Happened {
        let error = Arc::new(error);
        let event = UndecodableEvent {
            group: Arc::clone(&self.shared.group),
            partition_id: self.control.partition.clone(),
            epoch: self.control.epoch,
            sequence_number,
            error: Arc::clone(&error),
        };
        let context = session.context.clone();
        self.control.progress.enter(Phase::Handling);
        // The call is inside the future because it may panic before it returns one.
        let asking = async { self.shared.handler.undecodable(event, context).await };
        let allowed = tokio::select! {
            biased;
            reason = self.stopping_or_fenced(&mut session.writing) => return Happened::Stop(reason),
            allowed = self.control.call_limit.call("`undecodable`", asking) => allowed,
        };
        if let Err(error) = allowed {
            self.control.metrics.undecodable("failed");
            return Happened::HandlerFailed(Arc::new(skip_refused(sequence_number, error)));
        }
        session.writer.skip(sequence_number);
        session.delivered.skip(sequence_number);
        self.control.progress.skipped_undecodable();
        self.control.metrics.undecodable("skipped");
        telemetry::undecodable_skipped(&self.control.partition, sequence_number, &error);
        Happened::Reopen
    }
}
