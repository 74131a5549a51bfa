//! Scenarios with handoffs in which every invariant holds.

use super::clean::{ONCE, is_clean};
use super::notes::Event;
use super::scenario::{A1_A2_B, ABC, BASE, LIVE, NOTHING, SHORT_AND_LONG, Scenario, Timing};
use super::search::Aim;
use super::state::Left;

const BASIS: Scenario = Scenario { timing: Timing::Synchronous, aim: Aim { invariants: ONCE, live: true }, ..BASE };

/// A handoff without a timeout repeats no event, regardless of which requests are lost.
const HANDOFF: Scenario = Scenario {
    name: "r-handoff",
    last_event: 3,
    left: Left { requests: 2, faults: 1, ..NOTHING },
    reaches: &[
        Event::Requested,
        Event::RequestStands,
        Event::HandoffSeen,
        Event::HandoffTaken,
        Event::AcknowledgementStands,
        Event::AcknowledgementTriedAgain,
    ],
    ..BASIS
};
const THREE: Scenario = Scenario {
    name: "r-handoff-3",
    members: ABC,
    last_event: 1,
    left: Left { requests: 2, ..NOTHING },
    reaches: &[Event::MarkLost, Event::RequestAmbiguous, Event::HandoffOver],
    ..BASIS
};
const THREE_DOUBTS: Scenario = Scenario {
    name: "r-handoff-3-doubts",
    left: Left { requests: 1, faults: 1, ..NOTHING },
    reaches: &[Event::MarkLost, Event::RequestAmbiguous, Event::LateWriteLanded],
    ..THREE
};
const TIMEOUT: Scenario = Scenario {
    name: "r-handoff-timeout",
    timing: Timing::Asynchronous,
    left: Left { requests: 2, timeouts: 2, steals: 1, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::HandoffStolen, Event::CheckpointFenced, Event::ReservationLapsed],
    ..BASIS
};
const CRASHED: Scenario = Scenario {
    name: "r-live-handoff",
    last_event: 1,
    left: Left { requests: 1, timeouts: 1, faults: 2, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::HandoffStolen, Event::ReservationLapsed, Event::RequestTooLate, Event::LateWriteLanded],
    ..BASIS
};
const DURATIONS: Scenario = Scenario { name: "handoff-durations", members: SHORT_AND_LONG, ..TIMEOUT };
const UNRESPONSIVE: Scenario = Scenario {
    name: "handoff-deaf",
    ignores_requests: true,
    left: Left { requests: 1, faults: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::HandoffStolen, Event::RenewalLost],
    ..BASIS
};
/// The owner claims again what it did not recognize as its own.
const ERASED: Scenario = Scenario {
    name: "handoff-erased",
    last_event: 1,
    reads_fail: true,
    left: Left { requests: 1, faults: 2, ..NOTHING },
    reaches: &[Event::RequestedAgain],
    ..BASIS
};
const UNSETTLED: Scenario = Scenario {
    name: "handoff-unsettled",
    left: Left { requests: 1, unsettled: 1, faults: 1, ..NOTHING },
    reaches: &[Event::ReleasedUnsettled],
    ..BASIS
};
const STOP: Scenario = Scenario {
    name: "handoff-stop",
    left: Left { requests: 1, releases: 2, faults: 1, ..NOTHING },
    reaches: &[Event::ReleaseTriedAgain, Event::HandoffTaken, Event::MarkLost],
    ..BASIS
};
const FREEZE: Scenario = Scenario {
    name: "handoff-freeze",
    last_event: 1,
    left: Left { requests: 1, freezes: 1, faults: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::HandoffStolen, Event::HandoffTaken],
    ..BASIS
};
const OVERLAP: Scenario = Scenario {
    name: "handoff-overlap",
    overlaps: true,
    left: Left { requests: 1, faults: 1, ..NOTHING },
    reaches: &[Event::HandoffTaken, Event::AcknowledgementStands],
    ..BASIS
};
/// The owner restarts with the same name while its partition is requested.
const RESTART: Scenario = Scenario {
    name: "handoff-restart",
    members: A1_A2_B,
    timing: Timing::Asynchronous,
    last_event: 1,
    left: Left { requests: 1, faults: 1, ..NOTHING },
    aim: Aim { live: false, ..LIVE },
    reaches: &[Event::Requested, Event::EarlierIncarnationReclaimed, Event::Replaced],
    ..BASIS
};

pub(super) const ALL: &[Scenario] = &[
    HANDOFF,
    THREE,
    THREE_DOUBTS,
    TIMEOUT,
    DURATIONS,
    CRASHED,
    UNRESPONSIVE,
    ERASED,
    UNSETTLED,
    STOP,
    FREEZE,
    OVERLAP,
    RESTART,
];

#[test]
fn a_request_and_a_handover_r_handoff() {
    is_clean(HANDOFF);
}

#[test]
fn the_owner_restarts_handoff_restart() {
    is_clean(RESTART);
}

#[test]
fn two_requesters_r_handoff_3() {
    is_clean(THREE);
}

#[test]
fn a_third_instance_and_lost_responses_r_handoff_3() {
    is_clean(THREE_DOUBTS);
}

#[test]
fn a_requester_times_out_r_handoff_timeout() {
    is_clean(TIMEOUT);
}

#[test]
fn lease_durations_differ_handoff_durations() {
    is_clean(DURATIONS);
}

#[test]
fn either_side_crashes_r_live_handoff() {
    is_clean(CRASHED);
}

#[test]
fn an_owner_without_response_handoff_deaf() {
    is_clean(UNRESPONSIVE);
}

#[test]
fn an_erased_request_is_repeated_handoff_erased() {
    is_clean(ERASED);
}

#[test]
fn an_unsettled_checkpoint_is_reported_unsettled() {
    is_clean(UNSETTLED);
}

#[test]
fn either_side_is_stopped_handoff_stop() {
    is_clean(STOP);
}

#[test]
fn either_side_is_frozen_handoff_freeze() {
    is_clean(FREEZE);
}

#[test]
fn renewals_in_the_last_checkpoint_handoff_overlap() {
    is_clean(OVERLAP);
}
