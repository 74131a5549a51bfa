//! Links that break, stall or start too late before the first event.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership};
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::processor::OnInvalidCheckpoint;
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use tokio::time::sleep;

use crate::scripted_source::{ScriptedSource, SourceFaults};
use crate::world::{Recorder, World};

const NAMESPACE: &str = "ns.servicebus.windows.net";
const HUB: &str = "hub";
const GROUP: &str = "$Default";

/// A partition with the events 0 to 100, of a group that starts at the latest event.
fn with_hundred_events() -> World {
    let mut world = World::new(1);
    world.config = world.config.with_start_position(StartPosition::Latest);
    for number in 0..=100 {
        world.hub.publish(0, number.to_string());
    }
    world
}

/// A processor starts while another application owns the partition, and records its start at event 100. The other
/// application then writes its first checkpoint at event 80 and ends. The processor must continue after event 80.
async fn assert_resumes_after_80(world: &World, checkpoint_80_and_end: impl Future<Output = ()>) {
    let new = world.start("new").await;
    sleep(Duration::from_secs(15)).await;
    assert_eq!(world.checkpoint().await, Some(100), "the start is recorded");
    checkpoint_80_and_end.await;
    world.log.wait_for("event 100", |log| log.times("100") == 1).await;
    let expected: Vec<_> = (81..=100).map(|number| number.to_string()).collect();
    assert_eq!(world.log.bodies(), expected);
    new.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_adapter_owner_overrides_a_recorded_start() {
    let world = with_hundred_events();
    let adapter = BlobCheckpointStore::new(world.container.clone());
    let claim = Ownership {
        fully_qualified_namespace: NAMESPACE.into(),
        event_hub_name: HUB.into(),
        consumer_group: GROUP.into(),
        partition_id: "0".into(),
        owner_id: Some("old".into()),
        ..Default::default()
    };
    assert_eq!(adapter.claim_ownership(&[claim]).await.unwrap().len(), 1);
    assert_resumes_after_80(&world, async move {
        let checkpoint = Checkpoint {
            fully_qualified_namespace: NAMESPACE.into(),
            event_hub_name: HUB.into(),
            consumer_group: GROUP.into(),
            partition_id: "0".into(),
            offset: Some("80".into()),
            sequence_number: Some(80),
        };
        adapter.update_checkpoint(checkpoint).await.unwrap();
    })
    .await;
}

/// Writes records like another SDK.
#[tokio::test(start_paused = true)]
async fn a_foreign_owner_overrides_a_recorded_start() {
    let world = with_hundred_events();
    let write = async |kind: &str, pairs: &[(&str, &str)]| {
        let metadata: Metadata = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let name = format!("{NAMESPACE}/{HUB}/$default/{kind}/0");
        world.container.overwrite(&name, &metadata).await.unwrap();
    };
    write("ownership", &[("ownerid", "old")]).await;
    assert_resumes_after_80(&world, write("checkpoint", &[("sequencenumber", "80"), ("offset", "80")])).await;
}

/// A processor whose checkpoint belongs to a deleted hub starts at the latest event, and its link fails before the
/// first event arrives.
async fn check_restart_at_latest(fault: impl Fn(&MemoryHub)) {
    let mut world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 50, "old");
    world.log.wait_for("50 events", |log| log.times("old") == 50).await;
    a.shut_down().await.unwrap();
    world.hub.recreate();
    world.hub.publish_many(0, 3, "before");
    world.config = world.config.clone().with_on_invalid_checkpoint(OnInvalidCheckpoint::Latest);
    let b = world.start("b").await;
    b.wait_until_all_idle(1).await;
    sleep(Duration::from_secs(5)).await;
    fault(&world.hub);
    world.hub.publish_many(0, 5, "during");
    sleep(Duration::from_secs(300)).await;
    world.hub.publish(0, "later");
    world.log.wait_for("the last event", |log| log.times("later") == 1).await;
    assert_eq!((world.log.times("before"), world.log.times("during")), (0, 5));
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_link_breaks_before_the_first_event() {
    check_restart_at_latest(|hub| hub.break_link(0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_stalls_before_the_first_event() {
    check_restart_at_latest(|hub| hub.stall_link(0, true)).await;
}

/// Publishes ten events, of which event 4 fails once, so that another link is opened before it. Returns the events in
/// the order of handling.
async fn handled_after_reopening(source_faults: SourceFaults) -> Vec<String> {
    let world = World::new(1);
    for number in 0..10 {
        world.hub.publish(0, if number == 4 { "fail".to_owned() } else { number.to_string() });
    }
    source_faults.lacks.iter().for_each(|number| world.log.contiguity.lacks(*number));
    let recorder = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
    let a = world.start_with("a", ScriptedSource::new(&world.hub, source_faults), recorder).await;
    world.log.wait_for("event 9", |log| log.times("9") == 1).await;
    a.shut_down().await.unwrap();
    world.log.bodies()
}

const WITHOUT_4: [&str; 10] = ["0", "1", "2", "3", "fail", "5", "6", "7", "8", "9"];

#[tokio::test(start_paused = true)]
async fn a_link_that_starts_too_late_is_reopened() {
    let late_starts = Arc::new(AtomicUsize::new(1));
    let handled = handled_after_reopening(SourceFaults { late_starts, ..SourceFaults::default() }).await;
    assert_eq!(handled, [&WITHOUT_4[..5], &WITHOUT_4[4..]].concat());
}

/// Like the gaps of a compacted event hub.
#[tokio::test(start_paused = true)]
async fn a_gap_in_the_hub_stops_nothing() {
    let handled = handled_after_reopening(SourceFaults { lacks: Some(4), ..SourceFaults::default() }).await;
    assert_eq!(handled, WITHOUT_4);
}
