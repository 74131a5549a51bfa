//! Passes a batch to the handler, and the events at which it failed for good to the dead letters.

use std::sync::Arc;

use super::handler_failures::FailureRun;
use super::task::PartitionTask;
use crate::processor::context::PartitionContext;
use crate::processor::dead_letters::DeadLetters;
use crate::processor::handler::Handler;
use crate::processor::handler_errors::{DEAD_LETTER_SINK, DeadLetterError, HandlerError, NotBegun};
use crate::source::{EventSource, Positioned};

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Passes a batch to the handler. An event that is to be moved goes to the sink instead, after the events before it
    /// were processed, and before the events after it are.
    pub(super) async fn handle_batch(
        &self,
        mut events: Vec<S::Event>,
        context: PartitionContext,
    ) -> Result<(), HandlerError> {
        let handler = &self.shared.handler;
        let Some(dead_letters) = self.shared.dead_letters.as_ref().filter(|_| !events.is_empty()) else {
            return handler.handle(events, context).await;
        };
        pass_over_moved_events(&mut events, &context);
        let failing = self.control.failures.current_failure().filter(|failing| failing.is_due(&dead_letters.policy));
        let Some((index, failing)) = failing.and_then(|failing| Some((failing.find_event(&events)?, failing))) else {
            return if events.is_empty() { Ok(()) } else { handler.handle(events, context).await };
        };
        let after = events.split_off(index + 1);
        let event = events.pop();
        if !events.is_empty() {
            self.handle_part(events, &context).await?;
        }
        if let Some(event) = event {
            self.move_event(dead_letters, event, failing, &context).await?;
        }
        if after.is_empty() { Ok(()) } else { self.handle_part(after, &context).await }
    }

    /// Passes a part of a batch to the handler. Each part has the time of a call. Once the partition is stopping, none
    /// begins.
    async fn handle_part(&self, events: Vec<S::Event>, context: &PartitionContext) -> Result<(), HandlerError> {
        if context.is_stopping() {
            return Err(NotBegun.into());
        }
        let _working = self.control.call_limit.begin_call();
        self.control.failures.record_call(events.first().and_then(S::Event::sequence_number));
        self.shared.handler.handle(events, context.clone()).await
    }

    async fn move_event(
        &self,
        dead_letters: &DeadLetters,
        event: S::Event,
        failing: FailureRun,
        context: &PartitionContext,
    ) -> Result<(), HandlerError> {
        if context.is_stopping() {
            return Err(NotBegun.into());
        }
        let letter = context.new_letter(Arc::new(event), failing.failures, failing.error);
        self.control
            .call_limit
            // The call is inside the future because it may panic before it returns one.
            .run_call(DEAD_LETTER_SINK, async {
                context.confirm_owner().await?;
                dead_letters.store_event(&letter).await
            })
            .await
            .map_err(|error| DeadLetterError::new(letter.event.sequence_number(), error))?;
        context.record_move(&letter);
        context.pass_over(&*letter.event);
        Ok(())
    }
}

/// Removes the events that this owner has moved to the dead letters before.
fn pass_over_moved_events<E: Positioned>(events: &mut Vec<E>, context: &PartitionContext) {
    let failures = &context.control.failures;
    if failures.has_moved() {
        events.retain(|event| {
            let was_moved = failures.was_moved(event);
            if was_moved {
                context.pass_over(event);
            }
            !was_moved
        });
    }
}
