//! How fast unowned partitions are claimed.

use std::collections::BTreeSet;

use super::*;
use crate::store::beacon::Beacon;

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
            if decided.contains(&format!("claim {partition},")) || decided.ends_with(&format!("claim {partition}")) {
                if partition < 3 {
                    me.wins(partition, 1);
                } else {
                    let outcome = ClaimOutcome::Lost { by: None };
                    me.done(Done::Claimed { partition: partition.into(), outcome });
                }
            }
        }
        me.wake_until("list");
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
    assert_eq!(me.after(0), "list");
    let waits = [(); 4].map(|()| {
        let partition = claimed(&me.listed("....."));
        me.done(Done::Claimed { partition, outcome: throttled() });
        me.wake_until("list")
    });
    assert!(matches!(waits, [2..=3, 4..=5, 8..=10, 10..=12]), "{waits:?}");
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
        me.wake_until("list")
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
            let shown: String = (0..60).map(|partition| if owned.contains(&partition) { 'm' } else { '.' }).collect();
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
        me.wake_until("list");
        me.listed(".....");
        assert_eq!(me.no_other_heartbeats(), "", "the first claim is under way");
    }
    me.wins(first.as_str().parse().unwrap(), 1);
    me.wake_until("list");
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
    assert!(matches!(reports[..], [10..=13]), "once, when the instances that start together are known: {reports:?}");
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
