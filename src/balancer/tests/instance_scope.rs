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
