//! A processor whose runtime does not run, while its load-balancing loop does.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use eventhubs_checkpoint::processor::{HealthIssue, Processor};
use tokio::time::{sleep, timeout};

use crate::world::{Recorder, World};

const SECOND: Duration = Duration::from_secs(1);

/// While nothing polls the processor, it is as if its runtime were blocked.
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
    sleep(8 * SECOND).await;
    let owned = snapshots.borrow().owned.len();
    assert!(owned <= 4, "{owned} claimed, {} started", handle.partitions().len());
    assert!(!snapshots.borrow().stalled.runtime);
    sleep(60 * SECOND).await;
    assert_eq!(snapshots.borrow().owned.len(), owned);
    assert_eq!(handle.health().issues, [HealthIssue::RuntimeStalled]);

    let all = snapshots.wait_for(|snapshot| snapshot.owned.len() == 12);
    tokio::select! {
        _ = &mut running => unreachable!("it was not requested to stop"),
        all = timeout(60 * SECOND, all) => drop(all.expect("it goes on").unwrap()),
    }
}
