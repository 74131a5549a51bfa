//! The owner's side of a handoff.

use super::*;

/// Returns partition 0 as listed, with a handoff request of `x`.
fn requested(me: &Loop) -> Ownership {
    let record = OwnershipRecord { handoff_to: Some(owner("x")), ..record("me") };
    Ownership::new(
        0.into(),
        record,
        ETag::new("requested"),
        Duration::ZERO,
        (datetime!(2026-01-01 00:00:00 UTC), me.now),
    )
}

/// Lists the request, and whether the requesting instance has a heartbeat.
fn receives_request(me: &mut Loop, is_there: bool) -> String {
    me.after(12);
    let listing = vec![requested(me)];
    assert_eq!(me.done(Done::Listed(Ok(listing))), "list heartbeats");
    let heartbeat = HeartbeatRecord::new(owner("x"), incarnation(1), 60 * SECOND);
    let heartbeat = Heartbeat::new(heartbeat, ETag::new("heartbeat"), Duration::ZERO, me.now);
    let heartbeats = if is_there { vec![heartbeat] } else { Vec::new() };
    me.done(Done::HeartbeatsListed(Ok(heartbeats)))
}

#[test]
fn the_owner_acknowledges_and_drains() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert_eq!(receives_request(&mut me, true), "HandoffReceived 0, Releasing 0 handed_over");
    assert_eq!(me.snapshot.owned, [].into());
    assert_eq!(me.snapshot.partitions[0].handoff_to, Some(owner("x")));
    assert_eq!(me.after(0), "renew 0 draining");
    assert_eq!(me.stopped(0, true), "", "the acknowledgment is under way");
    assert_eq!(me.renewed(0, 1), "release 0");
}

#[test]
fn a_released_partition_is_shown_as_reserved() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    receives_request(&mut me, true);
    me.after(0);
    me.stopped(0, true);
    me.renewed(0, 1);
    me.done(Done::Released { partition: 0.into(), outcome: ReleaseOutcome::Released });
    let shown = &me.snapshot.partitions[0];
    assert_eq!((&shown.owner, &shown.handoff_to), (&PartitionOwner::Released, &Some(owner("x"))));
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    receives_request(&mut me, true);
    let end = ProcessingEnd::Lost { by: Some(owner("y")) };
    me.command(LoopCommand::ProcessingEnded { partition: 0.into(), epoch: 1, end });
    let shown = &me.snapshot.partitions[0];
    assert_eq!((&shown.owner, &shown.handoff_to), (&PartitionOwner::Other(owner("y")), &None));
}

/// The other instance waits for so long.
#[test]
fn a_handoff_is_repeated_for_a_lease_duration() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    receives_request(&mut me, true);
    me.after(0);
    me.stopped(0, true);
    let outcome = ClaimOutcome::Won(me.lease(0, 1));
    let renewed = Happened::Done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
    assert_eq!(me.release_limit(renewed), Some(60 * SECOND));
}

/// The instance that requested the partition polls it.
#[test]
fn a_handoff_needs_no_light_of_the_beacon() {
    for (ends, expected) in [(false, "Released 0"), (true, "Released 0, light beacon")] {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.has_beacon = true;
        receives_request(&mut me, true);
        me.after(0);
        me.stopped(0, true);
        me.renewed(0, 1);
        if ends {
            me.command(LoopCommand::Shutdown);
        }
        let released = Done::Released { partition: 0.into(), outcome: ReleaseOutcome::Released };
        assert_eq!(me.done(released), expected);
    }
}

#[test]
fn a_failed_last_batch_is_reported() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    receives_request(&mut me, true);
    assert_eq!(me.stopped(0, false), "DuplicatesPossible 0 checkpoint_not_written, release 0");
}

/// The handlers have 10 s to stop, and four requests of 5 s each the time to write the last checkpoint.
#[test]
fn a_handler_that_runs_too_long_is_reported() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    receives_request(&mut me, true);
    assert_eq!(me.after(0), "renew 0 draining");
    assert_eq!(me.renewed(0, 1), "");
    assert!(me.after(25).starts_with("renew 0 draining"));
    assert_eq!(me.after(5), "DuplicatesPossible 0 handler_still_running");
    assert_eq!(me.renewed(0, 1), "release 0", "the renewal was under way");
}

#[test]
fn a_request_of_a_dead_owner_is_removed() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert_eq!(receives_request(&mut me, false), "");
    assert_eq!(me.after(0), "renew 0");
    assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
}

#[test]
fn a_renewal_also_detects_the_request() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.after(30);
    let lease = Lease::of(0.into(), requested(&me).record, ETag::new("renewed"), me.now, 1);
    let met = Done::Renewed { partition: 0.into(), epoch: 1, outcome: ClaimOutcome::Won(lease) };
    assert_eq!(me.done(met), "HandoffReceived 0, Releasing 0 handed_over");
    assert_eq!(me.snapshot.partitions[0].handoff_to, Some(owner("x")));
}

#[test]
fn requests_are_ignored_without_a_drain_timeout() {
    let mut me = Loop::with_drain(BalancerConfig::default(), 0);
    me.step(Happened::Began([0.into()].into()));
    me.after(0);
    assert_eq!(me.listed("."), "claim 0");
    me.wins(0, 1);
    me.after(12);
    let listing = vec![requested(&me)];
    assert_eq!(me.done(Done::Listed(Ok(listing))), "");
}
