//! Cycles: when they start, what they wait for, and what a listing changes.

use super::*;
use crate::store::beacon::Beacon;

#[test]
fn first_cycle_waits_for_the_heartbeat() {
    let mut me = Loop::new(BalancerConfig::default());
    assert_eq!(me.step(Happened::Began([0.into()].into())), "heartbeat");
    assert_eq!(me.after(0), "", "the heartbeat is not written yet");
    assert_eq!(me.done(Done::HeartbeatSent(Err(unavailable()))), "HeartbeatFailed");
    assert_eq!(me.after(0), "list", "a failed heartbeat does not delay it further");
}

#[test]
fn first_cycle_is_immediate_without_handoffs() {
    let mut me = Loop::with_drain(BalancerConfig::default(), 0);
    assert_eq!(me.step(Happened::Began([0.into()].into())), "");
    assert_eq!(me.after(0), "list");
}

#[test]
fn heartbeats_are_listed_before_a_claim() {
    let mut me = Loop::started(BalancerConfig::default(), 2);
    assert_eq!(me.after(0), "list");
    assert_eq!(me.listed(".."), "list heartbeats");
    let claim = me.no_other_heartbeats();
    assert!(["claim 0", "claim 1"].contains(&claim.as_str()), "one partition per interval: {claim}");
}

/// It may be gone, and without its heartbeat the partition is anybody's.
#[test]
fn heartbeats_are_listed_while_there_is_a_claim() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.step(Happened::Hub([0.into(), 1.into()].into()));
    for _ in 0..2 {
        me.wake_until("list");
        assert_eq!(me.listed("m."), "list heartbeats");
        let record = HeartbeatRecord::new(owner("b"), incarnation(1), 60 * SECOND);
        let b = Heartbeat::new(record, ETag::new("b"), Duration::ZERO, me.now);
        assert_eq!(me.done(Done::HeartbeatsListed(Ok(vec![b]))), "", "it is the share of the other");
    }
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    me.wake_until("list");
    assert_eq!(me.listed("m."), "", "this instance claims nothing");
}

#[test]
fn heartbeats_are_listed_while_one_is_reserved() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
    me.wake_until("list");
    let reserved = OwnershipRecord { handoff_to: Some(owner("x")), ..OwnershipRecord::default() };
    let seen = |partition: u32, record: OwnershipRecord| {
        let time = (datetime!(2026-01-01 00:00:00 UTC), me.now);
        Ownership::new(partition.into(), record, ETag::new("seen"), Duration::ZERO, time)
    };
    let listing = Done::Listed(Ok(vec![seen(0, record("me")), seen(1, reserved), seen(2, record("x"))]));
    assert_eq!(me.done(listing), "list heartbeats");
}

/// What follows is not far away.
#[test]
fn a_group_with_a_handoff_is_not_calm() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
    let requested = OwnershipRecord { handoff_to: Some(owner("y")), ..record("x") };
    for _ in 0..5 {
        let waited = (1..60).find(|_| me.after(1).contains("list")).unwrap();
        assert!(waited <= 12, "{waited}");
        let seen = |partition: u32, record: OwnershipRecord| {
            let time = (datetime!(2026-01-01 00:00:00 UTC), me.now);
            Ownership::new(partition.into(), record, ETag::new("seen"), Duration::ZERO, time)
        };
        let listing = vec![seen(0, record("me")), seen(1, requested.clone()), seen(2, record("y"))];
        me.done(Done::Listed(Ok(listing)));
    }
}

#[test]
fn a_loss_names_the_new_owner() {
    for (owners, expected) in [("x", Some("x")), ("X", Some("x")), ("-", None)] {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.wake_until("list");
        let mut events = me.state.step(listing_of(owners, me.now), me.now).into_iter();
        let lost = events.find_map(|action| match action {
            Action::Emit(OwnershipEvent::Lost { by, .. }) => Some(by),
            _ => None,
        });
        assert_eq!(lost, Some(expected.map(owner)), "{owners}");
    }
}

#[test]
fn claims_under_way_count_as_won() {
    let mut me = Loop::started(
        BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::Greedy).with_max_partitions(1),
        2,
    );
    me.after(0);
    me.listed("..");
    let first = me.no_other_heartbeats();
    assert!(
        first.contains("claim") && first.ends_with("LimitReached 1") || first.starts_with("LimitReached 1"),
        "{first}"
    );
    assert_eq!(me.after(2), "list");
    me.listed("..");
    assert_eq!(me.no_other_heartbeats(), "", "the claim may still be won");
}

#[test]
fn a_failed_cycle_is_retried_soon() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.after(0);
    assert_eq!(me.done(Done::Listed(Err(unavailable()))), "CycleFailed");
    assert_eq!(me.after(1), "list");
    assert_eq!(me.done(Done::Listed(Err(unavailable()))), "CycleFailed");
    assert_eq!(me.after(1), "", "the next wait is longer");
    assert_eq!(me.after(1), "list");
}

/// At least an interval, also if it does not say for how long.
#[test]
fn a_throttled_cycle_waits_as_long_as_it_was_asked_to() {
    for (retry_after, waits) in [(Some(25), 25..=25), (Some(600), 60..=60), (None, 10..=11)] {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.after(0);
        let throttled = ErrorKind::Throttled { retry_after: retry_after.map(Duration::from_secs) };
        me.done(Done::Listed(Err(Error::new(throttled, "throttled"))));
        let waited = (1..100).find(|_| me.after(1).contains("list")).unwrap();
        assert!(waits.contains(&waited), "{retry_after:?}: {waited}");
    }
}

/// Returns after how many seconds a change in a group of so many owners begins a cycle.
fn wait_for_call(seed: u64, owners: u32) -> u64 {
    let mut me = Loop::new(BalancerConfig::default());
    me.state = BalancerState::new(settings(BalancerConfig::default(), 10), StdRng::seed_from_u64(seed));
    me = me.began(owners);
    me.has_beacon = true;
    me.after(0);
    let listed = |partition: u32| {
        let time = (datetime!(2026-01-01 00:00:00 UTC), me.now);
        let record = record(&format!("owner-{partition:03}"));
        Ownership::new(partition.into(), record, ETag::new("seen"), Duration::ZERO, time)
    };
    let listing = Done::Listed(Ok((0..owners).map(listed).collect()));
    me.done(listing);
    let changed = Beacon { change: 9, version: ETag::new("beacon"), age: Duration::ZERO, received: me.now };
    me.done(Done::BeaconRead(Ok(Some(changed))));
    (1..60).find(|_| me.after(1).contains("list")).unwrap()
}

/// If all instances listed at each change, or together, the listings would be too many.
#[test]
fn in_a_large_group_called_cycles_are_spread() {
    assert!((0..20).all(|seed| wait_for_call(seed, 2) <= 2));
    let waits: Vec<_> = (0..20).map(|seed| wait_for_call(seed, 400)).collect();
    assert!(waits.iter().all(|wait| (6..=10).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait < 8) && waits.iter().any(|wait| *wait > 8), "{waits:?}");
}

/// They compare ages with their own clocks, and may have shorter lease durations.
#[test]
fn leases_are_renewed_more_often_beside_other_sdks() {
    for (interval, owners, ages) in [(10, "mx", 26..=30), (10, "m?", 12..=14), (2, "m?", 9..=11)] {
        let mut me = Loop::owning(BalancerConfig::default().with_load_balancing_interval(interval * SECOND), 1);
        let owned_since = me.now;
        me.step(Happened::Hub([0.into(), 1.into()].into()));
        me.wake_until("list");
        me.listed(owners);
        me.wake_until("renew 0");
        let age = me.now.saturating_sub(owned_since).as_secs() + 2;
        assert!(ages.contains(&age), "{interval} {owners}: {age}");
    }
}

#[test]
fn a_late_cycle_is_reported() {
    for (seconds, decided) in [(5, "list"), (6, "CycleLate, list")] {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        assert_eq!(me.after(seconds), decided);
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.now += Duration::from_secs(seconds);
        me.step(Happened::Hub([0.into()].into()));
        assert_eq!(me.after(0), decided, "another input came before");
    }
}

#[test]
fn a_later_incarnation_ends_the_loop() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.after(0);
    let later = OwnershipRecord::owned_by(owner("me"), Some(incarnation(2)));
    let seen = Ownership::new(
        0.into(),
        later,
        ETag::new("seen"),
        Duration::ZERO,
        (datetime!(2026-01-01 00:00:00 UTC), me.now),
    );
    assert_eq!(me.done(Done::Listed(Ok(vec![seen]))), "replaced");
}

#[test]
fn an_older_listing_does_not_drop_a_lease() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert_eq!(me.after(12), "list");
    assert_eq!(me.after(18), "renew 0");
    assert_eq!(me.listed("x"), "", "the current renewal will show it");
    assert_eq!(me.renewed(0, 1), "");
    assert_eq!(me.after(22), "list");
    assert_eq!(me.listed("x"), "Lost 0");
    assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Other(owner("x"))));
}

/// The claims are under way.
#[test]
fn a_cycle_that_takes_something_is_not_calm() {
    let mut me = Loop::without_handoffs(12);
    me.after(0);
    for _ in 0..5 {
        assert!(me.listed("aaaaaaaaaaaa").contains("claim"));
        let waited = (1..60).find(|_| me.after(1).contains("list")).unwrap();
        assert!((10..=12).contains(&waited), "{waited}");
    }
}

#[test]
fn the_next_cycle_comes_when_an_ownership_expires() {
    let mut me = Loop::with_drain(BalancerConfig::default(), 0);
    me.step(Happened::Began([0.into(), 1.into()].into()));
    me.after(0);
    me.listed("m.");
    me.wins(0, 1);
    me.wins(1, 1);
    let seen = |age: u64, now| {
        let (age, time) = (Duration::from_secs(age), (datetime!(2026-01-01 00:00:00 UTC), now));
        let own = Ownership::new(0.into(), record("me"), ETag::new("won"), Duration::ZERO, time);
        vec![own, Ownership::new(1.into(), record("a"), ETag::new("seen"), age, time)]
    };
    me.lost(1, 1);
    for _ in 0..4 {
        me.now = me.state.next_wake().unwrap().max(me.now);
        me.wake_until("list");
        me.done(Done::Listed(Ok(seen(0, me.now))));
    }
    me.wake_until("list");
    let listed = me.now;
    me.done(Done::Listed(Ok(seen(57, me.now))));
    me.wake_until("list");
    let waited = me.now.saturating_sub(listed);
    assert!((5 * SECOND..=7 * SECOND).contains(&waited), "62 s after the last renewal, not after {waited:?}");
}
