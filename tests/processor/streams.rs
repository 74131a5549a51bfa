//! Pull mode: partitions as streams.

use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::processor::{CheckpointPolicy, PartitionStream, PartitionStreams, Processor, StopReason};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};

use crate::support::SECOND;
use crate::world::World;

async fn start(world: &World, owner: &str) -> PartitionStreams<MemoryEvent> {
    let builder = Processor::streams(world.hub.source(), world.store(owner).await);
    builder.with_config(world.config.clone()).start().unwrap()
}

/// Checkpoints every batch. Returns the number of events, and the stop reason.
async fn consume(mut partition: PartitionStream<MemoryEvent>) -> (usize, StopReason) {
    let mut seen = 0;
    while let Some(events) = partition.next().await {
        seen += events.len();
        partition.context().checkpoint(events.last().unwrap());
    }
    (seen, partition.stop_reason().cloned().expect("a stop reason"))
}

#[tokio::test(start_paused = true)]
async fn each_partition_is_a_stream_for_its_own_task() {
    let world = World::new(3);
    for partition in 0..3 {
        world.hub.publish_many(partition, 10, "x");
    }
    let mut partitions = start(&world, "a").await;
    let mut working = Vec::new();
    for _ in 0..3 {
        working.push(tokio::spawn(consume(partitions.next().await.unwrap())));
    }
    sleep(SECOND).await;
    let report = partitions.shutdown().await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    for work in working {
        let (seen, reason) = work.await.unwrap();
        assert!(matches!(reason, StopReason::Shutdown), "{reason:?}");
        assert_eq!(seen, 10);
    }
    assert_eq!(world.checkpoint().await, Some(9));
}

#[tokio::test(start_paused = true)]
async fn the_next_batch_waits_until_it_is_polled() {
    let mut world = World::new(1);
    world.config = world.config.with_max_batch_size(2);
    world.hub.publish_many(0, 6, "x");
    let mut partitions = start(&world, "a").await;
    let mut partition = partitions.next().await.unwrap();
    for expected in [[0, 1], [2, 3]] {
        let batch = partition.next().await.unwrap();
        assert_eq!(batch.iter().map(|event| event.sequence_number).collect::<Vec<_>>(), expected);
        sleep(60 * SECOND).await;
    }
    let ended = timeout(60 * SECOND, partitions.shutdown());
    let (report, rest) = tokio::join!(ended, async move {
        sleep(SECOND).await;
        partition.context().checkpoint(&MemoryEvent::new(3, ""));
        partition.next().await
    });
    assert_eq!(rest, None, "the current batch is the last");
    assert!(report.unwrap().unwrap().is_clean());
    assert_eq!(world.checkpoint().await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_stream_dropped_early_restarts_at_the_checkpoint() {
    let world = World::new(1);
    world.hub.publish_many(0, 5, "x");
    let mut partitions = start(&world, "a").await;
    let mut partition = partitions.next().await.unwrap();
    assert_eq!(partition.next().await.unwrap().len(), 5);
    drop(partition);
    let mut again = partitions.next().await.unwrap();
    assert_eq!(again.next().await.unwrap().len(), 5);
    again.context().checkpoint(&MemoryEvent::new(4, ""));
    world.hub.publish(0, "y");
    assert_eq!(again.next().await.unwrap().len(), 1);
    drop((again, partitions));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_kept_delays_for_the_drain_time() {
    let world = World::new(1);
    world.hub.publish_many(0, 5, "x");
    let mut partitions = start(&world, "a").await;
    let mut partition = partitions.next().await.unwrap();
    assert_eq!(partition.next().await.unwrap().len(), 5);
    let began = Instant::now();
    let report = partitions.shutdown().await.unwrap();
    assert!(!report.is_clean());
    assert!(began.elapsed() <= 31 * SECOND, "{:?}", began.elapsed());
    assert_eq!(partition.next().await, None);
    assert!(world.owners().await.values().all(String::is_empty));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_partitions_is_a_crash() {
    let world = World::new(1);
    world.hub.publish_many(0, 5, "x");
    let mut partitions = start(&world, "a").await;
    let mut partition = partitions.next().await.unwrap();
    assert_eq!(partition.next().await.unwrap().len(), 5);
    drop(partitions);
    assert_eq!(partition.next().await, None);
    assert_eq!(world.owners().await["0"], "a");
}

#[tokio::test(start_paused = true)]
async fn the_stream_of_partitions_ends_with_the_processor() {
    let world = World::new(2);
    let first = start(&world, "a").await;
    let handle = first.handle().clone();
    let collecting =
        tokio::spawn(first.map(|partition| partition.context().partition_id().clone()).collect::<Vec<_>>());
    sleep(30 * SECOND).await;
    handle.shutdown();
    let mut seen = timeout(60 * SECOND, collecting).await.unwrap().unwrap();
    seen.sort();
    assert_eq!(seen.iter().map(PartitionId::as_str).collect::<Vec<_>>(), ["0", "1"]);
}

/// The usual loop ends with some streams that it has not taken.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_untaken_streams() {
    for events in [0, 1] {
        let world = World::new(4);
        for partition in 0..4 {
            world.hub.publish_many(partition, events, "x");
        }
        let mut partitions = start(&world, "a").await;
        let taken = tokio::spawn(consume(partitions.next().await.unwrap()));
        // The others start, and have their events.
        sleep(30 * SECOND).await;
        let requested_at = Instant::now();
        let report = partitions.shutdown().await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert!(requested_at.elapsed() < 5 * SECOND, "{events} events: {:?}", requested_at.elapsed());
        taken.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn streams_are_shut_down_after_their_handle() {
    for wait in [Duration::ZERO, SECOND / 2, 3 * SECOND] {
        let mut world = World::new(1);
        world.config.checkpoint_policy = CheckpointPolicy::default().with_interval(600 * SECOND);
        world.hub.publish_many(0, 5, "x");
        let mut partitions = start(&world, "a").await;
        let mut partition = partitions.next().await.unwrap();
        let batch = partition.next().await.unwrap();
        partition.context().checkpoint(batch.last().unwrap());
        partitions.handle().shutdown();
        sleep(wait).await;
        let working = tokio::spawn(async move {
            sleep(5 * SECOND).await;
            partition.next().await
        });
        let report = partitions.shutdown().await.unwrap();
        assert!(report.is_clean(), "{wait:?}: {report:?}");
        assert!(working.await.unwrap().is_none());
        assert_eq!(world.checkpoint().await, Some(4));
        assert!(world.owners().await.values().all(String::is_empty));
    }
}
