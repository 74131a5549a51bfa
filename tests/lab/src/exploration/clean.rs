//! Scenarios in which everything holds.

use super::notes::{Event, Invariant};
use super::scenario::{A1_A2_B, AB, ABC, ALWAYS, BASE, LIVE, NOTHING, Scenario, Timing};
use super::search::{Aim, explore};
use super::state::Left;
use super::system::Model;
use super::{handoffs, pins, resets};

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
/// Where the start is not known, a displaced owner's first checkpoint may land after the adoption.
const A_NOPIN: Scenario = Scenario {
    name: "a-nopin",
    checkpoint: None,
    pins: false,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    aim: Aim { invariants: ALWAYS.split_at(1).1, live: false },
    reaches: &[Event::AdoptedWithoutWrite, Event::CheckpointCreated, Event::CheckpointSuperseded],
    ..BASE
};

/// An orderly stop repeats no event, whatever gets lost on the way.
const STOP: Scenario = Scenario {
    name: "stop",
    timing: Timing::Synchronous,
    left: Left { faults: 2, releases: 2, ..NOTHING },
    aim: Aim { invariants: ONCE, live: true },
    reaches: &[Event::ReleaseTriedAgain, Event::ReleaseStands],
    ..BASE
};
/// A checkpoint blob that names no position is written over.
const NOWHERE: Scenario = Scenario {
    name: "nowhere",
    checkpoint: Some(super::scenario::NOWHERE),
    left: Left { steals: 1, faults: 2, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::StartPinnedOverBlob],
    ..BASE
};
/// It fences, too, where the start is not known.
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
/// In the store a renewal waits for nothing that is done about the checkpoint. That gives many more states, so that
/// less may go wrong in these.
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

/// What can come of an answer that is refused or missing.
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
}

#[test]
fn everything_that_can_happen_is_looked_for_somewhere() {
    for event in Event::ALL {
        assert!(
            ALL.iter()
                .chain(handoffs::ALL)
                .chain(pins::ALL)
                .chain(resets::ALL)
                .any(|scenario| scenario.reaches.contains(event)),
            "{event:?}"
        );
    }
}

#[test]
fn two_instances_that_are_paused_crash_and_stop_r_async_2() {
    is_clean(R_ASYNC_2);
}

#[test]
fn two_instances_and_many_events_r_async_2_long() {
    is_clean(R_ASYNC_2_LONG);
}

#[test]
fn two_instances_without_a_checkpoint_r_async_2_first() {
    is_clean(R_ASYNC_2_FIRST);
}

#[test]
fn three_instances_r_async_3() {
    is_clean(R_ASYNC_3);
}

#[test]
fn three_instances_without_a_checkpoint_r_async_3_first() {
    is_clean(R_ASYNC_3_FIRST);
}

#[test]
fn reads_that_fail_r_readfaults() {
    is_clean(R_READFAULTS);
}

#[test]
fn two_lives_of_one_owner_r_stable_ids() {
    is_clean(R_STABLE_IDS);
}

#[test]
fn another_sdk_r_foreign() {
    is_clean(R_FOREIGN);
}

#[test]
fn another_sdk_that_claims_over_others_r_foreign_js() {
    is_clean(R_FOREIGN_JS);
}

#[test]
fn progress_in_good_time_r_live_sync() {
    is_clean(R_LIVE_SYNC);
}

#[test]
fn progress_after_an_instance_was_frozen_r_freeze() {
    is_clean(R_FREEZE);
}

#[test]
fn progress_after_an_earlier_life_was_frozen_r_freeze_stable() {
    is_clean(R_FREEZE_STABLE);
}

#[test]
fn progress_after_pauses_r_live_async() {
    is_clean(R_LIVE_ASYNC);
}

#[test]
fn progress_of_two_lives_of_one_owner_r_live_stable() {
    is_clean(R_LIVE_STABLE);
}

#[test]
fn a_start_that_is_not_known_a_nopin() {
    is_clean(A_NOPIN);
}

#[test]
fn an_orderly_stop_repeats_no_event_stop() {
    is_clean(STOP);
}

#[test]
fn a_checkpoint_without_a_position_nowhere() {
    is_clean(NOWHERE);
}

#[test]
fn a_checkpoint_without_a_position_and_a_start_that_is_not_known_nowhere_nopin() {
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
fn a_blob_is_deleted_and_reads_fail_deletes_readfaults() {
    is_clean(DELETES_READFAULTS);
}

#[test]
fn renewals_during_checkpoints_overlap_async() {
    is_clean(OVERLAP_ASYNC);
}

#[test]
fn renewals_during_checkpoints_and_many_events_overlap_long() {
    is_clean(OVERLAP_LONG);
}

#[test]
fn renewals_during_checkpoints_in_good_time_overlap_sync() {
    is_clean(OVERLAP_SYNC);
}

#[test]
fn renewals_during_checkpoints_and_reads_that_fail_overlap_readfaults() {
    is_clean(OVERLAP_READFAULTS);
}

#[test]
fn renewals_during_checkpoints_of_two_lives_overlap_stable() {
    is_clean(OVERLAP_STABLE);
}

#[test]
fn renewals_during_an_orderly_stop_overlap_stop() {
    is_clean(OVERLAP_STOP);
}

#[test]
fn renewals_during_checkpoints_and_deletions_overlap_deletes() {
    is_clean(OVERLAP_DELETES);
}
