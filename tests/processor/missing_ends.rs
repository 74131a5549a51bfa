//! Partitions whose last events are reported, but never delivered.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use eventhubs_checkpoint::source::LagState;
use tokio::time::sleep;

use crate::captured::Captured;
use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::{Recorder, World};

const HOUR: Duration = Duration::from_secs(3600);

/// Compaction has removed the last of five events.
fn world() -> World {
    let world = World::new(1);
    for number in 0..5 {
        world.hub.publish(0, number.to_string());
    }
    assert!(world.hub.remove_event(0, 4));
    world.log.contiguity.lacks(4);
    world
}

#[tokio::test(start_paused = true)]
async fn an_end_that_no_link_delivers_is_learned() {
    let world = world();
    let (log, _guard) = Captured::begin();
    let a = world.start("a").await;
    world.log.wait_for("event 3", |log| log.times("3") == 1).await;
    sleep(HOUR).await;
    let status = a.status();
    assert_eq!(status.failures, 1, "one link was reopened to see whether it delivers the end");
    assert_eq!((status.lag.events, status.lag.state), (Some(0), LagState::Known));
    assert!(a.handle.health().issues.is_empty(), "{:?}", a.handle.health().issues);
    assert_eq!(log.text().matches("does not deliver the end that it reports").count(), 1, "{}", log.text());

    world.hub.publish(0, "5");
    world.log.wait_for("the next event", |log| log.times("5") == 1).await;
    sleep(HOUR).await;
    assert_eq!(a.status().failures, 2, "another link was asked for the event that is missing before event 5");
    assert_eq!(world.checkpoint().await, Some(5));
    a.shut_down().await.unwrap();
}

/// Both links had stalled: the event exists. Other links are opened for it, at growing intervals.
#[tokio::test(start_paused = true)]
async fn an_end_that_two_stalled_links_hid_is_found() {
    for (mute, within) in [(2, HOUR / 4), (4, HOUR)] {
        let world = World::new(1);
        world.hub.publish(0, "x");
        let mute_links = Arc::new(AtomicUsize::new(mute));
        let source = ScriptedSource::new(&world.hub, SourceFaults { mute_links, ..SourceFaults::default() });
        let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let a = world.start_with("a", source, recorder).await;
        sleep(within).await;
        assert_eq!((world.log.times("x"), a.status().failures), (1, 1), "{mute} links had stalled");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_learned_end_hides_no_stalled_link() {
    let world = world();
    let a = world.start("a").await;
    world.log.wait_for("event 3", |log| log.times("3") == 1).await;
    sleep(HOUR).await;
    world.hub.stall_link(0, true);
    world.hub.publish(0, "5");
    world.log.wait_for("the next event", |log| log.times("5") == 1).await;
    assert_eq!(a.status().failures, 3, "for the end, for the stalled link, and for the event missing before event 5");
    a.shut_down().await.unwrap();
}
