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

#[test]
fn a_stalled_runtime_claims_nothing() {
    let mut me = Loop::started(BalancerConfig::default(), 1);
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    assert_eq!(me.after(0), "remove heartbeat, list");
    assert_eq!(me.listed("."), "");
}
