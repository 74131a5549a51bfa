//! For hosts that keep the positions themselves, such as the metastore of Quickwit: the position is published with the
//! results, under a lock that belongs to one start of the partition.
//!
//! The host stores the epoch of the partition with its position. A publish of an earlier owner has a smaller epoch and
//! is rejected, so each event is published exactly once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::PartitionContext;
use eventhubs_checkpoint::processor::{Handler, HandlerError, OwnPosition, PartitionStart, Processor};
use rusqlite::{Connection, TransactionBehavior, params};
use tokio::task::spawn_blocking;

use crate::worker::{Failure, Results, Worker};

/// The metastore of the host: the position and the epoch of each partition, and what was published.
pub struct Metastore(Connection);

impl Metastore {
    pub fn open(worker: &Worker) -> Result<Self, Failure> {
        let connection = Connection::open(worker.folder().join("metastore.sqlite"))?;
        connection.busy_timeout(Duration::from_secs(20))?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE IF NOT EXISTS positions (
                 partition_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, position INTEGER NOT NULL);
             CREATE TABLE IF NOT EXISTS published (partition_id TEXT, first INTEGER, last INTEGER);",
        )?;
        Ok(Self(connection))
    }

    /// Takes the publish lock: later publishes with a smaller epoch are rejected. Returns where to continue.
    fn lock_partition(&self, partition: &str, epoch: i64) -> rusqlite::Result<i64> {
        self.0.query_row(
            "INSERT INTO positions VALUES (?1, ?2, -1)
             ON CONFLICT (partition_id) DO UPDATE SET epoch = max(epoch, ?2) RETURNING position",
            params![partition, epoch],
            |row| row.get(0),
        )
    }

    /// Publishes the events after the position, if the lock is still held. Returns whether it was.
    fn publish(&mut self, partition: &str, epoch: i64, first: i64, last: i64) -> rusqlite::Result<bool> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let moved = transaction.execute(
            "UPDATE positions SET position = ?4 WHERE partition_id = ?1 AND epoch = ?2 AND position < ?3",
            params![partition, epoch, first, last],
        )?;
        if moved == 1 {
            transaction.execute("INSERT INTO published VALUES (?1, ?2, ?3)", params![partition, first, last])?;
            transaction.commit()?;
        }
        Ok(moved == 1)
    }

    /// Returns all published events.
    pub fn results(&self) -> Result<Results, Failure> {
        let mut query = self.0.prepare("SELECT partition_id, first, last FROM published")?;
        let mut rows = query.query([])?;
        let mut results = Results::new();
        while let Some(row) = rows.next()? {
            let partition: String = row.get(0)?;
            results.extend((row.get(1)?..=row.get(2)?).map(|number: i64| (partition.clone(), number)));
        }
        Ok(results)
    }
}

struct Publisher(Arc<Mutex<Metastore>>);

impl Publisher {
    /// Runs a transaction on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        transaction: impl FnOnce(&mut Metastore) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, HandlerError> {
        let metastore = Arc::clone(&self.0);
        let running =
            spawn_blocking(move || transaction(&mut metastore.lock().unwrap_or_else(PoisonError::into_inner)));
        Ok(running.await??)
    }
}

impl Handler<ReceivedEventData> for Publisher {
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        let partition = start.partition_id().to_string();
        let epoch = start.epoch();
        let position = self.run(move |metastore| metastore.lock_partition(&partition, epoch)).await?;
        Ok(OwnPosition::after(Some(position).filter(|position| *position >= 0)))
    }

    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        let number_of = |event: Option<&ReceivedEventData>| event.and_then(ReceivedEventData::sequence_number);
        let (Some(first), Some(last)) = (number_of(events.first()), number_of(events.last())) else { return Ok(()) };
        let partition = context.partition_id().to_string();
        let epoch = context.epoch();
        if !self.run(move |metastore| metastore.publish(&partition, epoch, first, last)).await? {
            return Err("the publish lock belongs to a later start of the partition".into());
        }
        // For the lag, scalers and tools: the host continues at its own position.
        events.iter().for_each(|event| context.checkpoint(event));
        Ok(())
    }
}

pub async fn run(worker: &Worker) -> Result<(), Failure> {
    let (source, store) = worker.connect().await?;
    let publisher = Publisher(Arc::new(Mutex::new(Metastore::open(worker)?)));
    Processor::builder(source, store, publisher).with_config(worker.config()).run(worker.asked_to_end()).await?;
    Ok(())
}
