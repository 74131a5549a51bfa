//! The requesting instance's side of a handoff.

use super::*;
use crate::model::OwnershipRecord;
use crate::store::Claim;
use crate::store::handoff::{Handoff, HandoffRequestOutcome, HandoffStatus};

/// Returns a handoff of partition 1, which was requested from `x`.
fn handoff() -> Handoff {
    let record = OwnershipRecord::owned_by(owner("x"), None);
    let durations = LeaseDurations::new(60 * SECOND, 180 * SECOND);
    Handoff::requested(1.into(), &record, durations, Duration::ZERO).unwrap()
}

fn claim() -> Claim {
    Claim::unowned(1.into())
}

/// Creates a loop that has requested partition 1 from `x`.
fn with_requested_handoff() -> (Loop, Handoff) {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
    assert_eq!(me.after(12), "list");
    assert_eq!(me.listed("mxx"), "");
    let handoff = handoff();
    let standing = HandoffRequestOutcome::Requested(handoff.clone());
    assert_eq!(me.done(Done::HandoffRequested { partition: 1.into(), outcome: Ok(standing) }), "HandoffRequested 1");
    (me, handoff)
}

fn polled(me: &mut Loop, handoff: &Handoff, outcome: HandoffStatus<Claim>) -> String {
    me.done(Done::HandoffPolled { handoff: handoff.clone(), outcome: Ok(outcome) })
}

#[test]
fn an_owner_above_its_share_gets_a_request() {
    let mut me = Loop::started(BalancerConfig::default(), 2);
    me.after(0);
    assert_eq!(me.listed("xx"), "", "not in the first cycle");
    assert_eq!(me.after(12), "list");
    me.listed("xx");
    let request = me.no_other_heartbeats();
    assert!(["request handoff 0", "request handoff 1"].contains(&request.as_str()), "{request}");
}

#[test]
fn a_handoff_is_polled_every_second() {
    let (mut me, handoff) = with_requested_handoff();
    assert_eq!(me.snapshot.requested_handoffs, [(1.into(), owner("x"))].into());
    assert_eq!(me.state.partitions.next_wake(&me.state.context), Some(me.now + SECOND));
    assert_eq!(me.after(0), "");
    assert_eq!(me.after(1), "poll handoff 1");
    assert_eq!(me.after(1), "", "a poll is under way");
    assert_eq!(polled(&mut me, &handoff, HandoffStatus::Pending), "");
    assert_eq!(me.after(0), "");
    assert_eq!(me.after(1), "poll handoff 1");
}

/// At most about twenty requests per second.
#[test]
fn many_handoffs_are_polled_less_often() {
    let settings = settings(BalancerConfig::default(), 10);
    assert_eq!([1, 20, 40, 100, 2000].map(|requested| settings.poll_wait(requested).as_secs()), [1, 1, 2, 5, 5]);
}

#[test]
fn a_released_partition_is_claimed() {
    let (mut me, handoff) = with_requested_handoff();
    me.after(5);
    assert_eq!(polled(&mut me, &handoff, HandoffStatus::Ready(claim())), "claim 1");
    assert_eq!(me.wins(1, 2), "Claimed 1");
    assert_eq!(me.snapshot.requested_handoffs, [].into());
}

/// A loop that polled while such a claim took longer than half an interval was woken forever.
#[test]
fn a_partition_being_claimed_is_not_polled() {
    let (mut me, handoff) = with_requested_handoff();
    me.after(5);
    assert_eq!(polled(&mut me, &handoff, HandoffStatus::Ready(claim())), "claim 1");
    assert!(!me.after(6).contains("poll handoff"));
    let lost = Done::Claimed { partition: 1.into(), outcome: ClaimOutcome::Lost { by: Some(owner("x")) } };
    assert_eq!(me.done(lost), "ClaimLost");
    assert!(me.after(1).contains("poll handoff 1"), "its owner renewed it in the meantime");
}

#[test]
fn a_partition_is_stolen_after_the_timeout() {
    let (mut me, handoff) = with_requested_handoff();
    me.after(5);
    assert_eq!(polled(&mut me, &handoff, HandoffStatus::TimedOut(claim())), "claim 1");
    assert_eq!(me.wins(1, 2), "DuplicatesPossible 1 not_acknowledged, Claimed 1");
}

#[test]
fn nothing_is_stolen_after_an_outage() {
    let (mut me, handoff) = with_requested_handoff();
    let (at, silence) = (me.now, 60 * SECOND);
    assert_eq!(me.step(Happened::OutageEnded { at, silence }), "OutageOver");
    me.after(5);
    assert_eq!(polled(&mut me, &handoff, HandoffStatus::TimedOut(claim())), "");
    assert_eq!(me.snapshot.requested_handoffs, [].into());
}

#[test]
fn stop_claiming_cancels_handoffs() {
    let (mut me, _) = with_requested_handoff();
    me.command(LoopCommand::StopClaiming);
    assert_eq!(me.after(5), "end heartbeat");
    assert_eq!(me.snapshot.requested_handoffs, [].into());
}

#[test]
fn a_requested_partition_counts_until_it_is_released() {
    let (mut me, _) = with_requested_handoff();
    me.step(Happened::Hub((0..4).map(PartitionId::from).collect()));
    me.after(12);
    assert_eq!(me.listed("mxxx"), "", "with it, this instance has its share");
    me.step(Happened::Hub([0.into(), 1.into()].into()));
    me.after(12);
    assert_eq!(me.listed("mX"), "list heartbeats");
    assert!(me.no_other_heartbeats().contains("claim 1"), "its owner has expired");
}

/// Lets a poll fail, and returns after how many seconds the next one comes.
fn next_poll_after_failure(me: &mut Loop, handoff: &Handoff) -> usize {
    let failed = Done::HandoffPolled { handoff: handoff.clone(), outcome: Err(unavailable()) };
    assert_eq!(me.done(failed), "Indeterminate");
    (1..100).find(|_| me.after(1).contains("poll handoff 1")).unwrap()
}

#[test]
fn failed_polls_are_repeated_with_growing_waits() {
    let (mut me, handoff) = with_requested_handoff();
    me.after(1);
    assert_eq!([(); 4].map(|()| next_poll_after_failure(&mut me, &handoff)), [1, 2, 4, 8]);
    polled(&mut me, &handoff, HandoffStatus::Pending);
    me.after(1);
    assert_eq!(next_poll_after_failure(&mut me, &handoff), 1, "a poll has succeeded");
}

#[test]
fn a_listing_ends_the_wait_after_failed_polls() {
    let (mut me, handoff) = with_requested_handoff();
    me.after(1);
    for wait in [1, 2, 4, 8] {
        assert_eq!(next_poll_after_failure(&mut me, &handoff), wait);
    }
    me.done(Done::HandoffPolled { handoff, outcome: Err(unavailable()) });
    assert!(!me.after(2).contains("poll handoff"));
    me.listed("mxx");
    assert!(!me.after(0).contains("poll handoff"));
    assert!(me.after(1).contains("poll handoff 1"), "the storage responds again");
}

/// The owner has half a lease duration and a request timeout.
#[test]
fn partitions_are_stolen_again_after_an_outage() {
    for (seconds, expected) in [(94, ""), (95, "claim 1")] {
        let (mut me, handoff) = with_requested_handoff();
        let (at, silence) = (me.now, 60 * SECOND);
        me.step(Happened::OutageEnded { at, silence });
        assert_eq!(handoff.time_to_acknowledge(5 * SECOND), Duration::from_secs(95), "the owner is of another SDK");
        me.now += Duration::from_secs(seconds);
        assert_eq!(polled(&mut me, &handoff, HandoffStatus::TimedOut(claim())), expected, "{seconds}");
    }
}

#[test]
fn a_request_that_is_not_possible_is_planned_again() {
    for (outcome, decided) in [
        (Ok(HandoffRequestOutcome::Lost), ""),
        (Ok(HandoffRequestOutcome::LeaseTooOld), "HandoffNotRequested"),
        (Err(unavailable()), "Indeterminate"),
    ] {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        assert_eq!(me.done(Done::HandoffRequested { partition: 1.into(), outcome }), decided);
        assert_eq!(me.snapshot.requested_handoffs, [].into());
    }
}

/// Whoever is asked notices that the requesting instance is gone.
#[test]
fn a_shutdown_does_not_wait_for_a_request() {
    let mut me = Loop::started(BalancerConfig::default(), 2);
    me.after(0);
    me.listed("xx");
    me.after(12);
    me.listed("xx");
    assert!(me.no_other_heartbeats().starts_with("request handoff"));
    assert_eq!(me.command(LoopCommand::Shutdown), "end heartbeat");
    assert_eq!(me.done(Done::HeartbeatEnded(Ok(()))), "ended, kept 0, unreleased 0");
}

/// The claim is under way, so this instance may still win the partition.
#[test]
fn a_canceled_handoff_is_not_polled_after_a_loss() {
    let (mut me, handoff) = with_requested_handoff();
    me.after(5);
    assert_eq!(polled(&mut me, &handoff, HandoffStatus::Ready(claim())), "claim 1");
    me.command(LoopCommand::Shutdown);
    let lost = Done::Claimed { partition: 1.into(), outcome: ClaimOutcome::Lost { by: Some(owner("x")) } };
    assert!(me.done(lost).starts_with("ClaimLost"));
    assert_eq!(me.snapshot.requested_handoffs, [].into());
}

#[test]
fn a_stalled_instance_claims_nothing_it_requested() {
    let (mut me, handoff) = with_requested_handoff();
    me.after(5);
    me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
    assert_eq!(polled(&mut me, &handoff, HandoffStatus::Ready(claim())), "");
}
