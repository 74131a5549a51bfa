//! The look for live owners in the other blob-name casing.

use super::*;
use crate::model::NameCase;
use crate::store::CaseConflict;
use crate::store::rules::LiveOwner;

const LOOK: &str = "look at the other casing";

/// Creates a loop over this many partitions, whose group has capitals in its names, and that has won the first one.
fn with_first_win(config: BalancerConfig, partitions: u32) -> (Loop, String) {
    let settings = LoopSettings { has_other_name_case: true, ..settings(config, 10) };
    let mut me = Loop::of(settings).began(partitions);
    me.after(0);
    me.listed("");
    me.no_other_heartbeats();
    let decided = me.wins(0, 1);
    (me, decided)
}

fn greedy() -> BalancerConfig {
    BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::Greedy)
}

fn found(me: &mut Loop, conflict: Option<CaseConflict>) -> String {
    me.done(Done::CaseConflictFound(Ok(conflict)))
}

/// Looks twice without a conflict.
fn looked(me: &mut Loop) {
    found(me, None);
    assert!(me.after(15).contains(LOOK), "the other one may have claimed since");
    assert_eq!(found(me, None), "");
}

/// The conflict with an owner in the other casing, as an instance with this casing sees it.
fn conflict_of(used: NameCase) -> CaseConflict {
    let seen = Ownership::new(
        0.into(),
        record("x"),
        ETag::new("seen"),
        Duration::ZERO,
        (datetime!(2026-01-01 00:00:00 UTC), Duration::ZERO),
    );
    CaseConflict::Other { used, live: LiveOwner::from_ownership(&seen).unwrap() }
}

fn conflict() -> CaseConflict {
    conflict_of(NameCase::Verbatim)
}

#[test]
fn the_first_win_looks_and_further_ones_do_not() {
    let (mut me, decided) = with_first_win(greedy(), 3);
    assert!(decided.ends_with(LOOK), "{decided}");
    assert!(!me.wins(1, 1).contains(LOOK), "it is under way");
    assert_eq!(found(&mut me, None), "");
    assert!(!me.wins(2, 1).contains(LOOK), "it owned partitions before");
}

#[test]
fn nothing_is_claimed_before_the_look_has_ended() {
    for fails in [false, true] {
        let (mut me, decided) = with_first_win(BalancerConfig::default(), 1);
        assert!(decided.ends_with(LOOK), "{decided}");
        me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
        if fails {
            me.done(Done::CaseConflictFound(Err(unavailable())));
        }
        me.after(12);
        let decided = me.listed("m--");
        assert!(!decided.contains("claim") && !decided.contains("list heartbeats"), "{fails}: {decided}");
        me.after(10);
        found(&mut me, None);
        me.listed("m--");
        assert!(me.no_other_heartbeats().contains("claim"), "{fails}");
    }
}

#[test]
fn a_look_is_repeated_every_ten_lease_durations() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    looked(&mut me);
    assert!(!me.after(599).contains(LOOK));
    assert!(me.after(1).contains(LOOK), "a frozen machine does not know that it was");
}

#[test]
fn a_renewal_of_a_vanished_record_looks_again() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    looked(&mut me);
    me.after(15);
    let outcome = ClaimOutcome::Won(me.lease(0, 2));
    let renewed = me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
    assert!(renewed.contains(LOOK), "{renewed}");
}

/// If neither waited, two instances with different settings would end each other at every start.
#[test]
fn names_as_given_give_way_to_lower_case() {
    for (used, ends_at_once) in [(NameCase::Verbatim, true), (NameCase::Lower, false)] {
        let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
        assert_eq!(found(&mut me, Some(conflict_of(used))).contains("CaseConflictFound"), ends_at_once, "{used}");
    }
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    assert_eq!(found(&mut me, Some(conflict_of(NameCase::Lower))), "CaseConflictWaits");
    for _ in 0..7 {
        assert!(me.after(8).contains(LOOK), "the other one may have ended");
        assert_eq!(found(&mut me, Some(conflict_of(NameCase::Lower))), "");
    }
    me.after(4);
    assert!(found(&mut me, Some(conflict_of(NameCase::Lower))).contains("CaseConflictFound"), "it is still there");
}

#[test]
fn names_without_capitals_need_no_look() {
    let mut me = Loop::claiming(BalancerConfig::default());
    assert_eq!(me.wins(0, 1), "Claimed 0");
}

#[test]
fn a_win_after_owning_nothing_looks_again() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    looked(&mut me);
    me.lost(0, 1);
    me.after(12);
    me.listed("-");
    me.no_other_heartbeats();
    assert!(me.wins(0, 2).ends_with(LOOK));
}

#[test]
fn a_renewal_of_a_lapsed_lease_looks_again() {
    for (seconds, looks) in [(28, false), (59, false), (60, true)] {
        let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
        looked(&mut me);
        me.after(13);
        me.now += Duration::from_secs(seconds - 28);
        assert_eq!(me.renewed(0, 1).contains(LOOK), looks, "after {seconds} s");
    }
}

#[test]
fn a_heartbeat_that_revives_leases_looks_again() {
    for (seconds, looks) in [(20, false), (61, true)] {
        let (mut me, _) = with_first_win(BalancerConfig::default().with_lease_scope(LeaseScope::Instance), 1);
        looked(&mut me);
        // The heartbeat that was sent meanwhile is written late.
        me.now += Duration::from_secs(seconds - 15);
        let written = me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
        assert_eq!(written.contains(LOOK), looks, "after {seconds} s");
    }
}

#[test]
fn a_look_that_fails_is_repeated() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    for _ in 0..5 {
        assert_eq!(me.done(Done::CaseConflictFound(Err(unavailable()))), "CaseConflictUnknown");
        assert!(me.after(9).contains(LOOK));
    }
    looked(&mut me);
    assert!(!me.after(20).contains(LOOK));
}

#[test]
fn a_failed_look_is_shown_until_one_succeeds() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    let since = me.now;
    let shown = |me: &Loop| me.state.storage_failures().case_check.map(|(since, error)| (since, error.kind()));
    assert_eq!(shown(&me), None, "it is under way");
    for _ in 0..2 {
        me.done(Done::CaseConflictFound(Err(unavailable())));
        assert_eq!(shown(&me), Some((since, ErrorKind::Unavailable)));
        me.after(9);
    }
    found(&mut me, None);
    assert_eq!(shown(&me), None);
}

/// An eighth of the lease duration at most.
#[test]
fn failed_looks_are_repeated_with_growing_waits() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    let waits = [(); 5].map(|()| {
        me.done(Done::CaseConflictFound(Err(unavailable())));
        me.wake_until(LOOK)
    });
    assert_eq!(waits, [1, 2, 4, 8, 8]);
}

#[test]
fn a_lapse_during_a_look_needs_another_one() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    me.after(28);
    me.now += 60 * SECOND;
    assert!(!me.renewed(0, 1).contains(LOOK), "one is under way");
    assert_eq!(found(&mut me, None), LOOK);
    looked(&mut me);
}

#[test]
fn a_conflict_ends_the_loop_after_the_releases() {
    let (mut me, _) = with_first_win(greedy(), 2);
    let decided = found(&mut me, Some(conflict()));
    assert_eq!(decided, "CaseConflictFound, end heartbeat, Releasing 0 shutdown");
    assert_eq!(me.wins(1, 1), "Claimed 1, Releasing 1 shutdown", "what it wins later is released, too");
    for partition in [0, 1] {
        assert_eq!(me.stopped(partition, true), format!("release {partition}"));
    }
    let released = |partition: u32| Done::Released { partition: partition.into(), outcome: ReleaseOutcome::Released };
    assert_eq!(me.done(released(0)), "Released 0");
    me.done(Done::HeartbeatEnded(Ok(())));
    assert_eq!(me.done(released(1)), "Released 1, refused, unreleased 0");
}

#[test]
fn a_conflict_ends_the_loop_even_if_nothing_works() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    found(&mut me, Some(conflict()));
    let begin = me.now;
    let mut decided = String::new();
    for _ in 0..20 {
        decided = me.after(5);
        if decided.contains("refused") {
            break;
        }
    }
    assert_eq!(me.now, begin + 50 * SECOND, "half a lease duration, and the time of the releases");
    assert_eq!(decided.rsplit(", refused").next(), Some(", unreleased 1"), "{decided}");
}

#[test]
fn a_conflict_does_not_interrupt_a_shutdown() {
    let (mut me, _) = with_first_win(BalancerConfig::default(), 1);
    me.command(LoopCommand::Shutdown);
    assert_eq!(found(&mut me, Some(conflict())), "");
}
