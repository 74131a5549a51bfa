//! Pauses by operators: scenarios in which every invariant holds, and the rules that are needed for that. Pauses with
//! an end, and partitions that are parked after a failure, are not modeled: their owner removes the mark.

use super::clean::is_clean;
use super::needed::falls;
use super::notes::{Event, Invariant};
use super::scenario::{
    BASE, Member, NOTHING, NOWHERE, Order, Rule, Scenario, Timing, WITH_RESETS, member, operator, ordered,
};
use super::search::Aim;
use super::state::{Checkpoint, Left};

const A: Member = member("A", "A", 0);
const P: Member = ordered("P", Order::Pause);
const R: Member = ordered("R", Order::Resume);
const A_P: &[Member] = &[A, P];
const A_R: &[Member] = &[A, R];
const A_B_P: &[Member] = &[A, member("B", "B", 0), P];
const A_B_R: &[Member] = &[A, member("B", "B", 0), R];
const A_P_R: &[Member] = &[A, P, R];
const A_P_O: &[Member] = &[A, P, operator("O", 0)];
const A1_A2_P: &[Member] = &[member("A1", "A", 1), Member { starts_later: true, ..member("A2", "A", 2) }, P];
const ADAPTER_P: &[Member] = &[Member { on_adapter: true, ..A }, P];

const AT_1: Option<Checkpoint> = Some(Checkpoint { position: Some(1), ..NOWHERE });
const PAUSED_AT_1: Option<Checkpoint> = Some(Checkpoint { position: Some(1), paused: true, ..NOWHERE });

const SAFE: Aim = Aim { invariants: WITH_RESETS, live: false };
const LIVE: Aim = Aim { invariants: WITH_RESETS, live: true };
const REPORTS: &[Event] =
    &[Event::ResetDone, Event::ResetNotDone, Event::ResetIndeterminate, Event::ResetAgain, Event::PauseAdopted];

const PAUSE: Scenario = Scenario { members: A_B_P, checkpoint: AT_1, aim: SAFE, ..BASE };

const P_PAUSE: Scenario =
    Scenario { name: "p-pause", left: Left { steals: 1, faults: 1, crashes: 1, ..NOTHING }, reaches: REPORTS, ..PAUSE };
const P_FAULTS: Scenario = Scenario {
    name: "p-pause-faults",
    members: A_P,
    left: Left { steals: 1, faults: 3, ..NOTHING },
    reaches: REPORTS,
    ..PAUSE
};
const P_READFAULTS: Scenario = Scenario { name: "p-pause-readfaults", reads_fail: true, ..P_FAULTS };
const P_RESUMED: Scenario = Scenario { name: "p-pause-resumed", members: A_P_R, left: P_STABLE.left, ..P_PAUSE };
const P_RESET: Scenario = Scenario { name: "p-pause-reset", members: A_P_O, left: P_STABLE.left, ..P_PAUSE };
const P_STABLE: Scenario = Scenario {
    name: "p-pause-stable",
    members: A1_A2_P,
    left: Left { steals: 1, faults: 1, ..NOTHING },
    reaches: &[Event::Replaced, Event::ResetDone, Event::PauseAdopted],
    ..PAUSE
};
const P_EPOCH: Scenario = Scenario {
    name: "p-pause-epoch",
    members: A_P,
    overlaps: true,
    left: Left { steals: 1, faults: 1, ..NOTHING },
    reaches: &[Event::OwnershipOutlived, Event::ResetDone, Event::PauseAdopted],
    ..PAUSE
};
/// The official processor reads on, but its checkpoints keep the pause.
const P_ADAPTER: Scenario = Scenario {
    name: "p-pause-adapter",
    members: ADAPTER_P,
    aim: Aim { invariants: &[Invariant::Fenced, Invariant::Monotonic, Invariant::PauseKept], live: false },
    left: Left { steals: 1, faults: 1, ..NOTHING },
    reaches: &[Event::ResetDone, Event::PauseAdopted],
    ..PAUSE
};
const P_LIVE: Scenario = Scenario {
    name: "p-pause-live",
    timing: Timing::Synchronous,
    left: Left { faults: 1, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::ResetDone, Event::PauseAdopted],
    ..PAUSE
};
const P_RESUME: Scenario = Scenario { name: "p-resume", members: A_B_R, checkpoint: PAUSED_AT_1, ..P_PAUSE };
const P_RESUME_LIVE: Scenario = Scenario { name: "p-resume-live", members: A_B_R, checkpoint: PAUSED_AT_1, ..P_LIVE };
const P_RESUME_FREEZE: Scenario = Scenario {
    name: "p-resume-freeze",
    members: A_R,
    left: Left { faults: 1, crashes: 1, freezes: 1, ..NOTHING },
    ..P_RESUME_LIVE
};

/// The scenarios in which every invariant holds.
pub(super) const ALL: &[Scenario] = &[
    P_PAUSE,
    P_FAULTS,
    P_READFAULTS,
    P_RESUMED,
    P_RESET,
    P_STABLE,
    P_EPOCH,
    P_ADAPTER,
    P_LIVE,
    P_RESUME,
    P_RESUME_LIVE,
    P_RESUME_FREEZE,
];

mod clean {
    use super::*;

    #[test]
    fn with_two_owners() {
        is_clean(P_PAUSE);
    }

    #[test]
    fn with_many_faults() {
        is_clean(P_FAULTS);
    }

    #[test]
    fn with_failing_reads() {
        is_clean(P_READFAULTS);
    }

    #[test]
    fn that_another_operator_ends() {
        is_clean(P_RESUMED);
    }

    #[test]
    fn with_a_reset_of_another_operator() {
        is_clean(P_RESET);
    }

    #[test]
    fn with_two_incarnations_of_one_owner() {
        is_clean(P_STABLE);
    }

    #[test]
    fn with_a_session_of_an_earlier_ownership() {
        is_clean(P_EPOCH);
    }

    #[test]
    fn of_the_official_processor() {
        is_clean(P_ADAPTER);
    }

    #[test]
    fn an_owner_waits() {
        is_clean(P_LIVE);
    }

    #[test]
    fn and_its_end() {
        is_clean(P_RESUME);
    }

    #[test]
    fn an_owner_makes_progress_after_it() {
        is_clean(P_RESUME_LIVE);
    }

    #[test]
    fn an_owner_makes_progress_after_a_freeze() {
        is_clean(P_RESUME_FREEZE);
    }
}

mod needed {
    use super::*;

    const STEAL: Left = Left { steals: 1, ..NOTHING };

    fn without(rule: Rule, name: &'static str, left: Left) -> Scenario {
        Scenario { name, without: Some(rule), left, ..PAUSE }
    }

    #[test]
    fn an_owner_of_a_paused_partition_waits() {
        let scenario = Scenario { members: A_P, ..without(Rule::PauseIsObeyed, "x-pause-obeyed", NOTHING) };
        falls(scenario, Invariant::Paused, &["P pauses: done", "A adopts: writes 1: done", "A checkpoints 2: done"]);
    }

    #[test]
    fn a_checkpoint_keeps_the_pause() {
        let scenario =
            Scenario { members: ADAPTER_P, aim: P_ADAPTER.aim, ..without(Rule::PauseIsKept, "x-pause-kept", NOTHING) };
        falls(scenario, Invariant::PauseKept, &["P pauses: done", "A checkpoints 2: done"]);
    }

    #[test]
    fn a_reset_keeps_the_pause() {
        let scenario = Scenario { members: A_P_O, ..without(Rule::PauseIsKept, "x-pause-reset", NOTHING) };
        falls(scenario, Invariant::PauseKept, &["P pauses: done", "O claims: done", "O resets to 0: done"]);
    }

    #[test]
    fn the_adoption_verifies_the_ownership() {
        let scenario = without(Rule::ResetIsVerified, "x-pause-verify", STEAL);
        falls(scenario, Invariant::Fenced, &["P adopts: reads the ownership", "P adopts: writes 1: done"]);
    }

    #[test]
    fn it_is_written_under_a_condition() {
        let scenario = without(Rule::ResetIsConditional, "x-pause-conditional", STEAL);
        falls(scenario, Invariant::Fenced, &["P pauses: done"]);
    }

    #[test]
    fn an_ambiguous_write_is_reported() {
        let left = Left { steals: 1, faults: 1, ..NOTHING };
        let scenario = without(Rule::ResetAmbiguityIsReported, "x-pause-doubt", left);
        falls(scenario, Invariant::ReportTrue, &["P pauses: no response, but applied", "P releases: done"]);
    }

    #[test]
    fn a_record_is_own_only_in_its_ownership() {
        let left = Left { faults: 1, ..NOTHING };
        let scenario = Scenario { members: A_P, overlaps: true, ..without(Rule::OwnByEpoch, "x-pause-epoch", left) };
        falls(scenario, Invariant::Fenced, &["P pauses: done", "A claims: done", "A adopts: writes 1: done"]);
    }
}
