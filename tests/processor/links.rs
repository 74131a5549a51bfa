//! Links to partitions: broken, stalled, repeating, starting too late, and ends that no link delivers. The requests for
//! properties of the event hub, of which a namespace admits 50 per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::balancer::Snapshot;
use eventhubs_checkpoint::processor::{HealthIssue, OnInvalidCheckpoint, PartitionState};
use eventhubs_checkpoint::source::{LagState, StartPosition};
use eventhubs_checkpoint::testing::EmptiedReport;
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use eventhubs_checkpoint::{PartitionId, Position};
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::placing::place;
use crate::support::handlers::OpenTokens;
use crate::support::sources::{Counted, SourceFaults, start_scripted};
use crate::support::{EMPTIED_REPORTS, HOUR, MINUTE, SECOND, publish_numbers};
use crate::world::{Instance, World};

#[tokio::test(start_paused = true)]
async fn a_broken_link_is_reopened_after_the_last_event() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    for number in 0..30u32 {
        world.hub.publish(0, number.to_string());
        world.log.wait_for("the event", |log| log.times(&number.to_string()) == 1).await;
        world.hub.break_link(0);
    }
    assert_eq!(world.log.bodies(), (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(world.log.stops.lock().unwrap().is_empty());
    a.shut_down().await.unwrap();
}

/// The first event stays open, so that nothing is finished.
#[tokio::test(start_paused = true)]
async fn links_that_deliver_are_reopened_at_once() {
    let (world, handler) = (World::new(1), OpenTokens::default());
    let a = world.start_with("a", world.hub.source(), handler.clone()).await;
    a.wait_until_all_idle(1).await;
    let began = Instant::now();
    for number in 0..20 {
        world.hub.publish(0, "x");
        a.wait_for_status("in flight", |status| status.in_flight == number + 1).await;
        world.hub.break_link(0);
    }
    assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stalled_link_is_detected_and_reopened() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "before");
    world.log.wait_for("before", |log| log.times("before") == 1).await;
    world.hub.stall_link(0, true);
    let began = Instant::now();
    world.hub.publish(0, "delayed");
    let status = a.wait_for_status("silent", |status| status.state == PartitionState::LinkStalled).await;
    assert_eq!(status.partition, PartitionId::from(0));
    let silent = HealthIssue::LinkStalled { partition: 0.into() };
    assert_eq!(a.handle.health().issues, [silent]);
    world.log.wait_for("delayed", |log| log.times("delayed") == 1).await;
    assert!(began.elapsed() <= 62 * SECOND, "{:?}", began.elapsed());
    assert!(world.log.stops.lock().unwrap().is_empty(), "the handler is not restarted");
    assert_eq!(a.handle.health().issues, []);
    a.shut_down().await.unwrap();
}

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
    for report in EMPTIED_REPORTS {
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

/// Starts an instance with large batches that wait long, and waits until it is idle.
async fn batching(events: usize, wait: Duration) -> (World, Instance) {
    let mut world = World::new(1);
    world.config = world.config.clone().with_max_batch_size(events).with_max_batch_wait(wait);
    let a = world.start("a").await;
    a.wait_until_all_idle(1).await;
    (world, a)
}

#[tokio::test(start_paused = true)]
async fn a_waiting_batch_is_not_a_stalled_link() {
    for wait in [20, 30, 50, 70, 90, 300] {
        let (world, a) = batching(1000, wait * SECOND).await;
        for _ in 0..3 {
            world.hub.publish(0, "x");
            for _ in 0..wait + 60 {
                sleep(SECOND).await;
                assert_eq!(a.handle.health().issues, [], "{wait} s");
            }
        }
        assert_eq!((world.log.times("x"), a.status().failures), (3, 0), "{wait} s");
        a.shut_down().await.unwrap();
    }
}

/// Events arrive continuously, in batches of 1000 events or two minutes.
#[tokio::test(start_paused = true)]
async fn a_growing_batch_is_not_a_stalled_link() {
    let (world, a) = batching(1000, 120 * SECOND).await;
    for _ in 0..5 * 3600 {
        world.hub.publish(0, "x");
        sleep(SECOND / 5).await;
    }
    assert_eq!(a.status().failures, 0);
    assert!(world.log.times("x") >= 5 * (3600 - 121), "{}", world.log.times("x"));
    a.shut_down().await.unwrap();
}

/// The first event waits in a batch, then the link stalls. The batch is delivered, and the remaining events follow.
#[tokio::test(start_paused = true)]
async fn a_link_stalls_while_a_batch_waits() {
    for paused in [false, true] {
        let (world, a) = batching(1000, 300 * SECOND).await;
        world.hub.publish(0, "gathered");
        sleep(5 * SECOND).await;
        world.hub.stall_link(0, true);
        world.hub.publish(0, "delayed");
        let began = Instant::now();
        if paused {
            assert!(a.handle.pause(&0.into()));
            sleep(40 * SECOND).await;
            assert!(a.handle.resume(&0.into()));
        }
        world.log.wait_for("the waiting batch", |log| log.times("gathered") == 1).await;
        assert!(began.elapsed() < 150 * SECOND, "{:?}", began.elapsed());
        world.log.wait_for("the delayed event", |log| log.times("delayed") == 1).await;
        assert!(began.elapsed() < 450 * SECOND, "{:?}", began.elapsed());
        assert_eq!((world.log.bodies().len(), a.status().failures), (2, 1));
        a.shut_down().await.unwrap();
    }
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
    if let Some(number) = source_faults.lacks {
        world.log.contiguity.lacks(number);
    }
    let a = start_scripted(&world, "a", source_faults).await;
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

/// Twenty events, of which an instance processed the first ten.
async fn with_checkpoint_at_9() -> World {
    let world = World::new(1);
    publish_numbers(&world.hub, 0..10);
    let a = world.start("a").await;
    world.log.wait_for("event 9", |log| log.times("9") == 1).await;
    a.shut_down().await.unwrap();
    publish_numbers(&world.hub, 10..20);
    World { checkpoint: false, ..world }
}

/// Returns what an instance handles up to event 19 if its first links start one event too late.
async fn handled_with_late_links(world: &World, links: usize) -> Vec<i64> {
    let before = world.log.bodies().len();
    let late = || Arc::new(AtomicUsize::new(links));
    let source_faults = SourceFaults { late_starts: late(), skip_first: late(), ..SourceFaults::default() };
    let b = start_scripted(world, "b", source_faults).await;
    world.log.wait_for("event 19", |log| log.times("19") == 1).await;
    b.shut_down().await.unwrap();
    world.log.bodies()[before..].iter().map(|body| body.parse().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn late_links_after_a_checkpoint() {
    let world = with_checkpoint_at_9().await;
    assert_eq!(handled_with_late_links(&world, 1).await, (10..20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn late_links_after_a_reset() {
    for (number, offset) in [(4, "40"), (-1, "-1")] {
        let world = with_checkpoint_at_9().await;
        place(&world.store("operator").await, 0, &Position::new(number, offset)).await;
        assert_eq!(handled_with_late_links(&world, 1).await, (number + 1..20).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn late_links_at_a_chosen_position() {
    use StartPosition::{AfterSequenceNumber, Earliest};
    // One of two links determines the offset of event 4.
    for (chosen, first, links) in [(Earliest, 0, 1), (AfterSequenceNumber(4), 5, 2)] {
        let mut world = with_checkpoint_at_9().await;
        let position = chosen.clone();
        let policy = OnInvalidCheckpoint::custom(move |_| position.clone());
        world.config = world.config.clone().with_on_invalid_checkpoint(policy);
        let wrong = Position::new(70, "700");
        place(&world.store("operator").await, 0, &wrong).await;
        assert_eq!(handled_with_late_links(&world, links).await, (first..20).collect::<Vec<_>>(), "{chosen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_links_at_a_start_position() {
    use StartPosition::{AfterSequenceNumber, Earliest};
    for (start, first, links) in [(Earliest, 0, 1), (AfterSequenceNumber(4), 5, 2)] {
        let mut world = World { checkpoint: false, ..World::new(1) };
        publish_numbers(&world.hub, 0..20);
        world.config = world.config.clone().with_start_position(start.clone());
        assert_eq!(handled_with_late_links(&world, links).await, (first..20).collect::<Vec<_>>(), "{start:?}");
    }
}

/// The hub receives 20 events per second, and its reports are two seconds old: each link starts at another event, later
/// than reported.
#[tokio::test(start_paused = true)]
async fn events_may_expire_while_links_are_opened() {
    let world = World { checkpoint: false, ..World::new(1) };
    world.hub.publish_many(0, 5000, "old");
    let hub = world.hub.clone();
    let busy = tokio::spawn(async move {
        for first in 1.. {
            hub.expire_before(0, first);
            hub.publish(0, "new");
            sleep(SECOND / 20).await;
        }
    });
    sleep(100 * SECOND).await;
    let a = start_scripted(&world, "a", SourceFaults { first_too_low: 40, ..SourceFaults::default() }).await;
    sleep(60 * SECOND).await;
    let handled = world.log.times("new");
    assert!(handled > 2000, "{handled} events");
    busy.abort();
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_during_a_gap_check_delivers_nothing() {
    let world = World::new(1);
    let slow = Arc::new(AtomicBool::new(false));
    let source_faults = SourceFaults { partitions_slow: slow.clone(), ..SourceFaults::default() };
    let a = start_scripted(&world, "a", source_faults).await;
    world.hub.publish_many(0, 2, "before");
    world.log.wait_for("the events", |log| log.times("before") == 2).await;
    slow.store(true, Ordering::Relaxed);
    world.hub.break_link(0);
    world.hub.publish_many(0, 2, "expired");
    world.hub.publish(0, "after");
    world.hub.expire_before(0, 4);
    sleep(5 * SECOND).await;
    assert!(a.handle.pause(&0.into()));
    sleep(60 * SECOND).await;
    assert_eq!(world.log.times("after"), 0);
    assert!(a.handle.resume(&0.into()));
    world.log.wait_for("the event", |log| log.times("after") == 1).await;
    a.shut_down().await.unwrap();
}

/// The links of the official client attach again by themselves.
#[tokio::test(start_paused = true)]
async fn events_repeated_after_a_reattach_are_skipped() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish_many(0, 10, "x");
    world.log.wait_for("10", |log| log.times("x") == 10).await;
    world.hub.reattach(0);
    world.hub.publish(0, "y");
    world.log.wait_for("y", |log| log.times("y") == 1).await;
    assert_eq!(world.log.times("x"), 10);
    a.shut_down().await.unwrap();
}

/// The link delivers again everything since it was opened, and a new link continues immediately.
#[tokio::test(start_paused = true)]
async fn a_link_that_starts_over_is_replaced() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    let mut published = publish_numbers(&world.hub, 0..100);
    world.log.wait_for("100 events", |log| log.bodies().len() == 100).await;

    world.hub.reattach(0);
    let status = a.wait_for_status("the link ends", |status| status.failures == 1).await;
    let error = status.last_error.expect("an error").message;
    assert!(error.contains("event 0 arrived after event 99"), "{error}");
    published.extend(publish_numbers(&world.hub, 100..101));

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
        published.extend(publish_numbers(&world.hub, 5 * round..5 * (round + 1)));
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
    let mut a = start_scripted(&world, "a", source_faults).await;
    a.wait_until_it_holds(1).await;
    let mut published = publish_numbers(&world.hub, 0..100);
    world.log.wait_for("100 events", |log| log.bodies().len() == 100).await;
    world.hub.break_link(0);
    published.extend(publish_numbers(&world.hub, 100..110));
    world.log.wait_for("110 events", |log| log.bodies().len() == 110).await;
    assert_eq!(world.log.bodies(), published);
    sleep(Duration::from_secs(120)).await;
    assert_eq!((a.status().failures, a.status().state), (1, PartitionState::Idle));
    a.shut_down().await.unwrap();
}

/// `open`, a link that is read, and a link that is closed panic twice each, then everything works.
#[tokio::test(start_paused = true)]
async fn a_panicking_source_is_retried() {
    let world = World::new(1);
    let source_faults = SourceFaults { panics: Arc::new(AtomicUsize::new(6)), ..SourceFaults::default() };
    let began = Instant::now();
    let mut a = start_scripted(&world, "a", source_faults).await;
    a.wait_until_it_holds(1).await;
    let status = a.wait_for_status("six failures", |status| status.failures == 6).await;
    assert!(status.last_error.is_some_and(|error| error.message.contains("panicked on request")));
    assert!(began.elapsed() > Duration::from_secs(5), "the retry delays did not grow: {:?}", began.elapsed());
    let published = publish_numbers(&world.hub, 0..10);
    world.log.wait_for("10 events", |log| log.bodies().len() == 10).await;
    assert_eq!(world.log.bodies(), published);
    assert!(world.log.stops.lock().unwrap().is_empty(), "the handler was restarted");
    assert!(a.shut_down().await.unwrap().is_clean());
    assert_eq!(world.log.stops.lock().unwrap().len(), 1);
}

/// Compaction has removed the last of five events.
fn without_last_event() -> World {
    let world = World::new(1);
    publish_numbers(&world.hub, 0..5);
    assert!(world.hub.remove_event(0, 4));
    world.log.contiguity.lacks(4);
    world
}

#[tokio::test(start_paused = true)]
async fn an_end_that_no_link_delivers_is_learned() {
    let world = without_last_event();
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
        let a = start_scripted(&world, "a", SourceFaults { mute_links, ..SourceFaults::default() }).await;
        sleep(within).await;
        assert_eq!((world.log.times("x"), a.status().failures), (1, 1), "{mute} links had stalled");
        a.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_learned_end_hides_no_stalled_link() {
    let world = without_last_event();
    let a = world.start("a").await;
    world.log.wait_for("event 3", |log| log.times("3") == 1).await;
    sleep(HOUR).await;
    world.hub.stall_link(0, true);
    world.hub.publish(0, "5");
    world.log.wait_for("the next event", |log| log.times("5") == 1).await;
    assert_eq!(a.status().failures, 3, "for the end, for the stalled link, and for the event missing before event 5");
    a.shut_down().await.unwrap();
}

mod requests_for_properties {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn instances_spread_their_periodic_requests() {
        const INSTANCES: usize = 12;
        let world = World::new(48);
        let source = Counted::new(&world.hub);
        let mut instances = Vec::new();
        for number in 0..INSTANCES {
            let owner = format!("instance-{number}");
            instances.push(world.start_with(&owner, source.clone(), world.recorder(&owner)).await);
        }
        for instance in &mut instances {
            instance.wait_until_it_holds(4).await;
        }
        sleep(10 * MINUTE).await;
        let most = source.requests.most_per_second(300);
        assert!(most <= 4 * INSTANCES / 2, "{most} requests in one second");
        for instance in instances {
            instance.shut_down().await.unwrap();
        }
    }

    #[cfg(feature = "metrics")]
    #[tokio::test(start_paused = true)]
    async fn instances_spread_reads_of_unowned_partitions() {
        const INSTANCES: usize = 8;
        let mut world = World::new(16);
        // Without handoffs each instance reads them.
        world.config = world
            .config
            .with_balancer(|balancer| balancer.with_handoff(false).with_max_partitions(1))
            .with_lag_check_interval(MINUTE);
        let source = Counted::new(&world.hub);
        let mut instances = Vec::new();
        for number in 0..INSTANCES {
            let owner = format!("instance-{number}");
            instances.push(world.start_with(&owner, source.clone(), world.recorder(&owner)).await);
        }
        sleep(20 * MINUTE).await;
        let of_partitions = source.requests.of_partitions.load(Ordering::Relaxed);
        assert!(of_partitions > 16 * INSTANCES, "{of_partitions} requests");
        let most = source.requests.most_per_second(600);
        assert!(most <= 9 * INSTANCES / 2, "{most} requests in one second");
        for instance in instances {
            instance.crash().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_of_partitions_is_read_seldom() {
        let world = World::new(2);
        let source = Counted::new(&world.hub);
        let mut a = world.start_with("a", source.clone(), world.recorder("a")).await;
        a.wait_until_it_holds(2).await;
        sleep(MINUTE).await;
        let before = source.of_hub();
        sleep(HOUR).await;
        let reads = source.of_hub() - before;
        assert!((10..=17).contains(&reads), "{reads} reads in an hour");
        a.shut_down().await.unwrap();
    }

    /// The first instance does not know that the event hub has grown. The second one knows, and owns a new partition.
    #[tokio::test(start_paused = true)]
    async fn partitions_that_others_own_are_looked_up() {
        let mut world = World::new(2);
        world.config = world.config.with_balancer(|balancer| balancer.with_max_partitions(2));
        let source = Counted::new(&world.hub);
        let mut a = world.start_with("a", source.clone(), world.recorder("a")).await;
        a.wait_until_it_holds(2).await;
        sleep(MINUTE).await;
        for partitions in [4, 6] {
            world.hub.grow_to(partitions);
            let before = source.of_hub();
            let mut b = world.start(&format!("b{partitions}")).await;
            b.wait_until_it_holds(2).await;
            let knows_all = |snapshot: &Snapshot| snapshot.partitions.len() == usize::try_from(partitions).unwrap();
            let since = Instant::now();
            a.wait_until("all partitions are known", knows_all).await;
            assert!(since.elapsed() <= MINUTE, "known after {:?}", since.elapsed());
            assert!(source.of_hub() - before <= 2, "{} reads", source.of_hub() - before);
            b.crash().await;
        }
        a.shut_down().await.unwrap();
    }

    /// All links of an event hub that is deleted end.
    #[tokio::test(start_paused = true)]
    async fn the_hub_is_read_again_after_a_link_failed() {
        let world = World::new(1);
        let source = Counted::new(&world.hub);
        let mut a = world.start_with("a", source.clone(), world.recorder("a")).await;
        a.wait_until_it_holds(1).await;
        a.wait_until_all_idle(1).await;
        for _ in 0..20 {
            sleep(MINUTE / 2).await;
            let before = source.of_hub();
            world.hub.break_link(0);
            sleep(11 * SECOND).await;
            assert!(source.of_hub() > before);
        }
        a.shut_down().await.unwrap();
    }
}
