//! Cycles: when they start, what they wait for, and what a listing changes.

use std::collections::BTreeSet;

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
        while !me.after(1).contains("list") {}
        assert_eq!(me.listed("m."), "list heartbeats");
        let record = HeartbeatRecord::new(owner("b"), incarnation(1), 60 * SECOND);
        let b = Heartbeat::new(record, ETag::new("b"), Duration::ZERO, me.now);
        assert_eq!(me.done(Done::HeartbeatsListed(Ok(vec![b]))), "", "it is the share of the other");
    }
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    while !me.after(1).contains("list") {}
    assert_eq!(me.listed("m."), "", "this instance claims nothing");
}

#[test]
fn heartbeats_are_listed_while_one_is_reserved() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
    while !me.after(1).contains("list") {}
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
        while !me.after(1).contains("list") {}
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
        while !me.after(1).contains("list") {}
        me.listed(owners);
        while !me.after(1).contains("renew 0") {}
        let age = me.now.saturating_sub(owned_since).as_secs() + 2;
        assert!(ages.contains(&age), "{interval} {owners}: {age}");
    }
}

mod news {
    use super::*;
    use crate::store::beacon::Beacon;

    /// Returns a loop that owns the first of three partitions and may own no more. The others have owner `b`, and the
    /// group has a beacon.
    fn at_its_limit() -> Loop {
        let mut me = Loop::owning(BalancerConfig::default().with_max_partitions(1), 1);
        me.has_beacon = true;
        me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
        list(&mut me, "mbb");
        me
    }

    /// Lists these owners, and returns whether this instance tells the others.
    fn list(me: &mut Loop, owners: &str) -> bool {
        while !me.after(1).contains("list") {}
        let shown = Beacon { change: 7, version: ETag::new("beacon"), age: Duration::ZERO, received: me.now };
        me.done(Done::BeaconRead(Ok(Some(shown))));
        let mut decided = me.listed(owners);
        if decided.contains("list heartbeats") {
            decided += &me.no_other_heartbeats();
        }
        if decided.contains("light beacon") {
            me.done(Done::BeaconLit(Ok(None)));
        }
        decided.contains("light beacon")
    }

    #[test]
    fn a_partition_that_is_left_to_others_is_reported() {
        let mut me = at_its_limit();
        assert!(!list(&mut me, "mbb"));
        assert!(list(&mut me, "m-b"), "it was released");
        assert!(!list(&mut me, "m-b"), "it was reported");
        assert!(!list(&mut me, "mbb") && list(&mut me, "mb-"));
        assert!(list(&mut me, "m--"));
    }

    #[test]
    fn a_partition_that_is_claimed_is_not_reported() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.has_beacon = true;
        me.step(Happened::Hub((0..2).map(PartitionId::from).collect()));
        list(&mut me, "mb");
        list(&mut me, "mb");
        assert!(!list(&mut me, "m-"));
    }

    /// Its processors light no beacon.
    #[test]
    fn the_first_owner_of_another_sdk_is_reported() {
        let mut me = at_its_limit();
        list(&mut me, "mbb");
        assert!(list(&mut me, "mb?"));
        assert!(!list(&mut me, "mb?"), "it was reported");
        list(&mut me, "mbb");
        while !me.after(1).contains("read beacon") {}
        let changed = Beacon { change: 8, version: ETag::new("beacon"), age: Duration::ZERO, received: me.now };
        me.done(Done::BeaconRead(Ok(Some(changed))));
        while !me.after(1).contains("list") {}
        assert_eq!(me.listed("mb?"), "", "another instance has reported it");
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

mod unowned_partitions {
    use super::*;

    /// Lists no ownerships at the next cycle, which must come within this many seconds, and wins what it claims.
    fn claims_within(me: &mut Loop, seconds: u64) -> bool {
        let lists = (0..seconds).any(|_| me.after(1).contains("list"));
        if lists {
            me.listed(".....");
            let claimed = me.no_other_heartbeats();
            claimed.strip_prefix("claim ").iter().for_each(|id| drop(me.wins(id.parse().unwrap(), 1)));
        }
        lists
    }

    #[test]
    fn the_next_one_is_claimed_a_second_later() {
        let mut me = Loop::started(BalancerConfig::default(), 5);
        me.after(0);
        me.listed(".....");
        me.no_other_heartbeats();
        assert!(claims_within(&mut me, 2) && claims_within(&mut me, 2), "{:?}", me.snapshot);
    }

    /// The others that started with it would have shown by then.
    #[test]
    fn one_that_stays_alone_claims_all() {
        let mut me = Loop::started(BalancerConfig::default(), 5);
        me.after(0);
        for seconds in [0, 5] {
            me.after(seconds);
            me.listed(".....");
            let id = claimed(&me.no_other_heartbeats());
            me.done(Done::Claimed { partition: id, outcome: ClaimOutcome::Lost { by: None } });
        }
        me.after(5);
        me.listed(".....");
        assert_eq!(me.no_other_heartbeats().matches("claim").count(), 5);
    }

    #[test]
    fn one_that_is_not_alone_claims_one() {
        let mut me = Loop::started(BalancerConfig::default(), 5);
        for seconds in [0, 5, 10] {
            me.after(seconds);
            me.listed(".....");
            let b = Heartbeat::new(
                HeartbeatRecord::new(owner("b"), incarnation(1), 60 * SECOND),
                ETag::new("b"),
                Duration::ZERO,
                me.now,
            );
            let id = claimed(&me.done(Done::HeartbeatsListed(Ok(vec![b]))));
            me.done(Done::Claimed { partition: id, outcome: ClaimOutcome::Lost { by: None } });
        }
    }

    #[test]
    fn a_steal_waits_for_the_interval() {
        let mut me = Loop::without_handoffs(6);
        me.after(0);
        assert_eq!(me.listed("aaaaa."), "claim 5");
        me.wins(5, 1);
        me.after(2);
        assert_eq!(me.listed("aaaaam"), "", "only a second has passed since the claim");
        assert_eq!(me.after(2), "");
        assert_eq!(me.after(9), "list");
        assert!(me.listed("aaaaam").starts_with("claim"), "one of five");
    }

    /// Whatever calls a cycle in the meantime.
    #[test]
    fn one_partition_is_stolen_per_interval() {
        let mut me = Loop::without_handoffs(6);
        me.has_beacon = true;
        me.after(0);
        let stolen: u32 = claimed(&me.listed("aaaaaa")).as_str().parse().unwrap();
        let begin = me.now;
        me.wins(stolen, 1);
        let owners: String = (0..6).map(|partition| if partition == stolen { 'm' } else { 'a' }).collect();
        for (change, seconds, steals) in [(8, 4, false), (9, 10, true)] {
            let changed = Beacon { change, version: ETag::new("beacon"), age: Duration::ZERO, received: me.now };
            me.done(Done::BeaconRead(Ok(Some(changed))));
            me.now = begin + Duration::from_secs(seconds);
            assert!(me.after(0).contains("list"));
            assert_eq!(me.listed(&owners).contains("claim"), steals, "after {seconds} s");
        }
    }

    /// It knows the other members: they claim the rest.
    #[test]
    fn one_that_saw_a_complete_group_claims_its_part() {
        for (before, expected) in [("mmmaaabbbccc", 3), ("mmmaaabbb...", 1)] {
            let mut me = Loop::started(BalancerConfig::default(), 12);
            me.after(0);
            me.listed(before);
            let decided = me.no_other_heartbeats();
            for partition in 0..12 {
                if decided.contains(&format!("claim {partition},")) || decided.ends_with(&format!("claim {partition}"))
                {
                    if partition < 3 {
                        me.wins(partition, 1);
                    } else {
                        let outcome = ClaimOutcome::Lost { by: None };
                        me.done(Done::Claimed { partition: partition.into(), outcome });
                    }
                }
            }
            while !me.after(1).contains("list") {}
            me.listed("mmmaaa------");
            assert_eq!(me.no_other_heartbeats().matches("claim").count(), expected, "{before}");
        }
    }

    fn throttled() -> ClaimOutcome {
        ClaimOutcome::Indeterminate(Error::new(ErrorKind::Throttled { retry_after: None }, "throttled"))
    }

    #[test]
    fn failed_claims_slow_the_next_ones_down() {
        let mut me = Loop::without_handoffs(5);
        let mut waits = Vec::new();
        for _ in 0..5 {
            let begin = me.now;
            while !me.after(u64::from(!waits.is_empty())).contains("list") {}
            waits.push(me.now.saturating_sub(begin).as_secs());
            let partition = claimed(&me.listed("....."));
            me.done(Done::Claimed { partition, outcome: throttled() });
        }
        assert!(matches!(waits[..], [0, 2..=3, 4..=5, 8..=10, 10..=12]), "{waits:?}");
    }

    #[test]
    fn a_claim_that_is_won_speeds_the_next_one_up() {
        let mut me = Loop::without_handoffs(5);
        me.after(0);
        let mut owners = [".", ".", ".", ".", "."];
        let waits = [false, false, false, true].map(|wins| {
            let partition = claimed(&me.listed(&owners.concat()));
            if wins {
                let number: u32 = partition.as_str().parse().unwrap();
                me.wins(number, 1);
                owners[usize::try_from(number).unwrap()] = "m";
            } else {
                me.done(Done::Claimed { partition, outcome: throttled() });
            }
            (1..20).find(|_| me.after(1).contains("list")).unwrap()
        });
        assert!(matches!(waits, [2..=3, 4..=5, 8..=10, 4..=5]), "{waits:?}");
    }

    /// A renewal that fails is repeated more often than once per interval.
    #[test]
    fn failed_renewals_do_not_slow_claims_down() {
        let mut me = Loop::without_handoffs(60);
        let mut owned = BTreeSet::new();
        for second in 0..130 {
            let decided = me.after(u64::from(second > 0));
            for renewed in decided.split(", ").filter_map(|action| action.strip_prefix("renew ")) {
                let partition: u32 = renewed.parse().unwrap();
                me.done(Done::Renewed { partition: partition.into(), epoch: 1, outcome: throttled() });
            }
            if decided.contains("list") && owned.len() < 60 {
                let shown: String =
                    (0..60).map(|partition| if owned.contains(&partition) { 'm' } else { '.' }).collect();
                let partition: u32 = claimed(&me.listed(&shown)).as_str().parse().unwrap();
                me.wins(partition, 1);
                owned.insert(partition);
            }
        }
        assert_eq!(owned.len(), 60);
    }

    /// Takeovers wait while unowned partitions are claimed, but not for one whose blob cannot be written.
    #[test]
    fn one_that_cannot_be_claimed_holds_up_no_takeover() {
        let mut me = Loop::without_handoffs(6);
        let mut taken_after = None;
        let begin = me.now;
        for second in 0..120 {
            if taken_after.is_some() || !me.after(u64::from(second > 0)).contains("list") {
                continue;
            }
            match me.listed("aaaaa.").split_once("claim ").map(|(_, claimed)| claimed) {
                Some("5") => drop(me.done(Done::Claimed { partition: 5.into(), outcome: throttled() })),
                Some(_) => taken_after = Some(me.now.saturating_sub(begin).as_secs()),
                None => {}
            }
        }
        assert!(taken_after.is_some_and(|seconds| seconds < 60), "{taken_after:?}");
    }

    fn claimed(decided: &str) -> PartitionId {
        let (_, id) = decided.split_once("claim ").unwrap_or_else(|| panic!("no claim: {decided}"));
        let id = id.split(',').next().unwrap_or(id);
        id.parse::<u32>().unwrap().into()
    }

    /// A claim that takes longer than a short cycle is the only one.
    #[test]
    fn the_next_one_waits_for_a_slow_claim() {
        let mut me = Loop::started(BalancerConfig::default(), 5);
        me.after(0);
        me.listed(".....");
        let first = claimed(&me.no_other_heartbeats());
        for _ in 0..3 {
            while !me.after(1).contains("list") {}
            me.listed(".....");
            assert_eq!(me.no_other_heartbeats(), "", "the first claim is under way");
        }
        me.wins(first.as_str().parse().unwrap(), 1);
        while !me.after(1).contains("list") {}
        me.listed(".....");
        claimed(&me.no_other_heartbeats());
    }

    /// A listing may not show what wins every time, for example a blob without a readable date.
    #[test]
    fn one_that_is_always_lost_is_avoided() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        let mut claims = Vec::new();
        for second in 0..600 {
            if !me.after(u64::from(second > 0)).contains("list") {
                continue;
            }
            me.listed(".");
            let decided = me.no_other_heartbeats();
            if decided.contains("claim") {
                claims.push(second);
                me.done(Done::Claimed { partition: 0.into(), outcome: ClaimOutcome::Lost { by: None } });
            }
        }
        assert!((5..=15).contains(&claims.len()), "{claims:?}");
    }

    #[test]
    fn a_long_start_is_reported_once() {
        let mut me = Loop::without_handoffs(500);
        let mut reports = Vec::new();
        for second in 0..30 {
            if me.after(1).contains("list") {
                let owned = |partition: u32| me.snapshot.owned.contains_key(&partition.into());
                let listing: String = (0..500).map(|partition| if owned(partition) { 'm' } else { '.' }).collect();
                let decided = me.listed(&listing);
                if decided.contains("SlowStart") {
                    reports.push(second);
                }
                me.wins(claimed(&decided).as_str().parse().unwrap(), 1);
            }
        }
        assert!(
            matches!(reports[..], [10..=13]),
            "once, when the instances that start together are known: {reports:?}"
        );
    }

    #[test]
    fn a_short_start_is_not_reported() {
        let mut me = Loop::started(BalancerConfig::default(), 100);
        for _ in 0..30 {
            if me.after(1).contains("list") {
                me.listed("");
                assert!(!me.no_other_heartbeats().contains("SlowStart"));
            }
        }
    }
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
        while !me.after(1).contains("list") {}
        me.done(Done::Listed(Ok(seen(0, me.now))));
    }
    while !me.after(1).contains("list") {}
    let listed = me.now;
    me.done(Done::Listed(Ok(seen(57, me.now))));
    while !me.after(1).contains("list") {}
    let waited = me.now.saturating_sub(listed);
    assert!((5 * SECOND..=7 * SECOND).contains(&waited), "62 s after the last renewal, not after {waited:?}");
}
