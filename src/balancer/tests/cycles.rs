//! Cycles: when they start, what they wait for, and what a listing changes.

use super::*;

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
    assert_eq!(me.after(12), "list");
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

#[test]
fn a_late_cycle_is_reported() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    assert_eq!(me.after(6), "CycleLate, list");
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
    assert_eq!(me.after(20), "renew 0");
    assert_eq!(me.listed("x"), "", "the current renewal will show it");
    assert_eq!(me.renewed(0, 1), "");
    assert_eq!(me.after(15), "list");
    assert_eq!(me.listed("x"), "Lost 0");
    assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Other(owner("x"))));
}
