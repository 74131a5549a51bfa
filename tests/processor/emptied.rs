//! Partitions without events after all have expired, with both ways in which a hub reports them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{InvalidReason, OnInvalidCheckpoint};
use eventhubs_checkpoint::source::{LagState, StartPosition};
use eventhubs_checkpoint::testing::EmptiedReport;
use tokio::time::sleep;

use crate::world::World;

const REPORTS: [EmptiedReport; 2] = [EmptiedReport::BeginIsLast, EmptiedReport::BeginAfterLast];

/// A hub with one partition that held the events 0 to 255.
fn emptied(report: EmptiedReport) -> World {
    let world = World::new(1);
    world.hub.report_emptied(report);
    world.hub.publish_many(0, 256, "expired");
    world.hub.expire_before(0, i64::MAX);
    world
}

/// A new group on a quiet hub: the link has nothing to deliver, and must not be reopened for that reason.
#[tokio::test(start_paused = true)]
async fn the_link_to_an_emptied_partition_stays_open() {
    for report in REPORTS {
        let world = emptied(report);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        a.wait_until_all_idle(1).await;
        sleep(Duration::from_secs(600)).await;
        let status = a.status();
        assert_eq!((status.failures, &status.last_error), (0, &None), "{report:?}");
        assert_eq!((status.lag.events, status.lag.state), (Some(0), LagState::Empty), "{report:?}");
        assert_eq!((status.checkpoint, world.checkpoint().await), (Some(255), Some(255)), "{report:?}");

        world.hub.publish(0, "new");
        world.log.wait_for("new", |log| log.times("new") == 1).await;
        a.wait_for_status("the checkpoint", |status| status.checkpoint == Some(256)).await;
        assert_eq!(world.log.bodies(), ["new"], "{report:?}");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_unprocessed_last_event_is_reported() {
    for report in REPORTS {
        let mut world = World::new(1);
        world.hub.report_emptied(report);
        let mut a = world.start("a").await;
        a.wait_until_it_holds(1).await;
        world.hub.publish(0, "processed");
        world.log.wait_for("it", |log| log.times("processed") == 1).await;
        a.shut_down().await.unwrap();
        world.hub.publish(0, "missed");
        world.hub.expire_before(0, i64::MAX);

        let reasons = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&reasons);
        world.config = world.config.with_on_invalid_checkpoint(OnInvalidCheckpoint::custom(move |invalid| {
            noted.lock().unwrap().push(invalid.reason);
            StartPosition::Earliest
        }));
        let mut b = world.start("b").await;
        b.wait_until_it_holds(1).await;
        b.wait_until_all_idle(1).await;
        assert_eq!(*reasons.lock().unwrap(), [InvalidReason::Expired], "{report:?}");
        b.shut_down().await.unwrap();
    }
}
