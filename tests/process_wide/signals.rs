//! A process that is shut down by a signal.

use std::time::Duration;

use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::processor::{Processor, ShutdownReport};
use rustix::process::{Signal, getpid, kill_process};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, timeout};

use crate::world::{Recorder, World};

const TIMEOUT: Duration = Duration::from_secs(90);

/// A processor that has reached this event, and runs until it gets a signal. Then its handler has this time to stop.
async fn running(body: &str, drain_timeout: Duration) -> (World, JoinHandle<Result<ShutdownReport>>) {
    let mut world = World::new(1);
    world.config = world.config.with_drain_timeout(drain_timeout);
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let processor = Processor::builder(world.hub.source(), world.store("a").await, recorder)
        .with_config(world.config.clone())
        .build()
        .unwrap();
    let running = tokio::spawn(processor.run_until_signal());
    world.hub.publish(0, body);
    world.log.wait_for("it is handled", |log| log.times(body) == 1).await;
    (world, running)
}

async fn ends(world: &World, running: JoinHandle<Result<ShutdownReport>>, at_once: bool) -> ShutdownReport {
    let report = timeout(TIMEOUT, running).await.unwrap().unwrap().unwrap();
    assert_eq!(report.forced, at_once, "{report:?}");
    let freed = world.owners().await.values().all(String::is_empty);
    assert_eq!(freed, !at_once);
    report
}

/// The stream of the partition ends, and then the streams of the processor.
async fn a_signal_ends_streams() {
    let world = World::new(1);
    world.hub.publish(0, "x");
    let builder = Processor::streams(world.hub.source(), world.store("a").await);
    let mut partitions = builder.with_config(world.config.clone()).start_until_signal().unwrap();
    let mut partition = timeout(TIMEOUT, partitions.next()).await.unwrap().unwrap();
    assert_eq!(timeout(TIMEOUT, partition.next()).await.unwrap().map(|events| events.len()), Some(1));
    kill_process(getpid(), Signal::TERM).unwrap();
    assert!(timeout(TIMEOUT, partition.next()).await.unwrap().is_none());
    drop(partition);
    assert!(timeout(TIMEOUT, partitions.next()).await.unwrap().is_none());
    assert!(partitions.shutdown().await.unwrap().is_clean());
}

/// One after another, because all affect the same process.
#[tokio::test]
async fn signals_shut_down_gracefully_then_at_once() {
    a_signal_ends_streams().await;
    let (world, first) = running("x", TIMEOUT).await;
    kill_process(getpid(), Signal::TERM).unwrap();
    assert!(ends(&world, first, false).await.is_clean());

    // E2: like `timeout`, which signals the process and then its group.
    let (world, twice) = running("hang", Duration::from_secs(1)).await;
    for _ in 0..2 {
        kill_process(getpid(), Signal::TERM).unwrap();
        sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(ends(&world, twice, false).await.aborted, [0.into()].into());

    let (world, again) = running("hang", TIMEOUT).await;
    let began = Instant::now();
    let mut every = interval(Duration::from_millis(100));
    while !again.is_finished() {
        every.tick().await;
        assert!(began.elapsed() < TIMEOUT, "it waits for the handler");
        kill_process(getpid(), Signal::INT).unwrap();
    }
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    ends(&world, again, true).await;
}
