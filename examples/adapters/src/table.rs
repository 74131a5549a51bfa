//! For data lakes: the rows of each batch become one commit of a Delta table, which also has the position.
//!
//! The position is an application transaction (`txn`) of the Delta protocol, with the partition as its id and the
//! number of the last event as its version. Of two commits to one version of the table, one fails, and a commit after
//! another one with the same id is a conflict. So each event has exactly one row.

use std::fs::File;
use std::sync::Arc;

use azure_messaging_eventhubs::models::ReceivedEventData;
use deltalake_core::arrow::array::{Array, Int64Array, RecordBatch, StringArray};
use deltalake_core::kernel::transaction::CommitProperties;
use deltalake_core::kernel::{DataType, PrimitiveType, StructField, Transaction};
use deltalake_core::operations::create::CreateBuilder;
use deltalake_core::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use deltalake_core::protocol::SaveMode;
use deltalake_core::writer::{DeltaWriter, RecordBatchWriter};
use deltalake_core::{DeltaTable, open_table};
use eventhubs_checkpoint::PartitionContext;
use eventhubs_checkpoint::processor::{Handler, HandlerError, OwnPosition, PartitionStart, Processor};
use tokio::sync::Mutex;
use url::Url;

use crate::worker::{Failure, Results, Worker};

struct TableWriter(Mutex<DeltaTable>);

/// Opens the table. Creates it if it does not exist.
async fn open(worker: &Worker) -> Result<DeltaTable, Failure> {
    let folder = worker.folder().join("orders");
    std::fs::create_dir_all(&folder)?;
    let location = Url::from_directory_path(&folder).map_err(|()| "the folder is not absolute")?;
    let columns = [("partition_id", PrimitiveType::String), ("number", PrimitiveType::Long)];
    let created = CreateBuilder::new()
        .with_location(location.as_str())
        .with_columns(columns.map(|(name, kind)| StructField::new(name, DataType::Primitive(kind), false)))
        .with_save_mode(SaveMode::Ignore)
        .await;
    match created {
        Ok(table) => Ok(table),
        // Another process has created it at the same time.
        Err(_) => Ok(open_table(location).await?),
    }
}

/// Returns the number of the last event of the partition in the table.
async fn position_of(table: &DeltaTable, partition: &str) -> Result<Option<i64>, Failure> {
    Ok(table.snapshot()?.transaction_version(&*table.log_store(), partition).await?)
}

/// Commits the rows of new events to the newest version of the table.
async fn commit(table: &mut DeltaTable, partition: &str, numbers: &[i64]) -> Result<(), Failure> {
    table.update_incremental(None).await?;
    if position_of(table, partition).await?.zip(numbers.first()).is_some_and(|(last, first)| last >= *first) {
        return Err("a later start of the partition has committed these events".into());
    }
    append(table, partition, numbers).await
}

/// Commits the rows and the position, both or neither. Fails if the partition has moved since this version of the
/// table.
async fn append(table: &mut DeltaTable, partition: &str, numbers: &[i64]) -> Result<(), Failure> {
    let Some(last) = numbers.last() else { return Ok(()) };
    let properties =
        CommitProperties::default().with_application_transaction(Transaction::new(partition.to_owned(), *last));
    let mut writer = RecordBatchWriter::for_table(table)?.with_commit_properties(properties);
    let rows = RecordBatch::try_new(
        writer.arrow_schema(),
        vec![Arc::new(StringArray::from(vec![partition; numbers.len()])), Arc::new(Int64Array::from(numbers.to_vec()))],
    )?;
    writer.write(rows).await?;
    writer.flush_and_commit(table).await?;
    Ok(())
}

impl Handler<ReceivedEventData> for TableWriter {
    async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
        let mut table = self.0.lock().await;
        table.update_incremental(None).await?;
        Ok(OwnPosition::after(position_of(&table, start.partition_id().as_str()).await?))
    }

    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        let numbers: Vec<_> = events.iter().filter_map(ReceivedEventData::sequence_number).collect();
        commit(&mut *self.0.lock().await, context.partition_id().as_str(), &numbers).await?;
        // For the lag, scalers and tools: the table has the position.
        events.iter().for_each(|event| context.checkpoint(event));
        Ok(())
    }
}

pub async fn run(worker: &Worker) -> Result<(), Failure> {
    let (source, store) = worker.connect().await?;
    let writer = TableWriter(Mutex::new(open(worker).await?));
    // Few large commits.
    let config = worker.config().with_max_batch_size(1000).with_max_batch_wait(std::time::Duration::from_millis(500));
    Processor::builder(source, store, writer).with_config(config).run(worker.asked_to_end()).await?;
    Ok(())
}

/// Returns all rows of the table.
pub async fn results(worker: &Worker) -> Result<Results, Failure> {
    let table = open(worker).await?;
    let mut results = Results::new();
    for file in table.get_file_uris()? {
        let path = file.strip_prefix("file://").unwrap_or(&file).to_owned();
        for rows in ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.build()? {
            let rows = rows?;
            let partitions = column::<StringArray>(&rows, "partition_id")?;
            let numbers = column::<Int64Array>(&rows, "number")?;
            results.extend((0..rows.num_rows()).map(|row| (partitions.value(row).to_owned(), numbers.value(row))));
        }
    }
    Ok(results)
}

fn column<'a, T: Array + 'static>(rows: &'a RecordBatch, name: &str) -> Result<&'a T, Failure> {
    let column = rows.column_by_name(name).and_then(|column| column.as_any().downcast_ref());
    column.ok_or_else(|| format!("the table has no column {name} of this type").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is frozen right before its commit has read the table before the next owner.
    #[tokio::test]
    async fn a_late_commit_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let worker = Worker::new(folder.path());
        let [mut frozen, mut next] = [open(&worker).await.unwrap(), open(&worker).await.unwrap()];
        commit(&mut next, "0", &[0, 1, 2]).await.unwrap();
        append(&mut frozen, "0", &[0, 1, 2]).await.unwrap_err();
        append(&mut frozen, "1", &[0, 1]).await.unwrap();
        commit(&mut frozen, "0", &[2, 3]).await.unwrap_err();
        commit(&mut frozen, "0", &[3, 4]).await.unwrap();
        let mut rows = results(&worker).await.unwrap();
        rows.sort();
        let row = |(partition, number): (&str, i64)| (partition.to_owned(), number);
        assert_eq!(rows, [("0", 0), ("0", 1), ("0", 2), ("0", 3), ("0", 4), ("1", 0), ("1", 1)].map(row));
    }
}
