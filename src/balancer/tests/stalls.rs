//! Stalled handlers and a stalled runtime.

use super::*;

fn stalled(partition: u32) -> Stalled {
    Stalled { partitions: [partition.into()].into(), ..Stalled::default() }
}

#[test]
fn stalled_partitions_are_reported_and_kept() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    assert_eq!(me.step(Happened::Liveness(stalled(1))), "Stalled");
    assert_eq!(me.snapshot.stalled, stalled(1));
    assert_eq!((me.snapshot.owned.len(), me.snapshot.releasing.len()), (2, 0));
    assert_eq!(me.step(Happened::Liveness(Stalled::default())), "Recovered");
}

/// While it exists, other instances leave a share to this one, which does not claim it.
#[test]
fn an_end_of_the_heartbeat_that_fails_is_repeated() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    assert_eq!(me.after(0), "end heartbeat, list");
    let failed = |me: &mut Loop| me.done(Done::HeartbeatEnded(Err(unavailable())));
    let next_wake = |me: &Loop| me.state.heartbeat.next_wake(&me.state.context, &me.state.partitions);
    assert_eq!(next_wake(&me), None, "it is under way");
    assert_eq!(failed(&mut me), "HeartbeatNotEnded");
    assert_eq!(next_wake(&me), Some(me.now + 15 * SECOND / 2));
    assert!(!me.after(7).contains("end heartbeat") && me.after(1).contains("end heartbeat"));
    assert_eq!(next_wake(&me), None, "it is under way again");
    assert_eq!(me.command(LoopCommand::Shutdown), "", "it is under way");
    assert_eq!(failed(&mut me), "HeartbeatNotEnded, end heartbeat", "the shutdown repeats it while that may help");
    assert!(failed(&mut me).starts_with("HeartbeatNotEnded, ended"));
}

/// An old heartbeat of an owner does no harm.
#[test]
fn an_owner_that_recovers_need_not_end_its_heartbeat() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    assert!(me.after(0).contains("end heartbeat"));
    me.done(Done::HeartbeatEnded(Err(unavailable())));
    me.step(Happened::Liveness(Stalled::default()));
    assert_eq!(me.state.heartbeat.next_wake(&me.state.context, &me.state.partitions), None);
}

#[test]
fn a_stalled_runtime_claims_nothing() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    assert_eq!(me.after(0), "end heartbeat, list");
    assert_eq!(me.listed("."), "");
}
