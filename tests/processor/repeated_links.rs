//! Links that deliver events again, or before the requested start, and sources that panic.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::processor::{PartitionState, Processor};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::{Recorder, World};

fn numbered(hub: &MemoryHub, numbers: std::ops::Range<i64>) -> Vec<String> {
    let bodies: Vec<_> = numbers.map(|number| number.to_string()).collect();
    for body in &bodies {
        hub.publish(0, body.as_str()).expect("the partition exists");
    }
    bodies
}

/// The link delivers again everything since it was opened, and a new link continues immediately.
#[tokio::test(start_paused = true)]
async fn a_link_that_starts_over_is_replaced() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    let mut published = numbered(&world.hub, 0..100);
    world.log.wait_for("100 events", |log| log.bodies().len() == 100).await;

    world.hub.reattach(0);
    let status = a.wait_for_status("the link ends", |status| status.failures == 1).await;
    let error = status.last_error.expect("an error").message;
    assert!(error.contains("event 0 arrived after event 99"), "{error}");
    published.extend(numbered(&world.hub, 100..101));

    world.log.wait_for("event 100", |log| log.times("100") == 1).await;
    assert_eq!(a.status().failures, 1);
    assert_eq!(world.log.bodies(), published);
    assert!(world.log.stops.lock().unwrap().is_empty(), "the handler was restarted");
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn links_that_all_start_over_make_progress() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    let mut published = Vec::new();
    for round in 0..20 {
        published.extend(numbered(&world.hub, 5 * round..5 * (round + 1)));
        let count = published.len();
        world.log.wait_for("all published events", |log| log.bodies().len() == count).await;
        world.hub.reattach(0);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.log.bodies(), published);
    a.shut_down().await.unwrap();
}

/// All links of this hub start at the first event, regardless of the requested position.
#[tokio::test(start_paused = true)]
async fn events_before_the_requested_start_are_skipped() {
    let world = World::new(1);
    let source_faults = SourceFaults { always_starts_at: Some(StartPosition::Earliest), ..SourceFaults::default() };
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let mut a = world.start_with("a", ScriptedSource::new(&world.hub, source_faults), recorder).await;
    a.wait_until_it_holds(1).await;
    let mut published = numbered(&world.hub, 0..100);
    world.log.wait_for("100 events", |log| log.bodies().len() == 100).await;
    world.hub.break_link(0);
    published.extend(numbered(&world.hub, 100..110));
    world.log.wait_for("110 events", |log| log.bodies().len() == 110).await;
    assert_eq!(world.log.bodies(), published);
    sleep(Duration::from_secs(120)).await;
    assert_eq!((a.status().failures, a.status().state), (1, PartitionState::Idle));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_start_before_1970_is_rejected() {
    let world = World::new(1);
    let start = StartPosition::EnqueuedAfter(OffsetDateTime::UNIX_EPOCH - Duration::from_secs(1));
    let configs = [
        world.config.clone().with_start_position(start.clone()),
        world.config.clone().with_start_position_of(0.into(), start),
    ];
    for config in configs {
        let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let processor = Processor::builder(world.hub.source(), world.store("a").await, recorder);
        let error = processor.with_config(config).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("1969-12-31") && error.to_string().contains("Earliest"), "{error}");
    }
}

/// `open`, a link that is read, and a link that is closed panic twice each, then everything works.
#[tokio::test(start_paused = true)]
async fn a_panicking_source_is_retried() {
    let world = World::new(1);
    let source_faults = SourceFaults { panics: Arc::new(AtomicUsize::new(6)), ..SourceFaults::default() };
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let began = Instant::now();
    let mut a = world.start_with("a", ScriptedSource::new(&world.hub, source_faults), recorder).await;
    a.wait_until_it_holds(1).await;
    let status = a.wait_for_status("six failures", |status| status.failures == 6).await;
    assert!(status.last_error.is_some_and(|error| error.message.contains("panicked on request")));
    assert!(began.elapsed() > Duration::from_secs(5), "the retry delays did not grow: {:?}", began.elapsed());
    let published = numbered(&world.hub, 0..10);
    world.log.wait_for("10 events", |log| log.bodies().len() == 10).await;
    assert_eq!(world.log.bodies(), published);
    assert!(world.log.stops.lock().unwrap().is_empty(), "the handler was restarted");
    assert!(a.shut_down().await.unwrap().is_clean());
    assert_eq!(world.log.stops.lock().unwrap().len(), 1);
}
