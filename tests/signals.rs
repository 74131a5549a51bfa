//! A process that is asked to end by a signal, in a binary of its own: signals reach all tests of a process.

#![cfg(unix)]

#[path = "common/world.rs"]
mod world;

use std::time::Duration;

use eventhubs_checkpoint::processor::Processor;
use rustix::process::{Signal, getpid, kill_process};
use tokio::time::timeout;
use world::{Recorder, World};

const PATIENCE: Duration = Duration::from_secs(30);

/// One after the other, for both are about the same process.
#[tokio::test]
async fn a_signal_ends_it_in_good_order_and_a_second_one_at_once() {
    for (body, at_once) in [("x", false), ("hang", true)] {
        let mut world = World::new(1);
        world.expiry = Duration::from_secs(40);
        let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let processor = Processor::builder(world.hub.source(), world.store("a").await, recorder)
            .config(world.config.clone())
            .build()
            .unwrap();
        let running = tokio::spawn(processor.run_until_signalled());
        world.hub.publish(0, body);
        world.log.wait_for("it is handled", |log| log.times(body) == 1).await;
        kill_process(getpid(), Signal::TERM).unwrap();
        if at_once {
            // It waits for the handler now.
            assert!(timeout(Duration::from_millis(500), world.first_stop()).await.is_err());
            kill_process(getpid(), Signal::INT).unwrap();
        }
        let report = timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
        assert_eq!((report.at_once, report.is_clean()), (at_once, !at_once), "{report:?}");
        let freed = world.owners().await.values().all(String::is_empty);
        assert_eq!(freed, !at_once);
    }
}
