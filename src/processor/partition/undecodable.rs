//! What follows when reading ends at an event that the source cannot decode: the partition fails there, or skips the
//! event.

use std::sync::Arc;

use super::machine::StepOutcome;
use super::task::{PartitionSession, PartitionTask};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::processor::dead_letters::UndecodableEvent;
use crate::processor::handler::Handler;
use crate::processor::handler_errors::skip_refusal;
use crate::processor::monitoring::progress::PartitionPhase;
use crate::processor::policies::OnUndecodable;
use crate::source::{EventSource, StartPosition, undecodable_number};
use crate::telemetry;

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Does what the policy says about the event at which reading has ended. All events before it were delivered, but
    /// some of them may be in flight.
    ///
    /// A link may have started too late, and the event may have expired since, so which one it is counts only if the
    /// next link ends at the same one.
    pub(super) async fn handle_undecodable(
        &self,
        error: Error,
        session: &mut PartitionSession<S::Event>,
    ) -> StepOutcome {
        let from = session.continuity.delivered.next_position();
        let located = tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(&mut session.writing) => return StepOutcome::Stop(reason),
            located = self.locate_undecodable(&error, &from) => located,
        };
        let number = match located {
            Ok(Some(number)) => number,
            Ok(None) => return self.fail_at_undecodable(None, error),
            Err(error) => return error.into(),
        };
        let place = Some((from, number));
        if session.undecodable != place {
            session.undecodable = place;
            return StepOutcome::Reopen;
        }
        match self.shared.config.on_undecodable {
            OnUndecodable::Skip => self.skip_undecodable(number, error, session).await,
            OnUndecodable::Fail => self.fail_at_undecodable(Some(number), error),
        }
    }

    fn fail_at_undecodable(&self, number: Option<i64>, error: Error) -> StepOutcome {
        self.control.metrics.count_undecodable("failed");
        explain_undecodable(&self.control.partition, number, error).into()
    }

    /// Returns the sequence number of the event: the reported one, or the first one that exists from this position on.
    /// `None` if the position has no sequence number.
    async fn locate_undecodable(&self, error: &Error, from: &StartPosition) -> Result<Option<i64>> {
        let reported = undecodable_number(error);
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
            None => Ok(Some(due.max(self.read_properties().await?.beginning_sequence_number()))),
        }
    }

    /// Skips the event once the handler allows it.
    async fn skip_undecodable(
        &self,
        sequence_number: i64,
        error: Error,
        session: &mut PartitionSession<S::Event>,
    ) -> StepOutcome {
        let error = Arc::new(error);
        let event = UndecodableEvent {
            group: Arc::clone(&self.shared.group),
            partition_id: self.control.partition.clone(),
            epoch: self.control.epoch,
            sequence_number,
            error: Arc::clone(&error),
        };
        let context = session.context.clone();
        self.control.progress.enter_phase(PartitionPhase::Handling);
        // The call is inside the future because it may panic before it returns one.
        let asking = async {
            if let Some(dead_letters) = &self.shared.dead_letters {
                context.confirm_owner().await?;
                dead_letters.store_undecodable(event.clone()).await?;
            }
            self.shared.handler.undecodable(event, context).await
        };
        let allowed = tokio::select! {
            biased;
            reason = self.wait_for_stop_or_fence(&mut session.writing) => return StepOutcome::Stop(reason),
            allowed = self.control.call_limit.run_call("`undecodable`", asking) => allowed,
        };
        if let Err(error) = allowed {
            self.control.metrics.count_undecodable("failed");
            return StepOutcome::HandlerFailed(Arc::new(skip_refusal(sequence_number, error)));
        }
        session.checkpoints.skip_event(sequence_number);
        session.continuity.delivered.skip_event(sequence_number);
        self.control.progress.count_undecodable();
        self.control.metrics.count_undecodable("skipped");
        telemetry::undecodable_skipped(&self.control.partition, sequence_number, &error);
        StepOutcome::Reopen
    }
}

/// Adds to the error of the source which event it is and what helps.
fn explain_undecodable(partition: &PartitionId, number: Option<i64>, error: Error) -> Error {
    let message = match number {
        Some(number) => format!(
            "cannot decode event {number} of partition {partition}: `OnUndecodable::Skip` skips such events, and \
             `ehcp reset -p {partition} --to-sequence {number} --live --execute` skips this one, unless the application \
             keeps its own position: then change that"
        ),
        None => format!(
            "cannot decode the next event of partition {partition}, whose sequence number is not known: reset the \
             partition to a sequence number"
        ),
    };
    Error::new(ErrorKind::Undecodable, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::undecodable;

    #[test]
    fn the_error_names_the_event_and_the_remedy() {
        let named = explain_undecodable(&3.into(), Some(42), undecodable(Some(42), "a list"));
        assert_eq!((named.kind(), undecodable_number(&named)), (ErrorKind::Undecodable, Some(42)));
        let message = named.to_string();
        for part in
            ["event 42", "partition 3", "OnUndecodable::Skip", "ehcp reset -p 3 --to-sequence 42 --live --execute"]
        {
            assert!(message.contains(part), "{part} is missing: {message}");
        }
    }
}
