//! Shutdown with `OnShutdown::Release`.

use super::*;

#[test]
fn all_partitions_are_released() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    assert_eq!(
        me.command(LoopCommand::Shutdown),
        "Releasing 0 shutdown, release 0, Releasing 1 shutdown, release 1, end heartbeat"
    );
    let released = |partition: u32| Done::Released { partition: partition.into(), outcome: ReleaseOutcome::Released };
    assert_eq!(me.done(released(0)), "Released 0");
    assert_eq!(me.done(released(1)), "Released 1");
    assert_eq!(me.done(Done::HeartbeatEnded(Ok(()))), "ended, kept 0, unreleased 0");
}

#[test]
fn partitions_not_released_in_time_are_left() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    me.command(LoopCommand::Shutdown);
    assert_eq!(me.after(19), "");
    assert_eq!(me.state.next_wake(), Some(me.now + SECOND));
    assert_eq!(me.after(1), "NotReleased, ended, kept 0, unreleased 2");
}

#[test]
fn nothing_prolongs_a_shutdown() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.command(LoopCommand::Shutdown);
    me.after(10);
    for command in [LoopCommand::Shutdown, LoopCommand::Keep, LoopCommand::StopClaiming] {
        assert_eq!(me.command(command), "");
    }
    assert_eq!(me.after(10), "NotReleased, ended, kept 0, unreleased 1");
}

#[test]
fn a_late_win_is_released() {
    let mut me = Loop::claiming(BalancerConfig::default());
    assert_eq!(me.command(LoopCommand::Shutdown), "end heartbeat");
    assert_eq!(me.wins(0, 1), "Claimed 0, Releasing 0 shutdown, release 0");
}

#[test]
fn nothing_is_claimed_after_stop_claiming() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    assert_eq!(me.command(LoopCommand::StopClaiming), "");
    assert_eq!(me.after(0), "end heartbeat", "other instances leave no share to it");
    assert_eq!(me.after(60), "", "no cycle");
}

#[test]
fn a_later_incarnation_has_no_effect() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.after(30);
    me.command(LoopCommand::Shutdown);
    let replaced = ClaimOutcome::Replaced { by: incarnation(2) };
    let outcome = me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome: replaced });
    assert!(!outcome.contains("replaced"), "{outcome}");
}

/// One request: the others find what it released when they list.
#[test]
fn the_end_waits_for_one_light_of_the_beacon() {
    let ending = || {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.has_beacon = true;
        me.command(LoopCommand::Shutdown);
        me.done(Done::HeartbeatEnded(Ok(())));
        let released = Done::Released { partition: 0.into(), outcome: ReleaseOutcome::Released };
        assert_eq!(me.done(released), "Released 0, light beacon");
        me
    };
    let mut me = ending();
    assert_eq!(me.after(4), "");
    assert_eq!(me.done(Done::BeaconLit(Ok(None))), "ended, kept 0, unreleased 0");
    let mut me = ending();
    assert_eq!(me.state.next_wake(), Some(me.now + 5 * SECOND));
    assert_eq!(me.after(5), "ended, kept 0, unreleased 0", "for no longer than a request may take");
    assert_eq!(ending().done(Done::BeaconLit(Err(unavailable()))), "ended, kept 0, unreleased 0");
}

#[test]
fn a_request_for_a_handoff_is_ignored_at_the_end() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert!(me.after(30).contains("renew 0"));
    me.command(LoopCommand::Shutdown);
    let record = OwnershipRecord { handoff_to: Some(owner("x")), ..record("me") };
    let lease = Lease::of(0.into(), record, ETag::new("renewed"), me.now, 1);
    let renewed = Done::Renewed { partition: 0.into(), epoch: 1, outcome: ClaimOutcome::Won(lease) };
    assert_eq!(me.done(renewed), "release 0");
}
