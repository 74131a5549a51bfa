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
    assert_eq!(me.snapshot.releasing, [(1.into(), ReleaseReason::PartitionRemoved)].into());
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

/// At a shutdown until the loop ends.
#[test]
fn a_release_is_repeated_for_four_request_timeouts() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    let end = ProcessingEnd::Stopped { settled: true, cooldown: Duration::ZERO };
    let stopped = LoopCommand::ProcessingEnded { partition: 0.into(), epoch: 1, end };
    assert_eq!(me.release_limit(Happened::Commanded(stopped)), Some(20 * SECOND));
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert_eq!(me.release_limit(Happened::Commanded(LoopCommand::Shutdown)), None);
}

/// Returns a loop that drains partition 1, which the event hub no longer has.
fn draining() -> Loop {
    let mut me = Loop::owning(BalancerConfig::default(), 2);
    me.step(Happened::Hub([0.into()].into()));
    me.after(12);
    assert_eq!(me.listed("mm"), "Releasing 1 partition_removed");
    me
}

#[test]
fn only_a_cooldown_keeps_off_a_drained_partition() {
    for cooldown in [0, 100] {
        let mut me = draining();
        let end = ProcessingEnd::Stopped { settled: true, cooldown: Duration::from_secs(cooldown) };
        let ended = LoopCommand::ProcessingEnded { partition: 1.into(), epoch: 1, end };
        assert_eq!(me.command(ended), "release 1");
        assert_eq!(me.state.partitions.setbacks.contains_key(&1.into()), cooldown > 0);
    }
}

#[test]
fn a_drained_partition_without_a_handler_is_released() {
    let mut me = draining();
    assert_eq!(me.command(LoopCommand::Unprocessed { partition: 0.into() }), "", "it is not drained");
    assert_eq!(me.command(LoopCommand::Unprocessed { partition: 1.into() }), "release 1");
}

#[test]
fn a_release_without_an_outcome_counts_at_the_end() {
    let unknown = |partition: u32| Done::Released {
        partition: partition.into(),
        outcome: ReleaseOutcome::Indeterminate(unavailable()),
    };
    let mut me = Loop::owning(BalancerConfig::default(), 3);
    assert_eq!(me.stopped(0, true), "Releasing 0 requested, release 0");
    assert!(me.done(unknown(0)).starts_with("ReleaseIndeterminate"));
    me.command(LoopCommand::Shutdown);
    me.done(Done::HeartbeatEnded(Ok(())));
    me.done(unknown(1));
    assert!(me.done(unknown(2)).ends_with("ended, kept 0, unreleased 2"));
}
