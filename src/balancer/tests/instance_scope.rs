//! Leases that the heartbeat keeps alive.

use super::*;

fn config() -> BalancerConfig {
    BalancerConfig::default().with_lease_scope(LeaseScope::Instance)
}

fn lease(me: &Loop, partition: u32) -> Lease {
    let record = OwnershipRecord { scope: LeaseScope::Instance, ..record("me") };
    Lease::of(partition.into(), record, ETag::new("won"), me.now, 1)
}

fn owning() -> Loop {
    let mut me = Loop::claiming(config());
    let outcome = ClaimOutcome::Won(lease(&me, 0));
    assert_eq!(me.done(Done::Claimed { partition: 0.into(), outcome }), "Claimed 0");
    me
}

#[test]
fn only_the_heartbeat_is_renewed() {
    let mut me = owning();
    assert_eq!(me.after(30), "heartbeat, CycleLate, list with heartbeats");
    assert_eq!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written))), "");
    assert!(!me.after(30).contains("renew"));
}

#[test]
fn all_leases_are_rewritten_after_declared_dead() {
    let mut me = owning();
    me.after(30);
    assert_eq!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::DeclaredDead { by: None }))), "DeclaredDead");
    assert_eq!(me.after(0), "heartbeat", "before the heartbeat, a record could be taken over again");
    me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
    assert_eq!(me.after(0), "renew 0");
    let outcome = ClaimOutcome::Won(lease(&me, 0));
    me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
    assert_eq!(me.after(1), "");
}

#[test]
fn nothing_is_claimed_that_no_heartbeat_would_keep() {
    let mut me = Loop::started(config(), 1);
    assert!(me.after(15).contains("heartbeat"));
    me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::DeclaredDead { by: None })));
    assert_eq!(me.listed("."), "");
    assert!(me.after(0).contains("heartbeat"));
    me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
    assert_eq!(me.listed("."), "list heartbeats");
    assert_eq!(me.no_other_heartbeats(), "claim 0");
}

fn failed(me: &mut Loop) -> String {
    me.done(Done::HeartbeatSent(Err(unavailable())))
}

/// The lease scope of the records changes with it, so that other instances judge each by its own age.
#[test]
fn a_late_heartbeat_is_replaced_by_renewals() {
    let mut me = owning();
    let first = me.after(30);
    assert!(first.contains("heartbeat"), "{first}");
    assert_eq!(failed(&mut me), "KeepAliveFailed");
    assert!(!me.after(14).contains("renew"));
    failed(&mut me);
    let late = me.after(1);
    assert!(late.contains("HeartbeatLate") && late.contains("renew 0"), "{late}");
    assert_eq!(me.snapshot.lease_scope, LeaseScope::Partition);
    me.renewed(0, 1);
    assert!(me.after(20).contains("heartbeat"), "it is tried on");
    assert!(!failed(&mut me).contains("HeartbeatLate"));
    assert!(me.after(10).contains("renew 0"), "by its age");
    me.renewed(0, 1);

    assert_eq!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written))), "HeartbeatBack");
    assert_eq!(me.snapshot.lease_scope, LeaseScope::Instance);
    assert!(me.after(1).contains("renew 0"), "with the other lease scope");
    let outcome = ClaimOutcome::Won(lease(&me, 0));
    me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
    assert!(!me.after(29).contains("renew"));
}

/// A write may have been applied although its outcome is unknown. From then on the heartbeat keeps nothing alive.
#[test]
fn no_heartbeat_counts_after_a_rewrite_was_sent() {
    let mut me = owning();
    me.after(30);
    failed(&mut me);
    assert!(me.after(15).contains("renew 0"));
    let outcome = ClaimOutcome::Indeterminate(unavailable());
    me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
    me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
    let before = me.state.oldest_lease_age(me.now);
    assert!(before >= 45 * SECOND, "{before:?}");
    assert!(me.after(5).contains("renew 0"));
    let outcome = ClaimOutcome::Won(lease(&me, 0));
    me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
    assert_eq!(me.state.oldest_lease_age(me.now), Duration::ZERO);
}

#[test]
fn a_foreign_owner_ends_the_instance_scope() {
    let mut me = owning();
    me.after(12);
    let foreign = OwnershipRecord::owned_by(owner("python"), None);
    let own = OwnershipRecord { scope: LeaseScope::Instance, ..record("me") };
    let seen = |partition: u32, record, now| {
        Ownership::new(
            partition.into(),
            record,
            ETag::new("seen"),
            Duration::ZERO,
            (datetime!(2026-01-01 00:00:00 UTC), now),
        )
    };
    me.step(Happened::Hub([0.into(), 1.into()].into()));
    let listing = vec![seen(0, own, me.now), seen(1, foreign, me.now)];
    let decided = me.done(Done::Listed(Ok(listing)));
    assert_eq!(decided, "ScopeGivenUp");
    assert_eq!(me.snapshot.lease_scope, LeaseScope::Partition);
    assert!(me.after(0).contains("renew 0"), "with the other lease scope");
}

/// After the end of a heartbeat other instances declare nothing, and the next one does not show that they could.
#[test]
fn a_claim_under_way_counts_on_no_ended_heartbeat() {
    let mut me = Loop::claiming(config());
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    assert!(me.after(0).contains("end heartbeat"));
    let outcome = ClaimOutcome::Won(lease(&me, 0));
    me.done(Done::Claimed { partition: 0.into(), outcome });
    me.done(Done::HeartbeatEnded(Ok(())));
    assert!(me.after(1).contains("heartbeat"), "it keeps a lease alive again");
    me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
    assert!(me.after(1).contains("renew 0"));
    let outcome = ClaimOutcome::Won(lease(&me, 0));
    me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
    assert!(!me.after(1).contains("renew 0"));
}

#[test]
fn leases_that_are_kept_get_another_heartbeat() {
    let mut me = owning();
    assert_eq!(me.command(LoopCommand::Keep), "heartbeat, keep 0");
    let mut me = owning();
    assert!(me.after(15).contains("heartbeat"));
    assert_eq!(me.command(LoopCommand::Keep), "keep 0", "one is under way");
}

#[test]
fn the_end_of_an_outage_brings_the_heartbeat_forward() {
    let mut me = owning();
    let (at, silence) = (me.now, 40 * SECOND);
    me.step(Happened::OutageEnded { at, silence });
    assert!(!me.after(0).contains("heartbeat"), "none has failed");
    me.after(30);
    failed(&mut me);
    me.after(2);
    failed(&mut me);
    assert!(!me.after(0).contains("heartbeat"));
    let (at, silence) = (me.now, 40 * SECOND);
    me.step(Happened::OutageEnded { at, silence });
    assert!(me.after(0).contains("heartbeat"));
}
