//! Which operations the storage keeps failing, as the health of the instance shows it.

use super::*;

#[test]
fn failed_cycles_are_shown_until_one_succeeds() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.after(0);
    let sent = me.now;
    for wait in [1, 2] {
        me.now += SECOND;
        me.done(Done::Listed(Err(unavailable())));
        assert_eq!(me.state.storage_failures().cycles, Some(sent), "since the first one was sent");
        assert!(me.after(wait).contains("list"));
    }
    me.listed("x");
    assert_eq!(me.state.storage_failures().cycles, None);
}

#[test]
fn an_instance_that_claims_nothing_needs_no_cycles() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.after(0);
    me.done(Done::Listed(Err(unavailable())));
    me.command(LoopCommand::StopClaiming);
    assert_eq!(me.state.storage_failures().cycles, None);
}

#[test]
fn a_failed_heartbeat_is_shown_until_it_is_written() {
    let mut me = Loop::new(BalancerConfig::default());
    me.step(Happened::Began([0.into()].into()));
    let sent = me.now;
    let shown = |me: &Loop| me.state.storage_failures().heartbeat.map(|(since, error)| (since, error.kind()));
    assert_eq!(shown(&me), None, "the outcome is not known yet");
    for _ in 0..2 {
        me.now += SECOND;
        me.done(Done::HeartbeatSent(Err(unavailable())));
        assert_eq!(shown(&me), Some((sent, ErrorKind::Unavailable)));
        me.wake_until("heartbeat");
    }
    me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
    assert_eq!(shown(&me), None);
}

/// Fails the next claim of partition 0. All partitions are listed as unowned.
fn fail_claim(me: &mut Loop) {
    me.wake_until("list");
    me.listed(".");
    assert!(me.no_other_heartbeats().contains("claim 0"));
    me.done(Done::Claimed { partition: 0.into(), outcome: ClaimOutcome::Indeterminate(unavailable()) });
}

fn failing_claims(me: &Loop) -> Vec<PartitionId> {
    me.state.storage_failures().claims.into_keys().collect()
}

#[test]
fn a_claim_that_fails_again_and_again_is_shown() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    fail_claim(&mut me);
    assert_eq!(failing_claims(&me), [], "once");
    fail_claim(&mut me);
    assert_eq!(failing_claims(&me), [0.into()]);
    me.step(Happened::Hub([1.into()].into()));
    assert_eq!(failing_claims(&me), [], "the event hub does not have it anymore");
    me.step(Happened::Hub([0.into()].into()));
    me.wake_until("list");
    me.listed("x");
    assert_eq!(failing_claims(&me), [], "another instance could claim it");
}

/// The waits begin again with the shortest one.
#[test]
fn a_live_owner_ends_a_series_of_failed_claims() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    (0..4).for_each(|_| fail_claim(&mut me));
    let failed_at = me.now;
    while me.now < failed_at + 12 * SECOND {
        if me.after(1).contains("list") {
            me.listed("x");
        }
    }
    let claimed_after = claimed_after(&mut me, failed_at);
    assert!(matches!(claimed_after, Some(20..=21)), "an owner does not shorten the wait: {claimed_after:?}");
    let mut me = Loop::started(BalancerConfig::default(), 1);
    (0..3).for_each(|_| fail_claim(&mut me));
    me.after(30);
    me.listed("x");
    fail_claim(&mut me);
    assert_eq!(failing_claims(&me), [], "it is the first one again");
}

/// Returns how many seconds after this moment the partition, which is listed as unowned, is claimed.
fn claimed_after(me: &mut Loop, since: Duration) -> Option<u64> {
    for _ in 0..60 {
        if me.after(1).contains("list") && me.listed(".") == "list heartbeats" {
            let decided = me.no_other_heartbeats();
            if decided.contains("claim 0") {
                return Some(me.now.saturating_sub(since).as_secs());
            }
        }
    }
    None
}
