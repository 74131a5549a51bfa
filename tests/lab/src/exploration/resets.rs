//! Resets by operators: scenarios in which every invariant holds, and the rules that are needed for that.

use super::clean::is_clean;
use super::needed::falls;
use super::notes::{Event, Invariant};
use super::scenario::{BASE, Member, NOTHING, NOWHERE, Rule, Scenario, Timing, WITH_RESETS, member, operator};
use super::search::Aim;
use super::state::{Checkpoint, Left};

const A_O: &[Member] = &[member("A", "A", 0), operator("O", 0)];
const A_B_O: &[Member] = &[member("A", "A", 0), member("B", "B", 0), operator("O", 0)];
const A_B_O_TO_1: &[Member] = &[member("A", "A", 0), member("B", "B", 0), operator("O", 1)];
const A_B_O_TO_2: &[Member] = &[member("A", "A", 0), member("B", "B", 0), operator("O", 2)];
const A_B_O_TO_3: &[Member] = &[member("A", "A", 0), member("B", "B", 0), operator("O", 3)];
const A_O_Q: &[Member] = &[member("A", "A", 0), operator("O", 0), operator("Q", 2)];
const A1_A2_O: &[Member] =
    &[member("A1", "A", 1), Member { starts_later: true, ..member("A2", "A", 2) }, operator("O", 0)];
const O: &[Member] = &[operator("O", 0)];

const AT_1: Option<Checkpoint> = Some(Checkpoint { position: Some(1), ..NOWHERE });

const SAFE: Aim = Aim { invariants: WITH_RESETS, live: false };
const LIVE: Aim = Aim { invariants: WITH_RESETS, live: true };
const REPORTS: &[Event] = &[Event::ResetDone, Event::ResetNotDone, Event::ResetIndeterminate, Event::ResetAgain];

const RESET: Scenario = Scenario { members: A_B_O, checkpoint: AT_1, aim: SAFE, ..BASE };

const R_RESET: Scenario =
    Scenario { name: "r-reset", left: Left { steals: 1, faults: 1, crashes: 1, ..NOTHING }, reaches: REPORTS, ..RESET };
const R_RESET_FAULTS: Scenario = Scenario {
    name: "r-reset-faults",
    members: A_O,
    left: Left { steals: 1, faults: 3, ..NOTHING },
    reaches: REPORTS,
    ..RESET
};
const R_RESET_READFAULTS: Scenario = Scenario { name: "r-reset-readfaults", reads_fail: true, ..R_RESET_FAULTS };
const R_RESET_AHEAD: Scenario = Scenario {
    name: "r-reset-ahead",
    members: A_B_O_TO_3,
    last_event: 3,
    left: Left { steals: 1, faults: 1, ..NOTHING },
    reaches: REPORTS,
    ..RESET
};
const R_RESET_EQUAL: Scenario = Scenario { name: "r-reset-equal", members: A_B_O_TO_1, last_event: 2, ..R_RESET_AHEAD };
const R_RESET_FIRST: Scenario = Scenario { name: "r-reset-first", checkpoint: None, last_event: 1, ..R_RESET_EQUAL };
/// The group starts after event 2, and nothing was processed yet.
const R_RESET_INITIAL: Scenario = Scenario {
    name: "r-reset-initial",
    members: A_O_Q,
    checkpoint: None,
    starts_at: 2,
    left: Left { steals: 1, ..NOTHING },
    reaches: &[Event::ResetDone],
    ..RESET
};
/// An instance has requested the partition, when the operator takes it over.
const R_RESET_REQUESTED: Scenario = Scenario {
    name: "r-reset-requested",
    last_event: 1,
    left: Left { requests: 1, steals: 1, ..NOTHING },
    reaches: &[Event::Requested, Event::ResetDone],
    ..RESET
};
const R_RESET_UNFENCED: Scenario = Scenario {
    name: "r-reset-unfenced",
    checkpoint: None,
    last_event: 1,
    pins: false,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    // Without a checkpoint nothing is fenced.
    aim: Aim {
        invariants: &[
            Invariant::Monotonic,
            Invariant::ResetFollowed,
            Invariant::ReportTrue,
            Invariant::ReportReleased,
            Invariant::ReturnedToOwner,
        ],
        live: false,
    },
    ..RESET
};
const R_RESET_TWO: Scenario = Scenario { name: "r-reset-two", members: A_O_Q, reaches: INHERITED, ..R_RESET };
const INHERITED: &[Event] = &[Event::ResetDone, Event::ResetNotDone, Event::ResetInherited];
const R_RESET_STABLE: Scenario = Scenario {
    name: "r-reset-stable",
    members: A1_A2_O,
    left: Left { steals: 1, faults: 1, ..NOTHING },
    reaches: &[Event::Replaced, Event::ResetDone],
    ..RESET
};
const R_RESET_TENURE: Scenario = Scenario {
    name: "r-reset-epoch",
    members: A_O,
    overlaps: true,
    left: Left { steals: 1, faults: 1, ..NOTHING },
    reaches: &[Event::OwnershipOutlived, Event::ResetDone],
    ..RESET
};
const R_RESET_FOREIGN: Scenario = Scenario {
    name: "r-reset-foreign",
    members: A_O,
    foreign: true,
    left: Left { faults: 1, ..NOTHING },
    reaches: &[Event::ResetDone],
    ..RESET
};
const R_RESET_FOREIGN_MIXED: Scenario = Scenario {
    name: "r-reset-foreign-mixed",
    left: Left { steals: 1, ..NOTHING },
    reaches: &[Event::ResetDone, Event::ResetNotDone],
    ..R_RESET_FOREIGN
};
const R_RESET_FOREIGN_STEALS: Scenario = Scenario {
    name: "r-reset-foreign-steals",
    members: O,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    reaches: REPORTS,
    ..R_RESET_FOREIGN
};
const R_RESET_LIVE: Scenario = Scenario {
    name: "r-reset-live",
    timing: Timing::Synchronous,
    left: Left { faults: 1, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::ResetDone],
    ..RESET
};
const R_RESET_FREEZE: Scenario = Scenario {
    name: "r-reset-freeze",
    members: A_O,
    left: Left { faults: 1, crashes: 1, freezes: 1, ..NOTHING },
    ..R_RESET_LIVE
};

/// The scenarios in which every invariant holds.
pub(super) const ALL: &[Scenario] = &[
    R_RESET,
    R_RESET_FAULTS,
    R_RESET_READFAULTS,
    R_RESET_AHEAD,
    R_RESET_EQUAL,
    R_RESET_FIRST,
    R_RESET_INITIAL,
    R_RESET_REQUESTED,
    R_RESET_UNFENCED,
    R_RESET_TWO,
    R_RESET_STABLE,
    R_RESET_TENURE,
    R_RESET_FOREIGN,
    R_RESET_FOREIGN_MIXED,
    R_RESET_FOREIGN_STEALS,
    R_RESET_LIVE,
    R_RESET_FREEZE,
];

mod clean {
    use super::*;

    #[test]
    fn with_two_owners() {
        is_clean(R_RESET);
    }

    #[test]
    fn of_an_initial_checkpoint() {
        is_clean(R_RESET_INITIAL);
    }

    #[test]
    fn while_a_handoff_is_requested() {
        is_clean(R_RESET_REQUESTED);
    }

    #[test]
    fn with_many_faults() {
        is_clean(R_RESET_FAULTS);
    }

    #[test]
    fn with_failing_reads() {
        is_clean(R_RESET_READFAULTS);
    }

    #[test]
    fn to_a_later_position() {
        is_clean(R_RESET_AHEAD);
    }

    #[test]
    fn to_the_same_position() {
        is_clean(R_RESET_EQUAL);
    }

    #[test]
    fn before_the_first_checkpoint() {
        is_clean(R_RESET_FIRST);
    }

    #[test]
    fn without_a_checkpoint_to_fence() {
        is_clean(R_RESET_UNFENCED);
    }

    #[test]
    fn by_two_operators() {
        is_clean(R_RESET_TWO);
    }

    #[test]
    fn with_two_incarnations_of_one_owner() {
        is_clean(R_RESET_STABLE);
    }

    #[test]
    fn with_a_session_of_an_earlier_ownership() {
        is_clean(R_RESET_TENURE);
    }

    #[test]
    fn with_another_sdk() {
        is_clean(R_RESET_FOREIGN);
    }

    #[test]
    fn with_another_sdk_that_is_stolen_from() {
        is_clean(R_RESET_FOREIGN_MIXED);
    }

    #[test]
    fn with_another_sdk_alone() {
        is_clean(R_RESET_FOREIGN_STEALS);
    }

    #[test]
    fn an_owner_makes_progress_after_it() {
        is_clean(R_RESET_LIVE);
    }

    #[test]
    fn an_owner_makes_progress_after_a_freeze() {
        is_clean(R_RESET_FREEZE);
    }
}

mod needed {
    use super::*;

    fn without(rule: Rule, name: &'static str, left: Left) -> Scenario {
        Scenario { name, without: Some(rule), left, ..RESET }
    }

    const STEAL: Left = Left { steals: 1, ..NOTHING };
    const STEAL_AND_FAULT: Left = Left { steals: 1, faults: 1, ..NOTHING };

    #[test]
    fn the_adoption_verifies_the_ownership() {
        let scenario = without(Rule::ResetIsVerified, "x-reset-verify", STEAL);
        falls(
            scenario,
            Invariant::Fenced,
            &["A adopts: writes 1: done", "O adopts: reads the ownership", "O adopts: writes 1: done"],
        );
    }

    #[test]
    fn the_position_is_written_under_a_condition() {
        let scenario = without(Rule::ResetIsConditional, "x-reset-conditional", STEAL);
        falls(scenario, Invariant::Fenced, &["O resets to 0: done"]);
    }

    #[test]
    fn a_position_that_is_already_stored_is_written() {
        let scenario = Scenario {
            members: A_B_O_TO_1,
            ..without(Rule::ResetIsWritten, "x-reset-equal", Left { faults: 1, ..NOTHING })
        };
        falls(
            scenario,
            Invariant::ResetFollowed,
            &["O finds the position already stored", "A checkpoints 2: done", "O releases: done"],
        );
    }

    #[test]
    fn an_ambiguous_write_is_reported() {
        let scenario = without(Rule::ResetAmbiguityIsReported, "x-reset-doubt-lost", STEAL_AND_FAULT);
        falls(scenario, Invariant::ReportTrue, &["O resets to 0: no response, but applied", "O releases: done"]);
    }

    #[test]
    fn the_stored_position_does_not_resolve_ambiguity() {
        let scenario = Scenario {
            members: A_B_O_TO_2,
            ..without(Rule::ResetAmbiguityIsNotLookedUp, "x-reset-doubt-stored", STEAL_AND_FAULT)
        };
        falls(
            scenario,
            Invariant::ReportTrue,
            &["O resets to 2: no response, not applied", "O adopts: reads the ownership, lost"],
        );
    }

    #[test]
    fn a_record_is_own_only_in_its_ownership() {
        let left = Left { faults: 1, ..NOTHING };
        let scenario = Scenario { members: A_O, overlaps: true, ..without(Rule::OwnByEpoch, "x-reset-epoch", left) };
        falls(scenario, Invariant::Fenced, &["O resets to 0: done", "A claims: done", "A adopts: writes 0: done"]);
    }

    #[test]
    fn an_ambiguous_release_is_verified() {
        let scenario = Scenario {
            members: A_O,
            aim: Aim { invariants: &[Invariant::ReportReleased], live: false },
            ..without(Rule::ReleaseIsVerified, "x-reset-release-doubt", Left { faults: 1, ..NOTHING })
        };
        falls(scenario, Invariant::ReportReleased, &["O releases: no response, not applied", "O reads: applied"]);
    }

    #[test]
    fn it_returns_to_the_owner_before_a_dead_operator() {
        let left = Left { crashes: 1, ..NOTHING };
        let scenario = Scenario { members: A_O_Q, ..without(Rule::ResetInherits, "x-reset-inherit", left) };
        falls(scenario, Invariant::ReturnedToOwner, &["O crashes", "Q resets to 2: done", "Q releases: done"]);
    }

    #[test]
    fn it_waits_for_another_sdk() {
        let scenario = Scenario { members: O, foreign: true, ..without(Rule::ResetSettles, "x-reset-settle", NOTHING) };
        falls(
            scenario,
            Invariant::ForeignSilent,
            &["F reads the checkpoint and starts", "O resets to 0: done", "O releases: done"],
        );
    }

    #[test]
    fn it_waits_for_the_last_handler() {
        let scenario = Scenario {
            members: O,
            foreign: true,
            ..without(Rule::ResetSettlesHandlers, "x-reset-settle-batch", NOTHING)
        };
        falls(
            scenario,
            Invariant::ForeignSilent,
            &["F detects its loss", "O resets to 0: done", "F ends its last handler, checkpoints without condition 2"],
        );
    }

    #[test]
    fn it_waits_for_another_sdk_in_the_group() {
        let scenario = Scenario {
            members: A_O,
            foreign: true,
            ..without(Rule::ResetSettlesWithForeign, "x-reset-settle-mixed", STEAL)
        };
        falls(
            scenario,
            Invariant::ForeignSilent,
            &["F reads the checkpoint and starts", "O resets to 0: done", "O releases: done"],
        );
    }

    #[test]
    fn it_reports_after_the_release() {
        let scenario = without(Rule::ResetReportedLast, "x-reset-report-last", NOTHING);
        falls(scenario, Invariant::ReportReleased, &["O resets to 0: done"]);
    }

    #[test]
    fn an_overtaken_operator_reports_indeterminate() {
        let scenario =
            Scenario { foreign: true, members: A_O, ..without(Rule::ResetOvertaken, "x-reset-overtaken", STEAL) };
        falls(
            scenario,
            Invariant::ForeignSilent,
            &["F reads the checkpoint and starts", "O resets to 0: done", "O reads: not its own, lost"],
        );
    }

    #[test]
    fn an_overtaken_operator_had_nothing_to_fence() {
        let scenario = Scenario {
            members: A_O,
            checkpoint: None,
            pins: false,
            aim: R_RESET_UNFENCED.aim,
            last_event: 1,
            ..without(Rule::ResetOvertaken, "x-reset-overtaken-unfenced", STEAL)
        };
        falls(
            scenario,
            Invariant::ResetFollowed,
            &["O resets to 0: done", "A checkpoints 1: done", "O reads: not its own, lost"],
        );
    }
}
