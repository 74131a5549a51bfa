//! A processor of this crate in a fleet.

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, OwnPosition, PartitionContext, PartitionStart, Processor, ShutdownReport,
};
use eventhubs_checkpoint::source::{EventSource, Positioned};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::fleet::TIMEOUT;
use super::processed::Processed;

/// Checkpoints each batch, like the others.
pub struct Recorder {
    pub owner: String,
    pub processed: Processed,
}

impl Handler<ReceivedEventData> for Recorder {
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        let checkpoint = start.checkpoint().and_then(|checkpoint| checkpoint.sequence_number);
        self.processed.start(&self.owner, start.partition_id().as_str(), None, checkpoint);
        Ok(OwnPosition::NotKept)
    }

    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        let numbers: Vec<_> = events.iter().filter_map(Positioned::sequence_number).collect();
        self.processed.add(&self.owner, context.partition_id().as_str(), None, &numbers);
        if let Some(last) = events.last() {
            context.checkpoint(last);
        }
        Ok(())
    }
}

pub struct CrateProcessor {
    owner: String,
    shutdown: oneshot::Sender<()>,
    running: JoinHandle<Result<ShutdownReport>>,
}

impl CrateProcessor {
    pub fn run<S>(owner: &str, processor: Processor<S, Recorder>) -> Self
    where
        S: EventSource<Event = ReceivedEventData>,
    {
        let (shutdown, requested) = oneshot::channel();
        let running = tokio::spawn(processor.run(async {
            // An error means that no shutdown can be requested anymore.
            let _ = requested.await;
        }));
        Self { owner: owner.to_owned(), shutdown, running }
    }

    /// Returns its owner ID.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Shuts it down gracefully.
    pub async fn shut_down(self) {
        assert!(self.shutdown.send(()).is_ok(), "{} has ended by itself", self.owner);
        let ended = timeout(TIMEOUT, self.running).await;
        ended.unwrap_or_else(|_| panic!("{} does not end", self.owner)).unwrap().unwrap();
    }

    /// Stops everything at once, without a shutdown.
    pub async fn kill(self) {
        self.running.abort();
        let ended = timeout(TIMEOUT, self.running).await.unwrap_or_else(|_| panic!("{} does not end", self.owner));
        assert!(ended.is_err_and(|error| error.is_cancelled()), "{} has ended by itself", self.owner);
    }
}
