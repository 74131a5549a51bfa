//! An event hub in memory.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::processor::{PartitionContext, PartitionState, Processor, handler_fn};
use eventhubs_checkpoint::source::{EventSource, StartPosition};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use tokio::task::JoinSet;

use crate::cost::{Cost, Stopwatch, resident_bytes};
use crate::each::Each;
use crate::handler::Completion;
use crate::work::{BATCH, EVENT_HUB, PARTITIONS, PREFETCH};
use crate::{Result, ours};

fn hub_with(events: u32, partitions: u16) -> MemoryHub {
    let hub = MemoryHub::new(EVENT_HUB, partitions.into());
    for partition in 0..partitions.into() {
        hub.publish_many(partition, events as usize / usize::from(partitions), "an event");
    }
    hub
}

pub(crate) async fn ours(events: u32, completion: Completion) -> Result<Cost> {
    ours::process(hub_with(events, PARTITIONS).source(), events, completion).await
}

/// Slow calls are measured with one partition.
pub(crate) async fn each(events: u32, each: Each) -> Result<Cost> {
    let hub = hub_with(events, if each.is_slow { 1 } else { PARTITIONS });
    let (handler, cost) = each.handler(events);
    ours::process_with(hub.source(), handler, cost).await
}

/// Reads with one task per partition, like the processor.
pub(crate) async fn bare(events: u32) -> Result<Cost> {
    let source = Arc::new(hub_with(events, PARTITIONS).source());
    let each = events as usize / usize::from(PARTITIONS);
    let watch = Stopwatch::start();
    let mut reading: JoinSet<Result<()>> = JoinSet::new();
    for partition in 0..PARTITIONS.into() {
        let source = Arc::clone(&source);
        reading.spawn(async move {
            let mut receiver =
                source.open_receiver(&u32::into(partition), StartPosition::Earliest, PREFETCH, 1).await?;
            let mut left = each;
            while left > 0 {
                left -= receiver.next_batch(BATCH).await?.len();
            }
            Ok(())
        });
    }
    while let Some(read) = reading.join_next().await {
        read??;
    }
    Ok(watch.stop())
}

/// Returns the memory of this many partitions that are owned and read.
pub(crate) async fn idle(partitions: u32) -> Result<Cost> {
    let source = MemoryHub::new(EVENT_HUB, partitions).source();
    let handler = handler_fn(|_: Vec<MemoryEvent>, _: PartitionContext| async { Ok(()) });
    let processor = Processor::builder(source, ours::store().await?, handler).with_config(ours::config()).build()?;
    let handle = processor.handle();
    let before = resident_bytes();
    let waiting = async {
        let is_idle = |status: &_| matches!(status, PartitionState::Idle);
        while handle.partitions().iter().filter(|status| is_idle(&status.state)).count() < partitions as usize {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let used = resident_bytes().zip(before).map(|(after, before)| after.saturating_sub(before));
        handle.shutdown();
        used
    };
    let (report, bytes) = tokio::join!(processor.run(std::future::pending()), waiting);
    report?;
    Ok(Cost { bytes: bytes.unwrap_or_default(), ..Cost::default() })
}
