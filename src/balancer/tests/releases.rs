//! Releases of single partitions.

use super::*;

#[test]
fn a_partition_drains_before_it_is_released() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    me.step(Happened::Hub([0.into()].into()));
    assert_eq!(me.after(12), "list");
    assert_eq!(me.listed("mm"), "Releasing 1 partition_removed");
    assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
    assert_eq!(me.snapshot.releasing, [(1.into(), ReleaseReason::PartitionRemoved)].into());
    assert_eq!(me.stopped(1, true), "release 1");
    let released = Done::Released { partition: 1.into(), outcome: ReleaseOutcome::Released };
    assert_eq!(me.done(released), "Released 1");
    assert_eq!(me.snapshot.releasing, [].into());
}

#[test]
fn a_release_does_not_wait_for_a_stuck_handler() {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    me.step(Happened::Hub([0.into()].into()));
    me.after(12);
    me.listed("mm");
    assert!(me.after(29).contains("renew 1"), "10 s, and 20 s for its last checkpoint");
    me.renewed(1, 1);
    assert_eq!(me.after(1), "release 1");
}

#[test]
fn a_release_waits_for_the_current_renewal() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert!(me.after(30).contains("renew 0"));
    assert_eq!(me.stopped(0, true), "Releasing 0 requested");
    assert_eq!(me.snapshot.owned, [].into());
    assert_eq!(me.renewed(0, 1), "release 0");
}

#[test]
fn commands_for_an_earlier_epoch_are_ignored() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    let end = ProcessingEnd::Stopped { settled: true, cooldown: Duration::ZERO };
    assert_eq!(me.command(LoopCommand::ProcessingEnded { partition: 0.into(), epoch: 9, end }), "");
    assert_eq!(me.lost(0, 9), "");
    assert_eq!(me.lost(0, 1), "Lost 0");
}

#[test]
fn a_released_partition_is_not_reclaimed_at_once() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.stopped(0, true);
    me.done(Done::Released { partition: 0.into(), outcome: ReleaseOutcome::Released });
    assert!(me.after(12).contains("list"));
    assert_eq!(me.listed("-"), "");
}
