//! The handler: it keeps its position in its database, in the transaction that writes the results.

use std::sync::{Arc, Mutex, PoisonError};

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::PartitionContext;
use eventhubs_checkpoint::processor::{Handler, HandlerError, OwnPosition, PartitionStart};
use tokio::task::spawn_blocking;

use crate::database::{Committed, Database, Order, Result};
use crate::journal::Journal;
use crate::workspace::Workspace;

pub struct Totals {
    pub owner: String,
    pub database: Arc<Mutex<Database>>,
    /// Every event that the handler got, and those whose transaction was rejected: for the report only.
    pub delivered: Journal,
    pub rejected: Arc<Journal>,
    pub workspace: Workspace,
}

impl Totals {
    /// Runs a transaction on a thread that may block.
    async fn run_transaction<T: Send + 'static>(
        &self,
        transaction: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T, HandlerError> {
        let database = Arc::clone(&self.database);
        let running = spawn_blocking(move || transaction(&mut database.lock().unwrap_or_else(PoisonError::into_inner)));
        running.await?
    }
}

impl Handler<ReceivedEventData> for Totals {
    /// Called after every win of a partition, before the first event.
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        let partition = start.partition_id().to_string();
        let epoch = start.epoch();
        let position = self.run_transaction(move |database| database.begin_epoch(&partition, epoch)).await?;
        Ok(OwnPosition::after(position))
    }

    /// Follows the processor if it cannot start at the position, for example because the event hub was recreated.
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        let Some(position) = context.started_elsewhere() else { return Ok(()) };
        let partition = context.partition_id().to_string();
        let epoch = context.epoch();
        self.run_transaction(move |database| database.move_to(&partition, epoch, position)).await?;
        Ok(())
    }

    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        let partition = context.partition_id();
        let numbers = || events.iter().filter_map(ReceivedEventData::sequence_number);
        self.delivered.append(partition, numbers(), &self.owner)?;
        let Some((first, last)) = numbers().next().zip(numbers().last()) else { return Ok(()) };
        let orders: Vec<_> = numbers().map(|number| Order::of(partition.as_str(), number)).collect();
        let partition = partition.clone();
        let epoch = context.epoch();
        let workspace = self.workspace.clone();
        let owner = self.owner.clone();
        let rejected = Arc::clone(&self.rejected);
        let commit = move |database: &mut Database| {
            // The scenario freezes this process at the worst moment: the results are computed, and not written. The
            // transaction is tried in any case, even if the processor has stopped this call in the meantime.
            if workspace.is_freeze_requested(&owner) {
                workspace.freeze(&owner);
            }
            let committed = database.commit(partition.as_str(), epoch, (first, last), &orders)?;
            if committed == Committed::Fenced
                && let Err(error) = rejected.append(&partition, first..=last, &owner)
            {
                tracing::error!(%error, "the rejection is not in the journal");
            }
            Ok(committed)
        };
        match self.run_transaction(commit).await? {
            // The checkpoint follows the position, for the lag, scalers and tools. No result depends on it.
            Committed::Yes => events.iter().for_each(|event| context.checkpoint(event)),
            Committed::Fenced => return Err("a later start of the partition has begun, so nothing was written".into()),
        }
        Ok(())
    }
}
