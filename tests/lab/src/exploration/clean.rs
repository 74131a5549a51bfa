//! Scenarios in which every invariant holds.

use super::notes::{Event, Invariant};
use super::observed::must_be_listed;
use super::scenario::{
    A1_A2_B, AB, ABC, ALWAYS, BASE, CHANGED_AND_MALFORMED, LIVE, NOTHING, SHORT_AND_LONG, Scenario, Timing,
};
use super::search::{Aim, explore};
use super::state::Left;
use super::system::Model;
use super::{handoffs, paused, pins, resets};

const R_ASYNC_2: Scenario = Scenario {
    name: "r-async-2",
    left: Left { steals: 2, faults: 2, crashes: 1, releases: 1, ..NOTHING },
    reaches: AMBIGUITIES,
    ..BASE
};
const R_ASYNC_2_LONG: Scenario = Scenario {
    name: "r-async-2-long",
    last_event: 4,
    left: Left { steals: 3, faults: 1, ..NOTHING },
    reaches: AMBIGUITIES,
    ..BASE
};
const R_ASYNC_2_FIRST: Scenario = Scenario { name: "r-async-2-first", checkpoint: None, ..R_ASYNC_2 };
const R_ASYNC_3: Scenario = Scenario {
    name: "r-async-3",
    members: ABC,
    last_event: 1,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    reaches: AMBIGUITIES,
    ..BASE
};
const R_ASYNC_3_FIRST: Scenario = Scenario {
    name: "r-async-3-first",
    members: ABC,
    checkpoint: None,
    left: Left { steals: 2, ..NOTHING },
    reaches: &[Event::ClaimLost, Event::RenewalLost, Event::AdoptLost, Event::AdoptRepeated, Event::CheckpointFenced],
    ..BASE
};
const R_READFAULTS: Scenario = Scenario {
    name: "r-readfaults",
    reads_fail: true,
    left: Left { steals: 2, faults: 3, ..NOTHING },
    reaches: &[Event::ReadFailed, Event::OwnRecordReclaimed],
    ..BASE
};
const R_STABLE_IDS: Scenario = Scenario {
    name: "r-stable-ids",
    members: A1_A2_B,
    left: Left { steals: 1, faults: 1, ..NOTHING },
    reaches: &[Event::Replaced, Event::EarlierIncarnationReclaimed],
    ..BASE
};
const R_DURATIONS: Scenario = Scenario { name: "r-durations", members: SHORT_AND_LONG, ..R_ASYNC_2 };
const R_DURATION_CHANGED: Scenario =
    Scenario { name: "r-duration-changed", members: CHANGED_AND_MALFORMED, ..R_STABLE_IDS };
const R_FOREIGN: Scenario = Scenario {
    name: "r-foreign",
    foreign: true,
    last_event: 1,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    reaches: AMBIGUITIES,
    ..BASE
};
const R_FOREIGN_JS: Scenario = Scenario {
    name: "r-foreign-js",
    members: AB.split_at(1).0,
    foreign: true,
    foreign_creates_over: true,
    foreign_never_notices: true,
    checkpoint: None,
    last_event: 3,
    left: Left { steals: 3, faults: 1, ..NOTHING },
    reaches: &[Event::CheckpointSuperseded, Event::CheckpointLanded],
    ..BASE
};
const R_LIVE_SYNC: Scenario = Scenario {
    name: "r-live-sync",
    checkpoint: None,
    timing: Timing::Synchronous,
    left: Left { faults: 2, crashes: 1, releases: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::ReleaseTriedAgain, Event::ReleaseStands],
    ..BASE
};
const R_FREEZE: Scenario = Scenario {
    name: "r-freeze",
    timing: Timing::Synchronous,
    left: Left { freezes: 1, faults: 1, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: AMBIGUITIES,
    ..BASE
};
const R_FREEZE_STABLE: Scenario = Scenario {
    name: "r-freeze-stable",
    members: A1_A2_B.split_at(2).0,
    left: Left { freezes: 1, faults: 1, ..NOTHING },
    reaches: &[Event::Replaced, Event::EarlierIncarnationReclaimed],
    ..R_FREEZE
};
const R_LIVE_ASYNC: Scenario = Scenario {
    name: "r-live-async",
    checkpoint: None,
    left: Left { steals: 2, faults: 1, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: AMBIGUITIES,
    ..BASE
};
const R_LIVE_STABLE: Scenario = Scenario {
    name: "r-live-stable",
    members: A1_A2_B,
    left: Left { faults: 1, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::Replaced, Event::EarlierIncarnationReclaimed],
    ..BASE
};
pub(super) const ONCE: &[Invariant] = &[
    Invariant::Fenced,
    Invariant::Monotonic,
    Invariant::Processed,
    Invariant::Kept,
    Invariant::Released,
    Invariant::Once,
];
/// Without a known start, a displaced owner's first checkpoint may land after the adoption.
const A_NOPIN: Scenario = Scenario {
    name: "a-nopin",
    checkpoint: None,
    pins: false,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    aim: Aim { invariants: ALWAYS.split_at(1).1, live: false },
    reaches: &[Event::AdoptedWithoutWrite, Event::CheckpointCreated, Event::CheckpointSuperseded],
    ..BASE
};

/// A graceful stop repeats no event, regardless of which requests are lost.
const STOP: Scenario = Scenario {
    name: "stop",
    timing: Timing::Synchronous,
    left: Left { faults: 2, releases: 2, ..NOTHING },
    aim: Aim { invariants: ONCE, live: true },
    reaches: &[Event::ReleaseTriedAgain, Event::ReleaseStands],
    ..BASE
};
/// A checkpoint blob without a position is overwritten.
const NOWHERE: Scenario = Scenario {
    name: "nowhere",
    checkpoint: Some(super::scenario::NOWHERE),
    left: Left { steals: 1, faults: 2, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::StartPinnedOverBlob],
    ..BASE
};
/// It also fences if the start is not known.
const NOWHERE_NOPIN: Scenario = Scenario {
    name: "nowhere-nopin",
    pins: false,
    reaches: &[Event::CheckpointTriedAgain, Event::CheckpointFenced],
    ..NOWHERE
};
const DELETES: Scenario = Scenario {
    name: "deletes",
    left: Left { deletes: 1, steals: 1, faults: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::RenewalCreates, Event::CheckpointCreated, Event::OwnershipOutlived],
    ..BASE
};
const DELETES_TWICE: Scenario =
    Scenario { name: "deletes-twice", last_event: 1, left: Left { deletes: 2, faults: 1, ..NOTHING }, ..DELETES };
const DELETES_READFAULTS: Scenario = Scenario {
    name: "deletes-readfaults",
    reads_fail: true,
    last_event: 1,
    left: Left { deletes: 1, faults: 3, ..NOTHING },
    ..DELETES
};
/// In the store a renewal does not wait for work on the checkpoint. This gives many more states, so fewer faults are
/// allowed in these scenarios.
const OVERLAP_ASYNC: Scenario = Scenario {
    name: "overlap-async",
    overlaps: true,
    last_event: 1,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    reaches: AMBIGUITIES,
    ..BASE
};
const OVERLAP_LONG: Scenario = Scenario {
    name: "overlap-long",
    last_event: 3,
    left: Left { steals: 2, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::CheckpointFenced, Event::OwnershipOutlived],
    ..OVERLAP_ASYNC
};
const OVERLAP_SYNC: Scenario = Scenario { name: "overlap-sync", overlaps: true, ..R_LIVE_SYNC };
const OVERLAP_READFAULTS: Scenario = Scenario {
    name: "overlap-readfaults",
    aim: LIVE,
    overlaps: true,
    last_event: 1,
    left: Left { steals: 1, faults: 2, ..NOTHING },
    reaches: &[Event::ReadFailed, Event::OwnRecordReclaimed, Event::OwnershipOutlived],
    ..R_READFAULTS
};
const OVERLAP_STABLE: Scenario =
    Scenario { name: "overlap-stable", overlaps: true, members: A1_A2_B.split_at(2).0, ..R_LIVE_STABLE };
const OVERLAP_STOP: Scenario = Scenario { name: "overlap-stop", overlaps: true, ..STOP };
const OVERLAP_DELETES: Scenario =
    Scenario { name: "overlap-deletes", overlaps: true, left: Left { deletes: 2, ..NOTHING }, ..DELETES_TWICE };

/// Possible outcomes of a rejected write or a lost response.
const AMBIGUITIES: &[Event] = &[
    Event::ClaimLost,
    Event::ClaimFoundOwn,
    Event::ClaimOverNothing,
    Event::ClaimOverUnchanged,
    Event::RenewalStands,
    Event::RenewalFoundOld,
    Event::RenewalLost,
    Event::LeaseDropped,
    Event::AdoptLost,
    Event::AdoptRepeated,
    Event::CheckpointLanded,
    Event::CheckpointTriedAgain,
    Event::CheckpointFenced,
    Event::LateWriteLanded,
];

const ALL: &[Scenario] = &[
    R_ASYNC_2,
    R_ASYNC_2_LONG,
    R_ASYNC_2_FIRST,
    R_ASYNC_3,
    R_ASYNC_3_FIRST,
    R_READFAULTS,
    R_STABLE_IDS,
    R_DURATIONS,
    R_DURATION_CHANGED,
    R_FOREIGN,
    R_FOREIGN_JS,
    R_LIVE_SYNC,
    R_FREEZE,
    R_FREEZE_STABLE,
    R_LIVE_ASYNC,
    R_LIVE_STABLE,
    A_NOPIN,
    STOP,
    NOWHERE,
    NOWHERE_NOPIN,
    DELETES,
    DELETES_TWICE,
    DELETES_READFAULTS,
    OVERLAP_ASYNC,
    OVERLAP_LONG,
    OVERLAP_SYNC,
    OVERLAP_READFAULTS,
    OVERLAP_STABLE,
    OVERLAP_STOP,
    OVERLAP_DELETES,
];

pub(super) fn is_clean(scenario: Scenario) {
    let explored = explore(&Model::new(scenario), scenario.aim);
    println!("{:<24} {:>8} states {:>9} steps", scenario.name, explored.states, explored.steps);
    if let Some(violation) = explored.violation {
        panic!("{}: {:?} does not hold\n    {}", scenario.name, violation.invariant, violation.trace.join("\n    "));
    }
    for event in scenario.reaches {
        assert!(explored.notes.contains(*event), "{}: {event:?} never happens", scenario.name);
    }
    must_be_listed(scenario.name, explored.observed.into_iter());
}

#[test]
fn every_event_is_expected_in_a_scenario() {
    for event in Event::ALL {
        assert!(
            ALL.iter()
                .chain(handoffs::ALL)
                .chain(pins::ALL)
                .chain(resets::ALL)
                .chain(paused::ALL)
                .any(|scenario| scenario.reaches.contains(event)),
            "{event:?}"
        );
    }
}

#[test]
fn pauses_crashes_and_stops_r_async_2() {
    is_clean(R_ASYNC_2);
}

#[test]
fn many_events_r_async_2_long() {
    is_clean(R_ASYNC_2_LONG);
}

#[test]
fn no_checkpoint_yet_r_async_2_first() {
    is_clean(R_ASYNC_2_FIRST);
}

#[test]
fn three_instances_r_async_3() {
    is_clean(R_ASYNC_3);
}

#[test]
fn three_instances_no_checkpoint_yet_r_async_3_first() {
    is_clean(R_ASYNC_3_FIRST);
}

#[test]
fn failing_reads_r_readfaults() {
    is_clean(R_READFAULTS);
}

#[test]
fn two_incarnations_of_one_owner_r_stable_ids() {
    is_clean(R_STABLE_IDS);
}

#[test]
fn lease_durations_differ_r_durations() {
    is_clean(R_DURATIONS);
}

#[test]
fn a_lease_duration_changes_r_duration_changed() {
    is_clean(R_DURATION_CHANGED);
}

#[test]
fn another_sdk_r_foreign() {
    is_clean(R_FOREIGN);
}

#[test]
fn another_sdk_that_overwrites_claims_r_foreign_js() {
    is_clean(R_FOREIGN_JS);
}

#[test]
fn progress_in_time_r_live_sync() {
    is_clean(R_LIVE_SYNC);
}

#[test]
fn progress_after_a_freeze_r_freeze() {
    is_clean(R_FREEZE);
}

#[test]
fn progress_after_an_earlier_freeze_r_freeze_stable() {
    is_clean(R_FREEZE_STABLE);
}

#[test]
fn progress_after_pauses_r_live_async() {
    is_clean(R_LIVE_ASYNC);
}

#[test]
fn progress_of_two_incarnations_r_live_stable() {
    is_clean(R_LIVE_STABLE);
}

#[test]
fn an_unknown_start_a_nopin() {
    is_clean(A_NOPIN);
}

#[test]
fn a_graceful_stop_repeats_no_event_stop() {
    is_clean(STOP);
}

#[test]
fn a_checkpoint_without_a_position_nowhere() {
    is_clean(NOWHERE);
}

#[test]
fn no_position_and_an_unknown_start_nowhere_nopin() {
    is_clean(NOWHERE_NOPIN);
}

#[test]
fn a_blob_is_deleted_deletes() {
    is_clean(DELETES);
}

#[test]
fn blobs_are_deleted_twice_deletes_twice() {
    is_clean(DELETES_TWICE);
}

#[test]
fn a_deletion_and_failing_reads_deletes_readfaults() {
    is_clean(DELETES_READFAULTS);
}

#[test]
fn renewals_during_checkpoints_overlap_async() {
    is_clean(OVERLAP_ASYNC);
}

#[test]
fn many_events_overlap_long() {
    is_clean(OVERLAP_LONG);
}

#[test]
fn renewals_in_time_overlap_sync() {
    is_clean(OVERLAP_SYNC);
}

#[test]
fn failing_reads_overlap_readfaults() {
    is_clean(OVERLAP_READFAULTS);
}

#[test]
fn two_incarnations_overlap_stable() {
    is_clean(OVERLAP_STABLE);
}

#[test]
fn a_graceful_stop_overlap_stop() {
    is_clean(OVERLAP_STOP);
}

#[test]
fn deletions_overlap_deletes() {
    is_clean(OVERLAP_DELETES);
}
