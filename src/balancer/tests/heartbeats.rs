//! When an instance has a heartbeat, and what it does about the heartbeats of others.

use super::*;

/// Lists the heartbeat of an owner, last sent so many seconds ago.
fn list_heartbeat(me: &mut Loop, age: u64) -> String {
    me.wake_until("list");
    me.listed("..");
    let record = HeartbeatRecord::new(owner("gone"), incarnation(1), 60 * SECOND);
    let seen = Heartbeat::new(record, ETag::new("heartbeat"), Duration::from_secs(age), me.now);
    let decided = me.done(Done::HeartbeatsListed(Ok(vec![seen])));
    let claim = decided.split(", ").find_map(|action| action.strip_prefix("claim ")).map(str::to_owned);
    if let Some(partition) = claim {
        let partition: u32 = partition.parse().unwrap();
        me.done(Done::Claimed { partition: partition.into(), outcome: ClaimOutcome::Lost { by: None } });
    }
    decided
}

#[test]
fn old_heartbeats_are_deleted_unless_forbidden() {
    let mut me = Loop::started(BalancerConfig::default(), 2);
    assert!(!list_heartbeat(&mut me, 600).contains("delete heartbeats"), "for ten lease durations they do no harm");
    assert!(list_heartbeat(&mut me, 601).contains("delete heartbeats"));
    assert_eq!(me.done(Done::HeartbeatsDeleted(Ok(vec![owner("gone")]))), "HeartbeatDeleted");
    assert!(list_heartbeat(&mut me, 601).contains("delete heartbeats"));
    assert_eq!(me.done(Done::HeartbeatsDeleted(Err(unavailable()))), "StaleHeartbeatsStay");
    assert!(list_heartbeat(&mut me, 601).contains("delete heartbeats"));
    let forbidden = Error::new(ErrorKind::Unauthorized, "no deletions");
    assert_eq!(me.done(Done::HeartbeatsDeleted(Err(forbidden))), "StaleHeartbeatsStay");
    assert!(!list_heartbeat(&mut me, 601).contains("delete heartbeats"));
}

/// Others would leave a share to it.
#[test]
fn an_instance_that_may_own_nothing_has_no_heartbeat() {
    let began = Happened::Began([0.into()].into());
    let mut me = Loop::new(BalancerConfig::default().with_max_partitions(0));
    assert_eq!(me.step(began), "");
    assert_eq!(me.after(0), "list");
}

/// Its ownerships show that it is alive.
#[test]
fn an_owner_needs_no_heartbeat() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    for _ in 0..10 {
        let decided = me.after(10);
        assert!(!decided.contains("heartbeat"), "{decided}");
        if decided.contains("list") {
            me.listed("m");
        }
        if decided.contains("renew") {
            me.renewed(0, 1);
        }
    }
}

#[test]
fn a_heartbeat_is_sent_four_times_per_lease_duration() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    for _ in 0..5 {
        assert!(!me.after(14).contains("heartbeat"));
        assert!(me.after(1).contains("heartbeat"));
        me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
    }
}

/// More often than leases, because all leases may depend on it.
#[test]
fn a_heartbeat_that_fails_is_repeated_within_4_s() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.after(15);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let failed_at = me.now;
        me.done(Done::HeartbeatSent(Err(unavailable())));
        me.wake_until("heartbeat");
        waits.push(me.now.saturating_sub(failed_at).as_secs());
    }
    assert!(waits[0] <= 2 && waits[5] > waits[0] && waits.iter().all(|wait| *wait <= 5), "{waits:?}");
}

#[test]
fn a_late_response_ends_no_other_heartbeat() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    assert!(me.after(15).contains("heartbeat"));
    assert!(!me.after(30).contains("heartbeat"), "it is under way");
    me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
    assert!(me.after(0).contains("heartbeat"), "the last one was sent 30 s ago");
}
