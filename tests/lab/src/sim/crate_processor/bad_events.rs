//! A handler that cannot process some events.

use std::sync::Arc;

use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterSink};
use eventhubs_checkpoint::processor::{EventError, HandlerError, PartitionContext};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId};
use tokio::time::sleep;

use super::Worker;
use crate::sim::host::Host;
use crate::sim::observer::BatchInProgress;
use crate::sim::plan::{BadEvents, OneByOne};

/// The number of events for which a handler takes as long as the plan says for a batch.
pub(super) const BATCH: u32 = 100;

/// Returns a sink that counts its events as processed.
pub(super) fn sink(host: &Arc<Host>) -> impl DeadLetterSink<MemoryEvent> + use<> {
    let reporter = host.reporter.clone();
    let one_by_one = host.member.one_by_one;
    move |letter: DeadLetter<MemoryEvent>| {
        let event = &*letter.event;
        if let Some(OneByOne { order, .. }) = one_by_one {
            let key = order.key_of(event.sequence_number);
            reporter.begins_event(&letter.partition_id, event, key).done(event);
        } else {
            let events = std::slice::from_ref(event);
            reporter.begins(&letter.partition_id, events).done(events);
        }
        async { Ok(()) }
    }
}

impl Worker {
    /// Handles one event after another, with a checkpoint after each, up to a bad one.
    pub(super) async fn handle_until_bad(
        &self,
        bad: BadEvents,
        events: &[MemoryEvent],
        handling: &BatchInProgress,
        context: &PartitionContext,
    ) -> Result<(), HandlerError> {
        for event in events {
            sleep(self.up_to(self.host.member.work) / BATCH).await;
            self.host.runs().await;
            if bad.include(event) {
                self.fail_at(bad, event, context.partition_id())?;
            }
            handling.done(std::slice::from_ref(event));
            context.checkpoint(event);
        }
        Ok(())
    }

    pub(super) fn fail_at(
        &self,
        bad: BadEvents,
        event: &MemoryEvent,
        partition: &PartitionId,
    ) -> Result<(), HandlerError> {
        if bad.always {
            return Err(EventError::permanent(event, "an unknown format").into());
        }
        let first = lock(&self.failed_once).insert((partition.clone(), event.sequence_number));
        if first { Err(Error::new(ErrorKind::Handler, "an occasional failure").into()) } else { Ok(()) }
    }
}
