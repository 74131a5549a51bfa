//! A handler of single events, processed concurrently.

use std::sync::Arc;

use eventhubs_checkpoint::processor::{
    EachEvent, EventContext, EventHandler, EventOrder, Handler, HandlerError, PartitionContext, StopReason, each_event,
};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Error, ErrorKind};
use tokio::time::sleep;

use super::Worker;
use super::bad_events::BATCH;
use crate::sim::plan::{DrawnOrder, OneByOne};

/// Reports each batch, and passes it on to be processed event by event.
pub(super) struct Batches {
    worker: Arc<Worker>,
    events: EachEvent<MemoryEvent, SingleEvents>,
}

impl Batches {
    pub(super) fn new(worker: Worker, OneByOne { places, order }: OneByOne) -> Self {
        let worker = Arc::new(worker);
        let events = SingleEvents { worker: Arc::clone(&worker), order };
        let order = match order {
            DrawnOrder::Partition => EventOrder::Partition,
            DrawnOrder::Keys(_) => EventOrder::by_key(move |event: &MemoryEvent| order.key_of(event.sequence_number)),
            DrawnOrder::None => EventOrder::None,
        };
        Self { worker, events: each_event(events).with_concurrency(places).with_order(order) }
    }
}

impl Handler<MemoryEvent> for Batches {
    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.worker.host.runs().await;
        let _turn = self.worker.host.reporter.begins(context.partition_id(), &events);
        self.events.handle(events, context).await
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.events.started(context).await
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        self.events.stopped(context, reason).await;
    }
}

struct SingleEvents {
    worker: Arc<Worker>,
    order: DrawnOrder,
}

impl EventHandler<MemoryEvent> for SingleEvents {
    async fn handle(&self, event: Arc<MemoryEvent>, context: EventContext) -> Result<(), HandlerError> {
        let Worker { host, .. } = &*self.worker;
        host.runs().await;
        let key = self.order.key_of(event.sequence_number);
        let handling = host.reporter.begins_event(context.partition_id(), &event, key);
        sleep(self.worker.up_to(host.member.work) / BATCH).await;
        host.runs().await;
        if let Some(bad) = host.member.bad_events.filter(|bad| bad.include(&event)) {
            self.worker.fail_at(bad, &event, context.partition_id())?;
        }
        if self.worker.fails_at_one_event() {
            return Err(Error::new(ErrorKind::Handler, "an occasional failure").into());
        }
        handling.done(&event);
        Ok(())
    }

    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.worker.started(context).await
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        self.worker.stopped(context, reason).await;
    }
}
