//! Every rule is needed: without it an invariant is violated, and the shortest path shows how.

use super::notes::Invariant;
use super::pins::PINNED;
use super::scenario::{A1_A2_B, AB, ADAPTERS, BASE, LIVE, NOTHING, Rule, SAFE, Scenario, Timing};
use super::search::{Aim, explore};
use super::state::Left;
use super::system::Model;

const FENCED: Aim = Aim { invariants: &[Invariant::Fenced], live: false };
const ONCE: Aim = Aim { invariants: &[Invariant::Once], live: false };

/// `steps` are the relevant steps, in order; the last one violates the invariant.
pub(super) fn falls(scenario: Scenario, invariant: Invariant, steps: &[&str]) {
    let violation = explore(&Model::new(scenario), scenario.aim).violation.expect("it holds without the rule");
    println!("{}: {:?} falls\n    {}", scenario.name, violation.invariant, violation.trace.join("\n    "));
    assert_eq!(violation.invariant, invariant);
    assert_eq!(violation.trace.last().map(String::as_str), steps.last().copied());
    let mut trace = violation.trace.iter();
    for step in steps {
        assert!(trace.any(|label| label == step), "{step:?} is not on the path, or too early");
    }
}

fn without(rule: Rule) -> Scenario {
    Scenario { without: Some(rule), left: Left { steals: 1, faults: 1, ..NOTHING }, ..BASE }
}

#[test]
fn a_start_is_pinned() {
    let scenario = Scenario {
        name: "x-first-checkpoint",
        checkpoint: None,
        pins: false,
        left: Left { steals: 1, ..NOTHING },
        aim: FENCED,
        ..BASE
    };
    let steps = [
        "A reads the ownership: its own, creates the checkpoint",
        "B adopts: reads the ownership",
        "A checkpoints 1: done",
    ];
    falls(scenario, Invariant::Fenced, &steps);
}

#[test]
fn adopting_reads_the_ownership_after_the_checkpoint() {
    let scenario = Scenario { name: "x-late-adopt", aim: FENCED, ..without(Rule::AdoptReadsOwnership) };
    falls(scenario, Invariant::Fenced, &["B adopts: writes 0: done", "A adopts: writes 0: done"]);
}

#[test]
fn an_ambiguous_checkpoint_reads_the_ownership_last() {
    let scenario = Scenario { name: "x-read-order", aim: FENCED, ..without(Rule::OwnershipAfterCheckpoint) };
    let steps = ["A reads the ownership, before the checkpoint", "B adopts: writes 0: done", "A checkpoints 1: done"];
    falls(scenario, Invariant::Fenced, &steps);
}

#[test]
fn a_superseding_checkpoint_counts_as_written() {
    let scenario = Scenario {
        name: "x-superseded",
        members: AB.split_at(1).0,
        foreign: true,
        last_event: 3,
        left: Left { steals: 2, ..NOTHING },
        ..without(Rule::SupersededIsWritten)
    };
    let steps = ["A reads the ownership: its own, superseded", "A checkpoints 1: done"];
    falls(scenario, Invariant::Monotonic, &steps);
}

#[test]
fn an_ambiguous_release_is_verified() {
    let scenario = Scenario {
        name: "x-release-unknown",
        left: Left { faults: 1, releases: 1, ..NOTHING },
        ..without(Rule::ReleaseIsVerified)
    };
    let steps = ["A releases: no response, not applied", "A reads: applied"];
    falls(scenario, Invariant::Released, &steps);
}

#[test]
fn a_record_is_of_an_ownership_only_with_its_epoch() {
    let scenario = Scenario {
        name: "x-mine-by-epoch",
        overlaps: true,
        left: Left { steals: 2, ..NOTHING },
        aim: FENCED,
        ..without(Rule::OwnByEpoch)
    };
    // What it began in its first ownership continues in its second.
    let steps = [
        "A lists: its partition is lost",
        "A claims: done",
        "B adopts: writes 0: done",
        "A adopts: reads the ownership",
        "A adopts: writes 0: done",
    ];
    falls(scenario, Invariant::Fenced, &steps);
}

#[test]
fn a_reclaimed_partition_is_adopted() {
    let scenario = Scenario {
        name: "x-reclaim-no-adopt",
        members: A1_A2_B.split_at(2).0,
        left: NOTHING,
        aim: FENCED,
        ..without(Rule::ReclaimedIsAdopted)
    };
    let steps = ["A2 lists: an earlier incarnation of it, reclaims", "A2 claims: done", "A1 adopts: writes 0: done"];
    falls(scenario, Invariant::Fenced, &steps);
}

#[test]
fn an_earlier_incarnation_stops_no_instance() {
    let scenario = Scenario {
        name: "x-incarnation",
        members: A1_A2_B.split_at(2).0,
        left: NOTHING,
        ..without(Rule::LaterIncarnationStays)
    };
    falls(scenario, Invariant::LaterIncarnation, &["A2 claims: refused", "A2 reads: a later incarnation of it"]);
}

#[test]
fn a_failed_read_decides_nothing() {
    let scenario = Scenario {
        name: "x-resolving-read-fails",
        reads_fail: true,
        left: Left { faults: 2, ..NOTHING },
        ..without(Rule::FailedReadDecidesNothing)
    };
    let steps = ["A renews: no response, not applied", "A cannot read the record"];
    falls(scenario, Invariant::Kept, &steps);
}

#[test]
fn own_records_are_reclaimed() {
    let scenario = Scenario {
        name: "x-orphan",
        members: AB.split_at(1).0,
        last_event: 1,
        left: Left { faults: 2, ..NOTHING },
        reads_fail: true,
        aim: LIVE,
        ..without(Rule::OwnRecordsAreReclaimed)
    };
    falls(scenario, Invariant::Live, &["A claims: no response, but applied", "A cannot read the record"]);
}

#[test]
fn a_win_found_by_reading_is_written_again() {
    let scenario = Scenario {
        name: "x-won-aged",
        last_event: 1,
        timing: Timing::Synchronous,
        left: Left { faults: 2, ..NOTHING },
        reads_fail: true,
        aim: ONCE,
        ..without(Rule::WonIsWrittenAgain)
    };
    let steps = ["B lists: expired, wants to claim", "A reads: applied", "B claims: done", "B processes event 1"];
    falls(scenario, Invariant::Once, &steps);
}

#[test]
fn a_stop_settles_the_checkpoint_first() {
    let scenario = Scenario {
        name: "x-release-before-flush",
        timing: Timing::Synchronous,
        left: Left { releases: 1, ..NOTHING },
        aim: ONCE,
        ..without(Rule::CheckpointBeforeRelease)
    };
    falls(
        scenario,
        Invariant::Once,
        &["A processes event 1", "A is requested to stop", "A releases: done", "A processes event 1"],
    );
}

#[test]
fn a_release_is_not_confused_with_a_request() {
    let scenario = Scenario {
        name: "x-release-vs-mark",
        left: Left { requests: 1, releases: 1, ..NOTHING },
        ..without(Rule::ReleaseIsVerified)
    };
    let steps = ["B requests a handoff: done", "A releases: refused", "A reads: applied"];
    falls(scenario, Invariant::Released, &steps);
}

/// The owner never sees the request, and is stolen from although it would have responded.
#[test]
fn a_renewal_keeps_the_handoff_request() {
    let scenario = Scenario {
        name: "x-mark-erased",
        last_event: 1,
        timing: Timing::Synchronous,
        left: Left { requests: 1, ..NOTHING },
        aim: ONCE,
        ..without(Rule::RenewalKeepsRequest)
    };
    let steps = [
        "A processes event 1",
        "B requests a handoff: done",
        "A renews: refused",
        "A reads: applied",
        "A renews: done",
        "B polls: its request is gone",
        "B polls: timed out, steals it",
        "B processes event 1",
    ];
    falls(scenario, Invariant::Once, &steps);
}

#[test]
fn a_handover_settles_the_checkpoint_first() {
    let scenario = Scenario {
        name: "x-handoff-before-flush",
        timing: Timing::Synchronous,
        left: Left { requests: 1, ..NOTHING },
        aim: ONCE,
        ..without(Rule::CheckpointBeforeRelease)
    };
    let steps = [
        "A processes event 1",
        "B requests a handoff: done",
        "A sees the handoff request, drains",
        "A releases: refused",
        "B lists: expired, wants to claim",
        "B claims: done",
        "B processes event 1",
    ];
    falls(scenario, Invariant::Once, &steps);
}

#[test]
fn a_pin_compares_with_nothing() {
    let scenario = Scenario {
        name: "x-pin-compared",
        members: ADAPTERS.split_at(1).0,
        without: Some(Rule::PinComparesWithNothing),
        aim: SAFE,
        ..PINNED
    };
    let steps = [
        "A processes event 1",
        "the group's first instance pins the start 2: done",
        "A reads the ownership: its own, superseded",
    ];
    falls(scenario, Invariant::Durable, &steps);
}
