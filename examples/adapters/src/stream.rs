//! For pipelines that acknowledge late and out of order, such as the finalizers of Vector: one stream of the events of
//! all owned partitions, each with its acknowledgment.
//!
//! A checkpoint never passes an event that is not acknowledged. After a crash, events without an acknowledgment are
//! redelivered: at least once, nothing is lost.

use std::pin::Pin;
use std::task::{Context, Poll};

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::processor::{PartitionStream, PartitionStreams, ShutdownReport, TrackedEvent};
use eventhubs_checkpoint::{PartitionId, Result};
use futures::stream::{self, BoxStream, FuturesUnordered, SelectAll};
use futures::{Stream, StreamExt};

use crate::worker::{Failure, Worker};

/// An event. Dropped without [`acknowledge`](Self::acknowledge), it is redelivered after the next start of its
/// partition.
pub struct Received {
    pub partition: PartitionId,
    pub event: ReceivedEventData,
    acknowledgment: TrackedEvent,
}

impl Received {
    /// May be called at any time, in any order, from any task.
    pub fn acknowledge(self) {
        self.acknowledgment.finish();
    }
}

/// The events of all partitions that this instance owns. A partition that starts or stops meanwhile is no end.
pub struct Events {
    partitions: PartitionStreams<ReceivedEventData>,
    running: SelectAll<BoxStream<'static, Received>>,
}

impl Events {
    pub fn new(partitions: PartitionStreams<ReceivedEventData>) -> Self {
        Self { partitions, running: SelectAll::new() }
    }

    /// Releases the partitions. Events that are acknowledged within the drain timeout are checkpointed.
    pub async fn shut_down(self) -> Result<ShutdownReport> {
        drop(self.running);
        self.partitions.shutdown().await
    }
}

impl Stream for Events {
    type Item = Received;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        loop {
            match self.partitions.poll_next_unpin(cx) {
                Poll::Ready(Some(started)) => self.running.push(events_of(started)),
                // The processor has ended.
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        match self.running.poll_next_unpin(cx) {
            Poll::Ready(Some(received)) => Poll::Ready(Some(received)),
            // No partition is owned at the moment.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

fn events_of(partition: PartitionStream<ReceivedEventData>) -> BoxStream<'static, Received> {
    let context = partition.context().clone();
    partition
        .flat_map(move |batch| {
            let received = batch.into_iter().map(|event| Received {
                partition: context.partition_id().clone(),
                acknowledgment: context.track(&event),
                event,
            });
            stream::iter(received.collect::<Vec<_>>())
        })
        .boxed()
}

/// A pipeline that writes each event after a different time, up to 256 at once.
pub async fn run(worker: &Worker) -> Result<(), Failure> {
    let (source, store) = worker.connect().await?;
    let partitions = eventhubs_checkpoint::Processor::streams(source, store).with_config(worker.config()).start()?;
    let mut events = Events::new(partitions);
    let mut writing = FuturesUnordered::new();
    let mut stop = std::pin::pin!(worker.asked_to_end());
    loop {
        tokio::select! {
            () = &mut stop => break,
            received = events.next(), if writing.len() < 256 => match received {
                Some(received) => writing.push(write(worker, received)),
                // The processor has ended by itself: `shut_down` returns why.
                None => break,
            },
            Some(written) = writing.next() => written?,
        }
    }
    let shutting_down = events.shut_down();
    let finishing = async {
        while let Some(written) = writing.next().await {
            written?;
        }
        Ok::<_, Failure>(())
    };
    let (report, finished) = futures::join!(shutting_down, finishing);
    report?;
    finished
}

async fn write(worker: &Worker, received: Received) -> Result<(), Failure> {
    let number = received.event.sequence_number().unwrap_or_default();
    tokio::time::sleep(std::time::Duration::from_millis(number.unsigned_abs() * 7 % 20)).await;
    worker.write_results(&received.partition, [number])?;
    received.acknowledge();
    Ok(())
}
