//! Rates, times and strips.

use eventhubs_checkpoint::admin::describe::OwnershipState;
use eventhubs_checkpoint::source::LagState;

use super::super::tests::*;
use super::*;

/// A group whose looks are made up.
struct Looks {
    history: GroupHistory,
    now: GroupDescription,
}

impl Looks {
    async fn new() -> Self {
        let mut history = GroupHistory::default();
        let now = look().await;
        history.add_look(now.clone(), true);
        Self { history, now }
    }

    fn look(&mut self, seconds: i64, change: impl FnOnce(&mut PartitionDescription)) -> Vec<GroupChange> {
        self.now = later(&self.now, seconds, change);
        self.history.add_look(self.now.clone(), true)
    }

    /// A look for which the event hub is not read.
    fn look_without_hub(&mut self, seconds: i64, change: impl FnOnce(&mut PartitionDescription)) {
        self.now = later(&self.now, seconds, change);
        self.history.add_look(self.now.clone(), false);
    }

    fn rates(&self) -> Rates {
        self.history.rates(&self.now.partitions[0])
    }

    fn last_enqueued(&mut self, seconds_ago: i64) {
        let at = self.now.taken_at - time::Duration::seconds(seconds_ago);
        self.now.partitions[0].hub.as_mut().unwrap().last_enqueued_at = Some(at);
    }
}

#[tokio::test(start_paused = true)]
async fn an_adoption_is_no_new_checkpoint() {
    let mut watched = Looks::new().await;
    watched.look(2, |partition| partition.checkpoint.as_mut().unwrap().owner = Some(owner("b")));
    let seen: Vec<_> = watched.history.checkpoints(&zero()).map(|seen| seen.owner.clone()).collect();
    assert_eq!(seen, [Some(owner("a"))]);
    watched.look(2, |partition| advance(partition, 12, 19));
    assert_eq!(watched.history.checkpoints(&zero()).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn rates_need_two_looks() {
    let mut watched = Looks::new().await;
    assert_eq!(watched.rates(), Rates::default());
    watched.look(10, |partition| advance(partition, 29, 119));
    let rates = watched.rates();
    assert_eq!((rates.processed, rates.enqueued), (Some(2.0), Some(10.0)));
}

#[tokio::test(start_paused = true)]
async fn rates_are_those_of_half_a_minute() {
    let mut watched = Looks::new().await;
    for step in 1..=30 {
        watched.look(2, |partition| advance(partition, 9 + 2 * step, 19 + 4 * step));
    }
    assert_eq!((watched.rates().processed, watched.rates().enqueued), (Some(1.0), Some(2.0)));
    for _ in 0..15 {
        watched.look(2, |_| {});
    }
    assert_eq!((watched.rates().processed, watched.rates().enqueued), (Some(0.0), Some(0.0)));
}

/// The last event is known every ten seconds, the checkpoint every two.
#[tokio::test(start_paused = true)]
async fn old_ranges_do_not_distort_the_rate() {
    let mut watched = Looks::new().await;
    for step in 1..=60 {
        let last = 19 + 100 * (step / 5);
        let change = |partition: &mut PartitionDescription| advance(partition, 9, last);
        if step % 5 == 0 {
            watched.look(2, change);
        } else {
            watched.look_without_hub(2, change);
        }
        if step > 5 {
            assert_eq!(watched.rates().enqueued, Some(10.0), "{step}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_starts_again_after_a_reset() {
    let mut watched = Looks::new().await;
    watched.look(2, |partition| advance(partition, 1009, 2000));
    watched.look(2, |partition| advance(partition, 3, 2000));
    assert_eq!(watched.rates().processed, None);
    watched.look(2, |partition| advance(partition, 23, 2000));
    assert_eq!(watched.rates().processed, Some(10.0));
    watched.look(2, |partition| partition.checkpoint = None);
    assert_eq!(watched.rates().processed, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_late_if_nothing_waits() {
    let mut watched = Looks::new().await;
    assert_eq!(watched.rates().behind_s, None, "enqueued before the first look");
    watched.look(2, |partition| advance(partition, 19, 19));
    assert_eq!(watched.rates().behind_s, Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_waiting_event_is_estimated() {
    let mut watched = Looks::new().await;
    // 100 events in ten seconds.
    watched.look(10, |partition| advance(partition, 68, 119));
    let late = watched.rates().behind_s.unwrap();
    assert!((late - 5.0).abs() < 0.01, "{late}");
    watched.look(20, |partition| advance(partition, 68, 119));
    let late = watched.rates().behind_s.unwrap();
    assert!((late - 25.0).abs() < 0.01, "{late}");
}

/// The events came after the last reading of the event hub, not after the last refresh.
#[tokio::test(start_paused = true)]
async fn looks_without_the_hub_do_not_date_events() {
    let mut watched = Looks::new().await;
    for _ in 0..4 {
        watched.look_without_hub(2, |_| {});
    }
    watched.look(2, |partition| advance(partition, 19, 119));
    let late = watched.rates().behind_s.unwrap();
    assert!((late - 9.9).abs() < 0.01, "{late}");
}

#[tokio::test(start_paused = true)]
async fn the_time_of_the_last_event_is_exact() {
    let mut watched = Looks::new().await;
    watched.look(60, |partition| advance(partition, 19, 19));
    watched.now.taken_at += time::Duration::seconds(10);
    watched.last_enqueued(4);
    watched.look(0, |partition| advance(partition, 19, 20));
    assert_eq!(watched.rates().behind_s, Some(4.0));

    let mut first = Looks { history: GroupHistory::default(), now: look().await };
    first.last_enqueued(30);
    first.look(0, |partition| advance(partition, 18, 19));
    assert_eq!(first.rates().behind_s, Some(30.0), "at the first look");
}

#[tokio::test(start_paused = true)]
async fn one_look_bounds_the_waiting_time() {
    let mut group = look().await;
    let waiting = |group: &GroupDescription| {
        GroupHistory::of_look(group.clone()).waiting_time(&group.partitions[0]).map(|waiting| waiting.to_string())
    };
    group.partitions[0].hub.as_mut().unwrap().last_enqueued_at = Some(group.taken_at - time::Duration::minutes(5));
    assert_eq!(waiting(&group).as_deref(), Some(">5min"), "the next one of ten is older than the last one");
    advance(&mut group.partitions[0], 18, 19);
    assert_eq!(waiting(&group).as_deref(), Some("5min"));
    advance(&mut group.partitions[0], 19, 19);
    assert_eq!(waiting(&group).as_deref(), Some("0s"));
    group.partitions[0].hub = None;
    group.partitions[0].lag.events = None;
    assert_eq!(waiting(&group), None, "the event hub was not read");
}

/// 1000 events came just now, and were not processed yet. Only the estimate is a minute.
#[tokio::test(start_paused = true)]
async fn a_burst_between_two_looks_has_not_waited() {
    let mut watched = Looks::new().await;
    watched.look(63, |partition| advance(partition, 19, 19));
    watched.now.taken_at += time::Duration::seconds(63);
    watched.last_enqueued(1);
    watched.look(0, |partition| advance(partition, 19, 1019));
    let at_least = |watched: &Looks| watched.history.waited_at_least(&watched.now.partitions[0]);
    assert_eq!((at_least(&watched), watched.rates().processed), (Some(1.0), Some(0.0)));
    watched.look(63, |_| {});
    assert_eq!(at_least(&watched), Some(64.0), "and now they wait");
}

#[tokio::test(start_paused = true)]
async fn rare_looks_have_the_rate_between_them() {
    let mut watched = Looks::new().await;
    for step in 1..=3 {
        watched.look(63, |partition| advance(partition, 9 + 63 * step, 19 + 126 * step));
        assert_eq!((watched.rates().processed, watched.rates().enqueued), (Some(1.0), Some(2.0)));
    }
    watched.look(3, |partition| advance(partition, 9 + 63 * 3, 19 + 126 * 3));
    assert_eq!(watched.rates().processed, Some(63.0 / 66.0), "a look after a change");
}

#[tokio::test(start_paused = true)]
async fn without_checkpoint_the_first_event_waits() {
    let mut watched = Looks::new().await;
    watched.look(10, |partition| {
        advance(partition, 9, 119);
        partition.checkpoint = None;
        partition.lag.events = Some(51);
        partition.lag.state = LagState::NoCheckpoint;
        partition.hub.as_mut().unwrap().first = 69;
    });
    assert_eq!(watched.rates().behind_s, Some(5.0));
}

#[tokio::test(start_paused = true)]
async fn a_recreated_event_hub_starts_again() {
    let mut watched = Looks::new().await;
    watched.look(10, |partition| advance(partition, 9, 5000));
    watched.look(10, |partition| advance(partition, -1, 3));
    assert_eq!((watched.rates().behind_s, watched.rates().enqueued), (None, None));
    watched.look(10, |partition| advance(partition, 3, 13));
    let late = watched.rates().behind_s.unwrap();
    assert!((late - 9.0).abs() < 0.01, "{late}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_stands_for_half_a_minute() {
    let mut watched = Looks::new().await;
    let began = watched.now.taken_at;
    for step in 1..=30 {
        watched.look(2, |partition| give_to(partition, if step < 10 { "a" } else { "b" }));
    }
    let slots: Vec<_> = watched.history.slots(&zero()).collect();
    let from: Vec<_> = slots.iter().map(|slot| (slot.from - began).whole_seconds()).collect();
    assert_eq!(from, [0, 30, 60]);
    assert_eq!(slots[0].owner, Some(owner("b")), "as it was at the end of the slot");
}

#[tokio::test(start_paused = true)]
async fn a_span_has_one_owner_and_one_state() {
    let mut watched = Looks::new().await;
    let began = watched.now.taken_at;
    for step in 1..=20 {
        watched.look(2, |partition| match step {
            8..12 => partition.state = OwnershipState::Expired,
            12.. => {
                partition.state = OwnershipState::Owned;
                give_to(partition, "b");
            }
            _ => {}
        });
    }
    // The machine was suspended.
    watched.look(300, |_| {});
    let json = serde_json::to_value(watched.history.snapshot()).unwrap();
    let spans = json["spans"]["0"].as_array().unwrap().clone();
    let shown: Vec<_> =
        spans.iter().map(|span| (span["owner"].as_str().unwrap(), span["state"].as_str().unwrap())).collect();
    assert_eq!(shown, [("a", "owned"), ("a", "expired"), ("b", "owned"), ("b", "owned")]);
    let spans: Vec<_> = watched.history.snapshot().unwrap().spans[&zero()].clone();
    let times: Vec<_> =
        spans.iter().map(|span| ((span.from - began).whole_seconds(), (span.until - began).whole_seconds())).collect();
    assert_eq!(times, [(0, 14), (16, 22), (24, 40), (340, 340)]);
}

#[tokio::test(start_paused = true)]
async fn one_hour_is_kept() {
    let mut watched = Looks::new().await;
    for step in 1..=2000 {
        let id = if step % 2 == 0 { "a" } else { "b" };
        watched.look(5, |partition| {
            advance(partition, 19 + step, 19 + step);
            give_to(partition, id);
        });
    }
    let watched_hour = watched.history.snapshot().unwrap();
    let slots = &watched_hour.history[&zero()];
    let spans = &watched_hour.spans[&zero()];
    let oldest = watched.now.taken_at - time::Duration::HOUR;
    assert!(slots.len() <= 121 && slots[0].from >= oldest, "{}", slots.len());
    assert!(spans.len() <= 721 && spans[0].until >= oldest, "{}", spans.len());
    assert_eq!(watched_hour.changes.len(), 500);
    let newest = watched.history.latest_snapshot(1).unwrap();
    assert_eq!((newest.changes.len(), newest.spans[&zero()].len(), newest.history[&zero()].len()), (1, 2, 2));
    assert_eq!(newest.changes[0].at, watched.now.taken_at);
}

#[tokio::test(start_paused = true)]
async fn the_json_has_the_schema_and_the_group() {
    let mut watched = Looks::new().await;
    watched.look(2, |partition| advance(partition, 11, 21));
    let json = serde_json::to_value(watched.history.snapshot()).unwrap();
    assert_eq!((&json["schema"], &json["group"]["event_hub"]), (&"ehcp.watch/1".into(), &"orders".into()));
    assert_eq!(json["rates"]["0"]["processed"], 1.0);
    assert_eq!(json["partitions"][0]["owner"]["id"], "a");
    assert_eq!(json["history"]["0"][0]["lag"], 10);
}

#[tokio::test(start_paused = true)]
async fn partitions_that_are_gone_are_forgotten() {
    let mut watched = Looks::new().await;
    let mut empty = watched.now.clone();
    empty.partitions.clear();
    watched.history.add_look(empty, true);
    assert_eq!(watched.history.slots(&zero()).count(), 0);
    assert!(watched.history.snapshot().unwrap().history.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_time_never_goes_back() {
    let mut watched = Looks::new().await;
    let began = watched.now.taken_at;
    watched.look(-1, |partition| advance(partition, 11, 21));
    assert_eq!(watched.history.last_look().map(|last| last.taken_at), Some(began));
    assert_eq!(watched.rates().processed, None);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_after_the_end_is_seen_twice() {
    let mut watched = Looks::new().await;
    watched.look(10, |partition| advance(partition, 500, 30));
    assert!(!watched.rates().is_beyond_end, "the checkpoint may be newer than the reading");
    watched.look(10, |partition| advance(partition, 600, 650));
    assert!(!watched.rates().is_beyond_end);
    for _ in 0..2 {
        watched.look(10, |partition| advance(partition, 900, 700));
    }
    assert_eq!((watched.rates().is_beyond_end, watched.rates().behind_s), (true, None));
}

/// All its events wait, and the number counts in another event hub.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_of_a_former_hub_has_no_number() {
    let mut watched = Looks::new().await;
    watched.last_enqueued(60);
    for _ in 0..2 {
        watched.look(10, |partition| {
            advance(partition, 500, 19);
            partition.checkpoint.as_mut().unwrap().of_former_hub = true;
            partition.lag.events = Some(20);
        });
    }
    let waiting = watched.history.waiting_time(&watched.now.partitions[0]).unwrap();
    assert!(!waiting.is_exact && waiting.seconds > 0.0, "{waiting:?}");
    assert!(!watched.rates().is_beyond_end);
}
