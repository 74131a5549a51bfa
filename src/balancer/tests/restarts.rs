//! Shutdown with `OnShutdown::Keep`, and owners that are away for a restart.

use super::*;

fn kept(me: &mut Loop, partition: u32) -> String {
    let outcome = ClaimOutcome::Won(me.lease(partition, 1));
    me.done(Done::Kept { partition: partition.into(), outcome })
}

#[test]
fn all_leases_are_renewed_once_more_and_kept() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    assert_eq!(me.command(LoopCommand::Keep), "end heartbeat, keep 0, keep 1");
    me.done(Done::HeartbeatEnded(Ok(())));
    assert_eq!(kept(&mut me, 0), "Kept 0");
    assert_eq!(kept(&mut me, 1), "Kept 1, ended, kept 2, unreleased 0");
}

#[test]
fn a_lease_that_cannot_be_kept_is_left() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    me.command(LoopCommand::Keep);
    me.done(Done::HeartbeatEnded(Ok(())));
    kept(&mut me, 0);
    let outcome = ClaimOutcome::Indeterminate(unavailable());
    let ended = me.done(Done::Kept { partition: 1.into(), outcome });
    assert!(ended.ends_with("ended, kept 1, unreleased 1"), "{ended}");
}

#[test]
fn keeping_waits_for_the_current_renewal() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert!(me.after(30).contains("renew 0"));
    assert_eq!(me.command(LoopCommand::Keep), "end heartbeat");
    assert_eq!(me.renewed(0, 1), "keep 0");
}

#[test]
fn a_draining_partition_is_released() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    me.step(Happened::Hub([0.into()].into()));
    me.after(12);
    assert_eq!(me.listed("mm"), "Releasing 1 partition_removed");
    assert_eq!(me.command(LoopCommand::Keep), "end heartbeat, keep 0, release 1");
}

#[test]
fn a_late_win_is_released() {
    let mut me = Loop::claiming(BalancerConfig::default());
    assert_eq!(me.command(LoopCommand::Keep), "end heartbeat");
    assert_eq!(me.wins(0, 1), "Claimed 0, Releasing 0 shutdown, release 0");
}

/// Lists a group in which `x` owns two of three partitions and is away, and `me` owns one.
fn with_one_away(me: &mut Loop) -> String {
    let away = OwnershipRecord { away: true, ..record("x") };
    let seen = |partition: u32, record: OwnershipRecord, now| {
        Ownership::new(
            partition.into(),
            record,
            ETag::new("seen"),
            Duration::ZERO,
            (datetime!(2026-01-01 00:00:00 UTC), now),
        )
    };
    let listing = vec![seen(0, record("me"), me.now), seen(1, away.clone(), me.now), seen(2, away, me.now)];
    me.done(Done::Listed(Ok(listing)))
}

#[test]
fn an_away_owner_is_reported_and_not_stolen_from() {
    let mut me =
        Loop::started(BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::Greedy), 3);
    me.after(0);
    assert_eq!(with_one_away(&mut me), "list heartbeats");
    assert_eq!(me.no_other_heartbeats(), "x away with 2, claim 0");
    assert_eq!(me.wins(0, 1), "Claimed 0");
    me.after(12);
    assert_eq!(with_one_away(&mut me), "");
    assert_eq!(me.snapshot.away(), [(owner("x"), 2)].into());
    me.after(30);
    assert_eq!(me.listed("mxx"), "x away with 0");
}
