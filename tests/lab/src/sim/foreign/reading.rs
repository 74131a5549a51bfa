//! How an owner of another SDK processes a partition.

use std::sync::Arc;

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::{BlobNames, RecordKind};
use eventhubs_checkpoint::processor::StopReason;
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Error, ErrorKind, PartitionId, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::within;
use crate::sim::host::Host;

/// Ends when it is dropped.
pub(in super::super) struct Reading(JoinHandle<()>);

impl Reading {
    pub(in super::super) fn begin(host: Arc<Host>, names: &BlobNames, partition: PartitionId) -> Self {
        let name = names.record_name(RecordKind::Checkpoint, &partition);
        // A failure ends only this reading; the next cycle starts it again.
        Self(tokio::spawn(async move {
            let _ = read(&host, &name, &partition).await;
        }))
    }

    pub(in super::super) fn goes_on(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn read(host: &Arc<Host>, name: &str, partition: &PartitionId) -> Result<()> {
    let from = match within(host.container.get(name)).await {
        Ok(blob) => match blob.metadata.get("sequencenumber").and_then(|number| number.parse().ok()) {
            Some(number) => StartPosition::AfterSequenceNumber(number),
            None => StartPosition::Earliest,
        },
        Err(error) if error.kind() == ErrorKind::NotFound => StartPosition::Earliest,
        Err(error) => return Err(error),
    };
    let mut receiver = host.source.open_receiver(partition, from, 300, 1).await?;
    let _started = Started::new(host, partition);
    // Readings take different times.
    let number: u64 = partition.as_str().parse().unwrap_or_default();
    let mut rng = StdRng::seed_from_u64(host.seed ^ number);
    loop {
        let events = receiver.next_batch(100).await?;
        host.runs().await;
        let handling = host.reporter.begins(partition, &events);
        let extra = *host.extra_work.borrow();
        sleep(host.member.work.mul_f64(rng.random()) + extra.mul_f64(rng.random())).await;
        host.runs().await;
        handling.done(&events);
        if let Some(last) = events.last() {
            // The SDKs report a failure to the application, which continues.
            let _ = checkpoint(host, name, last).await;
        }
    }
}

async fn checkpoint(host: &Host, name: &str, event: &MemoryEvent) -> Result<()> {
    let metadata = Metadata::from([
        ("sequencenumber".to_owned(), event.sequence_number.to_string()),
        ("offset".to_owned(), event.offset.as_ref().to_owned()),
    ]);
    within(host.container.overwrite(name, &metadata)).await.map(drop)
}

/// Records when the processing begins, and when it ends for any reason.
struct Started {
    host: Arc<Host>,
    partition: PartitionId,
}

impl Started {
    fn new(host: &Arc<Host>, partition: &PartitionId) -> Self {
        host.reporter.started(partition, None);
        Self { host: Arc::clone(host), partition: partition.clone() }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let ended = Arc::new(Error::new(ErrorKind::EventSource, "the reading ended"));
        self.host.reporter.stopped(&self.partition, &StopReason::Failed { error: ended });
    }
}
