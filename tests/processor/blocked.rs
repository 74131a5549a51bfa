//! A processor whose runtime does not run, while its load-balancing loop does.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use eventhubs_checkpoint::processor::Processor;
use tokio::time::{sleep, timeout};

use crate::world::{Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

/// Nothing polls the processor, as if its runtime were blocked; ticks go on, as if it were blocked again and again.
#[tokio::test(start_paused = true)]
async fn an_instance_claims_no_faster_than_it_starts() {
    let world = World::new(12);
    let handler = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let builder = Processor::builder(world.hub.source(), world.store("a").await, handler);
    let processor = builder.with_config(world.config.clone()).build().unwrap();
    let (handle, mut snapshots) = (processor.handle(), processor.handle().snapshots());
    let mut running = pin!(processor.run(pending()));
    tokio::select! {
        _ = &mut running => unreachable!("it was not requested to stop"),
        first = snapshots.wait_for(|snapshot| !snapshot.owned.is_empty()) => drop(first.unwrap()),
    }
    sleep(60 * SECOND).await;
    let (owned, started) = (snapshots.borrow().owned.len(), handle.partitions().len());
    assert!(owned <= 4, "{owned} claimed, {started} started");
    assert!(!snapshots.borrow().stalled.runtime);

    let all = snapshots.wait_for(|snapshot| snapshot.owned.len() == 12);
    tokio::select! {
        _ = &mut running => unreachable!("it was not requested to stop"),
        all = timeout(60 * SECOND, all) => drop(all.expect("it goes on").unwrap()),
    }
}
